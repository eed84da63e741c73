//! Page: docs/format/segment.md.
//!
//! The last sector of a segment: written once, when the segment is sealed, together with the
//! descriptor table above it.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKNDLend` |
//! | 8 | 8 | segment id |
//! | 16 | 8 | birth of the segment, as in its header |
//! | 24 | 8 | id of the head that follows; 0 when the log was closed here |
//! | 32 | 4 | valid bytes at the front |
//! | 36 | 4 | descriptors |
//! | 40 | 4 | bytes of the table before this sector (descriptors x 64, padded to 512) |
//! | 44 | 4 | CRC-32C of the table's descriptors (without padding), seeded as those of entries |
//! | 48 | 460 | zero |
//! | 508 | 4 | CRC-32C of bytes 0..508 |

use rekindle_base::SegmentId;
use rekindle_base::checksum::crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the foot: one sector.
pub(crate) const FOOT_BYTES: u32 = rekindle_warm::limits::FOOT_BYTES;
const MAGIC: [u8; 8] = *b"RKNDLend";
const CRC_AT: usize = FOOT_BYTES as usize - 4;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Bytes {
    magic: [u8; 8],
    segment: U64,
    birth: U64,
    successor: U64,
    front: U32,
    changes: U32,
    table: U32,
    table_crc: U32,
    zero: [u8; 460],
    crc: U32,
}

/// The end of a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Foot {
    pub(crate) segment: SegmentId,
    pub(crate) birth: u64,
    /// The head that follows; `None` when the log was closed here.
    pub(crate) successor: Option<SegmentId>,
    /// Valid bytes at the front.
    pub(crate) front: u32,
    pub(crate) changes: u32,
    /// Bytes of the table.
    pub(crate) table: u32,
    pub(crate) table_crc: u32,
}

impl Foot {
    pub(crate) fn encode(&self) -> [u8; FOOT_BYTES as usize] {
        let mut bytes = Bytes {
            magic: MAGIC,
            segment: U64::new(self.segment.0),
            birth: U64::new(self.birth),
            successor: U64::new(self.successor.map_or(0, |segment| segment.0)),
            front: U32::new(self.front),
            changes: U32::new(self.changes),
            table: U32::new(self.table),
            table_crc: U32::new(self.table_crc),
            zero: [0; 460],
            crc: U32::new(0),
        };
        bytes.crc = U32::new(crc32c(&bytes.as_bytes()[..CRC_AT]));
        zerocopy::transmute!(bytes)
    }

    /// The foot, if these are the last bytes of the sealed segment with this number, birth and
    /// capacity. Anything else (an earlier life's foot, a torn one, none) means that the segment is
    /// not sealed.
    pub(crate) fn decode(
        bytes: &[u8],
        segment: SegmentId,
        birth: u64,
        capacity: u32,
    ) -> Option<Foot> {
        let foot = Bytes::read_from_bytes(bytes).ok()?;
        let whole = foot.magic == MAGIC && foot.crc.get() == crc32c(&foot.as_bytes()[..CRC_AT]);
        let same = foot.segment.get() == segment.0 && foot.birth.get() == birth;
        let (front, table, changes) = (foot.front.get(), foot.table.get(), foot.changes.get());
        let lengths = u64::from(front) + u64::from(table) + u64::from(FOOT_BYTES)
            <= u64::from(capacity)
            && u64::from(changes) * u64::from(super::ENTRY_BYTES) <= u64::from(table);
        (whole && same && lengths).then(|| Foot {
            segment,
            birth,
            successor: (foot.successor.get() != 0).then(|| SegmentId(foot.successor.get())),
            front,
            changes,
            table,
            table_crc: foot.table_crc.get(),
        })
    }
}
