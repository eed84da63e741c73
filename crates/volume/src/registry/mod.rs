//! The map of names to entries, the counters, and the one place where a state changes.

pub(crate) mod active_volumes;
pub(crate) mod entry;
pub(crate) mod info;
pub mod machine;
pub(crate) mod name_locks;
pub(crate) mod transitional;
pub(crate) mod view;

use crate::attach::collector::Collected;
use crate::manage::names::{LastNames, Seen};
use crate::manage::rested::Rested;
use crate::registry::active_volumes::ActiveVolumes;
use crate::registry::entry::{Entry, Inside, Live, Step};
use crate::registry::machine::{Event, State, StateChange, TABLE};
use crate::registry::name_locks::NameLocks;
use crate::registry::transitional::Stuck;
use crate::repair::salvage::Salvager;
use crate::stop::Stopping;
use crate::{Error, Kinds, OpenedHome, Parts, limits};
use parking_lot::Mutex;
use rekindle_content::{Content, tree};
use rekindle_datastore::record::Writer;
use rekindle_env::{Env, Moment};
use rekindle_staging::{Staging, Vault};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// A row of the table, and how often it was taken since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Transition {
    pub event: Event,
    pub from: State,
    pub to: State,
    pub count: u64,
    /// Time that the volumes had been in `from` before, in total, microseconds.
    pub time_us: u64,
}

pub(crate) struct Inner {
    pub env: Env,
    pub writer: Writer,
    pub staging: Staging,
    pub kinds: Kinds,
    content: Content,
    /// Whether a volume's tree is read ahead when the volume comes into service.
    read_ahead: bool,
    /// Locks of names. A task that creates, removes or reaps a name takes its lock, so that this
    /// node never deletes a name that it has just given.
    pub name_locks: NameLocks,
    pub stopping: AtomicBool,
    /// Volumes taken out of service at once by the stop.
    pub stops_max: AtomicUsize,
    /// The stop, once it has begun.
    pub stop: Mutex<Option<Arc<Stopping>>>,
    /// Whether a draining stop shall become a quick one.
    pub abort_drain: watch::Sender<bool>,
    /// Sorted, so that a walk over all entries has the same order in every run of a seed.
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
    levels: [AtomicU64; State::ALL.len()],
    /// For each row of the table: how often it was taken, and how long the state before had lasted,
    /// microseconds.
    taken: [(AtomicU64, AtomicU64); TABLE.len()],
    /// The findings of the watchdog's last look.
    pub stuck: Mutex<Stuck>,
    pub collected: Mutex<Collected>,
    pub salvager: Salvager,
    /// The volumes for which the last reaping had nothing to do.
    pub rested: Mutex<Rested>,
    pub seen: Mutex<Seen>,
    pub last_names: tokio::sync::Mutex<LastNames>,
    pub active_volumes: Arc<ActiveVolumes>,
    /// The beginning of this life.
    began: Moment,
    events: broadcast::Sender<StateChange>,
}

impl Inner {
    /// Whether a volume had a client when the last life was killed, and that client is still
    /// expected back.
    pub fn awaits_client(&self, volume: &str) -> bool {
        let is_early = self.env.now().since(self.began) < limits::CLIENT_RETURN;
        is_early && self.active_volumes.is_awaited(volume)
    }

    pub fn new(parts: Parts) -> Self {
        let Parts { env, writer, content, staging, kinds, read_ahead } = parts;
        Self {
            active_volumes: Arc::new(ActiveVolumes::new(&writer)),
            began: env.now(),
            env,
            writer,
            staging,
            kinds,
            content,
            read_ahead,
            name_locks: NameLocks::default(),
            stopping: AtomicBool::new(false),
            stops_max: AtomicUsize::new(limits::STOPS_MAX),
            stop: Mutex::new(None),
            abort_drain: watch::Sender::new(false),
            entries: Mutex::default(),
            levels: Default::default(),
            taken: std::array::from_fn(|_| Default::default()),
            stuck: Mutex::default(),
            collected: Mutex::default(),
            salvager: Salvager::default(),
            rested: Mutex::default(),
            seen: Mutex::default(),
            last_names: tokio::sync::Mutex::default(),
            events: broadcast::Sender::new(limits::EVENTS_MAX),
        }
    }

    /// Makes the home of a volume that comes into service, and begins to read its tree ahead.
    pub fn home_of(&self, vault: &Vault) -> Result<OpenedHome, Error> {
        let home = self.kinds.open(&self.content, vault)?;
        if self.read_ahead && vault.root.is_some() {
            tree::prefetch(&self.content, &vault.root, 0..u64::MAX);
        }
        Ok(home)
    }

    /// The first number that a volume may give to a part of it once it goes on without changes that
    /// it has acknowledged ([`Vault::numbers_from`]).
    pub async fn numbers_of(&self, vault: &Vault) -> u64 {
        self.kinds.numbers(&self.content, vault).await
    }

    /// Keeps sweeps from ending while a root is moved from one record to another.
    pub fn hold_sweeps(&self) -> rekindle_content::Hold {
        self.content.hold()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Returns the entry of a name; makes one if there is none.
    pub fn entry(&self, name: &str) -> Arc<Entry> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(name) {
            return entry.clone();
        }
        let entry = Arc::new(Entry::new(name, self.env.now()));
        entries.insert(name.to_owned(), entry.clone());
        self.level(State::Unattached).fetch_add(1, Ordering::Relaxed);
        entry
    }

    /// Returns the entry of a name, if there is one.
    pub fn find(&self, name: &str) -> Option<Arc<Entry>> {
        self.entries.lock().get(name).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Entry>> {
        self.entries.lock().values().cloned().collect()
    }

    /// Takes an entry out of the registry if nothing about it is worth keeping.
    pub fn retire(&self, entry: &Arc<Entry>) {
        let mut entries = self.entries.lock();
        let mut inside = entry.inside.lock();
        let state = inside.machine.state();
        let forgettable = state == State::Deleted || (state == State::Unattached && !inside.known);
        if inside.retired || !forgettable {
            return;
        }
        inside.retired = true;
        entries.remove(&entry.name);
        self.level(state).fetch_sub(1, Ordering::Relaxed);
        entry.notify();
    }

    /// Changes a volume's state. The caller holds the entry's lock.
    pub fn change(
        &self,
        entry: &Entry,
        inside: &mut Inside,
        event: Event,
        cause: &str,
    ) -> Result<(), Error> {
        let change = match inside.machine.apply(event, cause, self.env.now(), self.env.wall_clock())
        {
            Ok(change) => change.clone(),
            Err(unlawful) => {
                tracing::error!(volume = entry.name, "{unlawful}");
                if cfg!(any(test, debug_assertions)) {
                    panic!("{unlawful}");
                }
                return Err(unlawful.into());
            }
        };
        self.level(change.from).fetch_sub(1, Ordering::Relaxed);
        self.level(change.to).fetch_add(1, Ordering::Relaxed);
        self.count(&change);
        tracing::debug!(
            volume = change.volume,
            from = %change.from,
            to = %change.to,
            cause = change.cause,
            duration_us = change.duration_us,
            "volume changed its state"
        );
        // Without a watcher the send fails, which is fine.
        let _ = self.events.send(change);
        entry.notify();
        Ok(())
    }

    fn count(&self, change: &StateChange) {
        let row = machine::row(change.from, change.event).expect("it was lawful");
        let (times, time) = &self.taken[row];
        times.fetch_add(1, Ordering::Relaxed);
        time.fetch_add(change.duration_us, Ordering::Relaxed);
        let (from, event, to) = (change.from.as_str(), change.event.as_str(), change.to.as_str());
        metrics::counter!("rekindle_volume_changes_total", "event" => event, "from" => from, "to" => to)
            .increment(1);
        if change.from.is_transitional() {
            let time = Duration::from_micros(change.duration_us).as_secs_f64();
            metrics::histogram!("rekindle_volume_passing_seconds", "state" => from).record(time);
        }
    }

    /// Lists the transitions that have happened since the start, in the order of the table.
    pub fn transitions(&self) -> Vec<Transition> {
        let rows = TABLE.iter().zip(&self.taken).map(|((from, event, to), (count, time))| {
            let (count, time_us) = (count.load(Ordering::Relaxed), time.load(Ordering::Relaxed));
            Transition { event: *event, from: *from, to: *to, count, time_us }
        });
        rows.filter(|row| row.count > 0).collect()
    }

    /// Counts the volumes in a transitional state.
    pub fn transitional_level(&self) -> u64 {
        let claim = State::ALL.into_iter().filter(|state| state.is_transitional());
        claim.map(|state| self.level(state).load(Ordering::Relaxed)).sum()
    }

    /// Counts the volumes in a state.
    pub fn count_of(&self, state: State) -> u64 {
        self.level(state).load(Ordering::Relaxed)
    }

    fn level(&self, state: State) -> &AtomicU64 {
        &self.levels[state as usize]
    }

    /// Counts the known volumes in each state.
    pub fn levels(&self) -> BTreeMap<State, u64> {
        State::ALL
            .into_iter()
            .map(|state| (state, self.level(state).load(Ordering::Relaxed)))
            .collect()
    }

    pub fn watch(&self) -> broadcast::Receiver<StateChange> {
        self.events.subscribe()
    }

    /// Notices that a volume's writes wait, or that it has gone out of service by itself. Only
    /// staging knows both. The state follows when an attach, a listing or the counters look at the
    /// volume.
    pub fn observe(&self, entry: &Entry, inside: &mut Inside) {
        let Some(live) = inside.live.clone().filter(|_| inside.machine.state().is_in_service())
        else {
            return;
        };
        let (event, reason) = match live.staged.serves() {
            Err(error) => {
                inside.live = None;
                (Event::Failed, Some(error.to_string()))
            }
            Ok(()) => match (inside.machine.state(), live.staged.backlog().stalled) {
                (State::Attached, Some(why)) => (Event::Stall, Some(why)),
                (State::Stalled, None) => (Event::Resume, None),
                (State::Stalled, why) => return inside.reason = why,
                _ => return,
            },
        };
        let cause = reason.clone().unwrap_or_else(|| "writes go on".to_owned());
        if self.change(entry, inside, event, &cause).is_ok() {
            inside.reason = reason;
        }
    }
}

/// The claim on a volume in a transitional state. A claim that is dropped without an end (a panic,
/// an aborted task) ends the state itself, so that no volume is wedged for ever. Each wait of its
/// task is noted as a [`WaitNote`].
pub(crate) struct Claim {
    pub inner: Arc<Inner>,
    pub entry: Arc<Entry>,
    ended: bool,
}

impl Claim {
    /// Enters a transitional state by `event`. The caller holds the entry's lock.
    pub fn enter(
        inner: &Arc<Inner>,
        entry: &Arc<Entry>,
        inside: &mut Inside,
        event: Event,
        cause: &str,
    ) -> Result<Self, Error> {
        inner.change(entry, inside, event, cause)?;
        Ok(Self { inner: inner.clone(), entry: entry.clone(), ended: false })
    }

    /// Notes what the task waits for, until the guard is dropped.
    pub fn step(&self, what: &'static str) -> WaitNote<'_> {
        let step = Step { what, since: self.inner.env.now() };
        let before = self.entry.inside.lock().step.replace(step);
        WaitNote { entry: &self.entry, before }
    }

    /// Returns the state before the present one.
    pub fn came_from(&self) -> State {
        let inside = self.entry.inside.lock();
        inside.machine.history().back().map_or(State::Unattached, |last| last.from)
    }

    /// Goes on to another transitional state by `event`; the claim is kept.
    pub fn turn_to(&self, event: Event, cause: &str) -> Result<(), Error> {
        let mut inside = self.entry.inside.lock();
        inside.step = None;
        self.inner.change(&self.entry, &mut inside, event, cause)
    }

    /// Leaves the state by `event`; `also` runs under the same lock.
    pub fn end(
        mut self,
        event: Event,
        cause: &str,
        also: impl FnOnce(&mut Inside),
    ) -> Result<(), Error> {
        self.ended = true;
        let result = {
            let mut inside = self.entry.inside.lock();
            inside.step = None;
            also(&mut inside);
            self.inner.change(&self.entry, &mut inside, event, cause)
        };
        self.inner.retire(&self.entry);
        result
    }
}

impl Claim {
    /// Leaves the state with the result of the task: by the first event after a success, by the
    /// second after an error, which becomes the cause and the volume's reason.
    pub fn finish<T>(
        self,
        done: Result<T, Error>,
        (good, bad): (Event, Event),
        cause: &str,
    ) -> Result<T, Error> {
        let why = done.as_ref().err().map(ToString::to_string);
        let event = if why.is_none() { good } else { bad };
        let cause = why.clone().unwrap_or_else(|| cause.to_owned());
        self.end(event, &cause, |inside| inside.reason = why)?;
        done
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut inside = self.entry.inside.lock();
        inside.step = None;
        let event = match inside.machine.state() {
            State::Attaching => Event::AttachDamaged,
            State::Offlining => Event::OfflineFailed,
            State::Salvaging => Event::SalvageFailed,
            State::HandingOver => Event::Failed,
            _ => return,
        };
        let lost: Option<Arc<Live>> = inside.live.take();
        drop(lost);
        let error = Error::Interrupted(self.entry.name.clone());
        inside.reason = Some(error.to_string());
        inside.failed = Some((inside.attempts, error));
        // The table has all these transitions, and a drop has no caller to tell otherwise.
        let _ = self.inner.change(&self.entry, &mut inside, event, "interrupted");
    }
}

/// A wait note: a noted step. When it is dropped, the step before counts again.
pub(crate) struct WaitNote<'a> {
    entry: &'a Entry,
    before: Option<Step>,
}

impl Drop for WaitNote<'_> {
    fn drop(&mut self) {
        self.entry.inside.lock().step = self.before;
    }
}
