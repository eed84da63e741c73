//! Write acceleration: when a write is acknowledged, and how it reaches its home afterwards.
//!
//! The one crate that joins [`log`] and [`content`]. A [`Staged`] volume gives every change a serial ([`gatekeeper`]),
//! acknowledges it after what its [`Policy`] says, keeps it readable in the overlay, and lets the destager fold
//! changes in serial order into the volume's [`Home`], one atomic vault commit a batch. The [`Vault`] is the one truth
//! about who may write the volume.

mod accept;
mod admission;
mod batch;
mod budget;
mod commit;
mod counting;
mod destager;
mod earlier;
mod error;
mod fence;
mod flow;
mod gatekeeper;
mod home;
mod limits;
mod listing;
mod lives;
mod overlay;
mod plan;
mod policy;
mod quarantine;
mod queue;
mod reading;
mod recovery;
mod replay;
mod salvage;
mod staged;
mod vault;
pub mod versions;
mod view;

pub use error::Error;
pub use home::{Extent, Fold, Home, Source};
pub use policy::{Ack, Policy};
pub use quarantine::Lost;
pub use salvage::{Allowance, Back, Hurt, Salvaged};
pub use staged::Staged;
pub use vault::{Accepted, Logged, Vault, VaultState, Version};
pub use view::{DestagerView, StagedView};

/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 1] =
    [(<Vault as datastore::record::Body>::WHAT, <Vault as datastore::record::Body>::FORMAT)];

use base::VolumeId;
use budget::Rouse;
use content::Content;
use datastore::record::{Held, Writer};
use destager::Destager;
use earlier::Shelf;
use env::{BoxFuture, Env};
use fence::Fence;
use gatekeeper::Gatekeeper;
use log::Log;
use parking_lot::Mutex;
use recovery::Parked;
use serde::Serialize;
use staged::Mode;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

/// Settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Flash that unfinished changes of all volumes may take, bytes. A volume's fair share is this over the number of
    /// volumes with unfinished changes.
    pub flash_bytes: u64,
    /// RAM for payloads held by `through` and `uncached` writes, bytes.
    pub memory_bytes: u64,
    /// A change is destaged when it is this old, if nothing else triggers earlier.
    pub destage_age: Duration,
    /// ... or when a volume has this many unfinished bytes.
    pub destage_bytes: u64,
    /// Most bytes in one destage batch.
    pub batch_bytes: u64,
    /// Destage batches at once, of different volumes.
    pub destagers: usize,
    /// A volume that comes back with more unfinished changes takes writes before all of them are indexed; reads wait.
    pub index_at_once: usize,
    /// Past this age of the oldest change, the volume is reported as late.
    pub age_deadline: Duration,
    /// Whether the log's open segments outlive the process (`warm::Arena::outlives_process`). If not, ack `memory` would
    /// promise what nobody can keep, and such volumes are served as with ack `flash`.
    pub memory_outlives_process: bool,
}

/// The staging of one node. Clones mean the same one; with the last of them destaging ends.
#[derive(Clone)]
pub struct Staging {
    inner: Arc<Inner>,
    /// Ends with the last clone.
    _life: Arc<Life>,
}

/// While it lives, staging works. Volumes and staging hold one another; this is what lets go.
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
    /// Volumes that have any.
    volumes_with_changes: AtomicU64,
    /// Writes that wait for room on flash.
    stalled: AtomicUsize,
    /// RAM for payloads, a permit a byte; first come first served.
    memory: Arc<Semaphore>,
    memory_permits: u32,
    /// Moving average of one store operation, nanoseconds; 0 while unknown.
    latency: AtomicU64,
    /// In order, so that a seed of the simulation is one run.
    volumes: Mutex<BTreeMap<VolumeId, Arc<Staged>>>,
    parked: Mutex<BTreeMap<VolumeId, Parked>>,
    destager: Destager,
    fence: Fence,
    /// Volumes that keep the root before their last commit.
    shelf: Shelf,
    /// Earlier contents that somebody is about to go back to.
    holds: versions::Holds,
    /// Volumes whose content turned out to be damaged, for whoever salvages.
    hurt: (mpsc::Sender<Hurt>, Mutex<Option<mpsc::Receiver<Hurt>>>),
}

/// The outcome of submitting a change.
pub enum Written {
    /// Acknowledge now.
    Done,
    /// Acknowledge when [`Staged::sync`] of this ticket (or of a later one of the same volume) has returned.
    Staged(Ticket),
    /// Flow control, a stall, or a policy that waits for the datastore: acknowledge when this has ended. The change
    /// is on its way whether or not the future is polled once the first poll has been made.
    Later(BoxFuture<'static, Result<(), Error>>),
}

/// A point of the log that covers a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(pub log::Position);

/// What a volume owes to its home, and why it is slow.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Backlog {
    /// Unfinished changes.
    pub changes: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Age of the oldest, milliseconds.
    pub age_ms: u64,
    /// Estimated time until all present ones are destaged, milliseconds (by the moving average), if known.
    pub eta_ms: Option<u64>,
    /// Older than the deadline.
    pub late: bool,
    /// Present delay of an acknowledgement by flow control, milliseconds.
    pub delay_ms: u64,
    /// Why writes wait altogether, if they do.
    pub stalled: Option<String>,
    /// Last error of the destager, if the last attempt failed.
    pub destage_error: Option<String>,
    pub serial: u64,
    pub checkpoint: u64,
}

impl Staging {
    /// Staging over a log and a content store. Starts the destagers.
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
            destager: Destager::new(),
            fence: Fence::new(writer_life),
            shelf: Shelf::default(),
            holds: versions::Holds::default(),
            hurt: {
                let (sender, receiver) = mpsc::channel(limits::HURT_MAX);
                (sender, Mutex::new(Some(receiver)))
            },
            config,
        });
        destager::start(&inner);
        Self { _life: Arc::new(Life { inner: inner.clone() }), inner }
    }

    /// Brings a volume into service: re-indexes its unfinished changes (those of the log past the vault's checkpoint
    /// and of no newer generation), in memory only; the vault is not written (the caller has made this node its owner).
    /// When they are many, the index is made while the volume takes writes already ([`Config::index_at_once`]).
    /// A volume that is in service already is given as it is.
    pub async fn open(
        &self,
        vault: Held<Vault>,
        home: Arc<dyn Home>,
    ) -> Result<Arc<Staged>, Error> {
        self.bring(vault, home, true).await
    }

    /// The same, by a copy of the vault: should the store turn out to have another one, nothing is overwritten.
    pub async fn open_by_copy(
        &self,
        vault: Held<Vault>,
        home: Arc<dyn Home>,
    ) -> Result<Arc<Staged>, Error> {
        self.bring(vault, home, false).await
    }

    /// `seen`: the vault was read from the store in this life.
    async fn bring(
        &self,
        vault: Held<Vault>,
        home: Arc<dyn Home>,
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
        let mode = match (value.policy, value.ack) {
            (Policy::Uncached, _) => Mode::Store { keep: false },
            (Policy::Through, _) => Mode::Store { keep: true },
            (Policy::Back, Ack::Memory) if inner.config.memory_outlives_process => Mode::Memory,
            (Policy::Back, _) => Mode::Flash,
        };
        inner.is_not_set_back(value)?;
        let id = value.id;
        let checkpoint = value.checkpoint;
        let unfinished = inner.unfinished_of(value).await?;
        inner.log.release(id, checkpoint);
        let vault = inner.claim(vault, (unfinished.begins, &unfinished.runs), seen).await?;
        let (is_listed, end) = (unfinished.queue.is_listed(), unfinished.end);
        let mut gate = Gatekeeper::new(vault, unfinished, seen);
        // Memory that outlives the process is as good as flash, for those that were appended in it.
        gate.index(if mode == Mode::Memory { end } else { inner.log.committed() });
        let staged = Staged::new(inner.clone(), home, gate, mode);
        {
            let mut volumes = inner.volumes.lock();
            inner.fence.check()?;
            volumes.insert(id, staged.clone());
        }
        let rouse = {
            let mut gate = staged.gate.lock();
            if gate.flash_bytes > 0 {
                inner.volumes_with_changes.fetch_add(1, Ordering::Relaxed);
                inner.total.fetch_add(gate.flash_bytes, Ordering::Relaxed);
            }
            if gate.queue.is_empty() { Rouse::No } else { staged.note(&mut gate) }
        };
        staged.rouse(rouse);
        if !is_listed {
            listing::start(&staged);
        }
        Ok(staged)
    }

    /// News of volumes whose content turned out to be damaged when it was read or folded, each once until its next
    /// salvage. There is one receiver; `None` when somebody has it.
    #[must_use]
    pub fn hurt(&self) -> Option<mpsc::Receiver<Hurt>> {
        self.inner.hurt.1.lock().take()
    }

    /// Keeps all earlier contents that a vault lists from being thinned by commits, `target` before all others, for as long as
    /// the hold lives. One at a time for a volume.
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

    /// Volumes in service.
    #[must_use]
    pub fn volumes(&self) -> Vec<Arc<Staged>> {
        self.inner.volumes.lock().values().cloned().collect()
    }

    /// Begins no further batch; those in hand have a short grace to end. What is unfinished stays in the log. For a
    /// stop that shall be quick, before the volumes are closed.
    pub fn begin_no_batch(&self) {
        self.inner.destager.stopping.turn_on();
    }

    /// Ends destaging after the batches in hand. Unfinished changes stay in the log.
    pub async fn stop(&self) {
        self.inner.destager.stopping.turn_on();
        let mut workers = self.inner.destager.workers.subscribe();
        // The sender lives as long as `self`.
        let _ = workers.wait_for(|workers| *workers == 0).await;
        // Nobody will give them room or RAM any more.
        self.inner.memory.close();
        for volume in self.volumes() {
            volume.abandon();
        }
    }
}

impl Inner {
    /// An error when the vault is older than one that the log knows of: what was released since is nowhere else.
    fn is_not_set_back(&self, vault: &Vault) -> Result<(), Error> {
        let (found, known) = (vault.checkpoint, self.log.released(vault.id));
        match found < known {
            true => Err(Error::SetBack { volume: vault.name.clone(), found, known }),
            false => Ok(()),
        }
    }

    /// Earlier contents of a volume that commits leave alone.
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

    /// A store operation took this long.
    pub(crate) fn measured(&self, time: Duration) {
        // An outage shall not be remembered for long.
        let sample =
            u64::try_from(time.min(limits::LATENCY_MAX * 2).as_nanos()).unwrap_or(u64::MAX).max(1);
        // Two samples at once may lose one of them: it is an average.
        let average = match self.latency.load(Ordering::Relaxed) {
            0 => sample,
            old => old - old / 8 + sample / 8,
        };
        self.latency.store(average, Ordering::Relaxed);
    }

    /// Room was made: lets writes in that wait for it.
    pub(crate) fn admit_waiting(&self) {
        if self.stalled.load(Ordering::Relaxed) == 0 {
            return;
        }
        let volumes: Vec<_> = self.volumes.lock().values().cloned().collect();
        for volume in volumes {
            volume.admit_waiting();
        }
    }

    /// A closed volume leaves; its unfinished changes are kept at hand for the next open.
    pub(crate) fn park(&self, volume: &Staged) {
        let mut volumes = self.volumes.lock();
        if !volumes
            .get(&volume.id)
            .is_some_and(|present| std::ptr::eq(&raw const **present, volume))
        {
            // Forgotten meanwhile, or gone and back.
            return;
        }
        volumes.remove(&volume.id);
        // With the registry's lock held, so that nobody opens the volume before its changes are here.
        let parked = self.retire(volume);
        // What is not listed, and nothing behind it: the log tells of that again.
        if !parked.changes.is_empty() {
            self.parked.lock().insert(volume.id, parked);
        }
        drop(volumes);
        self.admit_waiting();
    }

    /// Empties a volume that is out of service, and its budget.
    fn retire(&self, volume: &Staged) -> Parked {
        let mut gate = volume.gate.lock();
        let checkpoint = gate.queue.checkpoint();
        let (unlisted, mut changes) = gate.queue.take();
        // Nobody was told of those that only RAM has.
        let logged = changes.iter().take_while(|change| change.is_logged()).count();
        changes.truncate(logged);
        let kept_bytes = unlisted.bytes + changes.iter().map(queue::Change::cost).sum::<u64>();
        volume.kept_bytes.store(kept_bytes, Ordering::Relaxed);
        let flash_bytes = std::mem::take(&mut gate.flash_bytes);
        volume.discounted(&gate, flash_bytes);
        let runs = std::mem::take(&mut gate.runs);
        let (end, begins) = (gate.end, gate.begins);
        let generation = volume.generation;
        Parked { generation, checkpoint, unlisted: unlisted.count, changes, end, begins, runs }
    }
}
