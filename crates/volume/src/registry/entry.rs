//! The registry's entry of a volume, and a client's hold on the volume.

use crate::Error;
use crate::attach::collector::Aging;
use crate::registry::active_volumes::ActiveVolumes;
use crate::registry::machine::Machine;
use parking_lot::Mutex;
use rekindle_datastore::record::Held;
use rekindle_env::{Env, Moment};
use rekindle_staging::{Staged, Vault};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// A volume in service.
pub(crate) struct Live {
    pub staged: Arc<Staged>,
    /// As of the attach, or of the last growth.
    vault: Mutex<Arc<Vault>>,
    /// Number of holds; raised under the entry's lock only.
    clients: AtomicU64,
    /// Time at which the last client let go, or the volume came into service, nanoseconds.
    idle_since: AtomicU64,
    env: Env,
    active_volumes: Arc<ActiveVolumes>,
}

/// The registry's entry of a name. I/O happens outside its lock; in a transitional state one task
/// holds the claim.
pub(crate) struct Entry {
    pub name: String,
    pub inside: Mutex<Inside>,
    /// Rung at each change of state; a task subscribes under the lock. Not a `watch`, which wakes
    /// in any order.
    changed: Arc<Notify>,
    waiting: Arc<AtomicU64>,
}

pub(crate) struct Inside {
    pub machine: Machine,
    /// Present while in service, and until offlining has closed it.
    pub live: Option<Arc<Live>>,
    /// Reason of the state, if the state alone does not tell.
    pub reason: Option<String>,
    /// A fault of the volume that waits: part of it cannot be read, and is not given up yet.
    pub waits: Option<Waits>,
    /// The words of the last salvage, if it could do nothing.
    pub beyond: Option<String>,
    /// Damage that a check found since, and when, microseconds since 1970.
    pub found: Option<(u64, String)>,
    /// Bytes that were given up, as of the last reading of the vault. For a volume in service the
    /// live vault counts.
    pub lost_bytes: u64,
    /// Number of attaches begun; a salvage of a volume out of service counts, too.
    pub attempts: u64,
    /// The last failed attach or salvage, by number, and its error.
    pub failed: Option<(u64, Error)>,
    /// Whether a name record has been seen: such an entry is worth keeping.
    pub known: bool,
    /// Whether the entry has left the registry: look the name up again.
    pub retired: bool,
    /// The collector's memory of the volume.
    pub aging: Aging,
    /// Present wait of the task that holds the claim; only in a transitional state.
    pub step: Option<Step>,
}

/// A fault that waits: for absent chunks, for the end of its first hour, or for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Since when, microseconds since 1970.
    pub since: u64,
    /// Time of the next look, microseconds since 1970.
    pub due: u64,
    pub reason: String,
}

impl Waits {
    fn told(&self, now: u64) -> String {
        let seconds = now.saturating_sub(self.since) / 1_000_000;
        format!("part of it cannot be read since {seconds} s: {}", self.reason)
    }
}

/// A step of the task that holds the claim of a volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// The wait in words: "the store: reading the vault".
    pub what: &'static str,
    pub since: Moment,
}

/// A client's hold on an attached volume; dropping the last clone lets go.
#[derive(Clone)]
pub struct Handle {
    hold: Arc<Hold>,
}

/// A [`Handle`] that does not hold the volume.
#[derive(Clone)]
pub struct WeakHandle {
    hold: Weak<Hold>,
}

impl WeakHandle {
    /// Returns the handle, if a clone of it is left.
    #[must_use]
    pub fn upgrade(&self) -> Option<Handle> {
        self.hold.upgrade().map(|hold| Handle { hold })
    }
}

struct Hold {
    live: Arc<Live>,
    vault: Arc<Vault>,
}

impl Entry {
    pub fn new(name: &str, now: Moment) -> Self {
        let inside = Inside {
            machine: Machine::new(name, now),
            live: None,
            reason: None,
            waits: None,
            beyond: None,
            found: None,
            lost_bytes: 0,
            attempts: 0,
            failed: None,
            known: false,
            retired: false,
            aging: Aging::default(),
            step: None,
        };
        Self {
            name: name.to_owned(),
            inside: Mutex::new(inside),
            changed: Arc::default(),
            waiting: Arc::default(),
        }
    }

    /// Wakes the tasks that wait for a change of state. The caller holds the lock.
    pub fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Subscribes to the next change of state. The caller holds the lock.
    pub fn subscribe(&self) -> Waiting {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting {
            changed: Box::pin(self.changed.clone().notified_owned()),
            count: self.waiting.clone(),
        }
    }

    /// Counts the tasks that wait for the next change of state.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A task's wait for the next change of state.
pub(crate) struct Waiting {
    changed: Pin<Box<OwnedNotified>>,
    count: Arc<AtomicU64>,
}

impl Waiting {
    /// Waits for the first change of state since the subscription.
    pub async fn changed(mut self) {
        self.changed.as_mut().await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inside {
    /// Says why the volume is in its state, or what of it waits and since when.
    pub fn told(&self, now: u64) -> Option<String> {
        let waits = self.unreadable(now);
        match (&self.reason, waits) {
            (Some(reason), Some(waits)) => Some(format!("{reason}; {waits}")),
            (reason, waits) => reason.clone().or(waits),
        }
    }

    /// Says what of the volume cannot be read and waits for a decision or a repair.
    pub fn unreadable(&self, now: u64) -> Option<String> {
        let waits = self.waits.as_ref().map(|waits| waits.told(now));
        let beyond = || {
            let said = self.beyond.as_ref()?;
            Some(format!("it is damaged, and no salvage could mend it: {said}"))
        };
        let found = || self.found.as_ref().map(|(_, found)| found.clone());
        waits.or_else(beyond).or_else(found)
    }

    /// Counts the holds on the volume.
    pub fn clients(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.clients())
    }
}

impl Live {
    pub fn new(
        env: &Env,
        active_volumes: &Arc<ActiveVolumes>,
        staged: Arc<Staged>,
        vault: Vault,
    ) -> Self {
        let (clients, idle_since) = (AtomicU64::new(0), AtomicU64::new(nanoseconds(env.now())));
        let vault = Mutex::new(Arc::new(vault));
        Self {
            staged,
            vault,
            clients,
            idle_since,
            env: env.clone(),
            active_volumes: active_volumes.clone(),
        }
    }

    /// Returns since when the volume has no client; meaningful only while it has none.
    pub fn idle_since(&self) -> Moment {
        Moment(Duration::from_nanos(self.idle_since.load(Ordering::Acquire)))
    }

    pub fn clients(&self) -> u64 {
        self.clients.load(Ordering::Acquire)
    }

    /// Adds a client. The caller holds the entry's lock, so that no task takes the volume offline
    /// in between.
    pub fn hold(self: &Arc<Self>) -> Handle {
        let vault = self.vault();
        if self.clients.fetch_add(1, Ordering::AcqRel) == 0 {
            self.active_volumes.came(&vault.name);
        }
        Handle { hold: Arc::new(Hold { live: self.clone(), vault }) }
    }

    pub fn vault(&self) -> Arc<Vault> {
        self.vault.lock().clone()
    }

    /// Applies another size: clients that come from now on see it.
    pub fn resize(&self, held: Held<Vault>) {
        // The staging grows first, so that no client gets a size that the staging does not know.
        self.staged.resize(held.value.size);
        let resized = Vault { size: held.value.size, ..(*self.vault()).clone() };
        *self.vault.lock() = Arc::new(resized);
        self.staged.adopt_settings(held);
    }
}

fn nanoseconds(moment: Moment) -> u64 {
    u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Stored first: a reader that sees no client must see the right time.
        self.live.idle_since.store(nanoseconds(self.live.env.now()), Ordering::Release);
        if self.live.clients.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.live.active_volumes.went(&self.vault.name);
        }
    }
}

impl Handle {
    /// Returns a handle that does not hold the volume.
    #[must_use]
    pub fn downgrade(&self) -> WeakHandle {
        WeakHandle { hold: Arc::downgrade(&self.hold) }
    }

    /// The volume in service.
    #[must_use]
    pub fn staged(&self) -> &Arc<Staged> {
        &self.hold.live.staged
    }

    /// Returns the volume's size now, bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.hold.live.vault.lock().size
    }

    /// Returns the vault as of the moment of holding (size, body, policy).
    #[must_use]
    pub fn vault(&self) -> &Vault {
        &self.hold.vault
    }
}
