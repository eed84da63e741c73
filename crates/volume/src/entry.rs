//! One volume as the registry knows it, and a client's hold on it.

use crate::collector::Aging;
use crate::guests::Guests;
use crate::machine::Machine;
use crate::{Error, Vault};
use datastore::record::Held;
use env::{Env, Moment};
use parking_lot::Mutex;
use staging::Staged;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// A volume in service.
pub(crate) struct Live {
    pub staged: Arc<Staged>,
    /// As of attach, or of the last change of its size.
    vault: Mutex<Arc<Vault>>,
    /// Holds; counted up under the entry's lock only.
    clients: AtomicU64,
    /// When a client let go last, or when it came into service, nanoseconds.
    idle_since: AtomicU64,
    env: Env,
    guests: Arc<Guests>,
}

/// What the registry knows of a name. All I/O is outside the lock; while the state is exclusive, one task has the say.
pub(crate) struct Entry {
    pub name: String,
    pub inside: Mutex<Inside>,
    /// The state has changed; whoever waits for that begins to under the lock. (No `watch`: that wakes in any order.)
    changed: Arc<Notify>,
    waiting: Arc<AtomicU64>,
}

pub(crate) struct Inside {
    pub machine: Machine,
    /// Present while in service, and until offlining has closed it.
    pub live: Option<Arc<Live>>,
    /// Why it is in its state, when that is not plain.
    pub reason: Option<String>,
    /// Something of it cannot be read, and nothing is given up by itself.
    pub waits: Option<Waits>,
    /// The last salvage of it could do nothing: what it said.
    pub beyond: Option<String>,
    /// Bytes that a person gave up, as of its vault when that was read last; in service the vault itself tells.
    pub lost_bytes: u64,
    /// Attaches begun.
    pub attempts: u64,
    /// The last attach that failed, and why.
    pub failed: Option<(u64, Error)>,
    /// A name record has been seen: worth remembering.
    pub known: bool,
    /// Taken out of the registry: look again.
    pub retired: bool,
    /// What the collector remembers of it.
    pub aging: Aging,
    /// What the task that has the say waits for; only in an exclusive state.
    pub step: Option<Step>,
}

/// A fault that waits: for what is absent, for the end of its first hour, or for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Since when, microseconds since 1970.
    pub since: u64,
    /// When it is looked at again, microseconds since 1970.
    pub due: u64,
    pub reason: String,
}

impl Waits {
    fn told(&self, now: u64) -> String {
        let seconds = now.saturating_sub(self.since) / 1_000_000;
        format!("part of it cannot be read since {seconds} s: {}", self.reason)
    }
}

/// A step of the task that has the say over a volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// What it waits for, in words: "the store: reading the vault".
    pub what: &'static str,
    pub since: Moment,
}

/// A client's hold on an attached volume; dropping the last clone lets go.
#[derive(Clone)]
pub struct Handle {
    hold: Arc<Hold>,
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

    /// Wakes those who wait for a change of state. Called under the lock.
    pub fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// To wait for the next change of state. Called under the lock.
    pub fn subscribe(&self) -> Waiting {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting {
            changed: Box::pin(self.changed.clone().notified_owned()),
            count: self.waiting.clone(),
        }
    }

    /// How many wait for the next change of state.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Somebody who waits for the next change of state.
pub(crate) struct Waiting {
    changed: Pin<Box<OwnedNotified>>,
    count: Arc<AtomicU64>,
}

impl Waiting {
    /// It has come, since this was made.
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
    /// Why it is in its state, or what of it waits and since when, for people.
    pub fn told(&self, now: u64) -> Option<String> {
        let waits = self.unreadable(now);
        match (&self.reason, waits) {
            (Some(reason), Some(waits)) => Some(format!("{reason}; {waits}")),
            (reason, waits) => reason.clone().or(waits),
        }
    }

    /// What of it cannot be read and waits to be decided or mended, for people.
    pub fn unreadable(&self, now: u64) -> Option<String> {
        let waits = self.waits.as_ref().map(|waits| waits.told(now));
        waits.or_else(|| {
            let said = self.beyond.as_ref()?;
            Some(format!("it is damaged, and no salvage could mend it: {said}"))
        })
    }

    /// Holds on the volume.
    pub fn clients(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.clients())
    }
}

impl Live {
    pub fn new(env: &Env, guests: &Arc<Guests>, staged: Arc<Staged>, vault: Vault) -> Self {
        let (clients, idle_since) = (AtomicU64::new(0), AtomicU64::new(nanoseconds(env.now())));
        let vault = Mutex::new(Arc::new(vault));
        Self { staged, vault, clients, idle_since, env: env.clone(), guests: guests.clone() }
    }

    /// Since when nobody holds it, if nobody does.
    pub fn idle_since(&self) -> Moment {
        Moment(Duration::from_nanos(self.idle_since.load(Ordering::Acquire)))
    }

    pub fn clients(&self) -> u64 {
        self.clients.load(Ordering::Acquire)
    }

    /// One more client. Called under the entry's lock, so that nobody takes it offline in between.
    pub fn hold(self: &Arc<Self>) -> Handle {
        let vault = self.vault();
        if self.clients.fetch_add(1, Ordering::AcqRel) == 0 {
            self.guests.came(&vault.name);
        }
        Handle { hold: Arc::new(Hold { live: self.clone(), vault }) }
    }

    pub fn vault(&self) -> Arc<Vault> {
        self.vault.lock().clone()
    }

    /// It has grown: who comes from now on sees it.
    pub fn resize(&self, held: Held<Vault>) {
        // First what is below, so that nobody is promised what it does not know of.
        self.staged.resize(held.value.size);
        let grown = Vault { size: held.value.size, ..(*self.vault()).clone() };
        *self.vault.lock() = Arc::new(grown);
        self.staged.adopt_settings(held);
    }
}

fn nanoseconds(moment: Moment) -> u64 {
    u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for Hold {
    fn drop(&mut self) {
        // First, so that whoever sees no client sees since when.
        self.live.idle_since.store(nanoseconds(self.live.env.now()), Ordering::Release);
        if self.live.clients.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.live.guests.went(&self.vault.name);
        }
    }
}

impl Handle {
    /// The volume in service.
    #[must_use]
    pub fn staged(&self) -> &Arc<Staged> {
        &self.hold.live.staged
    }

    /// The vault as of the moment of holding (size, block size, policy).
    #[must_use]
    pub fn vault(&self) -> &Vault {
        &self.hold.vault
    }
}
