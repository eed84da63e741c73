//! The previous root: the root before the last commit of a volume, for a salvage to go back to
//! ([`crate::repair::replay`]).
//!
//! While it is kept, the log keeps the changes of that commit. Both are in the RAM of this life
//! only: no format knows of them, and no operation relies on them. So they are released as soon as
//! they cost anything: when they are old, flash is scarce, a caller drains the volume, or the
//! volume leaves service.

use crate::ack::policy::Mode;
use crate::ack::staged::Staged;
use crate::queue::Change;
use crate::state::previous::{Before, PreviousRoot};
use crate::{Inner, limits};
use parking_lot::Mutex;
use rekindle_base::VolumeId;
use rekindle_env::Moment;
use std::collections::BTreeMap;
use std::time::Duration;

/// The volumes that keep a previous root, the oldest first. With this list the destager need not
/// ask the other volumes.
#[derive(Default)]
pub(crate) struct Retained {
    rows: Mutex<Rows>,
}

#[derive(Default)]
struct Rows {
    /// By end of the time to keep and volume: the count of the changes kept.
    by_age: BTreeMap<(Moment, VolumeId), usize>,
    /// Count of the changes of all volumes.
    changes: usize,
}

/// The fate of the oldest previous root.
enum Oldest {
    /// Release it; `must`: even if a salvage wants it.
    Release {
        volume: VolumeId,
        must: bool,
    },
    In(Duration),
    None,
}

impl Retained {
    fn put(&self, volume: VolumeId, previous: &PreviousRoot) {
        let mut rows = self.rows.lock();
        rows.changes += previous.changes.len();
        rows.by_age.insert((previous.until, volume), previous.changes.len());
    }

    fn take(&self, volume: VolumeId, previous: &PreviousRoot) {
        let mut rows = self.rows.lock();
        let count = rows.by_age.remove(&(previous.until, volume)).unwrap_or(0);
        rows.changes -= count;
    }

    fn is_empty(&self) -> bool {
        self.rows.lock().by_age.is_empty()
    }

    /// Takes the oldest previous root off the list if it has to go.
    fn oldest(&self, now: Moment, scarce: bool) -> Oldest {
        let mut rows = self.rows.lock();
        let must = scarce || rows.changes > limits::EARLIER_CHANGES_SUM_MAX;
        let Some(first) = rows.by_age.first_entry() else { return Oldest::None };
        let (until, volume) = *first.key();
        if until > now && !must {
            return Oldest::In(until.since(now));
        }
        let count = first.remove();
        rows.changes -= count;
        Oldest::Release { volume, must }
    }
}

impl Inner {
    /// Whether the log's flash is getting scarce.
    pub(crate) fn is_scarce(&self) -> bool {
        let usage = self.log.usage();
        usage.flash_bytes * 100 >= usage.flash_bytes_max * limits::PRESSURE_PERCENT
            && usage.flash_bytes_max > 0
    }

    /// Releases the previous roots that are old, or all when flash is scarce. Returns the time
    /// until the next one is old.
    pub(crate) fn release_old_previous(&self) -> Option<Duration> {
        if self.retained.is_empty() {
            return None;
        }
        let scarce = self.is_scarce();
        loop {
            match self.retained.oldest(self.env.now(), scarce) {
                Oldest::Release { volume, must } => {
                    let volume = self.volumes.lock().get(&volume).cloned();
                    match volume {
                        Some(volume) if must => volume.release_previous(),
                        Some(volume) => volume.release_previous_if_old(),
                        None => {}
                    }
                }
                Oldest::In(time) => return Some(time),
                Oldest::None => return None,
            }
        }
    }
}

impl Staged {
    /// After a commit of `changes`: keeps the root `before` it, and releases the changes in the log
    /// behind which no salvage can go back any more.
    pub(crate) fn keep_earlier(&self, before: Option<Before>, changes: Vec<Change>) {
        let inner = &self.inner;
        let is_whole = matches!(self.mode, Mode::Log { .. })
            && changes.iter().all(Change::is_logged)
            && !inner.is_scarce();
        let (gone, released) = {
            let mut gate = self.gate.lock();
            if let Some(old) = gate.previous.root() {
                inner.retained.take(self.id, old);
            }
            // A caller that drains the volume wants no change to stay in the log.
            let is_wanted = |before: &Before| gate.waiters.drain_to <= before.checkpoint;
            let before = before.filter(is_wanted).filter(|_| is_whole && gate.ended.is_none());
            let gone = gate.previous.follow(before, changes, inner.env.now());
            let mut released = gate.checkpoint();
            if let Some(kept) = gate.previous.root() {
                inner.retained.put(self.id, kept);
                released = kept.before.checkpoint;
            }
            (gone, released)
        };
        // Dropped outside the lock, and before the log's release: a segment that is still held is
        // not free.
        drop(gone);
        inner.log.release(self.id, released);
    }

    /// Lets go of the previous root, and releases the changes that only that held in the log.
    pub(crate) fn release_previous(&self) {
        self.release_previous_if(|_, _| true);
    }

    /// The same, if the root is old and no salvage may want it.
    pub(crate) fn release_previous_if_old(&self) {
        let now = self.inner.env.now();
        self.release_previous_if(|salvages, previous| salvages == 0 && previous.until <= now);
    }

    fn release_previous_if(&self, has_to_go: impl FnOnce(usize, &PreviousRoot) -> bool) {
        let previous = {
            let mut gate = self.gate.lock();
            let Some(previous) = gate.previous.take_if(has_to_go) else { return };
            self.inner.retained.take(self.id, &previous);
            previous
        };
        // Not the present checkpoint: a commit in between decides itself about its own changes.
        let through = previous.through();
        drop(previous);
        self.inner.log.release(self.id, through);
    }
}
