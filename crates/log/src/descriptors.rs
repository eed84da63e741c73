//! The list of a recovered segment's changes: its descriptor table in memory, or the one on flash,
//! or, when both are damaged, the entries that can still be read.

use crate::format::{ENTRY_BYTES, EntryHeader, FOOT_BYTES, Foot, HEADER_BYTES, Key, SegmentHeader};
use crate::scan::{Unreadable, read, read_foot, read_image};
use crate::segment::Segment;
use crate::walk::{ALL, goes_on, salvage, walk};
use rekindle_warm::Memory;

/// A table that has been verified: as a whole by the foot's checksum, or descriptor by descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Verified<'a> {
    /// Whole descriptors, the newest first.
    bytes: &'a [u8],
    key: Key,
}

impl<'a> Verified<'a> {
    /// A table that was verified before: its last `changes` descriptors.
    pub(crate) fn again(back: &'a [u8], changes: u32, key: Key) -> Option<Self> {
        let length = changes as usize * ENTRY_BYTES as usize;
        Some(Verified { bytes: back.get(back.len().checked_sub(length)?..)?, key })
    }

    pub(crate) fn changes(&self) -> u32 {
        u32::try_from(self.bytes.len() / ENTRY_BYTES as usize)
            .expect("a segment is far below 4 GiB")
    }

    /// The changes, in their order.
    pub(crate) fn iter(self) -> impl Iterator<Item = EntryHeader> + 'a {
        let parse = move |bytes| EntryHeader::decode_verified(bytes, self.key).ok();
        self.bytes.rchunks_exact(ENTRY_BYTES as usize).filter_map(parse)
    }

    /// The change of that number, counted from 0.
    pub(crate) fn get(self, number: u32) -> Option<EntryHeader> {
        let end = self.bytes.len().checked_sub(number as usize * ENTRY_BYTES as usize)?;
        let bytes = self.bytes.get(end.checked_sub(ENTRY_BYTES as usize)?..end)?;
        EntryHeader::decode_verified(bytes, self.key).ok()
    }

    /// Checks that the bytes are descriptors of entries that ascend and lie inside the front.
    fn checked(self, front: u32) -> Option<Self> {
        let mut at = HEADER_BYTES;
        let sane = self.bytes.rchunks_exact(ENTRY_BYTES as usize).all(|bytes| {
            let Ok(entry) = EntryHeader::decode_verified(bytes, self.key) else { return false };
            let end = u64::from(entry.offset) + u64::from(ENTRY_BYTES) + u64::from(entry.length);
            let sane = entry.offset >= at && end <= u64::from(front) && entry.kind.is_listed();
            at = if sane { entry.end() } else { at };
            sane
        });
        sane.then_some(self)
    }
}

/// The table of a segment in memory.
pub(crate) fn in_memory<'a>(segment: &Segment, memory: &'a Memory) -> Option<Verified<'a>> {
    let (back, header) = (memory.back(), &segment.header);
    let table = match memory.tail() {
        Some(tail) => {
            let foot = tail.get(tail.len() - FOOT_BYTES as usize..)?;
            let foot = Foot::decode(foot, segment.id(), header.birth, header.capacity)?;
            by_foot(&foot, back, header.key())?
        }
        None => one_by_one(back, header.key())?,
    };
    table.checked(memory.front_length())
}

/// The descriptors of an unsealed segment, if each of them is whole.
pub(crate) fn one_by_one(back: &[u8], key: Key) -> Option<Verified<'_>> {
    let whole = |bytes| EntryHeader::decode(bytes, key).is_ok();
    back.chunks_exact(ENTRY_BYTES as usize).all(whole).then_some(Verified { bytes: back, key })
}

/// The descriptors out of the bytes before the foot, if they match its checksum.
fn by_foot<'a>(foot: &Foot, back: &'a [u8], key: Key) -> Option<Verified<'a>> {
    let table = Verified::again(back, foot.changes, key)?;
    (key.checksum(table.bytes) == foot.table_crc).then_some(table)
}

/// A table read from flash.
pub(crate) struct Read {
    foot: Foot,
    back: Vec<u8>,
    key: Key,
}

impl Read {
    pub(crate) fn table(&self) -> Option<Verified<'_>> {
        by_foot(&self.foot, &self.back, self.key)
    }
}

/// The table of a sealed segment on flash, verified; `None` when there is none.
pub(crate) async fn on_flash(segment: &Segment) -> Result<Option<Read>, Unreadable> {
    let (pool, header) = (segment.pool(), &segment.header);
    let Some(file) = segment.file else { return Ok(None) };
    let Some(foot) = read_foot(pool, file, header).await? else { return Ok(None) };
    let mut back = vec![0; foot.table as usize];
    read(pool, file, &mut back, header.capacity - FOOT_BYTES - foot.table).await?;
    let read = Read { foot, back, key: header.key() };
    let sane = read.table().and_then(|table| table.checked(foot.front)).is_some();
    Ok(sane.then_some(read))
}

/// The entries found in a segment without a table.
pub(crate) struct Entries {
    pub(crate) listed: Vec<EntryHeader>,
    /// The damage, if entries are missing.
    pub(crate) damage: Option<Damage>,
}

/// Damage of a segment that has lost entries.
pub(crate) struct Damage {
    pub(crate) reason: String,
    /// Offset behind which no entry is missing.
    pub(crate) hole_ends: u32,
    /// The device has refused to give the segment, at least in part.
    pub(crate) is_unreadable: bool,
}

/// Reads the entries of a segment without a table, as far as they can be read.
pub(crate) async fn out_of_entries(segment: &Segment) -> Entries {
    let lost = |reason: String| Entries {
        listed: Vec::new(),
        damage: Some(Damage { reason, hole_ends: u32::MAX, is_unreadable: false }),
    };
    let Some(file) = segment.file else {
        return lost("its table in memory is damaged, and it has no file".to_owned());
    };
    let header = &segment.header;
    let foot = read_foot(segment.pool(), file, header).await.ok().flatten();
    let (image, unreadable) = read_image(segment.pool(), file, header).await;
    let durable = match foot {
        Some(_) => ALL,
        None => segment.pool().known_end_of(header).durable,
    };
    of_image(header, &image, foot, unreadable, durable)
}

/// Reads the entries as [`out_of_entries`] does, from these bytes, of which the first `durable` are
/// known to have been on flash.
pub(crate) fn of_image(
    header: &SegmentHeader,
    image: &[u8],
    foot: Option<Foot>,
    unreadable: Option<Unreadable>,
    durable: u32,
) -> Entries {
    let walked = walk(image, header, durable);
    let whole = match foot {
        Some(foot) => walked.end == foot.front,
        None => {
            let goes_on = header.version >= 3 && goes_on(image, header, &walked);
            walked.opening.is_some() && unreadable.is_none() && !goes_on
        }
    };
    if whole {
        return Entries { listed: walked.listed, damage: None };
    }
    let mut found = salvage(image, header);
    let ends_are_known = match foot {
        Some(foot) => found.ends >= foot.front,
        None => unreadable.is_none() && found.count > 0,
    };
    if foot.is_none() && unreadable.is_none() {
        // The last batch may be torn: no client has an acknowledgement of it.
        found.listed.truncate(found.certified);
    }
    let count = foot.map_or(found.count, |foot| foot.changes.into());
    if found.listed.len() as u64 == count && ends_are_known {
        return Entries { listed: found.listed, damage: None };
    }
    if !ends_are_known {
        found.hole_ends = u32::MAX;
    }
    let is_unreadable = unreadable.is_some();
    let why = unreadable.map_or_else(|| walked.why.to_owned(), |Unreadable(why)| why);
    let (end, changes) = (walked.end, found.listed.len());
    let reason = format!("damaged at {end}: {why}; {changes} changes can be read");
    let damage = Damage { reason, hole_ends: found.hole_ends, is_unreadable };
    Entries { listed: found.listed, damage: Some(damage) }
}
