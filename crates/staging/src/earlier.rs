//! The root before the last commit of a volume, for a salvage to go back to ([`crate::replay`]).
//!
//! While it is kept, the log keeps the changes of that commit. Both are in the RAM of this life only: no format knows of
//! them, and nobody may need them. So they are let go of as soon as they cost anything: when they are old, when flash is
//! getting scarce, when somebody drains, when the volume leaves service.

use crate::quarantine::Lost;
use crate::queue::Change;
use crate::staged::{Mode, Staged};
use crate::{Inner, limits};
use base::{Serial, VolumeId};
use content::tree::Root;
use env::Moment;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What the vault said of the content before a commit.
#[derive(Debug, Clone)]
pub(crate) struct Before {
    pub(crate) root: Root,
    pub(crate) lost: Vec<Lost>,
    pub(crate) checkpoint: Serial,
}

/// An earlier root, and what leads from there to the present one.
pub(crate) struct Earlier {
    pub(crate) before: Before,
    /// All of them in the log, in serial order, none missing.
    pub(crate) changes: Vec<Change>,
    /// When it is old.
    until: Moment,
}

impl Earlier {
    /// The checkpoint to which the changes lead.
    pub(crate) fn through(&self) -> Serial {
        Serial(self.before.checkpoint.0 + self.changes.len() as u64)
    }
}

/// Which volumes keep an earlier root, the oldest first. So nobody has to ask those that keep none.
#[derive(Default)]
pub(crate) struct Shelf {
    rows: Mutex<Rows>,
}

#[derive(Default)]
struct Rows {
    /// Until when, whose, and how many changes.
    by_age: BTreeMap<(Moment, VolumeId), usize>,
    /// All changes.
    changes: usize,
}

/// What is to be done about the oldest.
enum Oldest {
    /// Let go of it; `must`: whoever wants it.
    LetGo {
        volume: VolumeId,
        must: bool,
    },
    In(Duration),
    None,
}

impl Shelf {
    fn put(&self, volume: VolumeId, earlier: &Earlier) {
        let mut rows = self.rows.lock();
        rows.changes += earlier.changes.len();
        rows.by_age.insert((earlier.until, volume), earlier.changes.len());
    }

    fn take(&self, volume: VolumeId, earlier: &Earlier) {
        let mut rows = self.rows.lock();
        let count = rows.by_age.remove(&(earlier.until, volume)).unwrap_or(0);
        rows.changes -= count;
    }

    fn is_empty(&self) -> bool {
        self.rows.lock().by_age.is_empty()
    }

    /// Takes the oldest off if it has to go.
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
        Oldest::LetGo { volume, must }
    }
}

impl Inner {
    /// Whether the log's flash is getting scarce.
    pub(crate) fn is_scarce(&self) -> bool {
        let usage = self.log.usage();
        usage.flash_bytes * 100 >= usage.flash_bytes_max * limits::PRESSURE_PERCENT
            && usage.flash_bytes_max > 0
    }

    /// Lets go of the earlier roots that are old, or of all when flash is scarce. How long until the next one is old.
    pub(crate) fn let_go_of_old(&self) -> Option<Duration> {
        if self.shelf.is_empty() {
            return None;
        }
        let scarce = self.is_scarce();
        loop {
            match self.shelf.oldest(self.env.now(), scarce) {
                Oldest::LetGo { volume, must } => {
                    let volume = self.volumes.lock().get(&volume).cloned();
                    match volume {
                        Some(volume) if must => volume.let_go(),
                        Some(volume) => volume.let_go_if_old(),
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
    /// After a commit of `changes`: keeps the root `before` it, and gives the log what nobody can go back behind any more.
    pub(crate) fn keep_earlier(&self, before: Option<Before>, changes: Vec<Change>) {
        let inner = &self.inner;
        let is_whole = matches!(self.mode, Mode::Flash | Mode::Memory)
            && changes.iter().all(Change::is_logged)
            && !inner.is_scarce();
        let (gone, released) = {
            let mut gate = self.gate.lock();
            let old = gate.earlier.take();
            if let Some(old) = &old {
                inner.shelf.take(self.id, old);
            }
            // Whoever drains wants nothing to stay in the log.
            let is_wanted = |before: &Before| gate.drain_to <= before.checkpoint;
            let before = before.filter(is_wanted).filter(|_| is_whole && gate.ended.is_none());
            let now = inner.env.now();
            let (kept, gone) = match before {
                None => (None, (old, changes)),
                Some(before) => joined(old, before, changes, now, gate.salvages > 0),
            };
            if let Some(kept) = &kept {
                inner.shelf.put(self.id, kept);
            }
            let released = kept.as_ref().map_or(gate.checkpoint(), |kept| kept.before.checkpoint);
            gate.earlier = kept;
            (gone, released)
        };
        // Not under the lock, and before the log gets it back: a segment that somebody holds is not free.
        drop(gone);
        inner.log.release(self.id, released);
    }

    /// Lets go of the earlier root, and gives the log what only that held.
    pub(crate) fn let_go(&self) {
        self.let_go_if(|_, _| true);
    }

    /// The same, if it is old and no salvage may want it yet.
    pub(crate) fn let_go_if_old(&self) {
        let now = self.inner.env.now();
        self.let_go_if(|salvages, earlier| salvages == 0 && earlier.until <= now);
    }

    fn let_go_if(&self, has_to_go: impl FnOnce(usize, &Earlier) -> bool) {
        let earlier = {
            let mut gate = self.gate.lock();
            let salvages = gate.salvages;
            let Some(earlier) = gate.earlier.take_if(|earlier| has_to_go(salvages, earlier)) else {
                return;
            };
            self.inner.shelf.take(self.id, &earlier);
            earlier
        };
        // Not the present checkpoint: a commit in between decides itself what becomes of its changes.
        let through = earlier.through();
        drop(earlier);
        self.inner.log.release(self.id, through);
    }
}

/// What is not kept.
type Gone = (Option<Arc<Earlier>>, Vec<Change>);

/// What is kept after one more commit, and what is not. While a salvage looks for damage in what earlier commits wrote
/// (`is_long`), the root stays and gets more changes.
fn joined(
    old: Option<Arc<Earlier>>,
    before: Before,
    changes: Vec<Change>,
    now: Moment,
    is_long: bool,
) -> (Option<Arc<Earlier>>, Gone) {
    let until = now + limits::EARLIER_AGE_MAX;
    let fits = |changes: usize, before: &Before| {
        changes + before.lost.len() <= limits::EARLIER_CHANGES_MAX
    };
    let old = match old.map(Arc::try_unwrap) {
        Some(Ok(old))
            if is_long
                && old.through() == before.checkpoint
                && fits(old.changes.len() + changes.len(), &old.before) =>
        {
            let Earlier { before, changes: mut all, .. } = old;
            all.extend(changes);
            return (Some(Arc::new(Earlier { before, changes: all, until })), Gone::default());
        }
        Some(Ok(old)) => Some(Arc::new(old)),
        Some(Err(old)) => Some(old),
        None => None,
    };
    if !fits(changes.len(), &before) {
        return (None, (old, changes));
    }
    (Some(Arc::new(Earlier { before, changes, until })), (old, Vec::new()))
}
