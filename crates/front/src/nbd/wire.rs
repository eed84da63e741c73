//! The bytes of NBD: numbers with names, decoders that are total functions of any bytes, small
//! encoders.
//!
//! ```text
//! greeting        "NBDMAGIC" "IHAVEOPT" u16 flags                      client answers u32 flags
//! option          "IHAVEOPT" u32 option u32 length data
//! option reply    u64 0x0003e889045565a9 u32 option u32 type u32 length data
//! request         u32 0x25609513 u16 flags u16 command u64 cookie u64 offset u32 length [payload]
//! simple reply    u32 0x67446698 u32 error u64 cookie [data]
//! chunk           u32 0x668e33ef u16 flags u16 type u64 cookie u32 length data
//! ```
//! All numbers are big-endian. A decoder returns `Ok(None)` while bytes are missing and [`Garbage`]
//! when no further byte could make them valid.

use super::limits;

/// First word of the greeting.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting, and the magic of every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic of an option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic of a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of the client's flags.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Bytes of an option before its data.
pub const OPTION_BYTES: usize = 16;
/// Bytes of a request before its payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply before its data.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a chunk before its data.
pub const CHUNK_BYTES: usize = 20;
/// Bytes of an `OFFSET_DATA` chunk before the data proper.
pub const DATA_CHUNK_BYTES: usize = CHUNK_BYTES + 8;

/// Handshake flags of the server: fixed newstyle, no zeroes.
pub const HANDSHAKE_FLAGS: u16 = 0b11;
/// Flag of the client: it speaks fixed newstyle.
pub const CLIENT_FIXED_NEWSTYLE: u32 = 1 << 0;
/// Flag of the client: no 124 zeroes after `EXPORT_NAME`.
pub const CLIENT_NO_ZEROES: u32 = 1 << 1;

/// Options.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of option replies.
pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_PLATFORM: u32 = (1 << 31) + 4;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Items of information that INFO and GO can return.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export: all features that the server has, for every export that may be
/// changed.
pub mod transmission {
    const HAS_FLAGS: u16 = 1 << 0;
    /// Every change is refused.
    pub const READ_ONLY: u16 = 1 << 1;
    const SEND_FLUSH: u16 = 1 << 2;
    const SEND_FUA: u16 = 1 << 3;
    const SEND_TRIM: u16 = 1 << 5;
    const SEND_WRITE_ZEROES: u16 = 1 << 6;
    const SEND_DF: u16 = 1 << 7;
    const CAN_MULTI_CONN: u16 = 1 << 8;
    const SEND_CACHE: u16 = 1 << 10;
    const SEND_FAST_ZERO: u16 = 1 << 11;

    /// The flags with structured replies.
    pub const STRUCTURED: u16 = SIMPLE | SEND_DF;
    /// The flags without structured replies: no reply is ever fragmented, so DF has no meaning.
    pub const SIMPLE: u16 = HAS_FLAGS
        | SEND_FLUSH
        | SEND_FUA
        | SEND_TRIM
        | SEND_WRITE_ZEROES
        | CAN_MULTI_CONN
        | SEND_CACHE
        | SEND_FAST_ZERO;
}

/// Commands.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types and flags of chunks.
pub mod chunk {
    pub const FLAG_DONE: u16 = 1 << 0;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// Error numbers that a client understands.
pub mod errno {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const EOPNOTSUPP: u32 = 95;
    pub const ESHUTDOWN: u32 = 108;
    /// All numbers that the protocol knows.
    pub const KNOWN: [u32; 8] = [EPERM, EIO, 12, EINVAL, ENOSPC, 75, EOPNOTSUPP, ESHUTDOWN];
}

/// The one metadata context.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number of the context on the wire.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// State of a hole: takes no space, reads as zeros.
pub const STATE_HOLE_ZERO: u32 = 0b11;

/// Bytes that are not NBD: the rest of the stream has no meaning then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    #[error("an option should begin here, but there is 0x{0:016x}")]
    Option(u64),
    #[error("a request should begin here, but there is 0x{0:08x}")]
    Request(u32),
    #[error("unknown handshake flags 0x{0:08x}")]
    ClientFlags(u32),
    #[error("option {option} with {length} bytes of data")]
    OptionLength {
        /// The number of the option.
        option: u32,
        /// Announced bytes.
        length: u32,
    },
    #[error("a write of {0} bytes")]
    Payload(u32),
    #[error("a reply should begin here, but there is 0x{0:08x}")]
    Reply(u32),
    #[error("a reply that fits no request")]
    Strange,
}

/// An option before its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    pub option: u32,
    /// Bytes of data that follow.
    pub length: u32,
}

/// A request before its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub command: u16,
    /// A number of the client, which the reply repeats.
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Request {
    /// Returns the bytes that follow the header.
    #[must_use]
    pub fn payload_bytes(&self) -> u32 {
        if self.command == command::WRITE { self.length } else { 0 }
    }

    /// Whether every flag that is set is among `permitted`.
    #[must_use]
    pub fn has_only(&self, permitted: u16) -> bool {
        self.flags & !permitted == 0
    }
}

/// Data of INFO and GO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportQuery<'a> {
    pub name: &'a str,
    /// The items asked for, two bytes each; see [`ExportQuery::wants`].
    items: &'a [u8],
}

impl ExportQuery<'_> {
    /// Whether the client asked for the item.
    #[must_use]
    pub fn wants(&self, item: u16) -> bool {
        self.items.chunks_exact(2).any(|pair| pair == item.to_be_bytes())
    }
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaQuery<'a> {
    pub name: &'a str,
    /// Number of queries; 0 means all contexts (LIST) or none (SET).
    pub queries: u32,
    data: &'a [u8],
}

impl<'a> MetaQuery<'a> {
    /// Returns the queries. One that is not UTF-8 matches nothing and is left out.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> {
        let mut rest = self.data;
        std::iter::from_fn(move || take_string(&mut rest))
            .filter_map(|query| std::str::from_utf8(query).ok())
    }
}

/// Decodes the client's flags.
pub fn client_flags(bytes: &[u8]) -> Result<Option<u32>, Garbage> {
    let mut rest = bytes;
    let Some(flags) = take_u32(&mut rest) else { return Ok(None) };
    if flags & !(CLIENT_FIXED_NEWSTYLE | CLIENT_NO_ZEROES) != 0 {
        return Err(Garbage::ClientFlags(flags));
    }
    Ok(Some(flags))
}

/// Decodes an option before its data.
pub fn option_header(bytes: &[u8]) -> Result<Option<OptionHeader>, Garbage> {
    let Some((mut head, _)) =
        bytes.split_first_chunk::<OPTION_BYTES>().map(|(head, rest)| (&head[..], rest))
    else {
        return Ok(None);
    };
    let (Some(magic), Some(option), Some(length)) =
        (take_u64(&mut head), take_u32(&mut head), take_u32(&mut head))
    else {
        return Ok(None);
    };
    if magic != OPTION_MAGIC {
        return Err(Garbage::Option(magic));
    }
    if length > limits::OPTION_BYTES_SKIPPED_MAX {
        return Err(Garbage::OptionLength { option, length });
    }
    Ok(Some(OptionHeader { option, length }))
}

/// Decodes the data of INFO and GO. `None` when it is malformed, or the name is too long or not
/// UTF-8.
#[must_use]
pub fn export_query(data: &[u8]) -> Option<ExportQuery<'_>> {
    let mut rest = data;
    let name = export_name(take_string(&mut rest)?)?;
    let items = usize::from(take_u16(&mut rest)?);
    (rest.len() == items * 2).then_some(ExportQuery { name, items: rest })
}

/// Decodes the data of LIST_META_CONTEXT and SET_META_CONTEXT; `None` when it is malformed.
#[must_use]
pub fn meta_query(data: &[u8]) -> Option<MetaQuery<'_>> {
    let mut rest = data;
    let name = export_name(take_string(&mut rest)?)?;
    let queries = take_u32(&mut rest)?;
    if queries > limits::QUERIES_MAX {
        return None;
    }
    let data = rest;
    for _ in 0..queries {
        if take_string(&mut rest)?.len() > limits::STRING_BYTES_MAX {
            return None;
        }
    }
    rest.is_empty().then_some(MetaQuery { name, queries, data })
}

/// Decodes an export's name: UTF-8 of at most 4096 bytes.
#[must_use]
pub fn export_name(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > limits::STRING_BYTES_MAX {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

/// Decodes a request before its payload.
pub fn request(bytes: &[u8]) -> Result<Option<Request>, Garbage> {
    let Some((head, _)) = bytes.split_first_chunk::<REQUEST_BYTES>() else { return Ok(None) };
    let magic = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    if magic != REQUEST_MAGIC {
        return Err(Garbage::Request(magic));
    }
    let mut rest = &head[4..];
    let (Some(flags), Some(command), Some(cookie), Some(offset), Some(length)) = (
        take_u16(&mut rest),
        take_u16(&mut rest),
        take_u64(&mut rest),
        take_u64(&mut rest),
        take_u32(&mut rest),
    ) else {
        return Ok(None);
    };
    let request = Request { flags, command, cookie, offset, length };
    if request.payload_bytes() > limits::PAYLOAD_BYTES_SKIPPED_MAX {
        return Err(Garbage::Payload(length));
    }
    Ok(Some(request))
}

/// A reply before its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyHead {
    Simple {
        cookie: u64,
        errno: u32,
    },
    /// The only chunk of a structured reply.
    Chunk {
        cookie: u64,
        kind: u16,
        /// Bytes that follow.
        length: u32,
    },
}

impl ReplyHead {
    #[must_use]
    pub fn cookie(&self) -> u64 {
        match self {
            ReplyHead::Simple { cookie, .. } | ReplyHead::Chunk { cookie, .. } => *cookie,
        }
    }
}

/// Decodes a reply before its payload. A structured reply of several chunks is garbage: this server
/// sends none.
pub fn reply_head(bytes: &[u8]) -> Result<Option<ReplyHead>, Garbage> {
    let mut rest = bytes;
    let Some(magic) = take_u32(&mut rest) else { return Ok(None) };
    match magic {
        SIMPLE_REPLY_MAGIC => Ok(take_u32(&mut rest)
            .and_then(|errno| Some(ReplyHead::Simple { cookie: take_u64(&mut rest)?, errno }))),
        CHUNK_MAGIC => {
            let (Some(flags), Some(kind), Some(cookie), Some(length)) = (
                take_u16(&mut rest),
                take_u16(&mut rest),
                take_u64(&mut rest),
                take_u32(&mut rest),
            ) else {
                return Ok(None);
            };
            match flags {
                chunk::FLAG_DONE => Ok(Some(ReplyHead::Chunk { cookie, kind, length })),
                _ => Err(Garbage::Strange),
            }
        }
        magic => Err(Garbage::Reply(magic)),
    }
}

/// Decodes the payload of an error: the number, and the message.
#[must_use]
pub fn error_payload(payload: &[u8]) -> Option<(u32, String)> {
    let mut rest = payload;
    let (number, length) = (take_u32(&mut rest)?, take_u16(&mut rest)?);
    (rest.len() == usize::from(length))
        .then(|| (number, String::from_utf8_lossy(rest).into_owned()))
}

/// Decodes the payload of a block status: spans, and whether each holds data.
#[must_use]
pub fn status_payload(payload: &[u8]) -> Option<Vec<(u32, bool)>> {
    let mut rest = payload;
    if take_u32(&mut rest)? != BASE_ALLOCATION_ID
        || rest.is_empty()
        || !rest.len().is_multiple_of(8)
    {
        return None;
    }
    let mut spans = Vec::with_capacity(rest.len() / 8);
    while let (Some(span), Some(state)) = (take_u32(&mut rest), take_u32(&mut rest)) {
        spans.push((span, state != STATE_HOLE_ZERO));
    }
    Some(spans)
}

/// Encodes a request before its payload.
#[must_use]
pub fn request_head(request: &Request) -> [u8; REQUEST_BYTES] {
    let mut head = [0; REQUEST_BYTES];
    head[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&request.flags.to_be_bytes());
    head[6..8].copy_from_slice(&request.command.to_be_bytes());
    head[8..16].copy_from_slice(&request.cookie.to_be_bytes());
    head[16..24].copy_from_slice(&request.offset.to_be_bytes());
    head[24..].copy_from_slice(&request.length.to_be_bytes());
    head
}

/// Encodes the head of a simple reply.
#[must_use]
pub fn simple_reply(cookie: u64, errno: u32) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut head = [0; SIMPLE_REPLY_BYTES];
    head[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    head[4..8].copy_from_slice(&errno.to_be_bytes());
    head[8..].copy_from_slice(&cookie.to_be_bytes());
    head
}

/// Encodes the head of the only (so the last) chunk of a structured reply.
#[must_use]
pub fn last_chunk(cookie: u64, kind: u16, length: u32) -> [u8; CHUNK_BYTES] {
    let mut head = [0; CHUNK_BYTES];
    head[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&chunk::FLAG_DONE.to_be_bytes());
    head[6..8].copy_from_slice(&kind.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..].copy_from_slice(&length.to_be_bytes());
    head
}

/// Encodes the head of a chunk with all the data of a read; `length` counts the data proper.
#[must_use]
pub fn data_chunk(cookie: u64, offset: u64, length: u32) -> [u8; DATA_CHUNK_BYTES] {
    let mut head = [0; DATA_CHUNK_BYTES];
    head[..CHUNK_BYTES].copy_from_slice(&last_chunk(
        cookie,
        chunk::OFFSET_DATA,
        length.saturating_add(8),
    ));
    head[CHUNK_BYTES..].copy_from_slice(&offset.to_be_bytes());
    head
}

/// Encodes the head of an option reply.
#[must_use]
pub fn option_reply(option: u32, kind: u32, length: u32) -> [u8; 20] {
    let mut head = [0; 20];
    head[..8].copy_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    head[8..12].copy_from_slice(&option.to_be_bytes());
    head[12..16].copy_from_slice(&kind.to_be_bytes());
    head[16..].copy_from_slice(&length.to_be_bytes());
    head
}

/// Cuts `text` between characters to at most `bytes_max` bytes.
#[must_use]
pub fn clip(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u16::from_be_bytes(*head))
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u32::from_be_bytes(*head))
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u64::from_be_bytes(*head))
}

/// Takes a length (u32) and that many bytes.
fn take_string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_u32(rest)?).ok()?;
    let (string, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(string)
}

#[cfg(test)]
mod tests;
