//! The index of a recovered segment: which of its changes belong to which volume, 2 bytes each. The
//! changes themselves are read again when a caller asks for a volume.

use crate::Recovered;
use crate::descriptors::{self, Verified};
use crate::format::{EntryHeader, Kind, Mark};
use crate::scan::Unreadable;
use crate::segment::{Place, Segment};
use crate::summary::LogSummary;
use hashbrown::HashMap;
use rekindle_base::{SegmentId, Serial, VolumeId};
use std::cmp::Reverse;
use std::sync::{Arc, Weak};

/// Low-water marks by volume, in the order of the log.
pub(crate) type Marks = HashMap<VolumeId, Vec<Mark>>;

pub(crate) fn is_marked(marks: &Marks, segment: SegmentId, entry: &EntryHeader) -> bool {
    let marks = marks.get(&entry.volume).map_or(&[][..], Vec::as_slice);
    marks.iter().any(|mark| mark.covers(entry.serial, segment, entry.offset))
}

/// The index of one segment: which of its changes belong to which volume.
pub(crate) struct Index {
    pub(crate) id: SegmentId,
    /// Weak: the log's table keeps the segment while a change in it is needed.
    pub(crate) segment: Weak<Segment>,
    pub(crate) changes: u32,
    /// The descriptor table in memory was found whole; otherwise only the one on flash counts.
    pub(crate) memory_is_sound: bool,
    /// Numbers of the changes, volume by volume; empty when all belong to one volume.
    pub(crate) order: Vec<u16>,
    /// The lowest serial of each volume among the changes here that are not needed any more.
    pub(crate) done_from: Vec<(VolumeId, Serial)>,
    /// The changes themselves, when there is no table to read them from again.
    pub(crate) kept: Option<Vec<EntryHeader>>,
}

/// The changes of one volume in one segment.
#[derive(Clone)]
pub(crate) struct SegmentPart {
    pub(crate) index: Arc<Index>,
    /// Start of this volume's numbers in `order`.
    pub(crate) start: u32,
    pub(crate) summary: LogSummary,
}

/// Highest serials and marks of one segment.
pub(crate) struct SegmentTotals {
    /// The highest serial of each volume; `None` when not all of the segment can be read.
    pub(crate) highest: Option<Vec<(VolumeId, Serial)>>,
    pub(crate) marks: Vec<(VolumeId, Mark)>,
}

/// Reads the highest serials and the marks of a segment.
pub(crate) async fn content_of(segment: &Segment) -> SegmentTotals {
    let content = |sorted: Sorted| SegmentTotals {
        highest: Some(
            sorted.shares.iter().map(|share| (share.volume, share.summary.highest)).collect(),
        ),
        marks: sorted.marks,
    };
    let sort = |listed: &mut dyn Iterator<Item = EntryHeader>| {
        content(sort(listed, segment.id(), &Marks::new()))
    };
    let in_memory = segment
        .with_memory(|memory| Some(sort(&mut descriptors::in_memory(segment, memory)?.iter())));
    if let Some(content) = in_memory.flatten() {
        return content;
    }
    let read = descriptors::on_flash(segment).await.ok().flatten();
    if let Some(table) = read.as_ref().and_then(|read| read.table()) {
        return sort(&mut table.iter());
    }
    let found = descriptors::out_of_entries(segment).await;
    let content = sort(&mut found.listed.into_iter());
    SegmentTotals { highest: content.highest.filter(|_| found.damage.is_none()), ..content }
}

/// A volume's share of a segment, while its index is made.
pub(crate) struct Share {
    pub(crate) volume: VolumeId,
    pub(crate) summary: LogSummary,
}

impl Index {
    pub(crate) fn of_table(
        segment: &Arc<Segment>,
        table: Verified<'_>,
        memory_is_sound: bool,
        marks: &Marks,
    ) -> (Index, Vec<Share>) {
        let Sorted { order, shares, done_from, .. } = sort(table.iter(), segment.id(), marks);
        let index = Index {
            id: segment.id(),
            segment: Arc::downgrade(segment),
            changes: table.changes(),
            order,
            done_from,
            kept: None,
            memory_is_sound,
        };
        (index, shares)
    }

    pub(crate) fn of_entries(
        segment: &Arc<Segment>,
        mut entries: Vec<EntryHeader>,
        marks: &Marks,
    ) -> (Index, Vec<Share>) {
        // A segment that the log wrote has no more changes: each has a descriptor, too. Damaged
        // bytes may look like more.
        entries.truncate(usize::from(u16::MAX));
        let listed = entries.iter().copied();
        let Sorted { order, shares, done_from, .. } = sort(listed, segment.id(), marks);
        let changes = u32::try_from(entries.len()).expect("a segment is far below 4 GiB");
        (
            Index {
                id: segment.id(),
                segment: Arc::downgrade(segment),
                changes,
                order,
                done_from,
                kept: Some(entries),
                memory_is_sound: false,
            },
            shares,
        )
    }
}

/// The descriptors of a segment, sorted by volume.
struct Sorted {
    /// The numbers of the changes, volume by volume; empty when all belong to one volume.
    order: Vec<u16>,
    /// Each volume's share.
    shares: Vec<Share>,
    /// The marks among the changes.
    marks: Vec<(VolumeId, Mark)>,
    /// The lowest serial of each volume among the changes that are marked.
    done_from: Vec<(VolumeId, Serial)>,
}

/// Sorts the descriptors of a segment by volume. Marked changes belong to no volume.
fn sort(listed: impl Iterator<Item = EntryHeader>, segment: SegmentId, marks: &Marks) -> Sorted {
    const NO_VOLUME: u16 = u16::MAX;
    let mut shares: Vec<Share> = Vec::new();
    let mut found = Vec::new();
    let mut known: HashMap<VolumeId, usize> = HashMap::new();
    let mut done_from: HashMap<VolumeId, Serial> = HashMap::new();
    // The volume of each change, as an index into `shares`; filled only when a change is not of the
    // first volume.
    let mut owners: Vec<u16> = Vec::new();
    let (mut last, mut total) = (usize::MAX, 0usize);
    for entry in listed {
        let is_change = matches!(entry.kind, Kind::Change(_));
        if !is_change {
            let mark = Mark { serial: entry.serial, segment, offset: entry.offset };
            found.push((entry.volume, mark));
        }
        let is_done = is_change && !marks.is_empty() && is_marked(marks, segment, &entry);
        if is_done {
            let lowest = done_from.entry(entry.volume).or_insert(entry.serial);
            *lowest = entry.serial.min(*lowest);
        }
        if !is_change || is_done {
            owners.resize(total, 0);
            owners.push(NO_VOLUME);
            total += 1;
            continue;
        }
        if shares.get(last).is_none_or(|share| share.volume != entry.volume) {
            last = *known.entry(entry.volume).or_insert(shares.len());
        }
        let summary = LogSummary::of(&entry);
        match shares.get_mut(last) {
            Some(share) => share.summary = share.summary.with(summary),
            None => shares.push(Share { volume: entry.volume, summary }),
        }
        if shares.len() > 1 || !owners.is_empty() {
            owners.resize(total, 0);
            owners.push(u16::try_from(last).expect("a segment holds fewer than 65,535 changes"));
        }
        total += 1;
    }
    let mut next: Vec<usize> = shares
        .iter()
        .scan(0, |start, share| {
            let begin = *start;
            *start += share.summary.changes as usize;
            Some(begin)
        })
        .collect();
    let mut order = vec![0; owners.iter().filter(|&&owner| owner != NO_VOLUME).count()];
    for (number, &owner) in owners.iter().enumerate().filter(|(_, owner)| **owner != NO_VOLUME) {
        let place = &mut next[usize::from(owner)];
        order[*place] = u16::try_from(number).expect("a segment holds fewer than 65,536 changes");
        *place += 1;
    }
    Sorted { order, shares, marks: found, done_from: done_from.into_iter().collect() }
}

impl SegmentPart {
    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.summary.changes).expect("a segment holds fewer than 65,536 changes")
    }

    /// Adds all changes behind `released` to `list`; on an error, which says why, it adds none.
    pub(crate) async fn read(&self, released: Serial, list: &mut List) -> Result<(), String> {
        // A segment that is gone was released a moment ago.
        let Some(segment) = self.index.segment.upgrade() else { return Ok(()) };
        if let Some(kept) = &self.index.kept {
            self.numbers().filter_map(|number| kept.get(number as usize)).for_each(|&entry| {
                list.push(&segment, entry, released);
            });
            return Ok(());
        }
        let mut add = |table: Verified<'_>| {
            self.numbers().filter_map(|number| table.get(number)).for_each(|entry| {
                list.push(&segment, entry, released);
            });
        };
        let added = segment.with_memory(|memory| {
            // The bytes are the same as before: published bytes never change.
            let table = Verified::again(memory.back(), self.index.changes, segment.header.key());
            table.filter(|_| self.index.memory_is_sound).map(&mut add)
        });
        if added.flatten().is_some() {
            return Ok(());
        }
        let read = descriptors::on_flash(&segment).await;
        let read = read.map_err(|Unreadable(why)| why)?;
        let table = read.as_ref().and_then(|read| read.table());
        let table = table.filter(|table| table.changes() == self.index.changes);
        add(table.ok_or("its table is damaged")?);
        Ok(())
    }

    /// The part's changes, where the index keeps them because there is no table.
    pub(crate) fn kept(&self) -> Vec<EntryHeader> {
        let kept = self.index.kept.as_deref().unwrap_or_default();
        self.numbers().filter_map(|number| kept.get(number as usize).copied()).collect()
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        let range = self.start as usize..self.start as usize + self.count();
        let order = self.index.order.get(range).unwrap_or_default();
        let all = if self.index.order.is_empty() { 0..self.index.changes } else { 0..0 };
        all.chain(order.iter().map(|&number| u32::from(number)))
    }
}

/// The changes of one volume, as a salvage gathers them.
pub(crate) struct List {
    changes: Vec<Recovered>,
    unordered: bool,
}

impl List {
    pub(crate) fn with_capacity(count: usize) -> List {
        List { changes: Vec::with_capacity(count), unordered: false }
    }

    pub(crate) fn push(&mut self, segment: &Arc<Segment>, entry: EntryHeader, released: Serial) {
        let Kind::Change(change) = entry.kind else { return };
        if entry.serial <= released {
            return;
        }
        // A newer generation that goes back replaces the older one's changes from its own serial
        // on: the volume had another owner meanwhile, and the older changes were lost to it.
        let gives_way =
            |last: &Recovered| last.serial >= entry.serial && last.generation < entry.generation;
        while self.changes.last().is_some_and(gives_way) {
            self.changes.pop();
        }
        self.unordered |= self.changes.last().is_some_and(|last| last.serial >= entry.serial);
        self.changes.push(Recovered {
            life: segment.header.incarnation,
            generation: entry.generation,
            serial: entry.serial,
            change,
            joined: entry.joined,
            position: entry.position,
            span: entry.span,
            place: Place {
                segment: Arc::clone(segment),
                offset: entry.offset,
                length: entry.length,
            },
        });
    }

    pub(crate) fn into_ordered(mut self) -> Vec<Recovered> {
        if self.unordered {
            // Two lives may have logged the same serials: another copy of the folder has made the
            // older one's changes void.
            self.changes.sort_by_key(|change| {
                (change.serial, Reverse(change.generation), Reverse(change.life))
            });
            self.changes.dedup_by_key(|change| change.serial);
        }
        self.changes
    }
}
