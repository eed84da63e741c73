//! The destager: workers that take volumes from a ring, a row of batches each, so that no volume
//! waits for another's backlog. Volumes with little to destage are taken together, those that are
//! nearly due with one that is due: their batches run at once and share packs, so that many small
//! commits cost few requests. Commits for which nothing but age is a reason keep a pace: the longer
//! they pause, the more volumes go together.
//!
//! A volume is in the ring while it has unfinished changes and no batch in hand; the ring is idle
//! while no change is unfinished. [`crate::destage::plan`] decides what is due;
//! [`crate::destage::row`] carries out its batches.

use crate::ack::policy::Mode;
use crate::ack::staged::{Staged, notify};
use crate::destage::plan::{Due, Facts, age_due, due, pause_after};
use crate::destage::row;
use crate::{Error, Inner, limits};
use futures_util::future::{Either, join_all, select};
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_env::{Moment, Switch};
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The ring of volumes that wait for their turn, and the signals to the workers.
pub(crate) struct Destager {
    ring: Mutex<VecDeque<Arc<Staged>>>,
    /// The end of the pause of commits by age.
    paced: Mutex<Moment>,
    wake: Notify,
    pub(crate) stopping: Switch,
    pub(crate) workers: watch::Sender<usize>,
}

/// The next step of a worker.
enum Turn {
    Destage(Vec<Arc<Staged>>),
    Wait(Option<Duration>),
}

impl Destager {
    pub(crate) fn new() -> Self {
        Self {
            ring: Mutex::new(VecDeque::new()),
            paced: Mutex::default(),
            wake: Notify::new(),
            stopping: Switch::default(),
            workers: watch::Sender::new(0),
        }
    }

    /// Adds a volume that has unfinished changes and had none.
    pub(crate) fn join(&self, volume: Arc<Staged>) {
        self.ring.lock().push_back(volume);
        self.wake();
    }

    /// Ends destaging: the workers stop, and the ring is emptied.
    pub(crate) fn end(&self) {
        self.stopping.turn_on();
        let volumes = std::mem::take(&mut *self.ring.lock());
        drop(volumes);
    }

    /// The names of the next volumes in the ring, at most `most`, and the count of all.
    pub(crate) fn ring(&self, most: usize) -> (Vec<String>, usize) {
        let ring = self.ring.lock();
        (ring.iter().take(most).map(|volume| volume.name.clone()).collect(), ring.len())
    }

    /// Wakes a worker: a volume may be due.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }
}

/// Starts the workers.
pub(crate) fn start(inner: &Arc<Inner>) {
    let count = inner.config.destagers.max(1);
    inner.destager.workers.send_replace(count);
    for _ in 0..count {
        let inner = inner.clone();
        let env = inner.env.clone();
        env.spawn("destager", async move {
            work(&inner).await;
            // The volume in hand is back in the ring, which no worker reads any more.
            inner.destager.end();
            inner.destager.workers.send_modify(|workers| *workers -= 1);
        });
    }
}

async fn work(inner: &Arc<Inner>) {
    let destager = &inner.destager;
    while !destager.stopping.is_on() {
        match next(inner) {
            Turn::Destage(volumes) => {
                // Another worker watches the rest of the ring meanwhile.
                destager.wake();
                let each = volumes.into_iter().map(|volume| async move {
                    destage(&volume).await;
                    volume.busy.send_replace(false);
                    destager.ring.lock().push_back(volume);
                });
                join_all(each).await;
            }
            Turn::Wait(wait) => {
                let told = pin!(destager.wake.notified());
                let stop = pin!(destager.stopping.wait());
                let either = pin!(async {
                    select(told, stop).await;
                });
                match wait {
                    Some(wait) => drop(select(either, inner.env.sleep(wait)).await),
                    None => either.await,
                }
            }
        }
    }
}

/// Turns the ring once: returns the first volume that is due, with those that go along, or the time
/// until one is.
fn next(inner: &Arc<Inner>) -> Turn {
    let ring = &inner.destager.ring;
    let mut wait = inner.release_old_previous();
    // After releasing the previous roots: room that only they held is no reason to destage.
    let scarce = inner.is_scarce();
    let pause = inner.destager.paced.lock().since(inner.env.now());
    let (mut company, mut bytes, mut by_age) = (Vec::new(), 0, 0);
    let mut rounds = ring.lock().len();
    while rounds > 0 && company.len() < limits::COMPANY_VOLUMES_MAX {
        rounds -= 1;
        let Some(volume) = ring.lock().pop_front() else { break };
        let bytes_max = match company.is_empty() {
            true => None,
            false => Some(limits::COMPANY_BYTES_MAX - bytes),
        };
        match volume.due(scarce, pause, bytes_max) {
            (due @ (Due::Now | Due::ByAge), its_bytes) => {
                if company.is_empty() {
                    // Those that were not due before may go along.
                    rounds = ring.lock().len();
                }
                company.push(volume);
                by_age += usize::from(due == Due::ByAge);
                bytes += its_bytes;
                if bytes >= limits::COMPANY_BYTES_MAX {
                    break;
                }
            }
            (Due::In(time), _) => {
                wait = Some(wait.map_or(time, |wait: Duration| wait.min(time)));
                ring.lock().push_back(volume);
            }
            (Due::Never, _) => {}
        }
    }
    if company.is_empty() {
        return Turn::Wait(wait);
    }
    if by_age > 0 {
        let pause = pause_after(by_age, inner.config.destage_writes_per_minute);
        *inner.destager.paced.lock() = inner.env.now() + pause;
    }
    Turn::Destage(company)
}

/// Destages one batch of a volume and records the outcome.
async fn destage(volume: &Arc<Staged>) {
    let outcome = {
        let work = pin!(row::run(volume));
        let cut = pin!(async {
            volume.ending().await;
            if volume.may_promise(&volume.gate.lock()).is_ok() {
                volume.inner.env.sleep(limits::CLOSE_GRACE).await;
            }
        });
        match select(work, cut).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => Err(Error::Closed(volume.name.clone())),
        }
    };
    match outcome {
        Ok(()) => {
            volume.gate.lock().destaging.succeeded();
        }
        Err(Error::Closed(_)) => {}
        // The volume has ended.
        Err(error) if error.kind() == Kind::Fenced => {
            tracing::error!(volume = %volume.name, "fenced: {error}");
            volume.end_with(error);
        }
        Err(error) => {
            volume.notice(&error);
            failed(volume, error);
        }
    }
    volume.inner.admit_waiting();
}

/// Records a batch that did not reach the store: nothing is lost, and it is tried again after a
/// pause.
fn failed(volume: &Arc<Staged>, error: Error) {
    metrics::counter!("rekindle_destage_errors_total").increment(1);
    let now = volume.inner.env.now();
    let (waiters, pause) = {
        let mut gate = volume.gate.lock();
        let pause = gate.destaging.failed(&error, now);
        // Acknowledged bytes that are gone do not come back by waiting, unless a client writes over
        // them.
        let waiters = if matches!(error, Error::Lost { .. }) {
            gate.destaging.lost = Some(error.clone());
            gate.waiters.give_up()
        } else {
            Vec::new()
        };
        (waiters, pause)
    };
    match error.kind() {
        Kind::Damaged => tracing::error!(volume = %volume.name, %error, ?pause, "destaging failed"),
        _ => {
            tracing::warn!(volume = %volume.name, %error, ?pause, "destaging failed, will try again")
        }
    }
    notify(waiters, &Err(error));
}

impl Staged {
    /// Decides whether a batch is due; returns the bytes of the unfinished changes, too. `scarce`:
    /// the log's flash is scarce. `pause`: commits by age have to wait. `along`: another volume is
    /// due, and this one may go along if it has no more than so many bytes.
    fn due(&self, scarce: bool, pause: Duration, along: Option<u64>) -> (Due, u64) {
        let now = self.inner.env.now();
        let progress = self.inner.log.progress();
        let shown = self.mode.shows(&progress);
        let mut gate = self.gate.lock();
        if *self.busy.borrow() || self.is_turn_wanted() {
            // A salvage or a snapshot has the destager's place, or waits for it.
            return (Due::In(limits::PENDING_CHECK), 0);
        }
        if gate.changes.pending() > 0 {
            // The callers that waited for these changes may be gone.
            gate.changes.apply(shown);
        }
        let facts = Facts {
            ended: gate.ended.is_some(),
            ready: gate.foldable(),
            pending: gate.changes.pending(),
            bytes: gate.changes.queue.bytes(),
            age: gate.changes.queue.get(0).map_or(Duration::ZERO, |oldest| now.since(oldest.at())),
            // A client may have written over the lost change: then the batch needs it no more.
            awaited: matches!(self.mode, Mode::Store { .. })
                || gate.waiters.drain_to > gate.checkpoint()
                || gate.waiters.len() > 0
                || gate.destaging.lost.is_some(),
            pressed: scarce || self.is_pressed(&gate.room),
            pause: gate.destaging.pause(now),
        };
        let config = &self.inner.config;
        let early = |age| along.map_or(age, |_| age - age / limits::COMPANY_EARLY_PART);
        let latest = config.age_deadline * limits::PACED_PERCENT / 100;
        let age = age_due(facts.age, early(config.destage_age), pause, early(latest));
        let due = match due(&facts, age, self.bytes_due(&gate.changes.queue)) {
            Due::Now | Due::ByAge if along.is_some_and(|most| facts.bytes > most) => {
                // Its own turn comes when the company is on its way.
                Due::In(Duration::ZERO)
            }
            due => due,
        };
        gate.destaging.looked(due);
        if matches!(due, Due::Now | Due::ByAge) {
            self.busy.send_replace(true);
        }
        (due, facts.bytes)
    }

    /// Whether the volume closes or staging stops.
    pub(crate) fn is_ending(&self) -> bool {
        self.closing.is_on() || self.inner.destager.stopping.is_on()
    }

    /// Waits until the volume closes or staging stops.
    pub(crate) async fn ending(&self) {
        let (closing, stopping) = (self.closing.wait(), self.inner.destager.stopping.wait());
        select(pin!(closing), pin!(stopping)).await;
    }

    /// Waits; returns an error when the volume closes or staging stops meanwhile.
    pub(crate) async fn pause(&self, time: Duration) -> Result<(), Error> {
        match select(pin!(self.ending()), self.inner.env.sleep(time)).await {
            Either::Left(_) => Err(Error::Closed(self.name.clone())),
            Either::Right(_) => Ok(()),
        }
    }
}
