//! The part of the log that outlived a restart: the recovered segments, which of their changes
//! belong to which volume, and which changes may be lost. Without I/O: [`crate::recovered`] fills
//! and asks it.

use crate::Loss;
use crate::format::{EntryHeader, Lost, Mark};
use crate::machine::table::EVERY;
use crate::recovered_index::{Index, Marks, SegmentPart, Share};
use crate::segment::Segment;
use hashbrown::HashMap;
use parking_lot::Mutex;
use rekindle_base::{SegmentId, Serial, VolumeId};
use std::cmp::Ordering;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// The recovered changes of the log, and its known losses.
pub(crate) struct Recovery {
    /// Ascending; emptied once all are read.
    pub(crate) unread: Mutex<Vec<Arc<Segment>>>,
    pub(crate) done: OnceCell<()>,
    pub(crate) inventory: Mutex<Inventory>,
    /// Files that cannot be read and that no digest names: they may be the proof of a loss.
    pub(crate) strays: Mutex<Vec<u32>>,
}

#[derive(Default)]
pub(crate) struct Inventory {
    pub(crate) indexes: Vec<Arc<Index>>,
    pub(crate) volumes: HashMap<VolumeId, Vec<SegmentPart>>,
    /// Released serials of the volumes, also of releases before the segments were read.
    pub(crate) released: HashMap<VolumeId, Serial>,
    /// Low-water marks that earlier lives have written down.
    pub(crate) marks: Marks,
    /// By volume: each segment's lowest serial among the changes that are not needed any more. It
    /// bounds the serials that an earlier segment can have had.
    pub(crate) done_from: HashMap<VolumeId, Vec<(SegmentId, Serial)>>,
    pub(crate) losses: Vec<LostSegment>,
    /// Highest serials when the newest recovered head was opened, and that head if all volumes are
    /// among them.
    pub(crate) statistics: HashMap<VolumeId, Serial>,
    pub(crate) statistics_of: Option<SegmentId>,
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

impl Inventory {
    pub(crate) fn new(
        losses: Vec<LostSegment>,
        statistics: HashMap<VolumeId, Serial>,
        statistics_of: Option<SegmentId>,
        marks: Marks,
    ) -> Inventory {
        Inventory { losses, statistics, statistics_of, marks, ..Inventory::default() }
    }

    pub(crate) fn absorb(&mut self, index: Arc<Index>, shares: Vec<Share>) {
        let mut start = 0;
        for share in shares {
            let Share { volume, summary } = share;
            let part = SegmentPart { index: Arc::clone(&index), start, summary };
            start += u32::try_from(part.count()).expect("a segment is far below 4 GiB");
            self.volumes.entry(volume).or_default().push(part);
            self.apply_release(volume);
        }
        for &(volume, lowest) in &index.done_from {
            self.done_from.entry(volume).or_default().push((index.id, lowest));
        }
        self.indexes.push(index);
    }

    pub(crate) fn released_of(&self, volume: VolumeId) -> Serial {
        self.released.get(&volume).copied().unwrap_or_default()
    }

    pub(crate) fn apply_release(&mut self, volume: VolumeId) {
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
    pub(crate) fn forget_bounds(&mut self) {
        if self.losses.is_empty() {
            self.done_from = HashMap::new();
        }
    }

    /// The changes of `volume` that may be missing. A lost segment does not concern a volume whose
    /// serials go on without a gap from before it to behind it. Nor does it concern one that had
    /// nothing in the log, by the statistics of a head opened later.
    pub(crate) fn losses_of(&self, volume: VolumeId) -> Vec<Loss> {
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
