//! Reads a segment's bytes from the front, certificate by certificate: what is past the last valid one does not exist.
//!
//! Total over any bytes; used for open segments on flash, for sealed ones whose table is damaged, and by `inspect`.

use crate::format::{
    ENTRY_BYTES, EntryHeader, HEADER_BYTES, Kind, Named, Statistics, decode_digest,
    decode_statistics,
};
use crate::limits::{GRAIN_BYTES, SECTOR_BYTES};
use base::SegmentId;
use base::checksum::{crc32c, crc32c_seeded};

/// The opening entries of a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) digest: Vec<Named>,
    /// They come when the head takes over: one that was only opened ahead has none.
    pub(crate) statistics: Option<Statistics>,
}

/// What a walk found.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    /// Certified changes, in order.
    pub(crate) changes: Vec<EntryHeader>,
    pub(crate) opening: Option<Opening>,
    /// Certificates seen.
    pub(crate) batches: u32,
    /// Certified bytes, with the padding behind the last certificate.
    pub(crate) end: u32,
    /// Where the last batch begins: all before it was durable before it was written.
    pub(crate) last_start: u32,
    /// Why it goes no further.
    pub(crate) why: &'static str,
}

/// Walks `bytes`, the front of `segment` behind a valid segment header. `verify_last` looks at the payloads of the last
/// batch too: its write may have been torn, and it is given up as a whole when one does not match.
pub(crate) fn walk(bytes: &[u8], segment: SegmentId, verify_last: bool) -> Walk {
    let mut walker =
        Walker { bytes, segment, at: HEADER_BYTES, entries: Vec::new(), ..Walker::default() };
    let mut walk =
        Walk { changes: Vec::new(), opening: None, batches: 0, end: 0, last_start: 0, why: "" };
    walk.why = loop {
        match walker.batch() {
            Ok(()) => walk.batches += 1,
            Err(why) => break why,
        }
    };
    let gave_up = verify_last && walk.batches > 0 && !walker.last_batch_is_whole();
    if gave_up {
        walk.why = "the payloads of the last batch do not match: its write was torn";
        walker.give_up_last();
        walk.batches -= 1;
    }
    walk.end = walker.certified_end;
    walk.last_start = if gave_up { walk.end } else { walker.before.1 };
    walker.entries.truncate(walker.certified);
    if walk.end > 0 {
        walk.opening = opening(bytes, &walker.entries);
    }
    walker.entries.retain(|entry| matches!(entry.kind, Kind::Change(_)));
    walk.changes = walker.entries;
    walk
}

#[derive(Default)]
struct Walker<'a> {
    bytes: &'a [u8],
    segment: SegmentId,
    at: u32,
    /// All entries but certificates; the certified ones first.
    entries: Vec<EntryHeader>,
    changes: u64,
    certified: usize,
    certified_end: u32,
    /// The two as they were before the last certificate.
    before: (usize, u32),
}

impl Walker<'_> {
    /// Reads up to and with the next certificate.
    fn batch(&mut self) -> Result<(), &'static str> {
        loop {
            let bytes = self.bytes.get(self.at as usize..).unwrap_or_default();
            let entry = EntryHeader::decode(bytes, self.segment)?;
            if entry.offset != self.at {
                return Err("an entry that belongs elsewhere");
            }
            if entry.kind == Kind::Certificate {
                return self.certify(&entry);
            }
            let end = u64::from(self.at) + u64::from(ENTRY_BYTES) + u64::from(entry.length);
            if end > self.bytes.len() as u64 {
                return Err("an entry that is longer than its segment");
            }
            self.changes += u64::from(matches!(entry.kind, Kind::Change(_)));
            self.at = entry.end();
            self.entries.push(entry);
        }
    }

    fn certify(&mut self, entry: &EntryHeader) -> Result<(), &'static str> {
        let changes =
            self.entries.iter().rev().filter(|entry| matches!(entry.kind, Kind::Change(_)));
        let covered = usize::try_from(entry.span).unwrap_or(usize::MAX).min(self.entries.len());
        let table: Vec<u8> =
            changes.take(covered).flat_map(|change| change.encode(self.segment)).collect();
        let valid = entry.serial.0 == self.changes
            && entry.position == u64::from(self.at + ENTRY_BYTES)
            && entry.span == (table.len() / ENTRY_BYTES as usize) as u64
            && entry.payload_crc == crc32c_seeded(self.segment.0, &table);
        if !valid {
            return Err("a certificate that does not match what it certifies");
        }
        self.before = (self.certified, self.certified_end);
        self.at = (self.at + ENTRY_BYTES).next_multiple_of(SECTOR_BYTES);
        self.certified = self.entries.len();
        self.certified_end = self.at;
        Ok(())
    }

    fn last_batch_is_whole(&self) -> bool {
        self.entries[self.before.0..self.certified]
            .iter()
            .all(|entry| payload_of(self.bytes, entry).is_some())
    }

    fn give_up_last(&mut self) {
        (self.certified, self.certified_end) = self.before;
    }
}

/// The payload of an entry, if it matches its checksum.
pub(crate) fn payload_of<'a>(bytes: &'a [u8], entry: &EntryHeader) -> Option<&'a [u8]> {
    let start = entry.payload_start() as usize;
    let payload = bytes.get(start..start + entry.length as usize)?;
    (entry.kind == Kind::Certificate || crc32c(payload) == entry.payload_crc).then_some(payload)
}

/// Whether the entries of `bytes` from `start` on end with a certificate exactly at the end of `bytes`.
pub(crate) fn ends_certified(bytes: &[u8], segment: SegmentId, start: u32) -> bool {
    let mut at = start.max(HEADER_BYTES);
    let mut certified = start > 0;
    while let Some(rest) = bytes.get(at as usize..).filter(|rest| !rest.is_empty()) {
        let Ok(entry) = EntryHeader::decode(rest, segment) else { return false };
        certified = entry.kind == Kind::Certificate;
        at = if certified { entry.end().next_multiple_of(SECTOR_BYTES) } else { entry.end() };
    }
    certified && at as usize == bytes.len()
}

/// Every change that can be found in `bytes` with header and payload whole, certified or not: what is left to do when
/// a segment's table and certificates are damaged.
pub(crate) fn salvage(bytes: &[u8], segment: SegmentId) -> Vec<EntryHeader> {
    let mut found = Vec::new();
    let mut at = HEADER_BYTES;
    while let Some(rest) =
        bytes.get(at as usize..).filter(|rest| rest.len() >= ENTRY_BYTES as usize)
    {
        let entry = EntryHeader::decode(rest, segment).ok();
        match entry.filter(|entry| entry.offset == at && payload_of(bytes, entry).is_some()) {
            Some(entry) => {
                at = entry.end();
                if matches!(entry.kind, Kind::Change(_)) {
                    found.push(entry);
                }
            }
            None => at += GRAIN_BYTES,
        }
    }
    found
}

/// Digest and statistics of a head, if it begins with a digest that is whole.
fn opening(bytes: &[u8], entries: &[EntryHeader]) -> Option<Opening> {
    let digest = entries.first().filter(|entry| entry.kind == Kind::Digest)?;
    let statistics = entries.get(1).filter(|entry| entry.kind == Kind::Statistics);
    Some(Opening {
        digest: decode_digest(payload_of(bytes, digest)?).ok()?,
        statistics: statistics.and_then(|entry| {
            let volumes = decode_statistics(payload_of(bytes, entry)?).ok()?;
            Some(Statistics { volumes, whole: entry.span == 0 })
        }),
    })
}

/// Reads digest and statistics only, of a head in memory or sealed, whose front may be cut short; `None` when they are
/// not whole within `bytes`.
pub(crate) fn read_opening(bytes: &[u8], segment: SegmentId) -> Option<Opening> {
    let mut walker = Walker { bytes, segment, at: HEADER_BYTES, ..Walker::default() };
    walker.batch().ok()?;
    let behind = bytes.get(walker.at as usize..)?;
    if let Ok(entry) = EntryHeader::decode(behind, segment)
        && (entry.kind, entry.offset) == (Kind::Statistics, walker.at)
    {
        bytes.get(..entry.end() as usize)?;
        walker.entries.push(entry);
    }
    opening(bytes, &walker.entries)
}
