//! Page: docs/format/segment.md.
//!
//! Payloads of the two entries that every head begins with.
//!
//! Digest: the segments that make up the log, itself included, ascending; 16 bytes each:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | segment id |
//! | 8 | 4 | file number |
//! | 12 | 4 | flags: 1 = changes of it are lost, and nobody has accepted that yet; 2 = no statistics know of them |
//!
//! Statistics: the volumes that have changes in those segments, ascending; 24 bytes each:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 16 | volume |
//! | 16 | 8 | highest serial in the log when the head was opened |

use base::{SegmentId, Serial, VolumeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const LOST: u32 = 1;
const UNCOUNTED: u32 = 2;

impl Lost {
    fn flags(self) -> u32 {
        match self {
            Lost::Nothing => 0,
            Lost::Counted => LOST,
            Lost::Uncounted => LOST | UNCOUNTED,
        }
    }

    /// Flags of a later version mean a loss, too, rather than none.
    fn from_flags(flags: u32) -> Lost {
        match flags {
            0 => Lost::Nothing,
            LOST => Lost::Counted,
            _ => Lost::Uncounted,
        }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct NamedBytes {
    segment: U64,
    file: U32,
    flags: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct VolumeBytes {
    volume: [u8; 16],
    serial: U64,
}

/// A segment that a digest names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) segment: SegmentId,
    pub(crate) file: u32,
    pub(crate) lost: Lost,
}

/// Whether changes of a segment are known to be lost, and nobody has accepted that yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Lost {
    #[default]
    Nothing,
    /// Changes that the statistics of a later head know of.
    Counted,
    /// Changes that no statistics know of: it was the newest head.
    Uncounted,
}

pub(crate) fn encode_digest(segments: &[Named]) -> Vec<u8> {
    assert!(segments.is_sorted_by_key(|named| named.segment), "a digest is ascending");
    let encode = |named: &Named| NamedBytes {
        segment: U64::new(named.segment.0),
        file: U32::new(named.file),
        flags: U32::new(named.lost.flags()),
    };
    segments.iter().flat_map(|named| encode(named).as_bytes().to_vec()).collect()
}

/// The segments named; its payload has been verified.
pub(crate) fn decode_digest(payload: &[u8]) -> Result<Vec<Named>, &'static str> {
    let records = <[NamedBytes]>::ref_from_bytes(payload)
        .map_err(|_| "a digest that is not whole records")?;
    let named: Vec<Named> = records
        .iter()
        .map(|r| Named {
            segment: SegmentId(r.segment.get()),
            file: r.file.get(),
            lost: Lost::from_flags(r.flags.get()),
        })
        .collect();
    let ascending = named.is_sorted_by(|a, b| a.segment < b.segment);
    if ascending && !named.is_empty() {
        Ok(named)
    } else {
        Err("a digest that is empty or not ascending")
    }
}

/// Who has changes in the segments of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statistics {
    /// Ascending, with the highest serial of each.
    pub(crate) volumes: Vec<(VolumeId, Serial)>,
    /// These are all.
    pub(crate) whole: bool,
}

pub(crate) fn encode_statistics(volumes: &[(VolumeId, Serial)]) -> Vec<u8> {
    let encode = |&(volume, serial): &(VolumeId, Serial)| VolumeBytes {
        volume: volume.0,
        serial: U64::new(serial.0),
    };
    volumes.iter().flat_map(|entry| encode(entry).as_bytes().to_vec()).collect()
}

/// The volumes named; its payload has been verified.
pub(crate) fn decode_statistics(payload: &[u8]) -> Result<Vec<(VolumeId, Serial)>, &'static str> {
    let records = <[VolumeBytes]>::ref_from_bytes(payload)
        .map_err(|_| "statistics that are not whole records")?;
    Ok(records
        .iter()
        .map(|record| (VolumeId(record.volume), Serial(record.serial.get())))
        .collect())
}
