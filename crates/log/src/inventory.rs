//! What outlived a restart: built once, at the first question, from the descriptor tables of the recovered segments.
//!
//! A gibibyte of 4 KiB writes is 262,144 descriptors of 64 bytes, 16 MiB to read; payloads are not touched.

use crate::format::{ENTRY_BYTES, EntryHeader, FOOT_BYTES, Foot, HEADER_BYTES, Kind};
use crate::inner::Inner;
use crate::scan::{read, read_foot, read_image};
use crate::segment::{Place, Segment};
use crate::walk::{salvage, walk};
use crate::{Change, Error, Loss, Recovered};
use base::checksum::crc32c_seeded;
use base::{Generation, SegmentId, Serial, VolumeId};
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tokio::sync::OnceCell;
use warm::Memory;

/// What is recovered, and what is known to be missing.
pub(crate) struct Recovery {
    /// Ascending; emptied when they have been read.
    unread: Mutex<Vec<Arc<Segment>>>,
    done: OnceCell<()>,
    inventory: Mutex<Inventory>,
}

#[derive(Default)]
pub(crate) struct Inventory {
    segments: Vec<Weak<Segment>>,
    lists: HashMap<VolumeId, List>,
    /// Releases that came before the segments were read.
    released: HashMap<VolumeId, Serial>,
    losses: Vec<LostSegment>,
    /// Highest serials when the newest recovered head was opened, and that head.
    statistics: HashMap<VolumeId, Serial>,
    statistics_of: Option<SegmentId>,
}

/// A segment of which changes may be missing.
#[derive(Debug, Clone)]
pub(crate) struct LostSegment {
    pub(crate) segment: SegmentId,
    pub(crate) reason: String,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    /// The highest serial that was released out of it.
    released: Serial,
    unordered: bool,
}

struct Entry {
    serial: Serial,
    generation: Generation,
    position: u64,
    span: u64,
    segment: u32,
    offset: u32,
    length: u32,
    change: Change,
}

/// The highest serial of each volume in one segment.
type Highest = Vec<(VolumeId, Serial)>;

impl Recovery {
    pub(crate) fn new(unread: Vec<Arc<Segment>>, inventory: Inventory) -> Recovery {
        Recovery {
            unread: Mutex::new(unread),
            done: OnceCell::new(),
            inventory: Mutex::new(inventory),
        }
    }

    pub(crate) fn release(&self, volume: VolumeId, serial: Serial) {
        let mut inventory = self.inventory.lock();
        if !self.done.initialized() {
            let released = inventory.released.entry(volume).or_default();
            *released = serial.max(*released);
        }
        inventory.release(volume, serial);
    }
}

impl Inner {
    /// Reads the tables of the recovered segments, once.
    pub(crate) async fn read_recovered(&self) -> Result<(), Error> {
        let read = || async {
            let unread = self.recovery.unread.lock().clone();
            for segment in &unread {
                self.read_segment(segment).await?;
            }
            let mut inventory = self.recovery.inventory.lock();
            inventory.finish();
            self.recovery.unread.lock().clear();
            Ok(())
        };
        self.recovery.done.get_or_try_init(read).await.map(|_| ())
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
        self.space.notify_waiters();
        Ok(())
    }

    async fn read_segment(&self, segment: &Arc<Segment>) -> Result<(), Error> {
        if self.recovery.inventory.lock().has_read(segment) {
            // An earlier attempt got this far.
            return Ok(());
        }
        let absorbed = segment.with_memory(|memory| {
            let table = table_in_memory(segment, memory)?;
            Some(self.recovery.inventory.lock().absorb(segment, table.descriptors()))
        });
        let (highest, lost) = match absorbed.flatten() {
            Some(highest) => (highest, None),
            None => {
                let (changes, lost) = read_from_flash(segment).await?;
                let mut inventory = self.recovery.inventory.lock();
                if let Some(reason) = &lost {
                    inventory
                        .losses
                        .push(LostSegment { segment: segment.id(), reason: reason.clone() });
                }
                (inventory.absorb(segment, changes.into_iter()), lost)
            }
        };
        if let Some(reason) = &lost {
            tracing::error!(segment = segment.id().0, %reason, "a segment of the log is damaged");
        }
        self.table.lock().learn(segment.id(), highest, true, lost.is_some());
        Ok(())
    }
}

/// A table of descriptors that has been verified as a whole, or descriptor by descriptor.
struct Verified<'a> {
    segment: SegmentId,
    bytes: &'a [u8],
}

impl Verified<'_> {
    fn descriptors(&self) -> impl Iterator<Item = EntryHeader> {
        let parse = |bytes| EntryHeader::decode_verified(bytes).ok();
        self.bytes.rchunks_exact(ENTRY_BYTES as usize).filter_map(parse)
    }

    /// The descriptors ascend, and lie inside the front.
    fn is_sane(&self, front: u32) -> bool {
        let mut at = HEADER_BYTES;
        self.bytes.rchunks_exact(ENTRY_BYTES as usize).map(EntryHeader::decode_verified).all(
            |entry| {
                let Ok(entry) = entry else { return false };
                let end =
                    u64::from(entry.offset) + u64::from(ENTRY_BYTES) + u64::from(entry.length);
                let sane = entry.offset >= at
                    && end <= u64::from(front)
                    && matches!(entry.kind, Kind::Change(_));
                if sane {
                    at = entry.end();
                }
                sane
            },
        )
    }

    fn checked(self, front: u32) -> Option<Self> {
        debug_assert!(self.segment != SegmentId(0), "segments count from 1");
        self.is_sane(front).then_some(self)
    }
}

/// The table of a segment in memory: by the foot's checksum when it is sealed, else one by one.
fn table_in_memory<'a>(segment: &Segment, memory: &'a Memory) -> Option<Verified<'a>> {
    let back = memory.back();
    let header = &segment.header;
    let bytes = match memory.tail() {
        Some(tail) => {
            let foot = tail.get(tail.len() - FOOT_BYTES as usize..)?;
            table_by_foot(&Foot::decode(foot, segment.id(), header.birth, header.capacity)?, back)?
        }
        None => {
            let whole = |bytes| EntryHeader::decode(bytes, segment.id()).is_ok();
            back.chunks_exact(ENTRY_BYTES as usize).all(whole).then_some(back)?
        }
    };
    Verified { segment: segment.id(), bytes }.checked(memory.front_length())
}

/// The descriptors out of the bytes before the foot, if they match its checksum.
fn table_by_foot<'a>(foot: &Foot, back: &'a [u8]) -> Option<&'a [u8]> {
    let length = foot.changes as usize * ENTRY_BYTES as usize;
    let table = back.get(back.len().checked_sub(length)?..)?;
    (crc32c_seeded(foot.segment.0, table) == foot.table_crc).then_some(table)
}

/// The changes of a segment on flash, and what is wrong with it, if anything is.
async fn read_from_flash(segment: &Segment) -> Result<(Vec<EntryHeader>, Option<String>), Error> {
    let Some(file) = segment.file else {
        return Ok((
            Vec::new(),
            Some("its table in memory is damaged, and it has no file".to_owned()),
        ));
    };
    let (depot, header) = (segment.depot(), &segment.header);
    let foot = read_foot(depot, file, header).await?;
    if let Some(foot) = foot {
        let mut back = vec![0; foot.table as usize];
        read(depot, file, &mut back, header.capacity - FOOT_BYTES - foot.table).await?;
        let table =
            table_by_foot(&foot, &back).map(|bytes| Verified { segment: segment.id(), bytes });
        if let Some(table) = table.and_then(|table| table.checked(foot.front)) {
            return Ok((table.descriptors().collect(), None));
        }
    }
    let image = read_image(depot, file).await?;
    let walked = walk(&image, segment.id(), foot.is_none());
    let whole = foot.map_or(walked.opening.is_some(), |foot| walked.end == foot.front);
    if whole {
        return Ok((walked.changes, None));
    }
    let changes = salvage(&image, segment.id());
    let reason =
        format!("damaged at {}: {}; {} changes can be read", walked.end, walked.why, changes.len());
    Ok((changes, Some(reason)))
}

impl Inventory {
    pub(crate) fn new(
        losses: Vec<LostSegment>,
        statistics: HashMap<VolumeId, Serial>,
        statistics_of: Option<SegmentId>,
    ) -> Inventory {
        Inventory { losses, statistics, statistics_of, ..Inventory::default() }
    }

    fn has_read(&self, segment: &Arc<Segment>) -> bool {
        self.segments.iter().any(|read| std::ptr::eq(read.as_ptr(), Arc::as_ptr(segment)))
    }

    /// Takes in the changes of one segment, in their order.
    fn absorb(
        &mut self,
        segment: &Arc<Segment>,
        changes: impl Iterator<Item = EntryHeader>,
    ) -> Highest {
        let index = u32::try_from(self.segments.len()).expect("segments are bounded");
        self.segments.push(Arc::downgrade(segment));
        let mut highest: HashMap<VolumeId, Serial> = HashMap::new();
        let mut changes = changes.peekable();
        // Runs of one volume are common: one look-up each.
        while let Some(first) = changes.peek().map(|change| change.volume) {
            let list = self.lists.entry(first).or_default();
            let top = highest.entry(first).or_default();
            while let Some(entry) = changes.next_if(|change| change.volume == first) {
                let Kind::Change(change) = entry.kind else { continue };
                *top = entry.serial.max(*top);
                list.push(Entry {
                    serial: entry.serial,
                    generation: entry.generation,
                    position: entry.position,
                    span: entry.span,
                    segment: index,
                    offset: entry.offset,
                    length: entry.length,
                    change,
                });
            }
        }
        highest.into_iter().collect()
    }

    fn finish(&mut self) {
        self.lists.values_mut().for_each(List::order);
        for (volume, serial) in std::mem::take(&mut self.released) {
            self.release(volume, serial);
        }
    }

    fn release(&mut self, volume: VolumeId, serial: Serial) {
        let Some(list) = self.lists.get_mut(&volume) else { return };
        if list.unordered {
            return; // Still being read; `finish` comes back to it.
        }
        let count = list.entries.partition_point(|entry| entry.serial <= serial);
        list.entries.drain(..count);
        list.released = serial.max(list.released);
        if list.entries.is_empty() {
            self.lists.remove(&volume);
        }
    }

    pub(crate) fn recovered(&self, volume: VolumeId) -> Vec<Recovered> {
        let Some(list) = self.lists.get(&volume) else { return Vec::new() };
        let mut recovered = Vec::with_capacity(list.entries.len());
        let mut held: Option<(u32, Arc<Segment>)> = None;
        for entry in &list.entries {
            if held.as_ref().is_none_or(|(index, _)| *index != entry.segment) {
                held = self.segments[entry.segment as usize]
                    .upgrade()
                    .map(|segment| (entry.segment, segment));
            }
            // Gone means released a moment ago.
            let Some((_, segment)) = &held else { continue };
            recovered.push(Recovered {
                generation: entry.generation,
                serial: entry.serial,
                change: entry.change,
                position: entry.position,
                span: entry.span,
                place: Place {
                    segment: Arc::clone(segment),
                    offset: entry.offset,
                    length: entry.length,
                },
            });
        }
        recovered
    }

    pub(crate) fn volumes(&self) -> Vec<(VolumeId, Serial)> {
        let last = |list: &List| list.entries.last().map(|entry| entry.serial);
        let mut volumes: Vec<_> =
            self.lists.iter().filter_map(|(&volume, list)| Some((volume, last(list)?))).collect();
        volumes.sort_unstable();
        volumes
    }

    /// Which changes of `volume` may be missing. A lost segment does not concern a volume whose serials go on without
    /// a gap from before it to behind it, or that had nothing in the log (by the statistics of a head opened later).
    pub(crate) fn losses_of(&self, volume: VolumeId) -> Vec<Loss> {
        self.losses.iter().filter_map(|lost| self.loss_of(volume, lost)).collect()
    }

    fn loss_of(&self, volume: VolumeId, lost: &LostSegment) -> Option<Loss> {
        let list = self.lists.get(&volume);
        let known = |entry: &&Entry| {
            self.segments[entry.segment as usize]
                .upgrade()
                .is_none_or(|segment| segment.id() <= lost.segment)
        };
        let entries = list.map_or(&[][..], |list| &list.entries);
        let before = entries.iter().filter(known).map(|entry| entry.serial).max();
        let after = before.max(list.map(|list| list.released)).unwrap_or_default();
        let next = entries.iter().filter(|entry| !known(entry)).map(|entry| entry.serial).min();
        let bound = match (next, self.statistics_of) {
            (Some(next), _) => Some(next),
            (None, Some(head)) if lost.segment < head => {
                Some(self.statistics.get(&volume).map_or(Serial(0), |&highest| highest.next()))
            }
            _ => None,
        };
        let nothing_between = bound.is_some_and(|bound| bound.0 <= after.0 + 1);
        (!nothing_between).then(|| Loss {
            segment: lost.segment,
            after,
            before: bound,
            reason: lost.reason.clone(),
        })
    }
}

impl List {
    fn push(&mut self, entry: Entry) {
        // A newer generation that goes back takes over from where it goes on: what an older one had there was lost
        // to another owner meanwhile.
        while self
            .entries
            .last()
            .is_some_and(|last| last.serial >= entry.serial && last.generation < entry.generation)
        {
            self.entries.pop();
        }
        self.unordered |= self.entries.last().is_some_and(|last| last.serial >= entry.serial);
        self.entries.push(entry);
    }

    fn order(&mut self) {
        if self.unordered {
            self.entries.sort_by_key(|entry| entry.serial);
            self.entries.dedup_by_key(|entry| entry.serial);
            self.unordered = false;
        }
    }
}

impl crate::Log {
    pub(crate) async fn inventory<T>(
        &self,
        look: impl FnOnce(&Inventory) -> T,
    ) -> Result<T, Error> {
        self.inner.read_recovered().await?;
        Ok(look(&self.inner.recovery.inventory.lock()))
    }
}
