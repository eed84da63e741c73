//! Write acceleration: acknowledges writes, and brings them to their home afterwards.
//!
//! The one crate that joins the log and the content store. A [`Staged`] volume gives every change a
//! serial, acknowledges the change as the [`Policy`] says, and keeps it readable.
//! The destager folds changes in serial order into the volume's [`Home`], one atomic commit of the
//! vault a batch. The [`Vault`] alone says which life may write the volume.
//!
//! The rooms of the core, which knows serials, payloads and groups: [`ack`] (the way in), [`queue`]
//! (unfinished changes), [`state`] (what a volume's lock guards), [`destage`] (the way down),
//! [`recover`] (after a restart), [`repair`] (after damage). The shapes of changes: [`range`] (byte
//! ranges), [`record`] (records); [`shape`] is the core's door to both.

mod ack;
mod destage;
mod error;
mod limits;
mod queue;
mod range;
mod record;
mod recover;
mod repair;
mod shape;
mod state;
mod vault;
mod view;

pub use ack::hand_over::HandOver;
pub use ack::lease::Lease;
pub use ack::policy::{Ack, MissingCopy, Policy};
pub use ack::staged::Staged;
pub use destage::versions;
pub use error::Error;
pub use limits::SNAPSHOTS_TAKEN_MAX;
pub use queue::source::Source;
pub use range::home::{Extent, Fold, RangeHome, read_ahead};
pub use range::quarantine::Lost;
pub use record::append::NewRecord;
pub use record::repair::{Cut, RecordRepair, Still, Tidied};
pub use record::{Record, RecordHome};
pub use rekindle_log::Quantum;
pub use rekindle_log::limits::REPLICAS_MAX;
pub use repair::salvage::{Allowance, Back, DamageReport, Salvaged};
pub use shape::Home;
pub use vault::snapshot::with_content;
pub use vault::{
    Accepted, Beginning, Logged, Snapshot, SnapshotContent, Unbroken, Vault, VaultBody, VaultState,
    Version,
};
pub use view::{DestagerView, StagedView};

/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 1] = [(
    <Vault as rekindle_datastore::record::Body>::WHAT,
    <Vault as rekindle_datastore::record::Body>::FORMAT,
)];

use ack::fence::Fence;
use ack::policy::{Means, Mode};
use destage::destager;
use destage::destager::Destager;
use destage::previous_root::Retained;
use parking_lot::Mutex;
use recover::deferred_index;
use recover::recovery::Parked;
use rekindle_base::{Incarnation, Serial, VolumeId};
use rekindle_content::Content;
use rekindle_datastore::record::{Held, Writer};
use rekindle_env::{BoxFuture, Env};
use rekindle_log::Log;
use serde::{Deserialize, Serialize};
use shape::Shown;
use state::VolumeState;
use state::destaging::Wakeup;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc};
use utoipa::ToSchema;

/// Settings of staging.
#[derive(Debug, Clone)]
pub struct Config {
    /// Flash that unfinished changes of all volumes may take, bytes. A volume's fair share is this
    /// over the number of volumes with unfinished changes.
    pub flash_bytes: u64,
    /// RAM for payloads held by `through` and `uncached` writes, bytes.
    pub memory_bytes: u64,
    /// Age at which a change is destaged, if nothing else triggers earlier.
    pub destage_age: Duration,
    /// Writes into the store a minute that commits by age alone may cost; 0: no bound. With many
    /// volumes that write little, each waits for its turn beyond `destage_age`, but not until it
    /// is late (`age_deadline`).
    pub destage_writes_per_minute: u32,
    /// Unfinished bytes of a volume at which it is destaged before `destage_age`.
    pub destage_bytes: u64,
    /// Most bytes in one destage batch.
    pub batch_bytes: u64,
    /// Count of the destage batches that run at once, of different volumes.
    pub destagers: usize,
    /// Most unfinished changes that are indexed before a volume comes into service. A volume that
    /// comes back with more takes writes before all of them are indexed; reads wait.
    pub index_at_once: usize,
    /// Age of the oldest change past which a volume is reported as late.
    pub age_deadline: Duration,
    /// Whether the log's open segments outlive the process
    /// (`rekindle_warm::Arena::outlives_process`). If not, ack `memory` would promise what the node
    /// cannot keep, and such volumes are served as with ack `flash`.
    pub memory_outlives_process: bool,
    /// The log is made of copies that another machine has kept of it, up to this life; 0: it is
    /// this machine's own. Volumes that asked for no copies may have had changes which only the
    /// lost machine has, so they are not served.
    pub copied_from: Incarnation,
    /// The time for which no other life of the node serves its volumes.
    pub lease: Arc<Lease>,
}

/// The staging of one node. All clones are the same staging; destaging ends with the last of them.
#[derive(Clone)]
pub struct Staging {
    inner: Arc<Inner>,
    /// Ends with the last clone.
    _life: Arc<Life>,
}

/// The lifetime of staging. Volumes and staging hold one another, and the drop of this value lets
/// both go.
struct Life {
    inner: Arc<Inner>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.inner.destager.end();
        let volumes = std::mem::take(&mut *self.inner.volumes.lock());
        let parked = std::mem::take(&mut *self.inner.parked.lock());
        drop((volumes, parked));
    }
}

pub(crate) struct Inner {
    env: Env,
    log: Log,
    content: Content,
    writer: Writer,
    config: Config,
    /// Flash that unfinished changes of volumes in service take, bytes.
    total: AtomicU64,
    /// Count of the volumes in service whose unfinished changes take flash.
    volumes_with_changes: AtomicU64,
    /// Count of the writes that wait for room on flash.
    stalled: AtomicUsize,
    /// RAM for payloads, a permit a byte; first come first served.
    memory: Arc<Semaphore>,
    memory_permits: u32,
    /// Moving average of one store operation, nanoseconds; 0 while unknown.
    latency: AtomicU64,
    /// The volumes in service; in order, so that a seed of the simulation is one run.
    volumes: Mutex<BTreeMap<VolumeId, Arc<Staged>>>,
    parked: Mutex<BTreeMap<VolumeId, Parked>>,
    /// Volumes with which the user goes on from copies of the log, though these may lack something.
    bound_no_more: Mutex<BTreeSet<VolumeId>>,
    /// Rung when a volume has gone out of service with changes that only the log has.
    parking: Arc<Notify>,
    destager: Destager,
    fence: Fence,
    /// Volumes that keep the root before their last commit.
    retained: Retained,
    /// Versions that no commit takes while the user goes back to one of them.
    holds: versions::Holds,
    /// Reports of volumes whose content turned out to be damaged, for the salvaging task.
    damage_reports: (mpsc::Sender<DamageReport>, Mutex<Option<mpsc::Receiver<DamageReport>>>),
}

/// The outcome of submitting a change.
pub enum Written {
    /// Acknowledge now.
    Acked,
    /// Acknowledge when [`Staged::sync`] of this ticket (or of a later one of the same volume) has
    /// returned.
    NeedsSync(Ticket),
    /// Acknowledge when the future has ended: flow control, a stall, or a policy that waits for the
    /// datastore holds the reply back. Once the future has been polled, the change is on its way
    /// whether or not the future is polled again.
    Pending(BoxFuture<'static, Result<(), Error>>),
}

/// A point of the log that covers a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(pub rekindle_log::Position);

/// The changes that a volume owes to the datastore, and the reasons for delays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Backlog {
    /// Unfinished changes.
    pub changes: u64,
    pub bytes: u64,
    /// Age of the oldest change.
    pub age_ms: u64,
    /// Time until all present changes are in the datastore, if known.
    pub eta_ms: Option<u64>,
    /// Whether the oldest change is older than the deadline.
    pub late: bool,
    /// Present delay of an acknowledgement by flow control.
    pub delay_ms: u64,
    /// The reason why writes stall, if they do.
    pub stalled: Option<String>,
    /// Error of the last attempt to destage, if it failed.
    pub destage_error: Option<String>,
    pub serial: u64,
    pub checkpoint: u64,
}

impl Staging {
    /// Starts staging over a log and a content store, with its destagers.
    #[must_use]
    pub fn start(env: Env, log: Log, content: Content, writer: Writer, config: Config) -> Self {
        let writer_life = writer.life().incarnation;
        let memory_permits = u32::try_from(config.memory_bytes).unwrap_or(u32::MAX).max(1);
        let inner = Arc::new(Inner {
            env,
            log,
            content,
            writer,
            total: AtomicU64::new(0),
            volumes_with_changes: AtomicU64::new(0),
            stalled: AtomicUsize::new(0),
            memory: Arc::new(Semaphore::new(memory_permits as usize)),
            memory_permits,
            latency: AtomicU64::new(0),
            volumes: Mutex::default(),
            parked: Mutex::default(),
            bound_no_more: Mutex::default(),
            parking: Arc::default(),
            destager: Destager::new(),
            fence: Fence::new(writer_life),
            retained: Retained::default(),
            holds: versions::Holds::default(),
            damage_reports: {
                let (sender, receiver) = mpsc::channel(limits::DAMAGE_REPORTS_MAX);
                (sender, Mutex::new(Some(receiver)))
            },
            config,
        });
        destager::start(&inner);
        Self { _life: Arc::new(Life { inner: inner.clone() }), inner }
    }

    /// Brings a volume into service: re-indexes its unfinished changes (those of the log past the
    /// vault's checkpoint and of no newer generation), in memory only. When they are many, the
    /// index is made while the volume takes writes already ([`Config::index_at_once`]). The caller
    /// has made this node the owner; the vault is written only if a copy of this node's folder
    /// could go on with the volume otherwise. A volume that is in service already is returned.
    pub async fn open(&self, vault: Held<Vault>, home: Home) -> Result<Arc<Staged>, Error> {
        self.bring(vault, home, true).await
    }

    /// Like [`Staging::open`], by a copy of the vault: should the store turn out to have another
    /// one, nothing is overwritten.
    pub async fn open_from_cache(
        &self,
        vault: Held<Vault>,
        home: Home,
    ) -> Result<Arc<Staged>, Error> {
        self.bring(vault, home, false).await
    }

    /// `seen`: the vault was read from the store in this life.
    async fn bring(
        &self,
        vault: Held<Vault>,
        home: Home,
        seen: bool,
    ) -> Result<Arc<Staged>, Error> {
        let inner = &self.inner;
        let value = &vault.value;
        inner.fence.check()?;
        if value.owner != Some(inner.writer.node) {
            return Err(Error::Fenced(value.name.clone()));
        }
        if value.incarnation > inner.writer.life().incarnation {
            return Err(inner.deposed_by(&value.name, value.incarnation));
        }
        if value.state != VaultState::Live {
            return Err(Error::Closed(value.name.clone()));
        }
        if let Some(present) = inner.volumes.lock().get(&value.id) {
            return Ok(present.clone());
        }
        inner.is_here(value)?;
        let mode = self.mode_of(value);
        if let Some(downgrade) = self.downgrade(value) {
            tracing::warn!(volume = value.name, "{downgrade}");
        }
        inner.is_not_set_back(value)?;
        let id = value.id;
        let checkpoint = value.checkpoint;
        let unfinished = inner.unfinished_of(value).await?;
        inner.log.release(id, checkpoint);
        let vault = inner.claim(vault, (unfinished.begins, &unfinished.runs), seen).await?;
        let is_listed = unfinished.queue.is_listed();
        let committed = mode.shows(&inner.log.progress());
        let named = (&home, &vault.value.name[..]);
        let shown = Shown::front_of(&unfinished.queue, committed, named).await?;
        let gate = VolumeState::new(vault, unfinished, seen, shown);
        let staged = Staged::new(inner.clone(), home, gate, mode);
        {
            let mut volumes = inner.volumes.lock();
            inner.fence.check()?;
            volumes.insert(id, staged.clone());
        }
        let wakeup = {
            let mut gate = staged.gate.lock();
            if gate.room.bytes > 0 {
                inner.volumes_with_changes.fetch_add(1, Ordering::Relaxed);
                inner.total.fetch_add(gate.room.bytes, Ordering::Relaxed);
            }
            if gate.changes.queue.is_empty() { Wakeup::No } else { staged.note(&mut gate) }
        };
        staged.wake_up(wakeup);
        if !is_listed {
            deferred_index::start(&staged);
        }
        Ok(staged)
    }

    fn mode_of(&self, vault: &Vault) -> Mode {
        let means = Means {
            memory: self.inner.config.memory_outlives_process,
            log: self.inner.config.copied_from == Incarnation(0),
        };
        Mode::of(vault.policy, vault.ack, vault.copies, means)
    }

    /// The message to the user that writes of a volume wait on this machine for more than its `ack`
    /// asks for, if they do.
    #[must_use]
    pub fn downgrade(&self, vault: &Vault) -> Option<&'static str> {
        let required = self.inner.log.progress().copies.required;
        let settings = (vault.policy, vault.ack, vault.on_missing_copy);
        self.mode_of(vault).downgrade(settings, required)
    }

    /// Reports of volumes whose content turned out to be damaged when it was read or folded, each
    /// volume once until its next salvage. There is one receiver: `None` after the first call.
    #[must_use]
    pub fn damage_reports(&self) -> Option<mpsc::Receiver<DamageReport>> {
        self.inner.damage_reports.1.lock().take()
    }

    /// Keeps all versions that a vault lists from being thinned by commits, `target` before all
    /// others, for as long as the hold lives. A volume has one hold at a time.
    #[must_use]
    pub fn hold_versions(&self, vault: &Vault, target: &Version) -> versions::Hold {
        let holds = self.inner.holds.clone();
        holds.lock().insert(vault.id, versions::Spared::of(vault, target));
        versions::Hold { volume: vault.id, holds }
    }

    /// Whether the store had no room for the last pack that was to be written.
    #[must_use]
    pub fn is_store_full(&self) -> bool {
        self.inner.content.is_store_full()
    }

    /// RAM that payloads of `through` and `uncached` writes take now, bytes.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let free = self.inner.memory.available_permits() as u64;
        u64::from(self.inner.memory_permits).saturating_sub(free)
    }

    /// The volume of this id, if it is in service.
    #[must_use]
    pub fn find(&self, id: VolumeId) -> Option<Arc<Staged>> {
        self.inner.volumes.lock().get(&id).cloned()
    }

    /// Volumes in service.
    #[must_use]
    pub fn volumes(&self) -> Vec<Arc<Staged>> {
        self.inner.volumes.lock().values().cloned().collect()
    }

    /// Volumes out of service whose last changes are of this life, and only in the log; each with
    /// the serial of the last one. [`rekindle_log::Log::unfinished_volumes`] lists those of earlier
    /// lives.
    #[must_use]
    pub fn parked(&self) -> Vec<(VolumeId, Serial)> {
        let parked = self.inner.parked.lock();
        parked.iter().map(|(volume, parked)| (*volume, parked.last())).collect()
    }

    /// The bell that rings when a volume has gone out of service with changes that only the log
    /// has.
    #[must_use]
    pub fn parking(&self) -> Arc<Notify> {
        Arc::clone(&self.inner.parking)
    }

    /// Begins no further batch; the batches in hand have a short grace to end. Unfinished changes
    /// stay in the log. For a quick stop, before the volumes are closed.
    pub fn begin_no_batch(&self) {
        self.inner.destager.stopping.turn_on();
    }

    /// Ends destaging after the batches in hand. Unfinished changes stay in the log.
    pub async fn stop(&self) {
        self.inner.destager.stopping.turn_on();
        let mut workers = self.inner.destager.workers.subscribe();
        // The sender lives as long as `self`.
        let _ = workers.wait_for(|workers| *workers == 0).await;
        // Waiting writes get neither room nor RAM any more: no destager is left to free any.
        self.inner.memory.close();
        for volume in self.volumes() {
            volume.abandon();
        }
    }
}

impl Inner {
    /// Returns an error when the vault is older than one that the log knows of: the changes
    /// released since are nowhere else.
    fn is_not_set_back(&self, vault: &Vault) -> Result<(), Error> {
        let (found, known) = (vault.checkpoint, self.log.released(vault.id));
        match found < known {
            true => Err(Error::SetBack { volume: vault.name.clone(), found, known }),
            false => Ok(()),
        }
    }

    /// Returns an error when changes of the volume may be on the machine alone of whose log this
    /// one has copies.
    fn is_here(&self, vault: &Vault) -> Result<(), Error> {
        let is_copied = self.config.copied_from != Incarnation(0);
        match is_copied
            && vault.is_bound_to_its_machine()
            && vault.incarnation <= self.config.copied_from
            && !self.bound_no_more.lock().contains(&vault.id)
        {
            true => Err(Error::NotCopied(vault.name.clone())),
            false => Ok(()),
        }
    }

    /// The versions of a volume that commits leave alone.
    pub(crate) fn spared(&self, volume: VolumeId) -> versions::Spared {
        self.holds.lock().get(&volume).cloned().unwrap_or_default()
    }

    /// Moving average of one store operation.
    pub(crate) fn latency(&self) -> Duration {
        match self.latency.load(Ordering::Relaxed) {
            0 => limits::LATENCY_START,
            nanoseconds => Duration::from_nanos(nanoseconds),
        }
    }

    /// Adds the time of a store operation to the moving average.
    pub(crate) fn measured(&self, time: Duration) {
        // Bounded, so that an outage is not remembered for long.
        let sample =
            u64::try_from(time.min(limits::LATENCY_MAX * 2).as_nanos()).unwrap_or(u64::MAX).max(1);
        // Two samples at once may lose one of them, which an average can bear.
        let average = match self.latency.load(Ordering::Relaxed) {
            0 => sample,
            old => old - old / 8 + sample / 8,
        };
        self.latency.store(average, Ordering::Relaxed);
    }

    /// Admits the waiting writes for which there is room now.
    pub(crate) fn admit_waiting(&self) {
        if self.stalled.load(Ordering::Relaxed) == 0 {
            return;
        }
        let volumes: Vec<_> = self.volumes.lock().values().cloned().collect();
        for volume in volumes {
            volume.admit_waiting();
        }
    }

    /// Takes a closed volume out; its unfinished changes are kept at hand for the next open.
    pub(crate) fn park(&self, volume: &Staged) {
        let mut volumes = self.volumes.lock();
        if !volumes
            .get(&volume.id)
            .is_some_and(|present| std::ptr::eq(&raw const **present, volume))
        {
            // The volume was forgotten meanwhile, or has gone and come back.
            return;
        }
        volumes.remove(&volume.id);
        // With the lock of `volumes` held, so that no task opens the volume before its changes are
        // parked.
        let parked = self.retire(volume);
        if !parked.is_empty() {
            self.parking.notify_one();
        }
        // Changes that are not listed, with none behind them, need no parking: the log lists them
        // again.
        if !parked.changes.is_empty() {
            self.parked.lock().insert(volume.id, parked);
        }
        drop(volumes);
        self.admit_waiting();
    }

    /// Takes the changes of a volume that is out of service, and gives its budget back.
    fn retire(&self, volume: &Staged) -> Parked {
        let mut gate = volume.gate.lock();
        let checkpoint = gate.changes.queue.checkpoint();
        let (unindexed, changes) = gate.changes.retire();
        let kept_bytes = unindexed.bytes + changes.iter().map(queue::Change::cost).sum::<u64>();
        volume.kept_bytes.store(kept_bytes, Ordering::Relaxed);
        let flash_bytes = std::mem::take(&mut gate.room.bytes);
        volume.discounted(&gate.room, flash_bytes);
        let runs = std::mem::take(&mut gate.basis.runs);
        let (end, begins) = (gate.changes.end, gate.basis.begins);
        let generation = volume.generation;
        Parked { generation, checkpoint, unindexed: unindexed.count, changes, end, begins, runs }
    }
}
