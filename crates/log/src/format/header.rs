//! Page: docs/format/segment.md.
//!
//! The first bytes of a segment.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKNDLseg` |
//! | 8 | 4 | version, 5 (versions 1 to 4 are read, too; the page lists their differences) |
//! | 12 | 4 | replication class: the count of replicas that the segment is copied to |
//! | 16 | 16 | node (log) id |
//! | 32 | 8 | segment id |
//! | 40 | 8 | epoch |
//! | 48 | 8 | incarnation of the node that made it |
//! | 56 | 8 | birth: random, tells it from others of its number; key of all that follows |
//! | 64 | 4 | capacity, bytes |
//! | 68 | 4 | sector: batches begin and end on multiples of it, bytes; 512 before version 3 |
//! | 72 | 52 | zero |
//! | 124 | 4 | CRC-32C of bytes 0..124 |
//!
//! Magic, version and CRC keep their places in every version, so that an older binary can tell
//! "newer" from "damaged".

use crate::limits::{SECTOR_BYTES, SECTOR_BYTES_MAX};
use rekindle_base::checksum::crc32c;
use rekindle_base::{Incarnation, NodeId, SegmentId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the header; the first entry follows.
pub(crate) const HEADER_BYTES: u32 = 128;
/// The version written here, and the newest known.
pub(crate) const VERSION: u32 = 5;
/// The oldest that is read.
const VERSION_MIN: u32 = 1;
/// From this version on the birth seeds the checksums.
pub(super) const VERSION_KEYED: u32 = 4;
const MAGIC: [u8; 8] = *b"RKNDLseg";
const CRC_AT: usize = HEADER_BYTES as usize - 4;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Bytes {
    magic: [u8; 8],
    version: U32,
    class: U32,
    node: [u8; 16],
    segment: U64,
    epoch: U64,
    incarnation: U64,
    birth: U64,
    capacity: U32,
    sector: U32,
    zero: [u8; 52],
    crc: U32,
}

/// The identity and layout of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) version: u32,
    pub(crate) class: u32,
    pub(crate) node: NodeId,
    pub(crate) segment: SegmentId,
    pub(crate) epoch: u64,
    pub(crate) incarnation: Incarnation,
    pub(crate) birth: u64,
    pub(crate) capacity: u32,
    /// Batches begin and end on multiples of this, bytes: at least [`SECTOR_BYTES`].
    pub(crate) sector: u32,
}

/// The reason why bytes are no segment header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadHeader {
    /// Not the beginning of any segment: for example preallocated and never used.
    #[error("no segment: its magic is unknown")]
    NotASegment,
    #[error("damaged segment header: its checksum does not match")]
    Damaged,
    #[error("segment header of version {0}")]
    Newer(u32),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = Bytes {
            magic: MAGIC,
            version: U32::new(self.version),
            class: U32::new(self.class),
            node: self.node.0,
            segment: U64::new(self.segment.0),
            epoch: U64::new(self.epoch),
            incarnation: U64::new(self.incarnation.0),
            birth: U64::new(self.birth),
            capacity: U32::new(self.capacity),
            sector: U32::new(if self.version >= 3 { self.sector } else { 0 }),
            zero: [0; 52],
            crc: U32::new(0),
        };
        bytes.crc = U32::new(crc32c(&bytes.as_bytes()[..CRC_AT]));
        zerocopy::transmute!(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SegmentHeader, BadHeader> {
        let (header, _) = Bytes::read_from_prefix(bytes).map_err(|_| BadHeader::NotASegment)?;
        if header.magic != MAGIC {
            return Err(BadHeader::NotASegment);
        }
        if header.crc.get() != crc32c(&header.as_bytes()[..CRC_AT]) {
            return Err(BadHeader::Damaged);
        }
        if !(VERSION_MIN..=VERSION).contains(&header.version.get()) {
            return Err(BadHeader::Newer(header.version.get()));
        }
        let version = header.version.get();
        let sector = if version >= 3 { header.sector.get() } else { SECTOR_BYTES };
        if !sector.is_power_of_two() || !(SECTOR_BYTES..=SECTOR_BYTES_MAX).contains(&sector) {
            return Err(BadHeader::Damaged);
        }
        Ok(SegmentHeader {
            version,
            sector,
            class: header.class.get(),
            node: NodeId(header.node),
            segment: SegmentId(header.segment.get()),
            epoch: header.epoch.get(),
            incarnation: Incarnation(header.incarnation.get()),
            birth: header.birth.get(),
            capacity: header.capacity.get(),
        })
    }
}
