//! The end of a life that another has deposed: it acknowledges nothing more, from one moment on.
//!
//! A volume alone is fenced when its vault names another owner or a newer generation. The whole node is fenced when a newer
//! life of it is met anywhere: whoever owns the process says so with [`Staging::fence`], after it has asked the node's record.

use crate::gatekeeper::Gatekeeper;
use crate::lives::Runs;
use crate::staged::Staged;
use crate::{Error, Inner, Staging, Vault, limits, lives};
use base::{Incarnation, Kind, Serial};
use datastore::record::Held;
use env::Moment;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Whether this life still is the node's.
pub(crate) struct Fence {
    /// Why nothing is acknowledged any more.
    fenced: Mutex<Option<Error>>,
    /// The newest life of this node that a vault has named.
    met: watch::Sender<Incarnation>,
    /// The last start for which the node's folder took the node from a copy of it.
    taken: AtomicU64,
    /// The first life with this warm memory, which keeps copies of vaults there.
    copied_since: AtomicU64,
    /// When it was known last that nobody has dismissed or replaced this start: by the clock that never goes back, and by
    /// that which goes on while the machine sleeps, microseconds.
    undismissed: Mutex<Option<(Moment, u64)>>,
}

impl Fence {
    pub(crate) fn new(life: Incarnation) -> Self {
        Self {
            fenced: Mutex::new(None),
            met: watch::Sender::new(life),
            taken: AtomicU64::new(0),
            copied_since: AtomicU64::new(0),
            undismissed: Mutex::new(None),
        }
    }

    /// The error that everybody gets, once the node is fenced.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.fenced.lock().clone().map_or(Ok(()), Err)
    }
}

impl Staging {
    /// The newest life of this node that a vault has named; changes when it is a newer one than this. The volume that met
    /// it has stopped; whether the node has to, its record tells.
    #[must_use]
    pub fn met(&self) -> watch::Receiver<Incarnation> {
        self.inner.fence.met.subscribe()
    }

    /// Another life has taken over: from now on nothing is acknowledged, no volume comes into service, and no batch is
    /// committed. What is unfinished stays in the log.
    pub fn fence(&self, reason: &str) {
        self.inner.fence_all(reason);
    }

    /// With the start `life`, this folder took the node from a copy of it, whose process may still be there: no volume is
    /// served before its vault says so.
    pub fn taken(&self, life: Incarnation) {
        self.inner.fence.taken.store(life.0, Ordering::Relaxed);
    }

    /// Warm memory, and the copies of vaults in it, begin with the life `life`. What an older life has committed and such a copy
    /// does not show has landed since. That life may have had changes in memory that flash never had, and a commit of them may
    /// still be on its way: no volume is served before its vault says that it is over.
    pub fn copied_since(&self, life: Incarnation) {
        self.inner.fence.copied_since.store(life.0, Ordering::Relaxed);
    }

    /// Why nothing is acknowledged any more, if that is so.
    #[must_use]
    pub fn fenced(&self) -> Option<Error> {
        self.inner.fence.check().err()
    }
}

impl Inner {
    /// Whether a vault of the life `of` that no copy of vaults shows has landed after the copy was made.
    pub(crate) fn is_older_than_copies(&self, of: Incarnation) -> bool {
        of.0 < self.fence.copied_since.load(Ordering::Relaxed)
    }

    fn fence_all(&self, reason: &str) {
        let error = Error::Deposed(reason.to_owned());
        {
            let mut fenced = self.fence.fenced.lock();
            if fenced.is_some() {
                return;
            }
            *fenced = Some(error.clone());
        }
        tracing::error!("nothing is acknowledged any more: {reason}");
        // Whoever comes into service now sees the fence.
        let volumes: Vec<_> = self.volumes.lock().values().cloned().collect();
        for volume in volumes {
            volume.stopped(error.clone());
        }
    }

    /// An error when somebody has dismissed this start of the node, or a newer one has replaced it: then sweeps have not
    /// waited for it, and what a batch found in the store may be deleted. Before each commit, since a volume that the newer
    /// start has not claimed yet says nothing of it.
    pub(crate) async fn not_dismissed(&self) -> Result<(), Error> {
        let clocks = || (self.env.now(), self.env.wall_clock().0);
        let (now, wall) = clocks();
        let known = *self.fence.undismissed.lock();
        let is_fresh = known.is_some_and(|(then, wall_then)| {
            let wall_passed = Duration::from_micros(wall.abs_diff(wall_then));
            now.since(then).max(wall_passed) < limits::DISMISSAL_LOOK_INTERVAL
        });
        if is_fresh {
            return Ok(());
        }
        match self.why_over().await {
            Ok(Some(reason)) => {
                self.fence_all(&reason);
                return Err(Error::Deposed(reason));
            }
            Ok(None) => {}
            // Who dismisses writes a record that can be read.
            Err(error) if matches!(error.kind(), Kind::Damaged | Kind::Unsupported) => {
                tracing::warn!(%error, "it cannot be read whether this start was dismissed or replaced");
            }
            Err(error) => return Err(error.into()),
        }
        *self.fence.undismissed.lock() = Some((now, wall));
        Ok(())
    }

    /// Why this start is over, if the store says so.
    async fn why_over(&self) -> Result<Option<String>, content::Error> {
        // Both at once: a commit waits for it.
        let dismissed = content::sweep::is_dismissed(&self.writer);
        let replaced = content::sweep::replaced_by(&self.writer);
        let (dismissed, newer) = futures_util::future::join(dismissed, replaced).await;
        if dismissed? {
            return Ok(Some(content::Error::Dismissed.to_string()));
        }
        Ok(newer?.map(|newer| {
            format!(
                "start {newer} of this node is in its record, and this is start {}: another copy of its folder was started",
                self.writer.life().incarnation
            )
        }))
    }

    /// A vault names a newer life of this node.
    pub(crate) fn meet(&self, life: Incarnation) {
        self.fence.met.send_if_modified(|newest| {
            let newer = life > *newest;
            *newest = life.max(*newest);
            newer
        });
    }

    /// Writes the vault of a volume that comes into service, if a copy of this folder may go on with it otherwise. `ours`:
    /// behind which serial this life begins, and who logged what is before that.
    pub(crate) async fn claim(
        &self,
        vault: Held<Vault>,
        ours: (Serial, &Runs),
        seen: bool,
    ) -> Result<Held<Vault>, Error> {
        let since = |life: &AtomicU64| Incarnation(life.load(Ordering::Relaxed));
        let since = since(&self.fence.taken).max(since(&self.fence.copied_since));
        if !lives::needs_claim(&vault.value, since, self.writer.life().incarnation) {
            return Ok(vault);
        }
        if !seen {
            let by_copy = "the store's vault is needed: this start has to be the first to write it";
            return Err(datastore::Error::Unavailable(by_copy.to_owned()).into());
        }
        let (value, life) = (&vault.value, self.writer.life().incarnation);
        let value = lives::signed(value, life, ours, value.checkpoint);
        Ok(self.writer.replace(&vault, value).await?)
    }

    /// The error of whoever has met it.
    pub(crate) fn deposed_by(&self, volume: &str, life: Incarnation) -> Error {
        self.meet(life);
        Error::Deposed(format!(
            "volume {volume} is served by start {life} of this node, and this is start {}: another copy of its folder was \
             started",
            self.writer.life().incarnation
        ))
    }
}

impl Staged {
    /// Whether what the log has of the volume may be promised to anybody, and its vault be written: not once it is fenced.
    pub(crate) fn may_promise(&self, gate: &Gatekeeper) -> Result<(), Error> {
        match &gate.ended {
            Some(ended) if ended.kind() == Kind::Fenced => Err(ended.clone()),
            _ => self.inner.fence.check(),
        }
    }

    /// The error of a volume that another owner or a newer generation has.
    pub(crate) fn fenced(&self) -> Error {
        self.stopped(Error::Fenced(self.name.clone()))
    }

    /// The error of a volume that a newer life of this node has.
    pub(crate) fn deposed_by(&self, life: Incarnation) -> Error {
        self.stopped(self.inner.deposed_by(&self.name, life))
    }

    /// Stops the volume with an error, and gives that.
    pub(crate) fn stopped(&self, error: Error) -> Error {
        self.end_with(error.clone());
        error
    }
}
