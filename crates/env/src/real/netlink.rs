//! Netlink: messages to the kernel, and its answers.
//!
//! ```text
//! message    length:u32 type:u16 flags:u16 sequence:u32 port:u32  body         (native byte order)
//! attribute  length:u16 type:u16 payload, filled up to 4 bytes
//! ```
//! A body is a header that depends on the type, then attributes.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;

/// Type of the kernel's answer that carries an errno; 0 is an acknowledgement.
const MESSAGE_ERROR: u16 = 2;
const FLAG_REQUEST: u16 = 1;
const FLAG_ACK: u16 = 4;

/// Longest answer that we expect, bytes; one that describes a family is about 300.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Longest wait for an answer. The kernel answers at once, or never.
const PATIENCE: Duration = Duration::from_secs(30);

/// A netlink socket to one part of the kernel.
pub struct Socket {
    socket: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Opens a socket for a protocol; `None` is routing.
    pub fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request, with `flags` besides the usual ones. Returns the body of the answer, empty
    /// if the kernel sends only an acknowledgement.
    pub fn call(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        let length = HEADER_BYTES + body.len();
        let mut message = Vec::with_capacity(length);
        message.extend(u32::try_from(length).map_err(|_| strange())?.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((FLAG_REQUEST | FLAG_ACK | flags).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
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
                    answer = message.payload.to_vec();
                    continue;
                }
                return match message.code().ok_or_else(strange)? {
                    0 => Ok(answer),
                    code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                };
            }
        }
    }
}

/// Attributes of a request, one after the other.
#[derive(Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// Adds an attribute.
    pub fn put(&mut self, kind: u16, payload: &[u8]) {
        // Our payloads are a few words long.
        let length = u16::try_from(ATTRIBUTE_HEADER_BYTES + payload.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(payload);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Returns the attributes as they are sent.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

struct Message<'a> {
    kind: u16,
    sequence: u32,
    payload: &'a [u8],
}

impl Message<'_> {
    /// The errno of an acknowledgement; 0 is success.
    fn code(&self) -> Option<i32> {
        let code = number(self.payload, 0).map(u32::cast_signed);
        code.filter(|_| self.kind == MESSAGE_ERROR)
    }
}

fn split_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let length = usize::try_from(number(bytes, 0)?).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let message =
        Message { kind, sequence: number(bytes, 8)?, payload: bytes.get(HEADER_BYTES..length)? };
    Some((message, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Finds the payload of the first attribute of this kind.
pub fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
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

/// Returns the error for an answer of the kernel that we do not understand.
pub fn strange() -> io::Error {
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
    fn an_acknowledgement_is_a_number_and_anything_else_is_not_understood() {
        let code = |answer: &[u8]| split_message(answer).and_then(|(message, _)| message.code());
        let mut answer = vec![20, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        answer.extend((-17_i32).to_ne_bytes());
        assert_eq!(code(&answer), Some(-17));
        assert_eq!(code(&answer[..18]), None);
        answer[4] = 16;
        assert_eq!(code(&answer), None);
    }
}
