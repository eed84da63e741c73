//! Page: docs/format/warm.md.
//!
//! The first page of an arena. The header is there twice, at 0 and at 1024: a damaged one is mended
//! from the other.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKNDLwrm` |
//! | 8 | 4 | layout version of header, table and slots: 1 |
//! | 12 | 4 | bytes a slot |
//! | 16 | 16 | node id |
//! | 32 | 8 | slots |
//! | 40 | 8 | salt: random, drawn when the arena is made; 0 in one of an older binary |
//! | 48 | 12 | zero |
//! | 60 | 4 | CRC-32C of bytes 0..60 |

use rekindle_base::NodeId;
use rekindle_base::checksum::crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the encoded header; the rest of its page is zero.
pub(crate) const HEADER_BYTES: usize = 64;
/// Offset of the header's second copy in the page.
pub(crate) const HEADER_COPY_AT: usize = 1024;
pub(super) const MAGIC: [u8; 8] = *b"RKNDLwrm";
pub(crate) const VERSION: u32 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Bytes {
    magic: [u8; 8],
    version: U32,
    slot_bytes: U32,
    node: [u8; 16],
    slots: U64,
    salt: U64,
    zero: [u8; 12],
    crc: U32,
}

/// The header of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) node: NodeId,
    pub(crate) slots: u64,
    pub(crate) slot_bytes: u32,
    /// Number that tells this arena from any other of the node.
    pub(crate) salt: u64,
}

/// The reason why bytes are no header of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// Fewer bytes than a header has.
    #[error("the arena is shorter than its header")]
    Short,
    /// The magic is unknown: something else lies here, or nothing.
    #[error("no arena: its magic is unknown")]
    Unknown,
    /// The checksum is wrong.
    #[error("torn arena header: its checksum does not match")]
    Torn,
    /// Whole, but of another version.
    #[error("arena layout {found} is not the one known here, {known}")]
    Version { found: u32, known: u32 },
    /// More slots than any arena has.
    #[error("an arena of {0} slots is larger than any that is made")]
    Slots(u64),
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Bytes {
            magic: MAGIC,
            version: U32::new(VERSION),
            slot_bytes: U32::new(self.slot_bytes),
            node: self.node.0,
            slots: U64::new(self.slots),
            salt: U64::new(self.salt),
            zero: [0; 12],
            crc: U32::new(0),
        };
        bytes.crc = U32::new(crc32c(&bytes.as_bytes()[..HEADER_BYTES - 4]));
        zerocopy::transmute!(bytes)
    }

    /// Decodes a header, or tells why the bytes are none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Header, BadHeader> {
        let (header, _) = Bytes::read_from_prefix(bytes).map_err(|_| BadHeader::Short)?;
        if header.magic != MAGIC {
            return Err(BadHeader::Unknown);
        }
        if header.crc.get() != crc32c(&header.as_bytes()[..HEADER_BYTES - 4]) {
            return Err(BadHeader::Torn);
        }
        if header.version.get() != VERSION {
            return Err(BadHeader::Version { found: header.version.get(), known: VERSION });
        }
        let slots = header.slots.get();
        if slots > crate::limits::SLOTS_MAX as u64 {
            return Err(BadHeader::Slots(slots));
        }
        Ok(Header {
            node: NodeId(header.node),
            slots,
            slot_bytes: header.slot_bytes.get(),
            salt: header.salt.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header =
        Header { node: NodeId([7; 16]), slots: 12, slot_bytes: 8 << 20, salt: 5 };

    #[test]
    fn a_header_survives_its_bytes() {
        assert_eq!(Header::decode(&HEADER.encode()), Ok(HEADER));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = HEADER.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes).is_err(), "bit {bit}");
        }
        assert!(Header::decode(&HEADER.encode()[..63]).is_err());
    }
}
