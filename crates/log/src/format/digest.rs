//! Page: docs/format/segment.md.
//!
//! Payloads of the entries at the start of a head.
//!
//! Digest: the segments that make up the log, the head included, ascending; 32 bytes each (16
//! before version 3):
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | segment id |
//! | 8 | 4 | file number |
//! | 12 | 4 | flags: 1 = changes are lost, not accepted yet; 2 = no statistics know of them |
//! | 16 | 8 | incarnation of the life that made it; 0 = unknown |
//! | 24 | 8 | birth, as in its header; 0 = unknown |
//!
//! Statistics: the volumes that have changes in those segments, ascending; 24 bytes each:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 16 | volume |
//! | 16 | 8 | highest serial in the log when the head was opened |
//!
//! Marks: changes that still lie in those segments and are not needed any more, 40 bytes each:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 16 | volume |
//! | 16 | 8 | serial: changes up to it are not needed; all ones = none |
//! | 24 | 8 | segment id, and |
//! | 32 | 4 | offset: before which they lie |
//! | 36 | 4 | zero |

use rekindle_base::{Incarnation, SegmentId, Serial, VolumeId};
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

    /// Flags of a later version also mean a loss: a false loss is safer than a missed one.
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
struct OldNamedBytes {
    segment: U64,
    file: U32,
    flags: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct NamedBytes {
    old: OldNamedBytes,
    incarnation: U64,
    birth: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct MarkBytes {
    volume: [u8; 16],
    serial: U64,
    segment: U64,
    offset: U32,
    zero: [u8; 4],
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
    /// The segment's identity; `None` when an older binary has named it.
    pub(crate) who: Option<Who>,
}

/// The identity of a segment: tells it from any other that might have its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Who {
    /// The life that made the segment.
    pub(crate) incarnation: Incarnation,
    pub(crate) birth: u64,
}

/// A low-water mark: changes of a volume up to `serial` that lie before this point of the log are
/// not needed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) serial: Serial,
    pub(crate) segment: SegmentId,
    pub(crate) offset: u32,
}

impl Mark {
    /// Whether a change is not needed any more.
    pub(crate) fn covers(&self, serial: Serial, segment: SegmentId, offset: u32) -> bool {
        serial <= self.serial && (segment, offset) < (self.segment, self.offset)
    }
}

/// The known losses of a segment that are not accepted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Lost {
    #[default]
    Nothing,
    /// Changes that the statistics of a later head know of.
    Counted,
    /// Changes that no statistics know of: the segment was the newest head.
    Uncounted,
}

pub(crate) fn encode_digest(segments: &[Named]) -> Vec<u8> {
    assert!(segments.is_sorted_by_key(|named| named.segment), "a digest is ascending");
    let encode = |named: &Named| NamedBytes {
        old: OldNamedBytes {
            segment: U64::new(named.segment.0),
            file: U32::new(named.file),
            flags: U32::new(named.lost.flags()),
        },
        incarnation: U64::new(named.who.map_or(0, |who| who.incarnation.0)),
        birth: U64::new(named.who.map_or(0, |who| who.birth)),
    };
    segments.iter().flat_map(|named| encode(named).as_bytes().to_vec()).collect()
}

/// Decodes the segments named in a head of `version`; the payload has been verified.
pub(crate) fn decode_digest(payload: &[u8], version: u32) -> Result<Vec<Named>, &'static str> {
    let ragged = "a digest that is not whole records";
    let old = |r: &OldNamedBytes| Named {
        segment: SegmentId(r.segment.get()),
        file: r.file.get(),
        lost: Lost::from_flags(r.flags.get()),
        who: None,
    };
    let named: Vec<Named> = if version < 3 {
        let records = <[OldNamedBytes]>::ref_from_bytes(payload).map_err(|_| ragged)?;
        records.iter().map(old).collect()
    } else {
        let records = <[NamedBytes]>::ref_from_bytes(payload).map_err(|_| ragged)?;
        let who = |r: &NamedBytes| Who {
            incarnation: Incarnation(r.incarnation.get()),
            birth: r.birth.get(),
        };
        let known = |who: &Who| (who.incarnation.0, who.birth) != (0, 0);
        let new = |r: &NamedBytes| Named { who: Some(who(r)).filter(known), ..old(&r.old) };
        records.iter().map(new).collect()
    };
    let ascending = named.is_sorted_by(|a, b| a.segment < b.segment);
    if ascending && !named.is_empty() {
        Ok(named)
    } else {
        Err("a digest that is empty or not ascending")
    }
}

/// The volumes with changes in the segments of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statistics {
    /// Ascending, with the highest serial of each.
    pub(crate) volumes: Vec<(VolumeId, Serial)>,
    /// Whether these are all volumes.
    pub(crate) whole: bool,
    /// The marks of changes that are not needed any more.
    pub(crate) marks: Vec<(VolumeId, Mark)>,
}

pub(crate) fn encode_statistics(volumes: &[(VolumeId, Serial)]) -> Vec<u8> {
    let encode = |&(volume, serial): &(VolumeId, Serial)| VolumeBytes {
        volume: volume.0,
        serial: U64::new(serial.0),
    };
    volumes.iter().flat_map(|entry| encode(entry).as_bytes().to_vec()).collect()
}

/// Decodes the volumes of statistics; the payload has been verified.
pub(crate) fn decode_statistics(payload: &[u8]) -> Result<Vec<(VolumeId, Serial)>, &'static str> {
    let records = <[VolumeBytes]>::ref_from_bytes(payload)
        .map_err(|_| "statistics that are not whole records")?;
    Ok(records
        .iter()
        .map(|record| (VolumeId(record.volume), Serial(record.serial.get())))
        .collect())
}

pub(crate) fn encode_marks(marks: &[(VolumeId, Mark)]) -> Vec<u8> {
    let encode = |(volume, mark): &(VolumeId, Mark)| MarkBytes {
        volume: volume.0,
        serial: U64::new(mark.serial.0),
        segment: U64::new(mark.segment.0),
        offset: U32::new(mark.offset),
        zero: [0; 4],
    };
    marks.iter().flat_map(|mark| encode(mark).as_bytes().to_vec()).collect()
}

/// Decodes marks; their payload has been verified.
pub(crate) fn decode_marks(payload: &[u8]) -> Result<Vec<(VolumeId, Mark)>, &'static str> {
    let records =
        <[MarkBytes]>::ref_from_bytes(payload).map_err(|_| "marks that are not whole records")?;
    let decode = |record: &MarkBytes| {
        let mark = Mark {
            serial: Serial(record.serial.get()),
            segment: SegmentId(record.segment.get()),
            offset: record.offset.get(),
        };
        (VolumeId(record.volume), mark)
    };
    Ok(records.iter().map(decode).collect())
}
