//! What outlived a restart: built once, at the first question, from the descriptor tables of the recovered segments.
//!
//! A gibibyte of 4 KiB writes is 262,144 descriptors of 64 bytes: 16 MiB to read; payloads are not touched. Only an
//! index is kept (which descriptors of which segment belong to which volume, 2 bytes each); the descriptors are read
//! again when a volume is asked for. That touches no new memory but the answer, and memory is what costs after a start.

use crate::descriptors::{self, Verified};
use crate::format::{EntryHeader, Kind, Lost};
use crate::inner::Inner;
use crate::outline::Outline;
use crate::segment::{Place, Segment};
use crate::{Error, Loss, Recovered};
use base::{Incarnation, SegmentId, Serial, VolumeId};
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tokio::sync::OnceCell;

/// What is recovered, and what is known to be missing.
pub(crate) struct Recovery {
    /// Ascending; emptied when they have been read.
    unread: Mutex<Vec<Arc<Segment>>>,
    done: OnceCell<()>,
    inventory: Mutex<Inventory>,
}

#[derive(Default)]
pub(crate) struct Inventory {
    indexes: Vec<Arc<Index>>,
    volumes: HashMap<VolumeId, Vec<Part>>,
    /// What has been released of the volumes, also before the segments were read.
    released: HashMap<VolumeId, Serial>,
    losses: Vec<LostSegment>,
    /// Highest serials when the newest recovered head was opened, and that head, if all volumes are among them.
    statistics: HashMap<VolumeId, Serial>,
    statistics_of: Option<SegmentId>,
}

/// A segment of which changes may be missing.
#[derive(Debug, Clone)]
pub(crate) struct LostSegment {
    pub(crate) segment: SegmentId,
    pub(crate) lost: Lost,
    pub(crate) reason: String,
}

/// Which changes of one segment belong to whom.
struct Index {
    id: SegmentId,
    /// The table keeps it while anything in it is needed.
    segment: Weak<Segment>,
    changes: u32,
    /// The table in memory was found whole; otherwise only the one on flash counts.
    memory_is_sound: bool,
    /// Numbers of the changes, volume by volume; empty when all are one volume's.
    order: Vec<u16>,
    /// The changes themselves, when there is no table to read them from again.
    kept: Option<Vec<EntryHeader>>,
}

/// The changes of one volume in one segment.
#[derive(Clone)]
struct Part {
    index: Arc<Index>,
    /// Where they begin in `order`.
    start: u32,
    outline: Outline,
}

impl Recovery {
    pub(crate) fn new(unread: Vec<Arc<Segment>>, inventory: Inventory) -> Recovery {
        Recovery {
            unread: Mutex::new(unread),
            done: OnceCell::new(),
            inventory: Mutex::new(inventory),
        }
    }

    pub(crate) fn release(&self, volume: VolumeId, serial: Serial) {
        let done = self.done.initialized();
        let mut inventory = self.inventory.lock();
        if done && !inventory.volumes.contains_key(&volume) {
            return;
        }
        let released = inventory.released.entry(volume).or_default();
        *released = serial.max(*released);
        inventory.apply_release(volume);
    }
}

impl Inner {
    /// Reads the tables of the recovered segments, once.
    pub(crate) async fn read_recovered(&self) -> Result<(), Error> {
        let read = || async {
            let unread = self.recovery.unread.lock().clone();
            for segment in &unread {
                // An earlier attempt may have got this far.
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
        let mut table = self.table.lock();
        lost.into_iter().for_each(|id| table.discard(id));
        self.note_live(table.live());
        drop(table);
        let outdated = self.heads.lock().outdate();
        drop(outdated);
        self.space.notify_waiters();
        Ok(())
    }

    async fn read_segment(&self, segment: &Arc<Segment>) -> Result<(), Error> {
        let in_memory = segment.with_memory(|memory| {
            Some(Index::of_table(segment, descriptors::in_memory(segment, memory)?, true))
        });
        let mut reason = None;
        let (index, parts) = match in_memory.flatten() {
            Some(found) => found,
            None => {
                if !segment.is_on_flash() {
                    // The old head may still be on its way there.
                    self.commit(self.begins).await?;
                }
                match descriptors::on_flash(segment).await?.as_ref().and_then(|read| read.table()) {
                    Some(table) => Index::of_table(segment, table, false),
                    None => {
                        let (changes, lost) = descriptors::out_of_entries(segment).await?;
                        reason = lost;
                        Index::of_entries(segment, changes)
                    }
                }
            }
        };
        let highest: Vec<_> =
            parts.iter().map(|part| (part.volume, part.outline.highest)).collect();
        let damaged = reason.is_some();
        let mut inventory = self.recovery.inventory.lock();
        // What is in the newest recovered head no statistics cover.
        let is_covered = inventory.statistics_of.is_some_and(|head| segment.id() < head);
        let lost = if is_covered { Lost::Counted } else { Lost::Uncounted };
        if let Some(reason) = reason {
            tracing::error!(segment = segment.id().0, %reason, "a segment of the log is damaged");
            inventory.losses.push(LostSegment { segment: segment.id(), lost, reason });
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

    /// What is recovered of a volume, in serial order, and what of it may be missing.
    pub(crate) async fn salvage(
        &self,
        volume: VolumeId,
    ) -> Result<(Vec<Recovered>, Vec<Loss>), Error> {
        self.read_recovered().await?;
        let (parts, released, losses) = {
            let inventory = self.recovery.inventory.lock();
            let parts = inventory.volumes.get(&volume).cloned().unwrap_or_default();
            (parts, inventory.released_of(volume), inventory.losses_of(volume))
        };
        let mut list = List::with_capacity(parts.iter().map(Part::count).sum());
        for part in &parts {
            part.read(released, &mut list).await?;
        }
        if !parts.is_empty() {
            // Nobody shall read what a power cut could still take back.
            self.commit(self.begins).await?;
        }
        Ok((list.into_ordered(), losses))
    }

    /// What [`Inner::salvage`] would give, in short; `None` when something may be missing: only that can tell.
    pub(crate) async fn outline(&self, volume: VolumeId) -> Result<Option<Outline>, Error> {
        self.read_recovered().await?;
        let inventory = self.recovery.inventory.lock();
        let parts = inventory.volumes.get(&volume).map_or(&[][..], Vec::as_slice);
        let outline = parts.iter().map(|part| part.outline).reduce(Outline::with);
        Ok(outline.filter(|_| inventory.losses_of(volume).is_empty()))
    }

    /// Which lives appended what is recovered of a volume: the lowest and the highest serial of each, a line a segment.
    pub(crate) async fn lives(
        &self,
        volume: VolumeId,
    ) -> Result<Vec<(Incarnation, Serial, Serial)>, Error> {
        self.read_recovered().await?;
        let inventory = self.recovery.inventory.lock();
        let parts = inventory.volumes.get(&volume).map_or(&[][..], Vec::as_slice);
        let line = |part: &Part| {
            // One that is gone has nothing that anybody misses.
            let life = part.index.segment.upgrade()?.header.incarnation;
            Some((life, part.outline.lowest, part.outline.highest))
        };
        Ok(parts.iter().filter_map(line).collect())
    }

    pub(crate) async fn unfinished_volumes(&self) -> Result<Vec<(VolumeId, Serial)>, Error> {
        self.read_recovered().await?;
        let inventory = self.recovery.inventory.lock();
        let highest = |parts: &Vec<Part>| {
            parts.iter().map(|part| part.outline.highest).max().unwrap_or_default()
        };
        let mut volumes: Vec<_> =
            inventory.volumes.iter().map(|(&volume, parts)| (volume, highest(parts))).collect();
        volumes.sort_unstable();
        Ok(volumes)
    }
}

/// The highest serial of each volume in a segment; `None` when not all of it can be read.
pub(crate) async fn highest_of(
    segment: &Segment,
) -> Result<Option<Vec<(VolumeId, Serial)>>, Error> {
    let highest = |shares: Vec<Share>| {
        shares.iter().map(|share| (share.volume, share.outline.highest)).collect()
    };
    let in_memory =
        segment.with_memory(|memory| Some(sort(descriptors::in_memory(segment, memory)?.iter()).1));
    if let Some(shares) = in_memory.flatten() {
        return Ok(Some(highest(shares)));
    }
    if let Some(table) =
        descriptors::on_flash(segment).await?.as_ref().and_then(|read| read.table())
    {
        return Ok(Some(highest(sort(table.iter()).1)));
    }
    let (entries, damage) = descriptors::out_of_entries(segment).await?;
    Ok(damage.is_none().then(|| highest(sort(entries.into_iter()).1)))
}

/// A volume's share of a segment, while its index is made.
struct Share {
    volume: VolumeId,
    outline: Outline,
}

impl Index {
    fn of_table(
        segment: &Arc<Segment>,
        table: Verified<'_>,
        memory_is_sound: bool,
    ) -> (Index, Vec<Share>) {
        let (order, shares) = sort(table.iter());
        let index = Index {
            id: segment.id(),
            segment: Arc::downgrade(segment),
            changes: table.changes(),
            order,
            kept: None,
            memory_is_sound,
        };
        (index, shares)
    }

    fn of_entries(segment: &Arc<Segment>, mut entries: Vec<EntryHeader>) -> (Index, Vec<Share>) {
        // No segment that was written has more: each has a descriptor, too. Damaged bytes may look so.
        entries.truncate(usize::from(u16::MAX));
        let (order, shares) = sort(entries.iter().copied());
        let changes = u32::try_from(entries.len()).expect("a segment is far below 4 GiB");
        (
            Index {
                id: segment.id(),
                segment: Arc::downgrade(segment),
                changes,
                order,
                kept: Some(entries),
                memory_is_sound: false,
            },
            shares,
        )
    }
}

/// The numbers of the changes, volume by volume (none when there is one volume only), and each volume's share.
fn sort(changes: impl Iterator<Item = EntryHeader>) -> (Vec<u16>, Vec<Share>) {
    let mut shares: Vec<Share> = Vec::new();
    let mut known: HashMap<VolumeId, usize> = HashMap::new();
    // Whose each change is; made when the second volume comes.
    let mut owners: Vec<u16> = Vec::new();
    let (mut last, mut total) = (usize::MAX, 0usize);
    for change in changes {
        if shares.get(last).is_none_or(|share| share.volume != change.volume) {
            last = *known.entry(change.volume).or_insert(shares.len());
        }
        let outline = Outline::of(&change);
        match shares.get_mut(last) {
            Some(share) => share.outline = share.outline.with(outline),
            None => shares.push(Share { volume: change.volume, outline }),
        }
        if shares.len() > 1 {
            // All before the second volume's first were the first one's.
            owners.resize(total, 0);
            owners.push(u16::try_from(last).expect("a segment holds fewer than 65,536 changes"));
        }
        total += 1;
    }
    let mut next: Vec<usize> = shares
        .iter()
        .scan(0, |start, share| {
            let begin = *start;
            *start += share.outline.changes as usize;
            Some(begin)
        })
        .collect();
    let mut order = vec![0; owners.len()];
    for (number, &owner) in owners.iter().enumerate() {
        let place = &mut next[usize::from(owner)];
        order[*place] = u16::try_from(number).expect("a segment holds fewer than 65,536 changes");
        *place += 1;
    }
    (order, shares)
}

impl Part {
    fn count(&self) -> usize {
        usize::try_from(self.outline.changes).expect("a segment holds fewer than 65,536 changes")
    }

    /// Adds the changes behind `released` to `list`.
    async fn read(&self, released: Serial, list: &mut List) -> Result<(), Error> {
        // Gone means released a moment ago.
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
            // The same bytes as before: what is published does not change.
            let table = Verified::again(memory.back(), self.index.changes);
            table.filter(|_| self.index.memory_is_sound).map(&mut add)
        });
        if added.flatten().is_some() {
            return Ok(());
        }
        let read = descriptors::on_flash(&segment).await?;
        let table = read.as_ref().and_then(|read| read.table());
        let damaged = || Error::Damaged {
            segment: self.index.id,
            offset: 0,
            reason: "its table is damaged".to_owned(),
        };
        add(table.filter(|table| table.changes() == self.index.changes).ok_or_else(damaged)?);
        Ok(())
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        let range = self.start as usize..self.start as usize + self.count();
        let order = self.index.order.get(range).unwrap_or_default();
        let all = if self.index.order.is_empty() { 0..self.index.changes } else { 0..0 };
        all.chain(order.iter().map(|&number| u32::from(number)))
    }
}

/// The changes of one volume, as they are gathered.
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
        // A newer generation that goes back takes over from where it goes on: what an older one had there was lost
        // to another owner meanwhile.
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
            self.changes.sort_by_key(|change| change.serial);
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
    ) -> Inventory {
        Inventory { losses, statistics, statistics_of, ..Inventory::default() }
    }

    fn absorb(&mut self, index: Arc<Index>, shares: Vec<Share>) {
        let mut start = 0;
        for share in shares {
            let Share { volume, outline } = share;
            let part = Part { index: Arc::clone(&index), start, outline };
            start += u32::try_from(part.count()).expect("a segment is far below 4 GiB");
            self.volumes.entry(volume).or_default().push(part);
            self.apply_release(volume);
        }
        self.indexes.push(index);
    }

    fn released_of(&self, volume: VolumeId) -> Serial {
        self.released.get(&volume).copied().unwrap_or_default()
    }

    fn apply_release(&mut self, volume: VolumeId) {
        let released = self.released_of(volume);
        if let Some(parts) = self.volumes.get_mut(&volume) {
            parts.retain(|part| part.outline.highest > released);
            if parts.is_empty() {
                self.volumes.remove(&volume);
            }
        }
    }

    /// Which changes of `volume` may be missing. A lost segment does not concern a volume whose serials go on without
    /// a gap from before it to behind it, or that had nothing in the log (by the statistics of a head opened later).
    fn losses_of(&self, volume: VolumeId) -> Vec<Loss> {
        self.losses.iter().filter_map(|lost| self.loss_of(volume, lost)).collect()
    }

    fn loss_of(&self, volume: VolumeId, lost: &LostSegment) -> Option<Loss> {
        let parts = self.volumes.get(&volume).map_or(&[][..], Vec::as_slice);
        let (before, behind): (Vec<_>, Vec<_>) =
            parts.iter().partition(|part| part.index.id <= lost.segment);
        let after = before
            .iter()
            .map(|part| part.outline.highest)
            .max()
            .unwrap_or_default()
            .max(self.released_of(volume));
        let bound = match (behind.iter().map(|part| part.outline.lowest).min(), self.statistics_of)
        {
            (Some(next), _) => Some(next),
            (None, Some(_)) if lost.lost == Lost::Counted => {
                Some(self.statistics.get(&volume).map_or(Serial(0), |&highest| highest.next()))
            }
            _ => None,
        };
        let nothing_between = bound.is_some_and(|bound| bound.0 <= after.0.saturating_add(1));
        (!nothing_between).then(|| Loss {
            segment: lost.segment,
            after,
            before: bound,
            reason: lost.reason.clone(),
        })
    }
}
