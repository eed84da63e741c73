//! Fencing: a deposed life acknowledges nothing more, from one moment on.
//!
//! A volume alone is fenced when its vault names another owner or a newer generation. The whole
//! node is fenced when a newer life of it is met anywhere: the node says so with
//! [`Staging::fence`], after it has read its own record.

use crate::ack::staged::Staged;
use crate::recover::lives;
use crate::recover::lives::Runs;
use crate::state::VolumeState;
use crate::vault::unbroken;
use crate::{Beginning, Error, Inner, Staging, Vault, limits};
use parking_lot::Mutex;
use rekindle_base::{Incarnation, Kind, NodeId, Serial};
use rekindle_datastore::record::{Held, Writer};
use rekindle_env::Moment;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// The fence of this life: whether it still is the node's.
pub(crate) struct Fence {
    /// The reason why nothing is acknowledged any more.
    fenced: Mutex<Option<Error>>,
    /// The newest life of this node that a vault has named.
    met: watch::Sender<Incarnation>,
    /// The last start with which this folder took the node over from a copy of the folder.
    taken: AtomicU64,
    /// The first life with this warm memory, which holds copies of vaults.
    copied_since: AtomicU64,
    /// The first life after which each one has closed its log, up to this one.
    unbroken_since: AtomicU64,
    /// Last moment when this start was known to be neither dismissed nor replaced. Both by the
    /// clock that never goes back, and by the one that goes on while the machine sleeps,
    /// microseconds.
    undismissed: Mutex<Option<(Moment, u64)>>,
    /// The life that sweeps wait for, if it is not this one.
    host: OnceLock<Writer>,
}

impl Fence {
    pub(crate) fn new(life: Incarnation) -> Self {
        Self {
            fenced: Mutex::new(None),
            met: watch::Sender::new(life),
            taken: AtomicU64::new(0),
            copied_since: AtomicU64::new(0),
            unbroken_since: AtomicU64::new(life.0),
            undismissed: Mutex::new(None),
            host: OnceLock::new(),
        }
    }

    /// Returns the error for every call, once the node is fenced.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.fenced.lock().clone().map_or(Ok(()), Err)
    }
}

impl Staging {
    /// The newest life of this node that a vault has named; changes when that is newer than this
    /// one. The volume that met it has stopped; the node's record tells whether the node has to.
    #[must_use]
    pub fn met(&self) -> watch::Receiver<Incarnation> {
        self.inner.fence.met.subscribe()
    }

    /// Fences the node, since another life has taken over: from now on nothing is acknowledged, no
    /// volume comes into service, and no batch is committed. Unfinished changes stay in the log.
    pub fn fence(&self, reason: &str) {
        self.inner.fence_all(reason);
    }

    /// Notes that with the start `life` this folder took the node over from a copy, whose process
    /// may still run: no volume is served before its vault names this life.
    pub fn taken(&self, life: Incarnation) {
        self.inner.fence.taken.store(life.0, Ordering::Relaxed);
    }

    /// Notes that warm memory, and the copies of vaults in it, begin with the life `life`. A commit
    /// of an older life that such a copy does not show has landed since. That life may have had
    /// changes in memory that flash never had, and a commit of them may still be on its way. So no
    /// volume is served before its vault says that the older life is over.
    pub fn copied_since(&self, life: Incarnation) {
        self.inner.fence.copied_since.store(life.0, Ordering::Relaxed);
    }

    /// Notes that each life from `life` on, up to the one before this, has closed its log in good
    /// order: nothing is lost that they have acknowledged.
    pub fn unbroken_since(&self, life: Incarnation) {
        self.inner.fence.unbroken_since.store(life.0, Ordering::Relaxed);
    }

    /// Notes that this life is over, and that `host` brings what its log has into the store, by its
    /// own content: sweeps wait for that one, and its start must go on.
    pub fn works_for(&self, host: Writer) {
        let _ = self.inner.fence.host.set(host);
    }

    /// The reason why nothing is acknowledged any more, if the node is fenced.
    #[must_use]
    pub fn fenced(&self) -> Option<Error> {
        self.inner.fence.check().err()
    }
}

impl Inner {
    /// Whether a vault of the life `of` that no copy shows has landed after the copy was made.
    pub(crate) fn is_older_than_copies(&self, of: Incarnation) -> bool {
        of.0 < self.fence.copied_since.load(Ordering::Relaxed)
    }

    /// Returns the beginning of the span in which this life serves a volume.
    pub(crate) fn beginning(&self, vault: &Vault) -> Beginning {
        let since = Incarnation(self.fence.unbroken_since.load(Ordering::Relaxed));
        unbroken::beginning(vault, self.writer.life(), since)
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
        // A volume that comes into service from here on sees the fence.
        let volumes: Vec<_> = self.volumes.lock().values().cloned().collect();
        for volume in volumes {
            volume.stopped(error.clone());
        }
    }

    /// Returns an error when this start of the node was dismissed, or a newer one has replaced it:
    /// sweeps have not waited for it then, and may have deleted chunks that a batch found in the
    /// store. Asked before each commit, since a volume that the newer start has not claimed yet
    /// shows no sign of it.
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
            // A dismissal writes a record that can be read.
            Err(error) if matches!(error.kind(), Kind::Damaged | Kind::Unsupported) => {
                tracing::warn!(%error, "it cannot be read whether this start was dismissed or replaced");
            }
            Err(error) => return Err(error.into()),
        }
        *self.fence.undismissed.lock() = Some((now, wall));
        Ok(())
    }

    /// The reason why this start is over, if the store has one.
    async fn why_over(&self) -> Result<Option<String>, rekindle_content::Error> {
        // Both at once: a commit waits for the answers.
        let writer = self.fence.host.get().unwrap_or(&self.writer);
        let dismissed = rekindle_content::sweep::is_dismissed(writer);
        let replaced = rekindle_content::sweep::replaced_by(writer);
        let (dismissed, newer) = futures_util::future::join(dismissed, replaced).await;
        if dismissed? {
            return Ok(Some(rekindle_content::Error::Dismissed.to_string()));
        }
        Ok(newer?.map(|newer| {
            format!(
                "start {newer} of this node is in its record, and this is start {}: another copy of its folder was started",
                writer.life().incarnation
            )
        }))
    }

    /// Notes that a vault names a newer life of this node.
    pub(crate) fn meet(&self, life: Incarnation) {
        self.fence.met.send_if_modified(|newest| {
            let newer = life > *newest;
            *newest = life.max(*newest);
            newer
        });
    }

    /// Writes the vault of a volume that comes into service, if a copy of this folder could go on
    /// with the volume otherwise, or a write that ends its generation may be on its way.
    /// `ours`: the serial behind which this life begins, and the lives that logged the changes
    /// before that.
    pub(crate) async fn claim(
        &self,
        vault: Held<Vault>,
        ours: (Serial, &Runs),
        seen: bool,
    ) -> Result<Held<Vault>, Error> {
        let since = |life: &AtomicU64| Incarnation(life.load(Ordering::Relaxed));
        let since = since(&self.fence.taken).max(since(&self.fence.copied_since));
        if vault.value.leaves.is_none()
            && !lives::needs_claim(&vault.value, since, self.writer.life().incarnation)
        {
            return Ok(vault);
        }
        if !seen {
            let by_copy = "the store's vault is needed: this start has to be the first to write it";
            return Err(rekindle_datastore::Error::Unavailable(by_copy.to_owned()).into());
        }
        let (value, life) = (&vault.value, self.writer.life().incarnation);
        let signed = lives::signed(value, life, ours, value.checkpoint);
        let value = Vault { leaves: None, ..signed };
        Ok(self.writer.replace(&vault, value).await?)
    }

    /// Notes the newer life and returns the error of the volume that has met it.
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
    /// The node whose memory may have alone what is acknowledged and not durable, and its last
    /// start that found that memory lost with what only it had; 0: none did.
    #[must_use]
    pub fn memory(&self) -> (NodeId, Incarnation) {
        let since = self.inner.fence.copied_since.load(Ordering::Relaxed);
        (self.inner.writer.node, Incarnation(since))
    }

    /// Whether the log's changes of the volume may be acknowledged, and its vault be written: not
    /// once it is fenced.
    pub(crate) fn may_promise(&self, gate: &VolumeState) -> Result<(), Error> {
        match &gate.ended {
            Some(ended) if ended.kind() == Kind::Fenced => Err(ended.clone()),
            _ => self.inner.fence.check(),
        }
    }

    /// Whether changes that the log took may be acknowledged. The next owner of a volume that has
    /// moved began with all of them.
    pub(crate) fn may_acknowledge(&self, gate: &VolumeState) -> Result<(), Error> {
        match &gate.ended {
            Some(Error::Moved(_)) => Ok(()),
            _ => self.may_promise(gate),
        }
    }

    /// Stops the volume because of another owner or a newer generation, and returns the error.
    pub(crate) fn fenced(&self) -> Error {
        self.stopped(Error::Fenced(self.name.clone()))
    }

    /// Stops the volume because of a newer life of this node, and returns the error.
    pub(crate) fn deposed_by(&self, life: Incarnation) -> Error {
        self.stopped(self.inner.deposed_by(&self.name, life))
    }

    /// Stops the volume with an error, and returns that error.
    pub(crate) fn stopped(&self, error: Error) -> Error {
        self.end_with(error.clone());
        error
    }
}
