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
//! | 12 | 4 | zero |
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

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct NamedBytes {
    segment: U64,
    file: U32,
    zero: U32,
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
}

pub(crate) fn encode_digest(segments: &[Named]) -> Vec<u8> {
    assert!(segments.is_sorted_by_key(|named| named.segment), "a digest is ascending");
    let encode = |named: &Named| NamedBytes {
        segment: U64::new(named.segment.0),
        file: U32::new(named.file),
        zero: U32::new(0),
    };
    segments.iter().flat_map(|named| encode(named).as_bytes().to_vec()).collect()
}

/// The segments named; its payload has been verified.
pub(crate) fn decode_digest(payload: &[u8]) -> Result<Vec<Named>, &'static str> {
    let records = <[NamedBytes]>::ref_from_bytes(payload)
        .map_err(|_| "a digest that is not whole records")?;
    let named: Vec<Named> = records
        .iter()
        .map(|r| Named { segment: SegmentId(r.segment.get()), file: r.file.get() })
        .collect();
    let ascending = named.is_sorted_by(|a, b| a.segment < b.segment);
    if ascending && !named.is_empty() {
        Ok(named)
    } else {
        Err("a digest that is empty or not ascending")
    }
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
