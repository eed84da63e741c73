//! The generic netlink family `nbd`, with which the kernel's NBD client is told what to do.
//!
//! ```text
//! message    length:u32 type:u16 flags:u16 sequence:u32 port:u32  command:u8 version:u8 reserved:u16  attributes
//! attribute  length:u16 type:u16 payload, filled up to 4 bytes                                  (native byte order)
//! ```

use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
const ATTRIBUTE_HEADER_BYTES: usize = 4;

/// The kernel answers a request with this, and an errno: 0 is an acknowledgement.
const MESSAGE_ERROR: u16 = 2;
const FLAG_REQUEST: u16 = 1;
const FLAG_ACK: u16 = 4;

/// The family that knows the numbers of the others.
const CONTROL: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT: u16 = 8;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// Longest answer that we expect, bytes; one that describes a family is about 300.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The kernel answers at once, or never.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a device shall be.
pub struct Device {
    /// N of `/dev/nbdN`; a free one when absent.
    pub index: Option<u32>,
    /// Bytes.
    pub size: u64,
    /// Bytes.
    pub sector_size: u64,
    /// Transmission flags of the server.
    pub flags: u16,
    /// After how long a request is sent again, seconds.
    pub timeout: u64,
    /// After how long without any connection requests fail, seconds.
    pub patience: u64,
}

/// A way to the kernel's NBD client.
pub struct Netlink {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
}

impl Netlink {
    /// Fails with `NotFound` when the kernel has no NBD client (yet).
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            flags,
            Some(GENERIC),
        )?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        let mut netlink = Self { socket, family: CONTROL, sequence: 0 };
        let mut name = Attributes::default();
        name.put(CONTROL_FAMILY_NAME, b"nbd\0");
        let answer = netlink.call(CONTROL_GET_FAMILY, &name)?;
        let id = find(&answer, CONTROL_FAMILY_ID).and_then(|id| id.try_into().ok());
        netlink.family = id.map(u16::from_ne_bytes).ok_or_else(strange)?;
        Ok(netlink)
    }

    /// Makes a device over connected, negotiated sockets. Gives N of `/dev/nbdN`.
    pub fn connect(&mut self, device: &Device, sockets: &[OwnedFd]) -> io::Result<u32> {
        let mut attributes = Attributes::default();
        if let Some(index) = device.index {
            attributes.put(INDEX, &index.to_ne_bytes());
        }
        attributes.put(SIZE_BYTES, &device.size.to_ne_bytes());
        attributes.put(BLOCK_SIZE_BYTES, &device.sector_size.to_ne_bytes());
        attributes.put(TIMEOUT, &device.timeout.to_ne_bytes());
        attributes.put(SERVER_FLAGS, &u64::from(device.flags).to_ne_bytes());
        attributes.put(DEAD_CONNECTION_TIMEOUT, &device.patience.to_ne_bytes());
        attributes.put_sockets(sockets);
        let answer = self.call(CONNECT, &attributes)?;
        let index = find(&answer, INDEX).and_then(|index| index.try_into().ok());
        index.map(u32::from_ne_bytes).or(device.index).ok_or_else(strange)
    }

    /// Offers a socket in place of a dead one. The kernel does not say whether it took it: see [`is_taken`].
    pub fn replace(&mut self, index: u32, size: u64, socket: &OwnedFd) -> io::Result<()> {
        let mut attributes = Attributes::default();
        attributes.put(INDEX, &index.to_ne_bytes());
        attributes.put(SIZE_BYTES, &size.to_ne_bytes());
        attributes.put_sockets(std::slice::from_ref(socket));
        self.call(RECONFIGURE, &attributes).map(drop)
    }

    /// Takes the device away; what is not written is lost.
    pub fn disconnect(&mut self, index: u32) -> io::Result<()> {
        let mut attributes = Attributes::default();
        attributes.put(INDEX, &index.to_ne_bytes());
        self.call(DISCONNECT, &attributes).map(drop)
    }

    /// The attributes of the answer, if there is one besides the acknowledgement.
    fn call(&mut self, command: u8, attributes: &Attributes) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        let length = HEADER_BYTES + GENERIC_HEADER_BYTES + attributes.0.len();
        let mut message = Vec::with_capacity(length);
        message.extend(u32::try_from(length).map_err(|_| strange())?.to_ne_bytes());
        message.extend(self.family.to_ne_bytes());
        message.extend((FLAG_REQUEST | FLAG_ACK).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend([command, 1, 0, 0]);
        message.extend(&attributes.0);
        rustix::net::send(&self.socket, &message, SendFlags::empty())?;
        let mut buffer = vec![0; ANSWER_BYTES_MAX];
        let mut answer = Vec::new();
        loop {
            let (length, _) =
                rustix::net::recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty())?;
            let mut rest = buffer.get(..length).ok_or_else(strange)?;
            while !rest.is_empty() {
                let (message, after) = split_message(rest).ok_or_else(strange)?;
                rest = after;
                if message.sequence != self.sequence {
                    continue;
                }
                if message.kind != MESSAGE_ERROR {
                    answer =
                        message.payload.get(GENERIC_HEADER_BYTES..).ok_or_else(strange)?.to_vec();
                    continue;
                }
                let code = number(message.payload, 0).map(u32::cast_signed).ok_or_else(strange)?;
                return match code {
                    0 => Ok(answer),
                    code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                };
            }
        }
    }
}

/// Whether the kernel uses this socket: it then sets the send timeout of the device, which we leave unset.
pub fn is_taken(socket: &OwnedFd) -> bool {
    matches!(sockopt::socket_timeout(socket, Timeout::Send), Ok(Some(_)))
}

/// Attributes of a request, one behind the other.
#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn put(&mut self, kind: u16, payload: &[u8]) {
        // What we send is a few words long.
        let length = u16::try_from(ATTRIBUTE_HEADER_BYTES + payload.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(payload);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn put_sockets(&mut self, sockets: &[OwnedFd]) {
        let mut items = Self::default();
        for socket in sockets {
            let mut item = Self::default();
            item.put(SOCKET_FD, &socket.as_raw_fd().to_ne_bytes());
            items.put(SOCKET_ITEM, &item.0);
        }
        self.put(SOCKETS, &items.0);
    }
}

struct Message<'a> {
    kind: u16,
    sequence: u32,
    payload: &'a [u8],
}

fn split_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let length = usize::try_from(number(bytes, 0)?).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let message =
        Message { kind, sequence: number(bytes, 8)?, payload: bytes.get(HEADER_BYTES..length)? };
    Some((message, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The payload of the first attribute of this kind.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let payload = attributes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        if kind == wanted {
            return Some(payload);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is not understood")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_again_and_nonsense_ends_the_search() {
        let mut attributes = Attributes::default();
        attributes.put(7, b"abc");
        attributes.put(8, &5u32.to_ne_bytes());
        assert_eq!(attributes.0.len(), 16);
        assert_eq!(find(&attributes.0, 7), Some(&b"abc"[..]));
        assert_eq!(find(&attributes.0, 8), Some(&5u32.to_ne_bytes()[..]));
        assert_eq!(find(&attributes.0, 9), None);
        for length in 0..attributes.0.len() {
            assert_eq!(find(&attributes.0[..length], 9), None);
        }
        // An attribute shorter than its own header.
        assert_eq!(find(&[0, 0, 1, 0, 0, 0, 0, 0], 9), None);
    }

    #[test]
    fn the_kernel_answers_who_asks_for_a_family() {
        // Sandboxes without generic netlink refuse the socket itself.
        match Netlink::open() {
            Ok(netlink) => assert_ne!(netlink.family, CONTROL),
            Err(error) => println!("no NBD client in this kernel: {error}"),
        }
    }
}
