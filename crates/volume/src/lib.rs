//! The life of a volume: made, listed, attached on first use, served, detached, removed.
//!
//! [`Volumes`] is the registry of a node. Names and vaults are in the datastore; nothing is read before somebody asks.
//! The states and the one table of lawful transitions are in [`machine`].

mod attach;
mod collect;
pub mod collector;
mod copies;
mod create;
mod entry;
mod error;
mod format;
mod guests;
mod info;
pub mod limits;
mod list;
mod losses;
pub mod machine;
mod offline;
mod passing;
mod pin;
mod records;
mod registry;
mod remove;
mod rename;
mod rest;
mod salvage;
mod stop;
mod trash;
mod turns;
mod versions;
mod view;

pub use copies::WarmCopies;
pub use entry::Handle;
pub use error::Error;
pub use format::{Account, FORMATS, Outcome};
pub use info::Info;
pub use passing::{Passing, Stuck};
pub use registry::Transition;
pub use remove::Reaped;
pub use salvage::Queued;
pub use staging::{
    Ack, Backlog, Error as StagingError, Extent, Fold, Home, Lost, Policy, Source, Staged, Ticket,
    Vault, VaultState, Written,
};
pub use stop::StopProgress;
pub use trash::Trashed;
pub use versions::VersionInfo;
pub use view::{CollectorView, Impaired, VolumeView};

use collector::{Collected, Settings};
use content::Content;
use content::sweep::Roots;
use content::tree::Root;
use datastore::record::Writer;
use env::{BoxFuture, Env};
use machine::{Change, State};
use registry::Inner;
use staging::Staging;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::broadcast;

/// Makes the home of a volume from its vault; the node plugs in one for each kind. An unknown kind is
/// [`Error::Invalid`].
pub type HomeMaker = Arc<dyn Fn(&Vault) -> Result<Arc<dyn Home>, Error> + Send + Sync>;

/// What is asked of a new volume.
#[derive(Debug, Clone)]
pub struct Spec {
    pub name: String,
    /// "block".
    pub kind: String,
    /// Bytes; a positive multiple of 512.
    pub size: u64,
    /// Bytes; a power of two from 4 KiB to 1 MiB.
    pub block_size: u64,
    pub policy: Policy,
    pub ack: Ack,
}

/// The volumes of a node. Clones mean the same registry.
#[derive(Clone)]
pub struct Volumes {
    inner: Arc<Inner>,
}

impl Volumes {
    /// The registry; reads nothing.
    #[must_use]
    pub fn open(
        env: Env,
        writer: Writer,
        staging: Staging,
        content: Content,
        homes: HomeMaker,
    ) -> Self {
        // Homes bring their own; it is taken so that a volume's life may reach it (salvage, prefetch at attach).
        drop(content);
        Self { inner: Arc::new(Inner::new(env, writer, staging, homes)) }
    }

    /// Makes a volume: vault first, then its name.
    pub async fn create(&self, spec: Spec) -> Result<Info, Error> {
        self.run("volume-create", |inner| async move { create::create(&inner, spec).await }).await
    }

    /// All volumes, by name. A damaged one is among them, in state `error`.
    pub async fn list(&self) -> Result<Vec<Info>, Error> {
        self.run("volume-list", |inner| async move { list::list(&inner).await }).await
    }

    /// One volume.
    pub async fn show(&self, name: &str) -> Result<Info, Error> {
        let name = name.to_owned();
        self.run("volume-show", |inner| async move { list::show(&inner, &name).await }).await
    }

    /// Moves a volume to the trash, where it is kept for [`limits::TRASH_AGE`]; its name is free. Refused ([`Error::Busy`])
    /// while clients hold it, unless `force`, and when what it owes cannot reach the store.
    pub async fn trash(&self, name: &str, force: bool) -> Result<(), Error> {
        let name = name.to_owned();
        self.run(
            "volume-trash",
            move |inner| async move { trash::trash(&inner, &name, force).await },
        )
        .await
    }

    /// What is in the trash, what went there last first.
    pub async fn trashed(&self) -> Result<Vec<Trashed>, Error> {
        self.run("volume-trashed", |inner| async move { trash::list(&inner).await }).await
    }

    /// Takes a volume out of the trash, under its name or another; of several with the name, the one that went there last.
    pub async fn restore(&self, name: &str, new_name: Option<&str>) -> Result<Info, Error> {
        let (name, new_name) = (name.to_owned(), new_name.map(ToOwned::to_owned));
        let work = |inner| async move { trash::restore(&inner, &name, new_name.as_deref()).await };
        self.run("volume-restore", work).await
    }

    /// Removes for good what is in the trash under a name; how many volumes.
    pub async fn purge(&self, name: &str) -> Result<u64, Error> {
        let name = name.to_owned();
        self.run("volume-purge", |inner| async move { trash::purge(&inner, &name).await }).await
    }

    /// Gives a volume that nobody holds another name.
    pub async fn rename(&self, name: &str, new_name: &str) -> Result<Info, Error> {
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        let work = |inner| async move { rename::rename(&inner, &name, &new_name).await };
        self.run("volume-rename", work).await
    }

    /// Gives a volume another size, bytes. It grows in service: clients see it when they connect anew. It shrinks with
    /// `shrink` only, and while nobody holds it.
    pub async fn resize(&self, name: &str, size: u64, shrink: bool) -> Result<Info, Error> {
        let name = name.to_owned();
        let work = move |inner| async move { rename::resize(&inner, &name, size, shrink).await };
        self.run("volume-resize", work).await
    }

    /// Earlier contents of a volume that are kept, the newest first.
    pub async fn versions(&self, name: &str) -> Result<Vec<VersionInfo>, Error> {
        let name = name.to_owned();
        self.run("volume-versions", |inner| async move { versions::versions(&inner, &name).await })
            .await
    }

    /// Goes back to an earlier content of a volume that nobody holds; what was there before becomes a version. What is
    /// unfinished reaches the store first, or with `discard` is given up where it cannot.
    pub async fn rollback(&self, name: &str, version: &str, discard: bool) -> Result<Info, Error> {
        let (name, version) = (name.to_owned(), version.to_owned());
        let work =
            move |inner| async move { versions::rollback(&inner, &name, &version, discard).await };
        self.run("volume-rollback", work).await
    }

    /// Removes a volume for good. Refused ([`Error::Busy`]) while clients hold it, unless `force`, which lets go of them. A
    /// damaged volume is removed by `force` only.
    pub async fn remove(&self, name: &str, force: bool) -> Result<(), Error> {
        let name = name.to_owned();
        self.run(
            "volume-remove",
            move |inner| async move { remove::remove(&inner, &name, force).await },
        )
        .await
    }

    /// Brings a volume into service on first use (concurrent callers share one attach) and holds it. The attach goes
    /// on when the caller does not wait for it.
    pub async fn attach(&self, name: &str) -> Result<Handle, Error> {
        attach::attach(&self.inner, name).await
    }

    /// A client has come for a volume: from now on it is held or it is free, and nobody is expected back.
    pub fn client_is_back(&self, name: &str) {
        self.inner.guests.is_back(name);
    }

    /// Brings the volumes into service again that had clients when the last life of this node ended. The store is not asked:
    /// what is not in the catalog waits for its client.
    pub fn welcome(&self) -> BoxFuture<'static, ()> {
        Box::pin(attach::welcome(self.inner.clone()))
    }

    /// Takes a volume that nobody holds out of service; its unfinished changes stay in the log, and the next client
    /// attaches it again. Does nothing to a volume that is not in service.
    pub async fn detach(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.run("volume-detach", |inner| async move {
            offline::detach(&inner, &name, false, "detach").await
        })
        .await
    }

    /// How many volumes a stop takes out of service at once, 1 to [`limits::STOPS_MAX`] (the default).
    pub fn stop_at_once(&self, volumes: usize) {
        let volumes = volumes.clamp(1, limits::STOPS_MAX);
        self.inner.stops_max.store(volumes, Ordering::Relaxed);
    }

    /// Stops all: parallel; unfinished changes stay in the log, or are destaged first with `drain`. Nothing is attached
    /// or created afterwards. [`Volumes::stop_progress`] tells how far it is.
    pub async fn stop(&self, drain: bool) -> Result<(), Error> {
        stop::stop(&self.inner, drain).await
    }

    /// How far a stop has come; `None` before it has begun.
    #[must_use]
    pub fn stop_progress(&self) -> Option<StopProgress> {
        stop::progress(&self.inner)
    }

    /// Makes a quick stop of a draining one: what has not reached the datastore yet stays in the log.
    pub fn hurry(&self) {
        stop::hurry(&self.inner);
    }

    /// The last changes of a volume's state, oldest first; `None` when nothing has happened to it since the start.
    #[must_use]
    pub fn history(&self, name: &str) -> Option<Vec<Change>> {
        let entry = self.inner.find(name)?;
        let inside = entry.inside.lock();
        Some(inside.machine.history().iter().cloned().collect())
    }

    /// How many volumes are in each state, of those that somebody has asked for since the start.
    #[must_use]
    pub fn states(&self) -> BTreeMap<State, u64> {
        for entry in self.inner.all() {
            self.inner.observe(&entry, &mut entry.inside.lock());
        }
        self.inner.levels()
    }

    /// Volumes of which something cannot be read, by name: it waits for what is absent, for the end of its first hour or for a
    /// person's word, or was given up. They are not in the queue of [`Volumes::salvages`] meanwhile.
    #[must_use]
    pub fn impaired(&self) -> Vec<Impaired> {
        view::impaired(&self.inner)
    }

    /// The transitions that have happened since the start: how often, and how long the state before had lasted.
    #[must_use]
    pub fn transitions(&self) -> Vec<Transition> {
        self.inner.transitions()
    }

    /// Volumes in an exclusive state, the oldest first, and what each waits for; how many there are in all.
    #[must_use]
    pub fn passing(&self) -> (Vec<Passing>, u64) {
        passing::look(&self.inner)
    }

    /// Volumes that have been in an exclusive state for longer than they should, as of the watchdog's last look.
    #[must_use]
    pub fn stuck(&self) -> Stuck {
        self.inner.stuck.lock().clone()
    }

    /// The watchdog: looks again and again, and reports volumes that are in an exclusive state for longer than
    /// `limit`. It ends with the registry; run it as a task.
    pub fn watchdog(&self, limit: Duration) -> impl Future<Output = ()> + Send + 'static {
        passing::watch(Arc::downgrade(&self.inner), limit)
    }

    /// Sets or takes away a volume's pin: with one, the collector leaves it in service.
    pub async fn pin(&self, name: &str, pinned: bool) -> Result<Info, Error> {
        let name = name.to_owned();
        self.run("volume-pin", move |inner| async move { pin::set(&inner, &name, pinned).await })
            .await
    }

    /// The collector: takes volumes that nobody has used for long out of service. It ends with the registry; run it
    /// as a task.
    pub fn collector(&self, settings: Settings) -> impl Future<Output = ()> + Send + 'static {
        collect::run(Arc::downgrade(&self.inner), settings)
    }

    /// Salvages a volume: in service if it is, else out of it. Attempts are counted from none again. Ends with it; what
    /// came of it, in a sentence: what was repaired, and what would be lost by going on. Only with `accept_losses` that is
    /// given up: content that cannot be had, and changes that the log has lost; with these it must not be held by anybody.
    pub async fn salvage(&self, name: &str, accept_losses: bool) -> Result<String, Error> {
        let name = name.to_owned();
        let work = move |inner| async move { salvage::run(&inner, &name, accept_losses).await };
        self.run("volume-salvage", work).await
    }

    /// Asks for a salvage of a volume in which damage was found, and does not wait for it. The volume comes into
    /// service, if it is not.
    pub async fn ask_salvage(&self, name: &str, reason: &str) -> Result<(), Error> {
        let (name, reason) = (name.to_owned(), reason.to_owned());
        let ask = |inner| async move { salvage::ask_in_service(&inner, &name, &reason).await };
        self.run("volume-salvage", ask).await
    }

    /// Breaks the salvage of a volume off, or takes it out of the queue. Whether there was one.
    pub fn cancel_salvage(&self, name: &str) -> bool {
        salvage::cancel(&self.inner, name)
    }

    /// Volumes that are being salvaged, then those that wait for it, the next one first.
    #[must_use]
    pub fn salvages(&self) -> Vec<Queued> {
        self.inner.salvager.view(self.inner.env.now())
    }

    /// The last salvages of a volume, oldest first.
    pub async fn salvage_history(&self, name: &str) -> Result<Vec<Account>, Error> {
        let name = name.to_owned();
        self.run("salvage-history", |inner| async move { salvage::history(&inner, &name).await })
            .await
    }

    /// The last salvages of all volumes, a volume's together, oldest first.
    pub async fn salvage_histories(&self) -> Result<Vec<Account>, Error> {
        self.run("salvage-history", |inner| async move { salvage::histories(&inner).await }).await
    }

    /// Asks again for the salvages that a crash or a stop of an earlier life has cut off; gives how many. For the background
    /// after a start.
    pub async fn resume_salvages(&self) -> Result<u64, Error> {
        self.run("salvage-resume", |inner| async move { salvage::resume(&inner).await }).await
    }

    /// Asks for a salvage of each volume in service whose content turns out to be damaged. It ends with the registry; run
    /// it as a task.
    pub fn salvager(&self) -> impl Future<Output = ()> + Send + 'static {
        salvage::listen(Arc::downgrade(&self.inner))
    }

    /// What the collector has done.
    #[must_use]
    pub fn collected(&self) -> Collected {
        self.inner.collected.lock().clone()
    }

    /// What is known of the volumes whose names begin with `prefix`, by name, at most `most`, and how many there are.
    /// Asks the datastore for nothing.
    #[must_use]
    pub fn view(&self, prefix: &str, most: usize) -> (Vec<VolumeView>, u64) {
        view::volumes(&self.inner, prefix, most)
    }

    /// Names at which somebody has the turn to give or take the name, at most `most`.
    #[must_use]
    pub fn turns(&self, most: usize) -> Vec<String> {
        self.inner.turns.taken(most)
    }

    /// Every change of state from now on. A watcher that is too far behind misses some, and is told how many.
    #[must_use]
    pub fn watch(&self) -> broadcast::Receiver<Change> {
        self.inner.watch()
    }

    /// The roots of all volumes, stored and live: what the sweep of content marks from. An unreadable vault is an error.
    pub async fn roots(&self) -> Result<Vec<Root>, Error> {
        Ok(self.run("volume-roots", |inner| async move { list::roots(&inner).await }).await?)
    }

    /// Ends removals that a crash interrupted, clears away failed creations older than a day, and gives lost names
    /// back. For the sweep to call.
    pub async fn reap_orphans(&self) -> Result<Reaped, Error> {
        let work = |inner| async move { remove::reap_orphans(&inner, limits::ORPHAN_AGE).await };
        self.run("volume-reap", work).await
    }

    /// Has the log forget what it has lost, if every volume of this node goes on without it; whether it did.
    pub async fn settle_losses(&self) -> Result<bool, Error> {
        self.run("volume-losses", |inner| async move { losses::settle(&inner).await }).await
    }

    /// Forgets what the log has of a volume that is gone for good; whether it is. An error when that cannot be known.
    pub async fn forget_if_gone(&self, id: base::VolumeId) -> Result<bool, Error> {
        let work = move |inner: Arc<Inner>| async move { remove::forget_if_gone(&inner, id).await };
        self.run("volume-forget", work).await
    }

    /// On a background task: it ends whatever becomes of the caller, and an object store's connections live there.
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
    fn roots(&self) -> BoxFuture<'_, Result<Vec<Root>, content::Error>> {
        Box::pin(async move {
            let roots =
                self.run("volume-roots", |inner| async move { list::roots(&inner).await }).await;
            Ok(roots?)
        })
    }
}

#[cfg(test)]
mod tests;
