//! A small NBD client for drills and transfers: fixed newstyle, simple replies, many requests in
//! flight.
//!
//! ```text
//! request  magic:u32 flags:u16 type:u16 cookie:u64 offset:u64 length:u32 [data]     big-endian
//! reply    magic:u32 error:u32 cookie:u64 [data]
//! ```

use parking_lot::Mutex;
use rekindle_env::Address;
use rustix::net::sockopt::{self, Timeout};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

const GREETING: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const OPTION_STRUCTURED: u32 = 8;
const OPTION_SET_CONTEXT: u32 = 10;
const REPLY_CONTEXT: u32 = 4;
/// The metadata context that tells which stretches are allocated and which are zero.
const CONTEXT: &str = "base:allocation";
const CHUNK_MAGIC: u32 = 0x668e_33ef;
const CHUNK_LAST: u64 = 1;
const CHUNK_STATUS: u64 = 5;
const CHUNK_ERROR: u64 = 1 << 15;
const EXTENT_ZERO: u32 = 2;
/// The transmission flag of a server that takes WRITE_ZEROES.
pub const FLAG_ZEROES: u16 = 1 << 6;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
/// Longest payload of an option reply that we read, bytes.
const OPTION_REPLY_BYTES_MAX: u32 = 64 * 1024;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Read,
    Write,
    Flush,
    /// Zeros, without sending them.
    Zeroes,
}

/// A stretch of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub length: u64,
    /// Whether the stretch is all zeros.
    pub zero: bool,
}

/// A switch that hangs up on connections when the user ends the command: they may be waiting for an
/// answer.
#[derive(Clone, Default)]
pub struct Breaker {
    state: Arc<Mutex<Wires>>,
}

#[derive(Default)]
struct Wires {
    is_broken: bool,
    open: Vec<OwnedFd>,
}

impl Breaker {
    /// Hangs up: from now on every wait ends with an error.
    pub fn break_off(&self) {
        let mut wires = self.state.lock();
        wires.is_broken = true;
        for wire in wires.open.drain(..) {
            let _ = rustix::net::shutdown(&wire, rustix::net::Shutdown::Both);
        }
    }

    /// Whether the connections were hung up on.
    pub fn is_broken(&self) -> bool {
        self.state.lock().is_broken
    }

    fn add(&self, wire: &OwnedFd) -> io::Result<()> {
        let wire = wire.try_clone()?;
        let mut wires = self.state.lock();
        if wires.is_broken {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        wires.open.push(wire);
        Ok(())
    }
}

/// A connection to one export.
pub struct Export {
    /// A socket; reading and writing it is like reading and writing a file.
    wire: File,
    /// Bytes.
    pub size: u64,
    /// The transmission flags of the NBD protocol: what the server can do with the export.
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
        Self::connect_until(address, name, patience, &Breaker::default())
    }

    /// As [`Export::connect`], until `breaker` hangs up.
    pub fn connect_until(
        address: &Address,
        name: &str,
        patience: Duration,
        breaker: &Breaker,
    ) -> io::Result<Self> {
        let mut export = Self::dial(address, patience, breaker)?;
        export.greet()?;
        export.go(name)?;
        Ok(export)
    }

    /// As [`Export::connect_until`], only to ask for [`Export::extents`]; `None` when the server
    /// does not tell extents.
    pub fn connect_for_extents(
        address: &Address,
        name: &str,
        patience: Duration,
        breaker: &Breaker,
    ) -> io::Result<Option<Self>> {
        let mut export = Self::dial(address, patience, breaker)?;
        export.greet()?;
        export.option(OPTION_STRUCTURED, &[]);
        export.send()?;
        if export.option_reply()?.0 != REPLY_ACK {
            return Ok(None);
        }
        let mut wanted = length_of(name)?.to_be_bytes().to_vec();
        wanted.extend(name.as_bytes());
        wanted.extend(1u32.to_be_bytes());
        wanted.extend(length_of(CONTEXT)?.to_be_bytes());
        wanted.extend(CONTEXT.as_bytes());
        export.option(OPTION_SET_CONTEXT, &wanted);
        export.send()?;
        let mut told = false;
        loop {
            match export.option_reply()?.0 {
                REPLY_CONTEXT => told = true,
                REPLY_ACK if told => break,
                _ => return Ok(None),
            }
        }
        export.go(name)?;
        Ok(Some(export))
    }

    /// Reads the extents of a stretch, from its beginning, maybe not to its end; none if the server
    /// cannot tell.
    pub fn extents(&mut self, offset: u64, length: u32) -> io::Result<Vec<Extent>> {
        self.request_of(7, 0, offset, length, &[]);
        self.send()?;
        let (mut extents, mut failed) = (Vec::new(), false);
        loop {
            if self.number::<4>()? != u64::from(CHUNK_MAGIC) {
                return Err(strange("a request was answered with something else"));
            }
            let (flags, kind) = (self.number::<2>()?, self.number::<2>()?);
            let _cookie = self.number::<8>()?;
            let length = u32::try_from(self.number::<4>()?).unwrap_or(u32::MAX);
            if length > OPTION_REPLY_BYTES_MAX {
                return Err(strange("a request was answered with too much"));
            }
            let mut payload = vec![0; usize::try_from(length).unwrap_or(0)];
            self.wire.read_exact(&mut payload)?;
            failed |= kind & CHUNK_ERROR != 0;
            if kind == CHUNK_STATUS {
                extents.extend(payload.get(4..).unwrap_or_default().chunks_exact(8).map(extent));
            }
            if flags & CHUNK_LAST != 0 {
                return Ok(if failed { Vec::new() } else { extents });
            }
        }
    }

    fn dial(address: &Address, patience: Duration, breaker: &Breaker) -> io::Result<Self> {
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
        breaker.add(&wire)?;
        Ok(Self { wire: wire.into(), size: 0, flags: 0, out: Vec::new() })
    }

    fn greet(&mut self) -> io::Result<()> {
        if self.number::<8>()? != GREETING || self.number::<8>()? != OPTION_MAGIC {
            return Err(strange("it does not speak NBD"));
        }
        let flags = self.number::<2>()?;
        if flags & 1 == 0 {
            return Err(strange("it does not speak the fixed newstyle of NBD"));
        }
        // Fixed newstyle, and no zeroes if the server can leave them out.
        self.out.extend(u32::try_from(flags & 3).unwrap_or(1).to_be_bytes());
        Ok(())
    }

    /// Prepares an option.
    fn option(&mut self, kind: u32, payload: &[u8]) {
        self.out.extend(OPTION_MAGIC.to_be_bytes());
        self.out.extend(kind.to_be_bytes());
        self.out.extend(u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.out.extend(payload);
    }

    fn go(&mut self, name: &str) -> io::Result<()> {
        let mut wanted = length_of(name)?.to_be_bytes().to_vec();
        wanted.extend(name.as_bytes());
        wanted.extend(0u16.to_be_bytes());
        self.option(OPTION_GO, &wanted);
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

    /// Returns the socket, without timeouts, for another owner to go on with.
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
            Verb::Zeroes => 6,
        };
        self.request_of(kind, cookie, offset, length, data);
    }

    fn request_of(&mut self, kind: u16, cookie: u64, offset: u64, length: u32, data: &[u8]) {
        self.out.extend(REQUEST_MAGIC.to_be_bytes());
        self.out.extend(0u16.to_be_bytes());
        self.out.extend(kind.to_be_bytes());
        self.out.extend(cookie.to_be_bytes());
        self.out.extend(offset.to_be_bytes());
        self.out.extend(length.to_be_bytes());
        self.out.extend(data);
    }

    /// Sends all options and requests that were prepared.
    pub fn send(&mut self) -> io::Result<()> {
        self.wire.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Reads the next reply.
    pub fn reply(&mut self) -> io::Result<Reply> {
        if self.number::<4>()? != u64::from(REPLY_MAGIC) {
            return Err(strange("a request was answered with something else"));
        }
        let error = u32::try_from(self.number::<4>()?).unwrap_or(u32::MAX);
        Ok(Reply { cookie: self.number::<8>()?, error })
    }

    /// Reads the data that follows the reply to a read.
    pub fn data(&mut self, out: &mut [u8]) -> io::Result<()> {
        self.wire.read_exact(out)
    }

    /// Reads a big-endian number of `N` bytes.
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

fn length_of(name: &str) -> io::Result<u32> {
    u32::try_from(name.len()).map_err(|_| strange("the name is too long"))
}

fn extent(bytes: &[u8]) -> Extent {
    let number = |at: usize| {
        bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_be_bytes)
    };
    Extent { length: u64::from(number(0)), zero: number(4) & EXTENT_ZERO != 0 }
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
