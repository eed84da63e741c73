//! Page: docs/format/segment.md, "Known end".
//!
//! One of the two slots of the file `known-end`: how far the open segment was durable.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKNDLdur` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | bytes of the segment that were durable |
//! | 16 | 16 | node (log) id |
//! | 32 | 8 | segment id |
//! | 40 | 8 | birth of the segment, as in its header |
//! | 48 | 8 | number of this record: the slot with the greater one counts |
//! | 56 | 4 | changes and releases within these bytes |
//! | 60 | 4 | CRC-32C of bytes 0..60 |

use rekindle_base::checksum::crc32c;
use rekindle_base::{NodeId, SegmentId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a record.
pub(crate) const KNOWN_END_BYTES: usize = 64;
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"RKNDLdur";
const CRC_AT: usize = KNOWN_END_BYTES - 4;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Bytes {
    magic: [u8; 8],
    version: U32,
    durable: U32,
    node: [u8; 16],
    segment: U64,
    birth: U64,
    number: U64,
    changes: U32,
    crc: U32,
}

/// How far a segment was durable on flash when this was written. It may have been longer since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownEnd {
    pub(crate) node: NodeId,
    pub(crate) segment: SegmentId,
    pub(crate) birth: u64,
    /// Bytes of the segment.
    pub(crate) durable: u32,
    /// Changes and releases within these bytes.
    pub(crate) changes: u32,
}

impl KnownEnd {
    pub(crate) fn encode(&self, number: u64) -> [u8; KNOWN_END_BYTES] {
        let mut bytes = Bytes {
            magic: MAGIC,
            version: U32::new(VERSION),
            durable: U32::new(self.durable),
            node: self.node.0,
            segment: U64::new(self.segment.0),
            birth: U64::new(self.birth),
            number: U64::new(number),
            changes: U32::new(self.changes),
            crc: U32::new(0),
        };
        bytes.crc = U32::new(crc32c(&bytes.as_bytes()[..CRC_AT]));
        zerocopy::transmute!(bytes)
    }

    /// The record with its number; `None` when the bytes are none, or of a newer version. Such a
    /// record is no loss: it only says less.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(u64, KnownEnd)> {
        let (found, _) = Bytes::read_from_prefix(bytes).ok()?;
        let is_whole = found.magic == MAGIC
            && found.version.get() == VERSION
            // No writer gets there, and the next record needs a greater number.
            && found.number.get() < u64::MAX
            && found.crc.get() == crc32c(&found.as_bytes()[..CRC_AT]);
        is_whole.then_some((
            found.number.get(),
            KnownEnd {
                node: NodeId(found.node),
                segment: SegmentId(found.segment.get()),
                birth: found.birth.get(),
                durable: found.durable.get(),
                changes: found.changes.get(),
            },
        ))
    }
}
