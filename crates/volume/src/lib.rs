//! The life of a volume: created, listed, attached on first use, served, detached, removed.
//!
//! [`Volumes`] is the registry of a node. Names and vaults are in the datastore; the registry reads
//! them only on request. [`machine`] holds the states and the one table of lawful transitions.
//!
//! The rooms: [`registry`] (names, states, claims), [`attach`] (into service, and out of it when
//! idle), [`stop`] (out of service), [`manage`] (commands of users), [`repair`] (salvage). What the
//! content of a volume means is known to its [`kind`].

mod attach;
mod error;
mod format;
mod kind;
pub mod limits;
mod manage;
mod records;
mod registry;
mod repair;
mod stop;

pub use attach::collector;
pub use attach::record_cache::WarmRecordCache;
pub use error::Error;
pub use format::{Account, FORMATS, Outcome};
pub use kind::{Cut, Kind, Kinds, OpenedHome, Sizes, is_of};
pub use manage::hand_over::{Confirm, Moved};
pub use manage::reap::Reaped;
pub use manage::settings::WriteSettings;
pub use manage::snapshots::VolumeSnapshot;
pub use manage::trash::TrashedVolume;
pub use manage::versions::VolumeVersion;
pub use registry::Transition;
pub use registry::entry::{Handle, WeakHandle};
pub use registry::info::Info;
pub use registry::machine;
pub use registry::transitional::{Stuck, Transitional};
pub use registry::view::{CollectorView, Impaired, VolumeView};
pub use repair::salvage::{Repair, Salvage};
pub use stop::StopProgress;

use attach::collect;
use attach::collector::{Collected, Settings};
use manage::create;
use manage::hand_over;
use manage::list;
use manage::names;
use manage::pin;
use manage::reap;
use manage::remove;
use manage::rename;
use manage::roots;
use manage::set;
use manage::snapshots;
use manage::trash;
use manage::versions;
use registry::Inner;
use registry::machine::{State, StateChange};
use registry::transitional;
use registry::view;
use rekindle_base::{NodeId, VolumeId};
use rekindle_content::Content;
use rekindle_content::sweep::{Look, Roots, Sources, Written};
use rekindle_datastore::record::Writer;
use rekindle_env::{BoxFuture, Env};
use rekindle_staging::{Ack, MissingCopy, Policy, Staging, Vault, VaultBody, VaultState};
use repair::losses;
use repair::salvage;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stop::offline;
use tokio::sync::broadcast;

/// The parts on which the registry of a node stands.
pub struct Parts {
    pub env: Env,
    pub writer: Writer,
    pub content: Content,
    pub staging: Staging,
    pub kinds: Kinds,
    /// Whether a volume's tree is read ahead when the volume comes into service.
    pub read_ahead: bool,
}

/// A request for a new volume.
#[derive(Debug, Clone)]
pub struct Spec {
    pub name: String,
    pub kind: String,
    /// Bytes; a positive multiple of 512.
    pub size: u64,
    /// The settings that the kind understands. It has a default for each.
    pub settings: VaultBody,
    pub policy: Policy,
    pub ack: Ack,
    /// Count of the copies on other nodes that a write waits for.
    pub copies: u8,
    /// What a write does while there are fewer copies.
    pub on_missing_copy: MissingCopy,
}

/// The volumes of a node. Clones mean the same registry.
#[derive(Clone)]
pub struct Volumes {
    inner: Arc<Inner>,
}

impl Volumes {
    /// Makes a registry; reads nothing.
    #[must_use]
    pub fn open(parts: Parts) -> Self {
        Self { inner: Arc::new(Inner::new(parts)) }
    }

    /// Returns the door to the machine.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.inner.env
    }

    /// Returns the kinds of volumes that this registry knows.
    #[must_use]
    pub fn kinds(&self) -> &Kinds {
        &self.inner.kinds
    }

    /// Creates a volume: first the vault, then the name.
    pub async fn create(&self, spec: Spec) -> Result<Info, Error> {
        self.run("volume-create", |inner| async move { create::create(&inner, spec).await }).await
    }

    /// Lists all volumes, by name. A damaged volume is among them, in state `error`.
    pub async fn list(&self) -> Result<Vec<Info>, Error> {
        list::list(&self.inner).await
    }

    /// Lists all volumes as [`Volumes::list`] does, for a user: a vault whose tag in the store's
    /// listing is that of the last look is not read again.
    pub async fn glance(&self) -> Result<Vec<Info>, Error> {
        list::glance(&self.inner).await
    }

    /// Reads the vaults of all volumes of a node, also of those in the trash, from the store.
    pub async fn owned_by(&self, node: NodeId) -> Result<Vec<Vault>, Error> {
        list::owned_by(&self.inner, node).await
    }

    /// Returns the names of the volumes of one kind, sorted. Beyond [`limits::NAMES_EXACT_MAX`]
    /// volumes no vault is read: then a volume of another kind is among them until it was looked at
    /// here.
    pub async fn names(&self, kind: &str) -> Result<Arc<[String]>, Error> {
        names::names(&self.inner, kind).await
    }

    /// Shows one volume.
    pub async fn show(&self, name: &str) -> Result<Info, Error> {
        list::show(&self.inner, name).await
    }

    /// Returns the name that the volume with an id has now. [`Error::NotFound`] if there is none.
    pub async fn name_of(&self, id: VolumeId) -> Result<String, Error> {
        let found = records::vault(&self.inner.writer, id).await?;
        let live = found.filter(|held| held.value.state == VaultState::Live);
        Ok(live.ok_or_else(|| Error::NotFound(id.to_string()))?.value.name)
    }

    /// Moves a volume to the trash, where it is kept for [`limits::TRASH_AGE`]; its name becomes
    /// free.
    ///
    /// Refused ([`Error::Busy`]) while clients hold the volume, unless `force`. Also refused when
    /// the volume's backlog cannot reach the store.
    pub async fn trash(&self, name: &str, force: bool) -> Result<(), Error> {
        let name = name.to_owned();
        self.run(
            "volume-trash",
            move |inner| async move { trash::trash(&inner, &name, force).await },
        )
        .await
    }

    /// Lists the volumes in the trash, the last one to go there first.
    pub async fn trashed(&self) -> Result<Vec<TrashedVolume>, Error> {
        trash::list(&self.inner).await
    }

    /// Takes a volume out of the trash, under its old name or a new one. If several volumes in the
    /// trash have the name, takes the last one to go there.
    pub async fn restore(&self, name: &str, new_name: Option<&str>) -> Result<Info, Error> {
        let (name, new_name) = (name.to_owned(), new_name.map(ToOwned::to_owned));
        let work = |inner| async move { trash::restore(&inner, &name, new_name.as_deref()).await };
        self.run("volume-restore", work).await
    }

    /// Removes for good all volumes in the trash under a name. Returns their number.
    pub async fn purge(&self, name: &str) -> Result<u64, Error> {
        let name = name.to_owned();
        self.run("volume-purge", |inner| async move { trash::purge(&inner, &name).await }).await
    }

    /// Gives a volume without clients another name.
    pub async fn rename(&self, name: &str, new_name: &str) -> Result<Info, Error> {
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        let work = |inner| async move { rename::rename(&inner, &name, &new_name).await };
        self.run("volume-rename", work).await
    }

    /// Gives a volume another size, in bytes. A volume grows in service, and its clients see the
    /// new size when they connect anew. A volume shrinks only with `shrink`, and only without
    /// clients.
    pub async fn resize(&self, name: &str, size: u64, shrink: bool) -> Result<Info, Error> {
        let name = name.to_owned();
        let work = move |inner| async move { rename::resize(&inner, &name, size, shrink).await };
        self.run("volume-resize", work).await
    }

    /// Gives a volume other settings, while its clients go on: see [`manage::hand_over`]. All that
    /// it has acknowledged reaches the store first.
    pub async fn set(&self, name: &str, settings: WriteSettings) -> Result<Info, Error> {
        let name = name.to_owned();
        let work = move |inner| async move { set::set(&inner, &name, settings).await };
        self.run("volume-set", work).await
    }

    /// Moves a volume of this node to another one, while its clients go on: see
    /// [`manage::hand_over`]. The move goes on when the caller does not wait for its end. After an
    /// error the volume is still this node's, unless the error says otherwise.
    pub async fn move_to(
        &self,
        name: &str,
        confirm: Confirm,
        told: impl Fn(u64, u64) + Send + Sync + 'static,
    ) -> Result<Moved, Error> {
        let name = name.to_owned();
        self.run("volume-move", move |inner| async move {
            hand_over::move_to(&inner, &name, &confirm, &told).await
        })
        .await
    }

    /// Lists the kept earlier contents of a volume, the newest first.
    pub async fn versions(&self, name: &str) -> Result<Vec<VolumeVersion>, Error> {
        versions::versions(&self.inner, name).await
    }

    /// Takes a volume without clients back to an earlier content; the present content becomes a
    /// version. Unfinished changes reach the store first. If they cannot, `discard` gives them up.
    pub async fn rollback(&self, name: &str, version: &str, discard: bool) -> Result<Info, Error> {
        let (name, version) = (name.to_owned(), version.to_owned());
        let work =
            move |inner| async move { versions::rollback(&inner, &name, &version, discard).await };
        self.run("volume-rollback", work).await
    }

    /// Lists the snapshots of a volume, the oldest first.
    pub async fn snapshots(&self, name: &str) -> Result<Vec<VolumeSnapshot>, Error> {
        snapshots::snapshots(&self.inner, name).await
    }

    /// Keeps what a volume has now under a name, while its clients go on: every change that was
    /// acknowledged before the call is in it, and none that is submitted after its end.
    pub async fn take_snapshot(&self, name: &str, snapshot: &str) -> Result<VolumeSnapshot, Error> {
        let (name, snapshot) = (name.to_owned(), snapshot.to_owned());
        let work = |inner| async move { snapshots::take(&inner, &name, &snapshot).await };
        self.run("volume-snapshot", work).await
    }

    /// Removes a snapshot. What only it kept in the store is free for the sweep.
    pub async fn remove_snapshot(&self, name: &str, snapshot: &str) -> Result<(), Error> {
        let (name, snapshot) = (name.to_owned(), snapshot.to_owned());
        let work = |inner| async move { snapshots::remove(&inner, &name, &snapshot).await };
        self.run("volume-snapshot", work).await
    }

    /// Makes a volume that begins with the content of a snapshot. No byte is copied.
    pub async fn clone_of(
        &self,
        name: &str,
        snapshot: &str,
        new_name: &str,
    ) -> Result<Info, Error> {
        let (name, snapshot, new_name) =
            (name.to_owned(), snapshot.to_owned(), new_name.to_owned());
        let work =
            |inner| async move { snapshots::clone(&inner, &name, &snapshot, &new_name).await };
        self.run("volume-clone", work).await
    }

    /// Removes a volume for good. Refused ([`Error::Busy`]) while clients hold the volume, unless
    /// `force`, which drops their holds. A damaged volume is removed by `force` only.
    pub async fn remove(&self, name: &str, force: bool) -> Result<(), Error> {
        let name = name.to_owned();
        self.run(
            "volume-remove",
            move |inner| async move { remove::remove(&inner, &name, force).await },
        )
        .await
    }

    /// Brings a volume into service on first use and holds it. Concurrent callers share one attach,
    /// which goes on when a caller does not wait for its end.
    pub async fn attach(&self, name: &str) -> Result<Handle, Error> {
        attach::attach(&self.inner, name).await
    }

    /// Attaches a volume of one kind. A volume of another kind is refused ([`Error::OtherKind`])
    /// before this node becomes its owner or reads its unfinished changes.
    pub async fn attach_as(&self, name: &str, kind: &'static str) -> Result<Handle, Error> {
        attach::attach_as(&self.inner, name, Some(kind)).await
    }

    /// Notes that a client of a volume has connected: the volume no longer awaits the return of a
    /// client that a kill cut off.
    pub fn client_is_back(&self, name: &str) {
        self.inner.active_volumes.is_back(name);
    }

    /// Attaches the volumes that had clients when the last life of this node ended. The store is
    /// not asked: a volume that is not in the record cache waits for its client.
    pub fn welcome(&self) -> BoxFuture<'static, ()> {
        Box::pin(attach::welcome(self.inner.clone()))
    }

    /// Takes a volume without clients out of service. Its unfinished changes stay in the log, and
    /// the next client attaches the volume again. Does nothing to a volume that is not in service.
    pub async fn detach(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.run("volume-detach", |inner| async move {
            offline::detach(&inner, &name, false, "detach").await
        })
        .await
    }

    /// Sets how many volumes a stop takes out of service at once: 1 to [`limits::STOPS_MAX`] (the
    /// default).
    pub fn stop_at_once(&self, volumes: usize) {
        let volumes = volumes.clamp(1, limits::STOPS_MAX);
        self.inner.stops_max.store(volumes, Ordering::Relaxed);
    }

    /// Stops all volumes in parallel. Their unfinished changes stay in the log, or with `drain` are
    /// destaged first. No volume is attached or created afterwards. [`Volumes::stop_progress`]
    /// tells the progress.
    pub async fn stop(&self, drain: bool) -> Result<(), Error> {
        stop::stop(&self.inner, drain).await
    }

    /// Returns the progress of a stop; `None` before a stop has begun.
    #[must_use]
    pub fn stop_progress(&self) -> Option<StopProgress> {
        stop::progress(&self.inner)
    }

    /// Turns a draining stop into a quick one: changes that have not reached the datastore stay in
    /// the log.
    pub fn abort_drain(&self) {
        stop::abort_drain(&self.inner);
    }

    /// Returns the last changes of a volume's state, oldest first; `None` if this life has no entry
    /// of the volume.
    #[must_use]
    pub fn history(&self, name: &str) -> Option<Vec<StateChange>> {
        let entry = self.inner.find(name)?;
        let inside = entry.inside.lock();
        Some(inside.machine.history().iter().cloned().collect())
    }

    /// Counts the volumes in each state, of those that this life has an entry of.
    #[must_use]
    pub fn states(&self) -> BTreeMap<State, u64> {
        for entry in self.inner.all() {
            self.inner.observe(&entry, &mut entry.inside.lock());
        }
        self.inner.levels()
    }

    /// Lists the volumes with an unreadable part, by name. The part waits for absent chunks, for
    /// the end of its first hour or for an operator, or was given up. Such a volume is in the queue
    /// of [`Volumes::salvages`] only if its salvage was requested again.
    #[must_use]
    pub fn impaired(&self) -> Vec<Impaired> {
        view::impaired(&self.inner)
    }

    /// Lists the transitions since the start: how often each has happened, and how long the states
    /// before had lasted.
    #[must_use]
    pub fn transitions(&self) -> Vec<Transition> {
        self.inner.transitions()
    }

    /// Lists volumes in a transitional state, the oldest first, each with what its task waits for.
    /// The number counts all of them.
    #[must_use]
    pub fn transitional(&self) -> (Vec<Transitional>, u64) {
        transitional::look(&self.inner)
    }

    /// Returns the volumes that have been in a transitional state for too long, as of the
    /// watchdog's last look.
    #[must_use]
    pub fn stuck(&self) -> Stuck {
        self.inner.stuck.lock().clone()
    }

    /// Returns the watchdog, which reports volumes that are in a transitional state for longer than
    /// `limit`. The caller runs it as a task; it ends with the registry.
    pub fn watchdog(&self, limit: Duration) -> impl Future<Output = ()> + Send + 'static {
        transitional::watch(Arc::downgrade(&self.inner), limit)
    }

    /// Sets or removes a volume's pin. The collector leaves a pinned volume in service.
    pub async fn pin(&self, name: &str, pinned: bool) -> Result<Info, Error> {
        let name = name.to_owned();
        self.run("volume-pin", move |inner| async move { pin::set(&inner, &name, pinned).await })
            .await
    }

    /// Returns the collector, which takes long idle volumes out of service. The caller runs it as a
    /// task; it ends with the registry.
    pub fn collector(&self, settings: Settings) -> impl Future<Output = ()> + Send + 'static {
        collect::run(Arc::downgrade(&self.inner), settings)
    }

    /// Salvages a volume, in service if it can be, and waits for the end. Attempts are counted from
    /// zero again.
    ///
    /// Only `accept_losses` gives up unreachable content, and changes that the log has lost; the
    /// latter only while no client holds the volume.
    pub async fn salvage(&self, name: &str, accept_losses: bool) -> Result<Repair, Error> {
        let name = name.to_owned();
        let work = move |inner| async move { salvage::run(&inner, &name, accept_losses).await };
        self.run("volume-salvage", work).await
    }

    /// Asks for a salvage of a volume in which damage was found, and does not wait for its end. A
    /// volume out of service is attached for that.
    pub async fn ask_salvage(&self, name: &str, reason: &str) -> Result<(), Error> {
        let (name, reason) = (name.to_owned(), reason.to_owned());
        let ask = |inner| async move { salvage::ask_in_service(&inner, &name, &reason).await };
        self.run("volume-salvage", ask).await
    }

    /// Reads all changes that this node's log has of a volume, and the store has not. Returns their
    /// bytes, and messages about those that are lost or damaged.
    pub async fn examine_unfinished(&self, vault: &Vault) -> Result<(u64, Vec<String>), Error> {
        let look = async || {
            let entry = self.inner.find(&vault.name);
            match entry.and_then(|entry| entry.inside.lock().live.clone()) {
                Some(live) => {
                    let bytes = live.staged.backlog().bytes;
                    Ok((bytes, live.staged.examine_unfinished().await?))
                }
                None => Ok(self.inner.staging.examine_unfinished(vault).await?),
            }
        };
        for _ in 1..limits::LOOKS_MAX {
            match look().await {
                // It may have come into service meanwhile, or gone out of it.
                Err(_) => self.inner.env.sleep(limits::LOOK_AGAIN).await,
                examined => return examined,
            }
        }
        look().await
    }

    /// Notes what a check found of a volume: the reason in words, or that nothing is damaged.
    /// Health tells the damage until a salvage or another check ends; nothing is repaired. Where a
    /// fault waits and the check found nothing, a salvage looks whether the fault is over.
    pub async fn note_check(&self, name: &str, damage: Option<String>) {
        let name = name.to_owned();
        let work = |inner| async move { salvage::note_check(&inner, &name, damage).await };
        self.run("volume-check", work).await;
    }

    /// Cancels the salvage of a volume, or takes it out of the queue. Whether there was one.
    pub fn cancel_salvage(&self, name: &str) -> bool {
        salvage::cancel(&self.inner, name)
    }

    /// Lists the volumes in salvage, then those that wait for it, the next one first.
    #[must_use]
    pub fn salvages(&self) -> Vec<Salvage> {
        self.inner.salvager.view(self.inner.env.now())
    }

    /// Returns the last salvages of a volume, oldest first.
    pub async fn salvage_history(&self, name: &str) -> Result<Vec<Account>, Error> {
        salvage::history(&self.inner, name).await
    }

    /// Returns the last salvages of all volumes, grouped by volume, oldest first.
    pub async fn salvage_histories(&self) -> Result<Vec<Account>, Error> {
        salvage::histories(&self.inner).await
    }

    /// Asks again for the salvages that a crash or a stop of an earlier life has cut off. Returns
    /// their number. The node calls it in the background after a start.
    pub async fn resume_salvages(&self) -> Result<u64, Error> {
        self.run("salvage-resume", |inner| async move { salvage::resume(&inner).await }).await
    }

    /// Returns the task that asks for a salvage of each volume in service whose content turns out
    /// to be damaged. The caller runs it; it ends with the registry.
    pub fn salvager(&self) -> impl Future<Output = ()> + Send + 'static {
        salvage::listen(Arc::downgrade(&self.inner))
    }

    /// Returns the counters of the collector.
    #[must_use]
    pub fn collected(&self) -> Collected {
        self.inner.collected.lock().clone()
    }

    /// Views the volumes whose names begin with `prefix`, by name, at most `most`; the number
    /// counts all of them. Does not ask the datastore.
    #[must_use]
    pub fn view(&self, prefix: &str, most: usize) -> (Vec<VolumeView>, u64) {
        view::volumes(&self.inner, prefix, most)
    }

    /// Lists names whose lock is held, at most `most`.
    #[must_use]
    pub fn name_locks(&self, most: usize) -> Vec<String> {
        self.inner.name_locks.taken(most)
    }

    /// Subscribes to every change of state from now on. A watcher that falls too far behind misses
    /// some, and learns how many.
    #[must_use]
    pub fn watch(&self) -> broadcast::Receiver<StateChange> {
        self.inner.watch()
    }

    /// Finishes removals that a crash interrupted, deletes failed creations older than a day, and
    /// gives lost names back. The sweep calls it.
    pub async fn reap_orphans(&self) -> Result<Reaped, Error> {
        let work = |inner| async move { reap::reap_orphans(&inner, limits::ORPHAN_AGE).await };
        self.run("volume-reap", work).await
    }

    /// Has the log forget its losses, if every volume of this node goes on without them. Whether it
    /// did.
    pub async fn settle_losses(&self) -> Result<bool, Error> {
        self.run("volume-losses", |inner| async move { losses::settle(&inner).await }).await
    }

    /// Forgets the log's changes of a volume that is gone for good. Whether it is gone; an error if
    /// that cannot be known.
    pub async fn forget_if_gone(&self, id: VolumeId) -> Result<bool, Error> {
        let work = move |inner: Arc<Inner>| async move { remove::forget_if_gone(&inner, id).await };
        self.run("volume-forget", work).await
    }

    /// Runs `work`, which changes something, as a task of its own: it ends even if the caller goes
    /// away.
    async fn run<T: Send + 'static, F>(
        &self,
        name: &'static str,
        work: impl FnOnce(Arc<Inner>) -> F,
    ) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.inner.env.run(name, work(self.inner.clone())).await
    }
}

impl Roots for Volumes {
    fn look<'a>(
        &'a self,
        known: &'a Sources,
        look: Look<'a>,
    ) -> BoxFuture<'a, Result<Sources, rekindle_content::Error>> {
        let (known, look) = (known.clone(), roots::Looked::of(look));
        let work = move |inner: Arc<Inner>| async move { roots::look(&inner, &known, &look).await };
        Box::pin(async move { Ok(self.run("volume-roots", work).await?) })
    }

    fn written(&self, since: u64) -> Option<Written> {
        roots::written(&self.inner, since)
    }
}

#[cfg(test)]
mod tests;
