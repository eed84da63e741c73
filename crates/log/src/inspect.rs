//! Reads a segment file's bytes offline; never writes.

use crate::Change;
use crate::format::{FOOT_BYTES, Foot, Kind, KnownEnd, SegmentHeader};
use crate::known_end;
use crate::walk::{ALL, payload_of, walk};
use rekindle_base::{Generation, Incarnation, NodeId, SegmentId, Serial, VolumeId};

/// A segment, as far as it can be read.
#[derive(Debug, Clone)]
pub struct Inspected {
    pub node: NodeId,
    pub segment: SegmentId,
    pub incarnation: Incarnation,
    pub epoch: u64,
    pub capacity: u32,
    /// Segments that its digest names, with their file numbers.
    pub digest: Vec<(SegmentId, u32)>,
    /// Volumes that had changes in the other segments when this one took over, with the highest
    /// serial of each.
    pub statistics: Vec<(VolumeId, Serial)>,
    /// Volumes of which changes before the marks are not needed any more, up to these serials. All
    /// ones: no change is needed.
    pub marks: Vec<(VolumeId, Serial)>,
    /// The seal; `None` while the segment is open.
    pub sealed: Option<Sealed>,
    /// Count of the commits that can be read.
    pub batches: u32,
    pub entries: Vec<Entry>,
    /// Certified bytes.
    pub valid_bytes: u32,
    /// The reason why nothing is read behind the certified bytes.
    pub ends_because: String,
}

/// The seal of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    pub valid_bytes: u32,
    pub changes: u32,
    /// The head that follows; `None` when the log was closed here.
    pub successor: Option<SegmentId>,
}

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub offset: u32,
    pub volume: VolumeId,
    pub generation: Generation,
    pub serial: Serial,
    pub change: Change,
    /// The next change of the volume belongs to the same group.
    pub joined: bool,
    /// First byte of the range; of a record: the record's own kind.
    pub position: u64,
    pub span: u64,
    pub length: u32,
    /// The payload matches its checksum.
    pub payload_is_whole: bool,
}

/// The record of how far the open segment was durable: what its file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Number of the record.
    pub number: u64,
    pub node: NodeId,
    pub segment: SegmentId,
    /// Bytes of the segment.
    pub durable: u32,
    /// Changes and releases within these bytes.
    pub changes: u32,
}

/// Reads the bytes of a file `known-end`; `None` when neither of its slots has a record.
#[must_use]
pub fn known_end(bytes: &[u8]) -> Option<Ended> {
    let (number, known) = known_end::newest_of(bytes)?;
    let KnownEnd { node, segment, durable, changes, .. } = known;
    Some(Ended { number, node, segment, durable, changes })
}

/// Reads the bytes of a segment file.
pub fn segment(bytes: &[u8]) -> Result<Inspected, String> {
    let header = SegmentHeader::decode(bytes).map_err(|bad| bad.to_string())?;
    let walked = walk(bytes, &header, ALL);
    let foot = bytes.get(bytes.len().saturating_sub(FOOT_BYTES as usize)..);
    let foot =
        foot.and_then(|foot| Foot::decode(foot, header.segment, header.birth, header.capacity));
    let entries = walked.listed.iter().filter_map(|entry| {
        let Kind::Change(change) = entry.kind else { return None };
        Some(Entry {
            offset: entry.offset,
            volume: entry.volume,
            generation: entry.generation,
            serial: entry.serial,
            change,
            joined: entry.joined,
            position: entry.position,
            span: entry.span,
            length: entry.length,
            payload_is_whole: payload_of(bytes, entry).is_some(),
        })
    });
    let sealed = foot.map(|foot| Sealed {
        valid_bytes: foot.front,
        changes: foot.changes,
        successor: foot.successor,
    });
    let ends_because = match sealed {
        Some(sealed) if sealed.valid_bytes == walked.end => "it was sealed here".to_owned(),
        _ => walked.why.to_owned(),
    };
    let opening = walked.opening.as_ref();
    Ok(Inspected {
        node: header.node,
        segment: header.segment,
        incarnation: header.incarnation,
        epoch: header.epoch,
        capacity: header.capacity,
        digest: opening
            .map(|o| o.digest.iter().map(|n| (n.segment, n.file)).collect())
            .unwrap_or_default(),
        statistics: opening
            .and_then(|opening| opening.statistics.clone())
            .map(|statistics| statistics.volumes)
            .unwrap_or_default(),
        marks: opening
            .and_then(|opening| opening.statistics.as_ref())
            .map(|statistics| {
                statistics.marks.iter().map(|&(volume, mark)| (volume, mark.serial)).collect()
            })
            .unwrap_or_default(),
        sealed,
        batches: walked.batches,
        entries: entries.collect(),
        valid_bytes: walked.end,
        ends_because,
    })
}
