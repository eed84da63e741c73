//! The changes that outlived a restart: indexed once, at the first query, from the descriptor
//! tables of the recovered segments.
//!
//! A gibibyte of 4 KiB writes is 262,144 descriptors of 64 bytes: 16 MiB to read; payloads are not
//! touched. The inventory keeps only an index (which descriptors of which segment belong to which
//! volume, 2 bytes each), and reads the descriptors again when a caller asks for a volume. That
//! touches no new memory but the answer: after a start, new memory is what costs.

use crate::descriptors::{self, Damage, Entries, Verified};
use crate::format::{EntryHeader, Kind, Lost, Mark};
use crate::inner::Inner;
use crate::limits::{EXHAUSTED_RETRY, READ_TRIES};
use crate::machine::table::{EVERY, NO_FILE};
use crate::scan::Unreadable;
use crate::segment::{Place, Segment};
use crate::summary::LogSummary;
use crate::{Error, Loss, Recovered};
use hashbrown::HashMap;
use parking_lot::Mutex;
use rekindle_base::{Incarnation, SegmentId, Serial, VolumeId};
use std::cmp::{Ordering, Reverse};
use std::sync::{Arc, Weak};
use tokio::sync::OnceCell;

/// The recovered changes of the log, and its known losses.
pub(crate) struct Recovery {
    /// Ascending; emptied once all are read.
    unread: Mutex<Vec<Arc<Segment>>>,
    done: OnceCell<()>,
    inventory: Mutex<Inventory>,
    /// Files that cannot be read and that no digest names: they may be the proof of a loss.
    strays: Mutex<Vec<u32>>,
}

#[derive(Default)]
pub(crate) struct Inventory {
    indexes: Vec<Arc<Index>>,
    volumes: HashMap<VolumeId, Vec<Part>>,
    /// Released serials of the volumes, also of releases before the segments were read.
    released: HashMap<VolumeId, Serial>,
    /// Low-water marks that earlier lives have written down.
    marks: Marks,
    /// By volume: each segment's lowest serial among the changes that are not needed any more. It
    /// bounds the serials that an earlier segment can have had.
    done_from: HashMap<VolumeId, Vec<(SegmentId, Serial)>>,
    losses: Vec<LostSegment>,
    /// Highest serials when the newest recovered head was opened, and that head if all volumes are
    /// among them.
    statistics: HashMap<VolumeId, Serial>,
    statistics_of: Option<SegmentId>,
}

/// Low-water marks by volume, in the order of the log.
pub(crate) type Marks = HashMap<VolumeId, Vec<Mark>>;

fn is_marked(marks: &Marks, segment: SegmentId, entry: &EntryHeader) -> bool {
    let marks = marks.get(&entry.volume).map_or(&[][..], Vec::as_slice);
    marks.iter().any(|mark| mark.covers(entry.serial, segment, entry.offset))
}

/// A segment of which changes may be missing.
#[derive(Debug, Clone)]
pub(crate) struct LostSegment {
    pub(crate) segment: SegmentId,
    pub(crate) lost: Lost,
    /// Offset behind which no change is missing, when a part of the segment could be read.
    pub(crate) hole_ends: Option<u32>,
    /// An earlier start has reported the loss: what this start sees is more exact.
    pub(crate) hearsay: bool,
    pub(crate) reason: String,
}

/// The index of one segment: which of its changes belong to which volume.
struct Index {
    id: SegmentId,
    /// Weak: the log's table keeps the segment while a change in it is needed.
    segment: Weak<Segment>,
    changes: u32,
    /// The descriptor table in memory was found whole; otherwise only the one on flash counts.
    memory_is_sound: bool,
    /// Numbers of the changes, volume by volume; empty when all belong to one volume.
    order: Vec<u16>,
    /// The lowest serial of each volume among the changes here that are not needed any more.
    done_from: Vec<(VolumeId, Serial)>,
    /// The changes themselves, when there is no table to read them from again.
    kept: Option<Vec<EntryHeader>>,
}

/// The changes of one volume in one segment.
#[derive(Clone)]
struct Part {
    index: Arc<Index>,
    /// Start of this volume's numbers in `order`.
    start: u32,
    summary: LogSummary,
}

impl Recovery {
    pub(crate) fn new(
        unread: Vec<Arc<Segment>>,
        inventory: Inventory,
        strays: Vec<u32>,
    ) -> Recovery {
        Recovery {
            unread: Mutex::new(unread),
            done: OnceCell::new(),
            inventory: Mutex::new(inventory),
            strays: Mutex::new(strays),
        }
    }

    pub(crate) fn has_losses(&self) -> bool {
        !self.inventory.lock().losses.is_empty()
    }

    pub(crate) fn release(&self, volume: VolumeId, serial: Serial) {
        let done = self.done.initialized();
        let mut inventory = self.inventory.lock();
        // A volume without changes here may still have had some in a lost segment.
        if done && inventory.losses.is_empty() && !inventory.volumes.contains_key(&volume) {
            return;
        }
        let released = inventory.released.entry(volume).or_default();
        *released = serial.max(*released);
        inventory.apply_release(volume);
        if done {
            inventory.forget_bounds();
        }
    }
}

impl Inner {
    /// Reads the tables of the recovered segments, once.
    pub(crate) async fn read_recovered(&self) -> Result<(), Error> {
        let read = || async {
            let unread = self.recovery.unread.lock().clone();
            for segment in &unread {
                // An earlier, interrupted attempt may have read this segment already.
                let known = self
                    .recovery
                    .inventory
                    .lock()
                    .indexes
                    .iter()
                    .any(|index| index.id == segment.id());
                if !known {
                    self.read_segment(segment).await?;
                }
            }
            self.recovery.unread.lock().clear();
            self.recovery.inventory.lock().forget_bounds();
            self.note_litter();
            Ok(())
        };
        self.recovery.done.get_or_try_init(read).await?;
        Ok(())
    }

    pub(crate) async fn accept_losses(&self) -> Result<(), Error> {
        self.read_recovered().await?;
        let mut lost: Vec<_> =
            self.recovery.inventory.lock().losses.drain(..).map(|lost| lost.segment).collect();
        lost.sort_unstable();
        lost.dedup();
        let mut files = std::mem::take(&mut *self.recovery.strays.lock());
        {
            let mut table = self.table.lock();
            // No segment holds these files, so no drop gives them back to the pool.
            let orphans =
                table.rows().filter(|(.., lost, held)| *lost != Lost::Nothing && held.is_none());
            files.extend(orphans.filter_map(|(_, file, ..)| file).filter(|&file| file != NO_FILE));
            lost.into_iter().for_each(|id| table.discard(id));
            self.note_live(table.live());
        }
        let outdated = self.heads.lock().outdate();
        drop(outdated);
        // Asks for a head whose digest does not name the lost segments.
        self.next_wanted.notify_one();
        for file in files {
            self.pool.remove(file).await;
        }
        self.space.notify_waiters();
        Ok(())
    }

    async fn read_segment(&self, segment: &Arc<Segment>) -> Result<(), Error> {
        let marks = self.recovery.inventory.lock().marks.clone();
        let in_memory = segment.with_memory(|memory| {
            Some(Index::of_table(segment, descriptors::in_memory(segment, memory)?, true, &marks))
        });
        let mut damage = None;
        let (index, parts) = match in_memory.flatten() {
            Some(found) => found,
            None => {
                if !segment.is_on_flash() {
                    // The old head may still be on its way to flash.
                    self.commit(self.begins).await?;
                }
                let read = descriptors::on_flash(segment).await.ok().flatten();
                match read.as_ref().and_then(|read| read.table()) {
                    Some(table) => Index::of_table(segment, table, false, &marks),
                    None => {
                        let found = self.entries_of(segment).await;
                        damage = found.damage;
                        Index::of_entries(segment, found.listed, &marks)
                    }
                }
            }
        };
        let highest: Vec<_> =
            parts.iter().map(|part| (part.volume, part.summary.highest)).collect();
        let damaged = damage.is_some();
        let mut inventory = self.recovery.inventory.lock();
        // No statistics cover the changes in the newest recovered head.
        let is_covered = inventory.statistics_of.is_some_and(|head| segment.id() < head);
        let lost = if is_covered { Lost::Counted } else { Lost::Uncounted };
        if let Some(Damage { reason, hole_ends, .. }) = damage {
            tracing::error!(segment = segment.id().0, %reason, "a segment of the log is damaged");
            let (segment, hole_ends) = (segment.id(), Some(hole_ends));
            inventory.losses.retain(|earlier| !earlier.hearsay || earlier.segment != segment);
            let hearsay = false;
            inventory.losses.push(LostSegment { segment, lost, hole_ends, hearsay, reason });
        }
        inventory.absorb(Arc::new(index), parts);
        drop(inventory);
        let mut table = self.table.lock();
        if damaged {
            table.mark_lost(segment.id(), lost);
        }
        table.learn(segment.id(), highest, true);
        Ok(())
    }

    /// Reads the entries of a segment whose table is damaged or missing.
    async fn entries_of(&self, segment: &Segment) -> Entries {
        let mut found = descriptors::out_of_entries(segment).await;
        let is_refused = |found: &Entries| found.damage.as_ref().is_some_and(|d| d.is_unreadable);
        for _ in 1..READ_TRIES {
            if !is_refused(&found) {
                break;
            }
            // An error of the device may be transient: read again.
            self.pool.env.sleep(EXHAUSTED_RETRY).await;
            found = descriptors::out_of_entries(segment).await;
        }
        if is_refused(&found) {
            segment.set_spoilt();
        }
        found
    }

    /// Adds the changes of a part whose table was whole when the index was made and is not any
    /// more. Returns the loss, if changes are missing now.
    async fn read_without_table(
        &self,
        volume: VolumeId,
        part: &Part,
        why: String,
        list: &mut List,
    ) -> Option<Loss> {
        let segment = part.index.segment.upgrade()?;
        let (marks, released) = {
            let inventory = self.recovery.inventory.lock();
            (inventory.marks.clone(), inventory.released_of(volume))
        };
        let found = self.entries_of(&segment).await;
        let is_ours = |entry: &EntryHeader| {
            let is_change = matches!(entry.kind, Kind::Change(_));
            is_change && entry.volume == volume && !is_marked(&marks, segment.id(), entry)
        };
        let found_of_it = found.listed.into_iter().filter(is_ours);
        let mut serials: Vec<u64> = Vec::new();
        for entry in found_of_it {
            serials.push(entry.serial.0);
            list.push(&segment, entry, released);
        }
        if serials.len() >= part.count() {
            return None;
        }
        let reason = found.damage.map_or(why, |damage| damage.reason);
        tracing::error!(segment = segment.id().0, %reason, "a segment of the log became damaged");
        let (after, before) = part.summary.missing(serials);
        Some(Loss { segment: segment.id(), after, before: Some(before), reason })
    }

    /// The recovered changes of a volume, in serial order, and those that may be missing.
    pub(crate) async fn salvage(
        &self,
        volume: VolumeId,
    ) -> Result<(Vec<Recovered>, Vec<Loss>), Error> {
        self.read_recovered().await?;
        let (parts, released, mut losses) = {
            let inventory = self.recovery.inventory.lock();
            let parts = inventory.volumes.get(&volume).cloned().unwrap_or_default();
            (parts, inventory.released_of(volume), inventory.losses_of(volume))
        };
        let mut list = List::with_capacity(parts.iter().map(Part::count).sum());
        for part in &parts {
            if let Err(why) = part.read(released, &mut list).await {
                losses.extend(self.read_without_table(volume, part, why, &mut list).await);
            }
        }
        if !parts.is_empty() {
            // A caller must not see a change that a power cut could still take back.
            self.commit(self.begins).await?;
        }
        Ok((list.into_ordered(), losses))
    }

    /// Sums up what [`Inner::salvage`] would give. `None` when changes may be missing: only a
    /// salvage can tell which.
    pub(crate) async fn summary(&self, volume: VolumeId) -> Result<Option<LogSummary>, Error> {
        self.read_recovered().await?;
        let inventory = self.recovery.inventory.lock();
        let parts = inventory.volumes.get(&volume).map_or(&[][..], Vec::as_slice);
        let summary = parts.iter().map(|part| part.summary).reduce(LogSummary::with);
        Ok(summary.filter(|_| inventory.losses_of(volume).is_empty()))
    }

    /// The lives that appended a volume's recovered changes: one line a segment, with the lowest
    /// and the highest serial.
    pub(crate) async fn lives(
        &self,
        volume: VolumeId,
    ) -> Result<Vec<(Incarnation, Serial, Serial)>, Error> {
        self.read_recovered().await?;
        let inventory = self.recovery.inventory.lock();
        let parts = inventory.volumes.get(&volume).map_or(&[][..], Vec::as_slice);
        let line = |part: &Part| {
            // A segment that is gone has no change that is still needed.
            let life = part.index.segment.upgrade()?.header.incarnation;
            Some((life, part.summary.lowest, part.summary.highest))
        };
        Ok(parts.iter().filter_map(line).collect())
    }

    pub(crate) async fn unfinished_volumes(&self) -> Result<Vec<(VolumeId, Serial)>, Error> {
        self.read_recovered().await?;
        let inventory = self.recovery.inventory.lock();
        let highest = |parts: &Vec<Part>| {
            parts.iter().map(|part| part.summary.highest).max().unwrap_or_default()
        };
        let mut volumes: Vec<_> =
            inventory.volumes.iter().map(|(&volume, parts)| (volume, highest(parts))).collect();
        volumes.sort_unstable();
        Ok(volumes)
    }
}

/// Highest serials and marks of one segment.
pub(crate) struct Content {
    /// The highest serial of each volume; `None` when not all of the segment can be read.
    pub(crate) highest: Option<Vec<(VolumeId, Serial)>>,
    pub(crate) marks: Vec<(VolumeId, Mark)>,
}

/// Reads the highest serials and the marks of a segment.
pub(crate) async fn content_of(segment: &Segment) -> Content {
    let content = |sorted: Sorted| Content {
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
    Content { highest: content.highest.filter(|_| found.damage.is_none()), ..content }
}

/// A volume's share of a segment, while its index is made.
struct Share {
    volume: VolumeId,
    summary: LogSummary,
}

impl Index {
    fn of_table(
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

    fn of_entries(
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
    const NOBODY: u16 = u16::MAX;
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
            owners.push(NOBODY);
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
    let mut order = vec![0; owners.iter().filter(|&&owner| owner != NOBODY).count()];
    for (number, &owner) in owners.iter().enumerate().filter(|(_, owner)| **owner != NOBODY) {
        let place = &mut next[usize::from(owner)];
        order[*place] = u16::try_from(number).expect("a segment holds fewer than 65,536 changes");
        *place += 1;
    }
    Sorted { order, shares, marks: found, done_from: done_from.into_iter().collect() }
}

impl Part {
    fn count(&self) -> usize {
        usize::try_from(self.summary.changes).expect("a segment holds fewer than 65,536 changes")
    }

    /// Adds all changes behind `released` to `list`; on an error, which says why, it adds none.
    async fn read(&self, released: Serial, list: &mut List) -> Result<(), String> {
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
    fn kept(&self) -> Vec<EntryHeader> {
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
struct List {
    changes: Vec<Recovered>,
    unordered: bool,
}

impl List {
    fn with_capacity(count: usize) -> List {
        List { changes: Vec::with_capacity(count), unordered: false }
    }

    fn push(&mut self, segment: &Arc<Segment>, entry: EntryHeader, released: Serial) {
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

    fn into_ordered(mut self) -> Vec<Recovered> {
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

impl Inventory {
    pub(crate) fn new(
        losses: Vec<LostSegment>,
        statistics: HashMap<VolumeId, Serial>,
        statistics_of: Option<SegmentId>,
        marks: Marks,
    ) -> Inventory {
        Inventory { losses, statistics, statistics_of, marks, ..Inventory::default() }
    }

    fn absorb(&mut self, index: Arc<Index>, shares: Vec<Share>) {
        let mut start = 0;
        for share in shares {
            let Share { volume, summary } = share;
            let part = Part { index: Arc::clone(&index), start, summary };
            start += u32::try_from(part.count()).expect("a segment is far below 4 GiB");
            self.volumes.entry(volume).or_default().push(part);
            self.apply_release(volume);
        }
        for &(volume, lowest) in &index.done_from {
            self.done_from.entry(volume).or_default().push((index.id, lowest));
        }
        self.indexes.push(index);
    }

    fn released_of(&self, volume: VolumeId) -> Serial {
        self.released.get(&volume).copied().unwrap_or_default()
    }

    fn apply_release(&mut self, volume: VolumeId) {
        let released = self.released_of(volume);
        if let Some(parts) = self.volumes.get_mut(&volume) {
            for part in parts.extract_if(.., |part| part.summary.highest <= released) {
                let done = (part.index.id, part.summary.lowest);
                self.done_from.entry(volume).or_default().push(done);
            }
            if parts.is_empty() {
                self.volumes.remove(&volume);
            }
        }
    }

    /// Forgets the bounds once all segments are read: without a loss nothing has to be bounded.
    fn forget_bounds(&mut self) {
        if self.losses.is_empty() {
            self.done_from = HashMap::new();
        }
    }

    /// The changes of `volume` that may be missing. A lost segment does not concern a volume whose
    /// serials go on without a gap from before it to behind it. Nor does it concern one that had
    /// nothing in the log, by the statistics of a head opened later.
    fn losses_of(&self, volume: VolumeId) -> Vec<Loss> {
        self.losses.iter().flat_map(|lost| self.losses_in(volume, lost)).collect()
    }

    fn losses_in(&self, volume: VolumeId, lost: &LostSegment) -> Vec<Loss> {
        let parts = self.volumes.get(&volume).map_or(&[][..], Vec::as_slice);
        let marks = self.marks.get(&volume).map_or(&[][..], Vec::as_slice);
        let is_over = |mark: &Mark| mark.serial == EVERY && mark.segment > lost.segment;
        if marks.iter().any(is_over) || self.released_of(volume) == EVERY {
            return Vec::new();
        }
        // Released changes are in the datastore, whether this life noted the release or a mark did.
        let marked = marks.iter().map(|mark| mark.serial).filter(|&serial| serial != EVERY).max();
        let released = self.released_of(volume).max(marked.unwrap_or_default());
        let found = |changes: &[EntryHeader]| -> Vec<(Serial, u32)> {
            changes.iter().map(|change| (change.serial, change.offset)).collect()
        };
        let mut inside = Vec::new();
        let (mut after, mut next) = (released, None::<Serial>);
        for part in parts {
            match (part.index.id.cmp(&lost.segment), lost.hole_ends) {
                (Ordering::Greater, _) => {
                    let lowest = part.summary.lowest;
                    next = Some(next.map_or(lowest, |next| next.min(lowest)));
                }
                (Ordering::Equal, Some(_)) if part.index.kept.is_some() => {
                    inside.extend(found(&part.kept()));
                }
                _ => after = after.max(part.summary.highest),
            }
        }
        let done = self.done_from.get(&volume).map_or(&[][..], Vec::as_slice);
        let done = done.iter().filter(|(segment, _)| *segment > lost.segment);
        let next = next.into_iter().chain(done.map(|&(_, lowest)| lowest)).min();
        let bound = match (next, self.statistics_of) {
            (Some(next), _) => Some(next),
            (None, Some(_)) if lost.lost == Lost::Counted => {
                Some(self.statistics.get(&volume).map_or(Serial(0), |&highest| highest.next()))
            }
            _ => None,
        };
        let loss = |after: Serial, before: Option<Serial>| {
            let nothing_between =
                before.is_some_and(|before| before.0 <= after.0.saturating_add(1));
            let (segment, reason) = (lost.segment, lost.reason.clone());
            (!nothing_between).then_some(Loss { segment, after, before, reason })
        };
        let mut losses = Vec::new();
        inside.sort_unstable();
        for &(serial, _) in &inside {
            losses.extend(loss(after, Some(serial)));
            after = after.max(serial);
        }
        let last_offset = inside.iter().map(|&(_, offset)| offset).max();
        let is_behind_the_hole =
            last_offset.is_some_and(|last| lost.hole_ends.is_some_and(|ends| last >= ends));
        if bound.is_some() || !is_behind_the_hole {
            losses.extend(loss(after, bound));
        }
        losses
    }
}
