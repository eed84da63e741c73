//! The generic netlink family `nbd`, with which the kernel's NBD client is told what to do.
//!
//! ```text
//! body       command:u8 version:u8 reserved:u16  attributes
//! ```

use rekindle_env::real::netlink::{Attributes, Socket, find, strange};
use rustix::net::netlink::GENERIC;
use rustix::net::sockopt::{self, Timeout};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const GENERIC_HEADER_BYTES: usize = 4;

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

/// The settings of a new device.
pub struct Device {
    /// N of `/dev/nbdN`; a free one when absent.
    pub index: Option<u32>,
    /// Bytes.
    pub size: u64,
    /// Bytes.
    pub sector_size: u64,
    /// Transmission flags of the server.
    pub flags: u16,
    /// Time after which a request is sent again, seconds.
    pub timeout: u64,
    /// Time without any connection after which requests fail, seconds.
    pub patience: u64,
}

/// A connection to the kernel's NBD client.
pub struct Netlink {
    socket: Socket,
    family: u16,
}

impl Netlink {
    /// Connects to the client. Fails with `NotFound` when the kernel has no NBD client (yet).
    pub fn open() -> io::Result<Self> {
        let mut netlink = Self { socket: Socket::open(Some(GENERIC))?, family: CONTROL };
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
        put_sockets(&mut attributes, sockets);
        let answer = self.call(CONNECT, &attributes)?;
        let index = find(&answer, INDEX).and_then(|index| index.try_into().ok());
        index.map(u32::from_ne_bytes).or(device.index).ok_or_else(strange)
    }

    /// Offers a socket in place of a dead one. The kernel does not say whether it took the socket:
    /// see [`is_taken`].
    pub fn replace(&mut self, index: u32, size: u64, socket: &OwnedFd) -> io::Result<()> {
        let mut attributes = Attributes::default();
        attributes.put(INDEX, &index.to_ne_bytes());
        attributes.put(SIZE_BYTES, &size.to_ne_bytes());
        put_sockets(&mut attributes, std::slice::from_ref(socket));
        self.call(RECONFIGURE, &attributes).map(drop)
    }

    /// Takes the device away; data that is not written is lost.
    pub fn disconnect(&mut self, index: u32) -> io::Result<()> {
        let mut attributes = Attributes::default();
        attributes.put(INDEX, &index.to_ne_bytes());
        self.call(DISCONNECT, &attributes).map(drop)
    }

    /// Sends a command. Returns the attributes of the answer, none if there is only the
    /// acknowledgement.
    fn call(&mut self, command: u8, attributes: &Attributes) -> io::Result<Vec<u8>> {
        let mut body = vec![command, 1, 0, 0];
        body.extend(attributes.bytes());
        let answer = self.socket.call(self.family, 0, &body)?;
        if answer.is_empty() {
            return Ok(answer);
        }
        Ok(answer.get(GENERIC_HEADER_BYTES..).ok_or_else(strange)?.to_vec())
    }
}

/// Whether the kernel uses this socket: it then sets the device's send timeout, which we leave
/// unset.
pub fn is_taken(socket: &OwnedFd) -> bool {
    matches!(sockopt::socket_timeout(socket, Timeout::Send), Ok(Some(_)))
}

fn put_sockets(attributes: &mut Attributes, sockets: &[OwnedFd]) {
    let mut items = Attributes::default();
    for socket in sockets {
        let mut item = Attributes::default();
        item.put(SOCKET_FD, &socket.as_raw_fd().to_ne_bytes());
        items.put(SOCKET_ITEM, item.bytes());
    }
    attributes.put(SOCKETS, items.bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_who_asks_for_a_family() {
        // Sandboxes without generic netlink refuse the socket itself.
        match Netlink::open() {
            Ok(netlink) => assert_ne!(netlink.family, CONTROL),
            Err(error) => {
                rekindle_terminal::output::tell(&format!("no NBD client in this kernel: {error}"))
            }
        }
    }
}
