//! A small NBD client: fixed newstyle, simple replies, many requests in flight. Enough to be a witness.
//!
//! ```text
//! request  magic:u32 flags:u16 type:u16 cookie:u64 offset:u64 length:u32 [data]     big-endian
//! reply    magic:u32 error:u32 cookie:u64 [data]
//! ```

use env::Address;
use rustix::net::sockopt::{self, Timeout};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const GREETING: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
/// Longest payload of an option reply that we read, bytes.
const OPTION_REPLY_BYTES_MAX: u32 = 64 * 1024;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Read,
    Write,
    Flush,
}

/// A connection to one export.
pub struct Export {
    /// A socket; reading and writing it is like reading and writing a file.
    wire: File,
    /// Bytes.
    pub size: u64,
    /// What the server can do with it: the transmission flags of the NBD protocol.
    pub flags: u16,
    /// Requests that were not sent yet.
    out: Vec<u8>,
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    /// 0, or an errno.
    pub error: u32,
}

impl Export {
    /// Connects and negotiates. No answer within `patience` is an error, then and later.
    pub fn connect(address: &Address, name: &str, patience: Duration) -> io::Result<Self> {
        let wire: OwnedFd = match address {
            Address::Tcp(socket) => {
                let stream = TcpStream::connect(socket)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                stream.into()
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                stream.into()
            }
        };
        let mut export = Self { wire: wire.into(), size: 0, flags: 0, out: Vec::new() };
        export.negotiate(name)?;
        Ok(export)
    }

    fn negotiate(&mut self, name: &str) -> io::Result<()> {
        if self.number::<8>()? != GREETING || self.number::<8>()? != OPTION_MAGIC {
            return Err(strange("it does not speak NBD"));
        }
        let flags = self.number::<2>()?;
        if flags & 1 == 0 {
            return Err(strange("it does not speak the fixed newstyle of NBD"));
        }
        let length = u32::try_from(name.len()).map_err(|_| strange("the name is too long"))?;
        // Fixed newstyle, and no zeroes if the server can leave them out.
        self.out.extend(u32::try_from(flags & 3).unwrap_or(1).to_be_bytes());
        self.out.extend(OPTION_MAGIC.to_be_bytes());
        self.out.extend(OPTION_GO.to_be_bytes());
        self.out.extend((length + 6).to_be_bytes());
        self.out.extend(length.to_be_bytes());
        self.out.extend(name.as_bytes());
        self.out.extend(0u16.to_be_bytes());
        self.send()?;
        loop {
            let (kind, payload) = self.option_reply()?;
            match kind {
                REPLY_ACK => return Ok(()),
                REPLY_INFO => {
                    if let Some((size, flags)) = export_size_and_flags(&payload) {
                        self.size = size;
                        self.flags = flags;
                    }
                }
                kind => {
                    let text = String::from_utf8_lossy(&payload);
                    return Err(strange(&format!(
                        "it refuses the volume '{name}' (reply {kind:#x}): {text}"
                    )));
                }
            }
        }
    }

    fn option_reply(&mut self) -> io::Result<(u32, Vec<u8>)> {
        if self.number::<8>()? != OPTION_REPLY_MAGIC {
            return Err(strange("an option was answered with something else"));
        }
        let _option = self.number::<4>()?;
        let kind = u32::try_from(self.number::<4>()?).unwrap_or(u32::MAX);
        let length = u32::try_from(self.number::<4>()?).unwrap_or(u32::MAX);
        if length > OPTION_REPLY_BYTES_MAX {
            return Err(strange("an option was answered with too much"));
        }
        let mut payload = vec![0; usize::try_from(length).unwrap_or(0)];
        self.wire.read_exact(&mut payload)?;
        Ok((kind, payload))
    }

    /// The socket, for somebody else to go on with; without limits of time.
    pub fn into_socket(self) -> io::Result<OwnedFd> {
        let socket = OwnedFd::from(self.wire);
        sockopt::set_socket_timeout(&socket, Timeout::Recv, None)?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, None)?;
        Ok(socket)
    }

    /// Prepares a request; [`Export::send`] sends all that were prepared.
    pub fn request(&mut self, verb: Verb, cookie: u64, offset: u64, length: u32, data: &[u8]) {
        let kind: u16 = match verb {
            Verb::Read => 0,
            Verb::Write => 1,
            Verb::Flush => 3,
        };
        self.out.extend(REQUEST_MAGIC.to_be_bytes());
        self.out.extend(0u16.to_be_bytes());
        self.out.extend(kind.to_be_bytes());
        self.out.extend(cookie.to_be_bytes());
        self.out.extend(offset.to_be_bytes());
        self.out.extend(length.to_be_bytes());
        self.out.extend(data);
    }

    /// Sends what was prepared.
    pub fn send(&mut self) -> io::Result<()> {
        self.wire.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// The next answer.
    pub fn reply(&mut self) -> io::Result<Reply> {
        if self.number::<4>()? != u64::from(REPLY_MAGIC) {
            return Err(strange("a request was answered with something else"));
        }
        let error = u32::try_from(self.number::<4>()?).unwrap_or(u32::MAX);
        Ok(Reply { cookie: self.number::<8>()?, error })
    }

    /// The data behind the answer to a read.
    pub fn data(&mut self, out: &mut [u8]) -> io::Result<()> {
        self.wire.read_exact(out)
    }

    /// A big-endian number of `N` bytes.
    fn number<const N: usize>(&mut self) -> io::Result<u64> {
        let mut bytes = [0; N];
        self.wire.read_exact(&mut bytes)?;
        Ok(bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }
}

fn export_size_and_flags(payload: &[u8]) -> Option<(u64, u16)> {
    let kind = u16::from_be_bytes(payload.get(..2)?.try_into().ok()?);
    (kind == INFO_EXPORT).then_some(())?;
    let size = u64::from_be_bytes(payload.get(2..10)?.try_into().ok()?);
    Some((size, u16::from_be_bytes(payload.get(10..12)?.try_into().ok()?)))
}

fn strange(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_and_flags_are_found_in_the_export_information() {
        let mut payload = vec![0, 0];
        payload.extend(4096u64.to_be_bytes());
        payload.extend([0, 1]);
        assert_eq!(export_size_and_flags(&payload), Some((4096, 1)));
        assert_eq!(export_size_and_flags(&[0, 3, 0, 0]), None);
        assert_eq!(export_size_and_flags(&[]), None);
    }
}
