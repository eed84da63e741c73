//! The map of names to entries, the counters, and the one place where a state changes.

use crate::collector::Collected;
use crate::entry::{Entry, Inside, Live, Step};
use crate::guests::Guests;
use crate::machine::{self, Change, Event, State, TABLE};
use crate::passing::Stuck;
use crate::salvage::Salvager;
use crate::stop::Stopping;
use crate::turns::Turns;
use crate::{Error, HomeMaker, limits};
use datastore::record::Writer;
use env::{Env, Moment};
use parking_lot::Mutex;
use serde::Serialize;
use staging::Staging;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// How often a row of the table was taken since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Transition {
    pub event: Event,
    pub from: State,
    pub to: State,
    pub count: u64,
    /// How long the volumes had been in `from` before, all times together, microseconds.
    pub time_us: u64,
}

pub(crate) struct Inner {
    pub env: Env,
    pub writer: Writer,
    pub staging: Staging,
    pub homes: HomeMaker,
    /// Who creates, removes or reaps a name takes its turn, so that this node never deletes a name it has just given.
    pub turns: Turns,
    pub stopping: AtomicBool,
    /// Volumes taken out of service at once by the stop.
    pub stops_max: AtomicUsize,
    /// The stop, once it has begun.
    pub stop: Mutex<Option<Arc<Stopping>>>,
    /// A draining stop shall become a quick one.
    pub hurry: watch::Sender<bool>,
    /// In order, so that whoever goes over all of them does so in the same order in every run of a seed.
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
    levels: [AtomicU64; State::ALL.len()],
    /// Of each row of the table: how often it was taken, and how long the state before had lasted, microseconds.
    taken: [(AtomicU64, AtomicU64); TABLE.len()],
    /// What the watchdog found at its last look.
    pub stuck: Mutex<Stuck>,
    pub collected: Mutex<Collected>,
    pub salvager: Salvager,
    pub guests: Arc<Guests>,
    /// When this life began.
    began: Moment,
    events: broadcast::Sender<Change>,
}

impl Inner {
    /// Whether a volume had a client when the last life was killed, and that client is still expected back.
    pub fn awaits_client(&self, volume: &str) -> bool {
        let is_early = self.env.now().since(self.began) < limits::CLIENT_RETURN;
        is_early && self.guests.is_awaited(volume)
    }

    pub fn new(env: Env, writer: Writer, staging: Staging, homes: HomeMaker) -> Self {
        Self {
            guests: Arc::new(Guests::new(&writer)),
            began: env.now(),
            env,
            writer,
            staging,
            homes,
            turns: Turns::default(),
            stopping: AtomicBool::new(false),
            stops_max: AtomicUsize::new(limits::STOPS_MAX),
            stop: Mutex::new(None),
            hurry: watch::Sender::new(false),
            entries: Mutex::default(),
            levels: Default::default(),
            taken: std::array::from_fn(|_| Default::default()),
            stuck: Mutex::default(),
            collected: Mutex::default(),
            salvager: Salvager::default(),
            events: broadcast::Sender::new(limits::EVENTS_MAX),
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The entry of a name, made when there is none.
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

    /// The entry of a name, if there is one.
    pub fn find(&self, name: &str) -> Option<Arc<Entry>> {
        self.entries.lock().get(name).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Entry>> {
        self.entries.lock().values().cloned().collect()
    }

    /// Takes an entry out of the registry when nothing about it is worth remembering.
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
        // Nobody watching is fine.
        let _ = self.events.send(change);
        entry.notify();
        Ok(())
    }

    fn count(&self, change: &Change) {
        let row = machine::row(change.from, change.event).expect("it was lawful");
        let (times, time) = &self.taken[row];
        times.fetch_add(1, Ordering::Relaxed);
        time.fetch_add(change.duration_us, Ordering::Relaxed);
        let (from, event, to) = (change.from.as_str(), change.event.as_str(), change.to.as_str());
        metrics::counter!("rekindle_volume_changes_total", "event" => event, "from" => from, "to" => to)
            .increment(1);
        if change.from.is_exclusive() {
            let time = Duration::from_micros(change.duration_us).as_secs_f64();
            metrics::histogram!("rekindle_volume_passing_seconds", "state" => from).record(time);
        }
    }

    /// The transitions that have happened since the start, in the order of the table.
    pub fn transitions(&self) -> Vec<Transition> {
        let rows = TABLE.iter().zip(&self.taken).map(|((from, event, to), (count, time))| {
            let (count, time_us) = (count.load(Ordering::Relaxed), time.load(Ordering::Relaxed));
            Transition { event: *event, from: *from, to: *to, count, time_us }
        });
        rows.filter(|row| row.count > 0).collect()
    }

    /// How many volumes are in an exclusive state.
    pub fn passing_level(&self) -> u64 {
        let exclusive = State::ALL.into_iter().filter(|state| state.is_exclusive());
        exclusive.map(|state| self.level(state).load(Ordering::Relaxed)).sum()
    }

    /// How many volumes are in a state.
    pub fn count_of(&self, state: State) -> u64 {
        self.level(state).load(Ordering::Relaxed)
    }

    fn level(&self, state: State) -> &AtomicU64 {
        &self.levels[state as usize]
    }

    /// How many known volumes are in each state.
    pub fn levels(&self) -> BTreeMap<State, u64> {
        State::ALL
            .into_iter()
            .map(|state| (state, self.level(state).load(Ordering::Relaxed)))
            .collect()
    }

    pub fn watch(&self) -> broadcast::Receiver<Change> {
        self.events.subscribe()
    }

    /// Notices whether a volume's writes wait, or whether it has gone out of service by itself. Staging knows; the state
    /// follows when somebody looks: a client that attaches, a listing, the counters.
    pub fn observe(&self, entry: &Entry, inside: &mut Inside) {
        let Some(live) = inside.live.clone().filter(|_| inside.machine.state().is_in_service())
        else {
            return;
        };
        // A read of nothing tells whether the volume still answers.
        let (event, reason) = match live.staged.read_now(0, &mut []) {
            Err(error) => {
                inside.live = None;
                (Event::Failed, Some(error.to_string()))
            }
            Ok(_) => match (inside.machine.state(), live.staged.backlog().stalled) {
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

/// The say over a volume in an exclusive state. Dropped without an end (a panic, an aborted task), it ends the state
/// itself, so that no volume is wedged for ever. Whatever it waits for is noted as a [`Stepping`].
pub(crate) struct Exclusive {
    pub inner: Arc<Inner>,
    pub entry: Arc<Entry>,
    ended: bool,
}

impl Exclusive {
    /// Enters an exclusive state by `event`. The caller holds the entry's lock.
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
    pub fn step(&self, what: &'static str) -> Stepping<'_> {
        let step = Step { what, since: self.inner.env.now() };
        let before = self.entry.inside.lock().step.replace(step);
        Stepping { entry: &self.entry, before }
    }

    /// Goes on to another exclusive state by `event`, with the say over the volume kept.
    pub fn turn_to(&self, event: Event, cause: &str) -> Result<(), Error> {
        let mut inside = self.entry.inside.lock();
        inside.step = None;
        self.inner.change(&self.entry, &mut inside, event, cause)
    }

    /// Leaves the state by `event`, with `also` under the same lock.
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

impl Drop for Exclusive {
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
            State::HandingOver => Event::HandOverFailed,
            _ => return,
        };
        if event != Event::HandOverFailed {
            let lost: Option<Arc<Live>> = inside.live.take();
            drop(lost);
        }
        let error = Error::Interrupted(self.entry.name.clone());
        inside.reason = Some(error.to_string());
        inside.failed = Some((inside.attempts, error));
        // The table has them all; there is nobody to tell otherwise.
        let _ = self.inner.change(&self.entry, &mut inside, event, "interrupted");
    }
}

/// A noted step; dropped, the step before it counts again.
pub(crate) struct Stepping<'a> {
    entry: &'a Entry,
    before: Option<Step>,
}

impl Drop for Stepping<'_> {
    fn drop(&mut self) {
        self.entry.inside.lock().step = self.before;
    }
}
