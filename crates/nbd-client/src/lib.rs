//! An NBD client: blocking, over a Unix or a TCP socket, with many requests in flight. The command
//! line, the benches and the stories use it.
//!
//! [`Handshake`] negotiates, [`NbdClient`] is the connection to one export that comes of it.
//! [`wire`] has the bytes, for a client that does its own input and output: the tests of the server
//! run on a simulated network.
//!
//! The server in `front` has its own numbers and its own code on purpose: each is a check of the
//! other.

pub mod wire;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use wire::{Body, command, number, option, reply};

/// Longest payload of an answer other than data, bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Longest wait of [`NbdClient::connect`], and of its connection, for an answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection before an export is chosen.
pub struct Handshake {
    /// A socket; reading and writing it is like reading and writing a file.
    socket: File,
}

impl Handshake {
    /// Waits for the server's greeting and answers it.
    pub fn new(socket: impl Into<OwnedFd>) -> io::Result<Self> {
        let mut socket = File::from(socket.into());
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting)?;
        if greeting[..16] != wire::GREETING {
            return Err(strange("it does not speak NBD"));
        }
        if greeting[17] & wire::FIXED_NEWSTYLE == 0 {
            return Err(strange("it does not speak the fixed newstyle of NBD"));
        }
        // Fixed newstyle, and no zeroes if the server can leave them out.
        socket.write_all(&[0, 0, 0, greeting[17] & 3])?;
        Ok(Self { socket })
    }

    /// Sends an option; returns the kinds and payloads of its replies, the last one being an
    /// acknowledgement or an error.
    pub fn option(&mut self, option: u32, data: &[u8]) -> io::Result<Vec<(u32, Vec<u8>)>> {
        self.socket.write_all(&wire::option(option, data))?;
        let mut replies = Vec::new();
        loop {
            let mut head = [0; 20];
            self.socket.read_exact(&mut head)?;
            let (kind, length) = wire::option_reply(&head, option)
                .ok_or_else(|| strange("an option was answered with something else"))?;
            replies.push((kind, payload(&mut self.socket, length)?));
            if wire::is_last(kind) {
                return Ok(replies);
            }
        }
    }

    /// Asks for structured replies and for what the server knows of the allocation of `export`;
    /// `false` when it knows nothing. Then [`NbdClient::extents`] and nothing else may be called.
    pub fn wants_extents(&mut self, export: &str) -> io::Result<bool> {
        let is_acknowledged =
            |replies: &[(u32, Vec<u8>)]| replies.last().is_some_and(|last| last.0 == reply::ACK);
        if !is_acknowledged(&self.option(option::STRUCTURED_REPLY, &[])?) {
            return Ok(false);
        }
        let wanted = wire::meta(export, &[wire::BASE_ALLOCATION]);
        let replies = self.option(option::SET_META_CONTEXT, &wanted)?;
        let has_context = replies.iter().any(|(kind, _)| *kind == reply::META_CONTEXT);
        Ok(has_context && is_acknowledged(&replies))
    }

    /// Opens an export.
    pub fn go(mut self, export: &str) -> io::Result<NbdClient> {
        let (mut size, mut flags) = (0, 0);
        for (kind, payload) in self.option(option::GO, &wire::query(export, &[]))? {
            match kind {
                reply::ACK => break,
                reply::INFO => {
                    (size, flags) = wire::export_info(&payload).unwrap_or((size, flags));
                }
                kind => {
                    let text = String::from_utf8_lossy(&payload).into_owned();
                    return Err(io::Error::other(Refusal {
                        export: export.to_owned(),
                        kind,
                        text,
                    }));
                }
            }
        }
        Ok(NbdClient { socket: self.socket, size, flags, out: Vec::new() })
    }
}

/// The error of a server that answers, and does not open an export. It is inside of an
/// [`io::Error`].
#[derive(Debug)]
pub struct Refusal {
    pub export: String,
    /// The number of the reply.
    pub kind: u32,
    /// The reason, in the server's words.
    pub text: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { export, kind, text } = self;
        write!(to, "it refuses the volume '{export}' (reply {kind:#x}): {text}")
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// Returns the refusal that an error is, if it is one.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Refusal> {
        error.get_ref()?.downcast_ref()
    }
}

/// A connection to one export.
pub struct NbdClient {
    socket: File,
    /// Bytes.
    pub size: u64,
    /// The transmission flags: what the server can do with the export ([`wire::CAN_ZERO`]).
    pub flags: u16,
    /// Requests that were not sent yet.
    out: Vec<u8>,
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The number of the request.
    pub cookie: u64,
    /// 0, or an errno.
    pub error: u32,
}

/// A stretch of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub length: u64,
    /// Whether the stretch is all zeros.
    pub zero: bool,
}

impl NbdClient {
    /// Opens an export at a Unix socket. No answer for two minutes is an error, then and later.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Handshake::new(stream)?.go(export)
    }

    /// Prepares a request, malformed or not, with flags ([`wire::FUA`]); [`NbdClient::send`] sends
    /// all that were prepared.
    pub fn request(
        &mut self,
        command: u16,
        flags: u16,
        cookie: u64,
        offset: u64,
        length: u32,
        data: &[u8],
    ) {
        self.out.extend(wire::header(command, flags, cookie, offset, length));
        self.out.extend(data);
    }

    /// Sends all requests that were prepared.
    pub fn send(&mut self) -> io::Result<()> {
        self.socket.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Reads the next reply, which is a simple one.
    pub fn reply(&mut self) -> io::Result<Reply> {
        match self.head()? {
            wire::Head { cookie, body: Body::Simple { error } } => Ok(Reply { cookie, error }),
            _ => Err(strange("a request was answered with something else")),
        }
    }

    /// Reads the data that follows the reply to a read.
    pub fn data(&mut self, out: &mut [u8]) -> io::Result<()> {
        self.socket.read_exact(out)
    }

    /// Reads, and waits for the bytes.
    pub fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.call(command::READ, offset, length, &[])?;
        let mut data = vec![0; length];
        self.data(&mut data)?;
        Ok(data)
    }

    /// Writes, and waits for the reply.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.call(command::WRITE, offset, data.len(), data)
    }

    /// Flushes, and waits for the reply.
    pub fn flush(&mut self) -> io::Result<()> {
        self.call(command::FLUSH, 0, 0, &[])
    }

    /// Reads the extents of a stretch, from its beginning, maybe not to its end; none if the server
    /// cannot tell. The handshake must have asked for them.
    pub fn extents(&mut self, offset: u64, length: u32) -> io::Result<Vec<Extent>> {
        self.request(command::BLOCK_STATUS, 0, 0, offset, length, &[]);
        self.send()?;
        let (mut extents, mut failed) = (Vec::new(), false);
        loop {
            let Body::Chunk { is_last, kind } = self.head()?.body else {
                return Err(strange("a request was answered with something else"));
            };
            let mut length = [0; 4];
            self.socket.read_exact(&mut length)?;
            let payload = payload(&mut self.socket, u32::from_be_bytes(length))?;
            failed |= kind & wire::chunk::IS_ERROR != 0;
            if kind == wire::chunk::BLOCK_STATUS {
                extents.extend(payload.get(4..).unwrap_or_default().chunks_exact(8).map(extent));
            }
            if is_last {
                return Ok(if failed { Vec::new() } else { extents });
            }
        }
    }

    /// Returns the socket, for tests of bad clients and for a load that reads many replies at once.
    pub fn raw(&mut self) -> &mut File {
        &mut self.socket
    }

    /// Sends one request and waits for its reply.
    fn call(&mut self, command: u16, offset: u64, length: usize, data: &[u8]) -> io::Result<()> {
        let length = u32::try_from(length).map_err(|_| strange("the request is too long"))?;
        self.request(command, 0, offset, offset, length, data);
        self.send()?;
        match self.reply()?.error {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.cast_signed())),
        }
    }

    fn head(&mut self) -> io::Result<wire::Head> {
        let mut head = [0; 16];
        self.socket.read_exact(&mut head)?;
        wire::reply_head(&head).ok_or_else(|| strange("a request was answered with something else"))
    }
}

impl From<NbdClient> for OwnedFd {
    fn from(client: NbdClient) -> Self {
        client.socket.into()
    }
}

fn payload(socket: &mut File, length: u32) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > ANSWER_BYTES_MAX {
        return Err(strange("it answers with too much"));
    }
    let mut payload = vec![0; length];
    socket.read_exact(&mut payload)?;
    Ok(payload)
}

fn extent(bytes: &[u8]) -> Extent {
    let (length, state) = bytes.split_at(4);
    Extent { length: number(length), zero: number(state) & wire::STATE_ZERO != 0 }
}

fn strange(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
