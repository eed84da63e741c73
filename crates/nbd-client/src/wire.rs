//! The bytes of NBD as a client sees them, big-endian. Decoders are total functions of any bytes.
//!
//! ```text
//! greeting      "NBDMAGIC" "IHAVEOPT" flags:u16                  the client answers flags:u32
//! option        "IHAVEOPT" option:u32 length:u32 data
//! option reply  magic:u64 option:u32 kind:u32 length:u32 data
//! request       magic:u32 flags:u16 command:u16 cookie:u64 offset:u64 length:u32 [data]
//! simple reply  magic:u32 error:u32 cookie:u64 [data]
//! chunk         magic:u32 flags:u16 kind:u16 cookie:u64 length:u32 data
//! ```

/// The first bytes of a server.
pub const GREETING: [u8; 16] = *b"NBDMAGICIHAVEOPT";
/// Flag of the greeting: the server speaks fixed newstyle.
pub const FIXED_NEWSTYLE: u8 = 1;
/// The metadata context that tells which stretches are allocated and which are zero.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The transmission flag of a server that takes [`command::WRITE_ZEROES`].
pub const CAN_ZERO: u16 = 1 << 6;
/// Flag of a write whose reply says that it is durable.
pub const FUA: u16 = 1;
/// Flag of an extent: it reads as zeros.
pub const STATE_ZERO: u64 = 2;

const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u64 = 0x6744_6698;
const CHUNK_MAGIC: u64 = 0x668e_33ef;

/// Options.
pub mod option {
    pub const LIST: u32 = 3;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of replies to options.
pub mod reply {
    pub const ACK: u32 = 1;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
}

/// Commands.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Kinds of chunks.
pub mod chunk {
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    /// The bit that all kinds of errors have.
    pub const IS_ERROR: u16 = 1 << 15;
}

/// The first 16 bytes of a reply. Behind those of a chunk follows its length, a u32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The number of the request.
    pub cookie: u64,
    pub body: Body,
}

/// The part of a head that its magic decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// A simple reply: 0, or an errno.
    Simple { error: u32 },
    /// A chunk of a structured reply.
    Chunk { is_last: bool, kind: u16 },
}

/// Encodes an option.
#[must_use]
pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &length(data), data].concat()
}

/// Encodes the data of INFO and GO.
#[must_use]
pub fn query(export: &str, items: &[u16]) -> Vec<u8> {
    let mut data = string(export);
    data.extend(u16::try_from(items.len()).unwrap_or(u16::MAX).to_be_bytes());
    items.iter().for_each(|item| data.extend(item.to_be_bytes()));
    data
}

/// Encodes the data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[must_use]
pub fn meta(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(export);
    data.extend(u32::try_from(queries.len()).unwrap_or(u32::MAX).to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    data
}

/// Encodes a request before its data.
#[must_use]
pub fn header(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> [u8; 28] {
    let mut header = [0; 28];
    header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&command.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..].copy_from_slice(&length.to_be_bytes());
    header
}

/// Decodes the head of a reply to `option`: its kind, and the bytes that follow.
#[must_use]
pub fn option_reply(head: &[u8; 20], option: u32) -> Option<(u32, u32)> {
    let is_ours = number(&head[..8]) == OPTION_REPLY_MAGIC && head[8..12] == option.to_be_bytes();
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    is_ours.then(|| (word(12), word(16)))
}

/// Whether no other reply to the option follows one of this kind.
#[must_use]
pub fn is_last(kind: u32) -> bool {
    kind == reply::ACK || kind >> 31 == 1
}

/// Decodes the size and the transmission flags of an export; `None` for other information.
#[must_use]
pub fn export_info(data: &[u8]) -> Option<(u64, u16)> {
    let data: &[u8; 12] = data.try_into().ok()?;
    let flags = u16::from_be_bytes([data[10], data[11]]);
    (data[..2] == [0, 0]).then(|| (number(&data[2..10]), flags))
}

/// Decodes the head of a reply; `None` when it is none.
#[must_use]
pub fn reply_head(head: &[u8; 16]) -> Option<Head> {
    let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let body = match number(&head[..4]) {
        SIMPLE_REPLY_MAGIC => Body::Simple { error: u32::from(half(4)) << 16 | u32::from(half(6)) },
        CHUNK_MAGIC => Body::Chunk { is_last: half(4) & 1 != 0, kind: half(6) },
        _ => return None,
    };
    Some(Head { cookie: number(&head[8..]), body })
}

/// Decodes a big-endian number of at most 8 bytes.
#[must_use]
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn string(text: &str) -> Vec<u8> {
    [&length(text.as_bytes()), text.as_bytes()].concat()
}

fn length(data: &[u8]) -> [u8; 4] {
    u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_and_flags_are_found_in_the_export_information() {
        let mut data = vec![0, 0];
        data.extend(4096u64.to_be_bytes());
        data.extend([0, 1]);
        assert_eq!(export_info(&data), Some((4096, 1)));
        data[1] = 1;
        assert_eq!(export_info(&data), None, "a name");
        assert_eq!(export_info(&[0, 3, 0, 0]), None);
        assert_eq!(export_info(&[]), None);
    }

    #[test]
    fn heads_of_both_kinds_are_told_apart_from_noise() {
        let mut head = [0; 16];
        assert_eq!(reply_head(&head), None);
        head[..4].copy_from_slice(&[0x67, 0x44, 0x66, 0x98]);
        (head[7], head[15]) = (28, 7);
        let body = Body::Simple { error: 28 };
        assert_eq!(reply_head(&head), Some(Head { cookie: 7, body }));
        head[..4].copy_from_slice(&[0x66, 0x8e, 0x33, 0xef]);
        (head[5], head[7]) = (1, 5);
        let body = Body::Chunk { is_last: true, kind: chunk::BLOCK_STATUS };
        assert_eq!(reply_head(&head), Some(Head { cookie: 7, body }));
    }
}
