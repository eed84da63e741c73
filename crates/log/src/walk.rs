//! Reads a segment's bytes from the front, certificate by certificate: bytes past the last valid
//! certificate do not exist.
//!
//! Total over any bytes; used for open segments on flash, for sealed ones whose table is damaged,
//! and by `inspect`.

use crate::format::{
    ENTRY_BYTES, EntryHeader, HEADER_BYTES, Key, Kind, Named, SegmentHeader, Statistics,
    decode_digest, decode_marks, decode_statistics,
};
use crate::limits::GRAIN_BYTES;
use rekindle_base::checksum::crc32c;
use std::collections::VecDeque;

/// The opening entries of a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) digest: Vec<Named>,
    /// Written when the head takes over: a head that was only opened ahead has none.
    pub(crate) statistics: Option<Statistics>,
}

/// The result of a walk.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    /// Certified entries that have descriptors, in order.
    pub(crate) listed: Vec<EntryHeader>,
    pub(crate) opening: Option<Opening>,
    /// Count of the certificates.
    pub(crate) batches: u32,
    /// Certified bytes, with the padding behind the last certificate.
    pub(crate) end: u32,
    /// The start of the last batch: all before it was durable before it was written.
    pub(crate) last_start: u32,
    /// The reason why the walk goes no further.
    pub(crate) why: &'static str,
}

/// The durable bytes of a segment that was sealed, or of which nothing is decided by a walk.
pub(crate) const ALL: u32 = u32::MAX;

/// Walks `bytes`, the front of `segment` behind a valid segment header. The first `durable` bytes
/// are known to have been on flash. The write of a last batch behind them may have been torn: its
/// payloads are verified too, and if one does not match, the whole batch is given up.
pub(crate) fn walk(bytes: &[u8], segment: &SegmentHeader, durable: u32) -> Walk {
    let mut walker = Walker::new(bytes, segment);
    let mut walk =
        Walk { listed: Vec::new(), opening: None, batches: 0, end: 0, last_start: 0, why: "" };
    walk.why = loop {
        match walker.batch() {
            Ok(()) => walk.batches += 1,
            Err(why) => break why,
        }
    };
    let may_be_torn = walk.batches > 0 && walker.certified_end > durable;
    let gave_up = may_be_torn && !walker.last_batch_is_whole();
    if gave_up {
        walk.why = "the payloads of the last batch do not match: its write was torn";
        walker.give_up_last();
        walk.batches -= 1;
    }
    walk.end = walker.certified_end;
    walk.last_start = if gave_up { walk.end } else { walker.before.1 };
    walker.entries.truncate(walker.certified);
    if walk.end > 0 {
        walk.opening = opening(bytes, &walker.entries, segment.version);
    }
    walker.entries.retain(|entry| entry.kind.is_listed());
    walk.listed = walker.entries;
    walk
}

struct Walker<'a> {
    bytes: &'a [u8],
    key: Key,
    sector: u32,
    at: u32,
    /// All entries but certificates; the certified ones first.
    entries: Vec<EntryHeader>,
    listed: u64,
    certified: usize,
    certified_end: u32,
    /// `certified` and `certified_end` as they were before the last certificate.
    before: (usize, u32),
}

impl<'a> Walker<'a> {
    fn new(bytes: &'a [u8], segment: &SegmentHeader) -> Walker<'a> {
        Walker {
            bytes,
            key: segment.key(),
            sector: segment.sector,
            at: HEADER_BYTES,
            entries: Vec::new(),
            listed: 0,
            certified: 0,
            certified_end: 0,
            before: (0, 0),
        }
    }

    /// Reads up to the next certificate, and that.
    fn batch(&mut self) -> Result<(), &'static str> {
        loop {
            let bytes = self.bytes.get(self.at as usize..).unwrap_or_default();
            let entry = EntryHeader::decode(bytes, self.key)?;
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
            self.listed += u64::from(entry.kind.is_listed());
            self.at = entry.end();
            self.entries.push(entry);
        }
    }

    fn certify(&mut self, entry: &EntryHeader) -> Result<(), &'static str> {
        let listed = self.entries.iter().rev().filter(|entry| entry.kind.is_listed());
        let covered = usize::try_from(entry.span).unwrap_or(usize::MAX).min(self.entries.len());
        let table: Vec<u8> =
            listed.take(covered).flat_map(|entry| entry.encode(self.key)).collect();
        let valid = entry.serial.0 == self.listed
            && entry.position == u64::from(self.at + ENTRY_BYTES)
            && entry.span == (table.len() / ENTRY_BYTES as usize) as u64
            && entry.payload_crc == self.key.checksum(&table);
        if !valid {
            return Err("a certificate that does not match what it certifies");
        }
        self.before = (self.certified, self.certified_end);
        self.at = (self.at + ENTRY_BYTES).next_multiple_of(self.sector);
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

/// The ends of the batches behind `start` that an earlier leader has certified, and perhaps not
/// written. The flag says whether they are all there is in `bytes`.
pub(crate) fn certified_ends(
    bytes: &[u8],
    segment: &SegmentHeader,
    start: u32,
) -> (VecDeque<u32>, bool) {
    let mut at = start.max(HEADER_BYTES);
    let mut ends = VecDeque::new();
    while let Some(rest) = bytes.get(at as usize..).filter(|rest| !rest.is_empty()) {
        let Ok(entry) = EntryHeader::decode(rest, segment.key()) else { break };
        at = entry.end();
        if entry.kind == Kind::Certificate {
            at = at.next_multiple_of(segment.sector);
            ends.push_back(at);
        }
    }
    let is_whole = ends.back().map_or(start > 0 && start == at, |&end| end == at);
    (ends, is_whole && at as usize == bytes.len())
}

/// Whether any entry behind the end of a walk proves that a durable batch lies there, or lay there:
/// then the segment does not end where the walk ended. Only the last batch may be torn; an entry of
/// a later one is the proof.
pub(crate) fn goes_on(bytes: &[u8], segment: &SegmentHeader, walked: &Walk) -> bool {
    let mut first_ends = None;
    for entry in valid_entries(bytes, segment.key(), walked.end.max(HEADER_BYTES)) {
        if first_ends.is_some_and(|end| entry.offset >= end) {
            return true;
        }
        if entry.kind == Kind::Certificate && first_ends.is_none() {
            if entry.serial.0.checked_sub(entry.span) != Some(walked.listed.len() as u64) {
                return true;
            }
            first_ends = Some(entry.end().next_multiple_of(segment.sector));
        }
    }
    false
}

/// The part of an image of a segment that proves itself. Of two images of one file, the greater
/// proof is the truer: a bit that is wrong on its way hides entries, and never makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Proof {
    /// Certified bytes.
    end: u32,
    /// Entries whose payloads match.
    matching: usize,
    /// Whether nothing in the image speaks against it: all payloads match, and no entry lies behind
    /// its end.
    pub(crate) is_sound: bool,
}

/// Weighs an image of a segment, with all its payloads.
pub(crate) fn proof(bytes: &[u8], segment: &SegmentHeader) -> Proof {
    let walked = walk(bytes, segment, ALL);
    let matching = walked.listed.iter().filter(|entry| payload_of(bytes, entry).is_some()).count();
    let behind = valid_entries(bytes, segment.key(), walked.end.max(HEADER_BYTES)).next();
    let is_sound = walked.end > 0 && matching == walked.listed.len() && behind.is_none();
    Proof { end: walked.end, matching, is_sound }
}

/// Every entry with a valid header from `start` on, whatever lies between them.
fn valid_entries(bytes: &[u8], key: Key, start: u32) -> impl Iterator<Item = EntryHeader> {
    let mut at = start;
    std::iter::from_fn(move || {
        loop {
            let rest =
                bytes.get(at as usize..).filter(|rest| rest.len() >= ENTRY_BYTES as usize)?;
            match EntryHeader::decode(rest, key).ok().filter(|entry| entry.offset == at) {
                Some(entry) => {
                    at = entry.end();
                    return Some(entry);
                }
                None => at += GRAIN_BYTES,
            }
        }
    })
}

/// The result of a salvage: the last resort when a segment's table and certificates are damaged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Salvaged {
    /// Every entry with a descriptor that can be found with header and payload whole, certified or
    /// not.
    pub(crate) listed: Vec<EntryHeader>,
    /// Count of the entries with descriptors, by the last certificate that can be read.
    pub(crate) count: u64,
    /// Offset behind which no entry is missing between those that were found.
    pub(crate) hole_ends: u32,
    /// The end of the last found entry, padding included.
    pub(crate) ends: u32,
    /// Count of the entries in `listed` before the last certificate.
    pub(crate) certified: usize,
}

/// Finds every whole entry in `bytes`.
pub(crate) fn salvage(bytes: &[u8], segment: &SegmentHeader) -> Salvaged {
    let mut found = Salvaged::default();
    let mut expected = HEADER_BYTES;
    for entry in valid_entries(bytes, segment.key(), HEADER_BYTES) {
        let is_whole = payload_of(bytes, &entry).is_some();
        if entry.offset != expected || !is_whole {
            found.hole_ends = entry.offset + u32::from(!is_whole);
        }
        expected = entry.end();
        if entry.kind == Kind::Certificate {
            found.count = entry.serial.0;
            found.certified = found.listed.len();
            expected = expected.next_multiple_of(segment.sector);
        } else if entry.kind.is_listed() && is_whole {
            found.listed.push(entry);
        }
    }
    found.ends = expected;
    found
}

/// The opening of a head, if it begins with a whole digest.
fn opening(bytes: &[u8], entries: &[EntryHeader], version: u32) -> Option<Opening> {
    let digest = entries.first().filter(|entry| entry.kind == Kind::Digest)?;
    let of = |number: usize, kind| entries.get(number).filter(|entry| entry.kind == kind);
    let marks = of(2, Kind::Marks).and_then(|entry| decode_marks(payload_of(bytes, entry)?).ok());
    Some(Opening {
        digest: decode_digest(payload_of(bytes, digest)?, version).ok()?,
        statistics: of(1, Kind::Statistics).and_then(|entry| {
            let volumes = decode_statistics(payload_of(bytes, entry)?).ok()?;
            let marks = marks.unwrap_or_default();
            Some(Statistics { volumes, whole: entry.span == 0, marks })
        }),
    })
}

/// Reads only the opening of a head. The head is in memory or sealed, and its front may be cut
/// short: `None` when the opening is not whole within `bytes`.
pub(crate) fn read_opening(bytes: &[u8], segment: &SegmentHeader) -> Option<Opening> {
    let mut walker = Walker::new(bytes, segment);
    walker.batch().ok()?;
    for kind in [Kind::Statistics, Kind::Marks] {
        let behind = bytes.get(walker.at as usize..)?;
        match EntryHeader::decode(behind, segment.key()) {
            Ok(entry) if (entry.kind, entry.offset) == (kind, walker.at) => {
                bytes.get(..entry.end() as usize)?;
                walker.at = entry.end();
                walker.entries.push(entry);
            }
            _ => break,
        }
    }
    opening(bytes, &walker.entries, segment.version)
}
