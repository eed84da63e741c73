//! The salvage server: repairs damaged volumes while the others serve.
//!
//! [`queue`] (pure) decides which volume is next, [`attempts`] (pure) whether another attempt makes
//! sense, and `work` is one salvage. This file drives them. Each request, and each end of a
//! salvage, hands waiting requests to free workers. So no dispatcher task has to live for that, and
//! none can hang.
//!
//! A volume in service is repaired in service: its clients go on, and only reads of lost content
//! are refused. A volume that is out of service or could not be attached is `salvaging` from the
//! request on, also while it waits for a worker. Clients that come for the volume meanwhile wait
//! with it, and get the outcome.

pub(crate) mod attempts;
pub(crate) mod queue;
mod work;

use crate::registry::entry::{Entry, Handle, Live, Step, Waiting};
use crate::registry::machine::{Event, State};
use crate::registry::{Claim, Inner};
use crate::stop::offline;
use crate::{Error, attach, limits};
use attempts::By;
use parking_lot::Mutex;
use queue::{Asked, Cancelled, Queue};
use rekindle_env::{Moment, Switch};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use utoipa::ToSchema;

pub(crate) use work::{forget, histories, history, resume};

/// The salvage server of a node.
pub(crate) struct Salvager {
    state: Mutex<Salvages>,
}

struct Salvages {
    queue: Queue,
    /// By volume; one for each request in the queue.
    jobs: BTreeMap<String, Job>,
}

/// The subject of a request, beside its place in the queue.
struct Job {
    /// The claim on the volume, if it is out of service. The worker takes the claim.
    claim: Option<Claim>,
    /// Otherwise a hold, so that the collector leaves the volume in service until the end. The
    /// worker takes the hold.
    hold: Option<Handle>,
    shared: Arc<Shared>,
}

/// The part of a salvage that other tasks see while it waits or runs.
pub(crate) struct Shared {
    by: By,
    /// Chunks read and checked.
    chunks: AtomicU64,
    cancel: Switch,
    ended: Switch,
    /// The outcome, once the salvage has ended.
    outcome: OnceLock<Result<Repair, Error>>,
}

/// What a salvage that an operator asked for has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// A sentence: the repairs, and what going on would lose.
    pub told: String,
    /// Whether damage is left, since the salvage may not give up anything by itself.
    pub is_left: bool,
}

/// A volume that is being salvaged, or waits for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Salvage {
    pub volume: String,
    /// The datastore that holds the volume.
    pub device: String,
    /// The priority: higher ones go first; waiting clients raise it.
    pub priority: u64,
    pub reason: String,
    pub age_ms: u64,
    /// The worker of the salvage; null while the volume waits.
    pub worker: Option<u64>,
    /// Chunks read and checked so far.
    pub chunks: u64,
}

impl Shared {
    fn tell(&self, outcome: Result<Repair, Error>) {
        let _ = self.outcome.set(outcome);
        self.ended.turn_on();
    }
}

impl Default for Salvager {
    fn default() -> Self {
        let queue = Queue::new(limits::SALVAGE_WORKERS);
        Self { state: Mutex::new(Salvages { queue, jobs: BTreeMap::new() }) }
    }
}

impl Salvager {
    /// Whether a volume is being salvaged, or waits for it.
    pub fn has(&self, name: &str) -> bool {
        self.state.lock().jobs.contains_key(name)
    }

    /// Raises the priority of a volume that a client waits for.
    pub fn raise(&self, name: &str, now: Moment) {
        self.state.lock().queue.raise(name, now);
    }

    /// Lists the running salvages, then those that wait, the next one first.
    pub fn view(&self, now: Moment) -> Vec<Salvage> {
        let state = self.state.lock();
        let row = |(volume, request): (&str, &queue::Request)| Salvage {
            volume: volume.to_owned(),
            device: request.device.clone(),
            priority: request.priority,
            reason: request.reason.clone(),
            age_ms: u64::try_from(now.since(request.asked).as_millis()).unwrap_or(u64::MAX),
            worker: request.worker.map(|worker| worker as u64),
            chunks: state
                .jobs
                .get(volume)
                .map_or(0, |job| job.shared.chunks.load(Ordering::Relaxed)),
        };
        state.queue.all().into_iter().map(row).collect()
    }
}

/// Asks for a salvage for each damage report of readers and the destager, until the registry is
/// gone.
pub(crate) async fn listen(inner: Weak<Inner>) {
    let Some((env, mut damage_reports)) = inner
        .upgrade()
        .and_then(|inner| Some((inner.env.clone(), inner.staging.damage_reports()?)))
    else {
        return;
    };
    loop {
        let round = env.timeout(limits::SALVAGE_ROUND, damage_reports.recv()).await;
        let Some(inner) = inner.upgrade().filter(|inner| !inner.is_stopping()) else { return };
        match round {
            Ok(Some(damage_reports)) if waits(&inner, &damage_reports.volume) => {}
            Ok(Some(damage_reports)) => {
                let (name, reason) = (&damage_reports.volume, &damage_reports.reason);
                tracing::warn!(volume = name, "is damaged and will be salvaged: {reason}");
                drop(request(&inner, name, reason, By::Itself, None));
            }
            Ok(None) => return,
            Err(_) => look_again(&inner),
        }
    }
}

/// Whether the fault of a volume is known, and not due for a look.
fn waits(inner: &Inner, name: &str) -> bool {
    let now = inner.env.wall_clock().0;
    inner.find(name).is_some_and(|entry| {
        entry.inside.lock().waits.as_ref().is_some_and(|waits| waits.due > now)
    })
}

/// Asks for a salvage of the volumes in service whose fault is due for a look.
fn look_again(inner: &Arc<Inner>) {
    let now = inner.env.wall_clock().0;
    for entry in inner.all() {
        let due = {
            let inside = entry.inside.lock();
            inside.waits.clone().filter(|waits| waits.due <= now && inside.live.is_some())
        };
        if let Some(waits) = due {
            drop(request(inner, &entry.name, &waits.reason, By::Itself, None));
        }
    }
}

/// Notes what a check found of a volume: damage since now, or none any more.
pub(crate) async fn note_check(inner: &Arc<Inner>, name: &str, damage: Option<String>) {
    let is_well = damage.is_none();
    work::note_found(inner, name, damage);
    if is_well {
        look_at_fault(inner, name).await;
    }
}

/// Asks for a salvage of a volume whose fault waits, before its look is due: something has changed,
/// and the fault may be over.
pub(crate) async fn look_at_fault(inner: &Arc<Inner>, name: &str) {
    let waits = inner.find(name).and_then(|entry| entry.inside.lock().waits.clone());
    let Some(waits) = waits else { return };
    // In the name of the user who has changed something: another look of the salvager is not due.
    if let Err(error) = ask(inner, name, &waits.reason, By::Operator).await {
        tracing::debug!(volume = name, %error, "its fault is looked at when that is due");
    }
}

/// Puts a volume into the queue, with its claim if it is out of service. Joins the request that is
/// there, if there is one.
pub(crate) fn request(
    inner: &Arc<Inner>,
    name: &str,
    reason: &str,
    by: By,
    claim: Option<Claim>,
) -> Result<Arc<Shared>, Error> {
    let device = inner.writer.store.describe();
    let mut claim = claim;
    let mut hold = match &claim {
        Some(_) => None,
        None => inner.find(name).and_then(|entry| {
            let inside = entry.inside.lock();
            let live = inside.live.as_ref().filter(|_| inside.machine.state().is_in_service());
            live.map(Live::hold)
        }),
    };
    if let Some(say) = &claim {
        let step = Step { what: "a salvage worker", since: inner.env.now() };
        say.entry.inside.lock().step = Some(step);
    }
    let shared = {
        let mut state = inner.salvager.state.lock();
        match state.queue.ask(name, &device, reason, inner.env.now()) {
            Asked::Coalesced if claim.is_none() => {
                return Ok(state.jobs.get(name).expect("a job for each request").shared.clone());
            }
            // The queued salvage is of the volume in service, and has not noticed that the volume
            // went out of service.
            Asked::Coalesced | Asked::Full => None,
            Asked::Queued => {
                let shared = Arc::new(Shared {
                    by,
                    chunks: AtomicU64::new(0),
                    cancel: Switch::default(),
                    ended: Switch::default(),
                    outcome: OnceLock::new(),
                });
                let (claim, hold) = (claim.take(), hold.take());
                let job = Job { claim, hold, shared: shared.clone() };
                state.jobs.insert(name.to_owned(), job);
                Some(shared)
            }
        }
    };
    let Some(shared) = shared else {
        let busy = "another salvage of it is just ending, or too many volumes wait: try again";
        let busy: Error = rekindle_datastore::Error::Unavailable(format!(
            "volume '{name}' cannot be salvaged now: {busy}"
        ))
        .into();
        claim.into_iter().for_each(|say| work::give_up(say, busy.clone()));
        return Err(busy);
    };
    hand_out(inner);
    Ok(shared)
}

/// Gives waiting requests to free workers.
fn hand_out(inner: &Arc<Inner>) {
    loop {
        let (name, job) = {
            let mut state = inner.salvager.state.lock();
            let Some((name, _)) = state.queue.next() else { return };
            let job = state.jobs.get_mut(&name).expect("a job for each request");
            let (claim, hold) = (job.claim.take(), job.hold.take());
            let job = Job { claim, hold, shared: job.shared.clone() };
            (name, job)
        };
        let end = End { inner: inner.clone(), name, shared: job.shared.clone() };
        inner.env.spawn("salvage", async move {
            let outcome = work::run(&end.inner, &end.name, &job).await;
            // First, so that a task that finds the volume out of `salvaging` can ask for another
            // salvage.
            end.free();
            drop(job.hold);
            job.claim.into_iter().for_each(|say| work::conclude(say, &outcome));
            end.tell(outcome);
        });
    }
}

/// The end of a salvage, however it comes about: frees the worker and notifies the waiting tasks.
struct End {
    inner: Arc<Inner>,
    name: String,
    shared: Arc<Shared>,
}

impl End {
    fn tell(&self, outcome: Result<Repair, Error>) {
        self.shared.tell(outcome);
    }

    fn free(&self) {
        let mut state = self.inner.salvager.state.lock();
        // The job may already belong to a later request.
        let is_mine = |job: &Job| Arc::ptr_eq(&job.shared, &self.shared);
        if state.jobs.get(&self.name).is_some_and(is_mine) {
            state.queue.done(&self.name);
            let done = state.jobs.remove(&self.name);
            drop(state);
            drop(done);
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.free();
        if !self.shared.ended.is_on() {
            self.tell(Err(Error::Interrupted(self.name.clone())));
        }
        if !self.inner.is_stopping() {
            hand_out(&self.inner);
        }
    }
}

/// Salvages a volume for an operator and waits for the end.
///
/// Going on without changes that the log has lost takes the volume out of service. Clients can
/// prevent that by holding the volume.
pub(crate) async fn run(
    inner: &Arc<Inner>,
    name: &str,
    accept_losses: bool,
) -> Result<Repair, Error> {
    let (by, cause) = match accept_losses {
        false => (By::Operator, "an operator asked"),
        true => (By::Accepting, "an operator accepts what is lost"),
    };
    loop {
        let shared = ask(inner, name, cause, by).await?;
        shared.ended.wait().await;
        match shared.outcome.get().cloned().unwrap_or(Err(Error::Interrupted(name.to_owned()))) {
            // This salvage was the node's own. An operator's is never refused as too soon or one
            // too many, so ask again.
            Err(Error::Salvage { .. }) if shared.by == By::Itself => {}
            // This salvage was not allowed to give up as much as the operator accepts.
            Ok(_) if shared.by < by => {}
            ended => return ended,
        }
    }
}

/// Asks for a salvage of a volume with known damage, and does not wait for its end. The volume is
/// attached for that, so that its clients are served meanwhile. A salvage that is refused is no
/// error of the volume.
pub(crate) async fn ask_in_service(
    inner: &Arc<Inner>,
    name: &str,
    reason: &str,
) -> Result<(), Error> {
    // An attach that fails because of damage has already asked for a salvage.
    let _held_until_asked = attach::attach(inner, name).await?;
    request(inner, name, reason, By::Itself, None).map(drop)
}

/// Asks for a salvage of a volume for an operator, in service or out of it; does not wait for its
/// end.
async fn ask(inner: &Arc<Inner>, name: &str, cause: &str, by: By) -> Result<Arc<Shared>, Error> {
    rekindle_base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let mut held = None;
    let mut is_tried = false;
    loop {
        if inner.is_stopping() {
            return Err(Error::Stopping);
        }
        let entry = inner.entry(name);
        // Attach it first, so that its clients are served meanwhile. A volume that is absent or
        // another node's is not damaged.
        if !is_tried && is_idle(&entry) {
            is_tried = true;
            match attach::attach(inner, name).await {
                Ok(handle) => held = Some(handle),
                Err(error) if error.is_lasting() || error.is_of_a_lost_machine() => {}
                Err(error) => return Err(error),
            }
            continue;
        }
        // Only this reads all unfinished changes: to go on without some of them, the volume has to
        // leave service.
        let leaves_service = by == By::Accepting && has_lost_changes(&entry).await;
        if leaves_service {
            held = None;
        }
        match claim(inner, &entry, cause)? {
            Claimed::Again(changes) => changes.changed().await,
            Claimed::Retired => {}
            Claimed::InService if leaves_service => {
                let say = offline::claim(inner, name, false, cause).await?;
                offline::close(&say).await?;
                say.turn_to(Event::Salvage, cause)?;
                say.entry.inside.lock().attempts += 1;
                return request(inner, name, cause, by, Some(say));
            }
            Claimed::InService => {
                let asked = request(inner, name, cause, by, None);
                drop(held);
                return asked;
            }
            Claimed::Say(say) => return request(inner, name, cause, by, Some(say)),
        }
    }
}

/// Whether the volume is out of service, and no task works on it.
fn is_idle(entry: &Entry) -> bool {
    let state = entry.inside.lock().machine.state();
    matches!(state, State::Unattached | State::Preattached | State::Error)
}

/// Whether the log has lost changes of the volume. Only then must the volume leave service to go on
/// without them.
async fn has_lost_changes(entry: &Entry) -> bool {
    let Some(live) = entry.inside.lock().live.clone() else { return false };
    // The destager knows only the damage that it has met; the examination finds the rest.
    live.staged.has_lost_changes()
        || live.staged.examine_unfinished().await.is_ok_and(|damage| !damage.is_empty())
}

enum Claimed {
    /// The volume is in service, or already in salvage.
    InService,
    Say(Claim),
    /// Another task holds the claim.
    Again(Waiting),
    Retired,
}

fn claim(inner: &Arc<Inner>, entry: &Arc<Entry>, cause: &str) -> Result<Claimed, Error> {
    let mut inside = entry.inside.lock();
    if inside.retired {
        return Ok(Claimed::Retired);
    }
    inner.observe(entry, &mut inside);
    Ok(match inside.machine.state() {
        State::Attached | State::Stalled => Claimed::InService,
        State::Salvaging if inner.salvager.state.lock().jobs.contains_key(&entry.name) => {
            Claimed::InService
        }
        State::Unattached | State::Preattached | State::Error => {
            let say = Claim::enter(inner, entry, &mut inside, Event::Salvage, cause)?;
            // A client that comes now waits for this salvage, and must not take an older failure
            // for its outcome.
            inside.attempts += 1;
            Claimed::Say(say)
        }
        _ => Claimed::Again(entry.subscribe()),
    })
}

/// Takes a volume out of the queue, or cancels its running salvage. Whether there was one.
pub(crate) fn cancel(inner: &Arc<Inner>, name: &str) -> bool {
    let waiting = {
        let mut state = inner.salvager.state.lock();
        match state.queue.cancel(name) {
            Cancelled::Nothing => return false,
            Cancelled::Running => {
                if let Some(job) = state.jobs.get(name) {
                    job.shared.cancel.turn_on();
                }
                return true;
            }
            Cancelled::Queued => state.jobs.remove(name),
        }
    };
    if let Some(job) = waiting {
        let cancelled = Error::Cancelled(name.to_owned());
        if let Some(claim) = job.claim {
            work::give_up(claim, cancelled.clone());
        }
        job.shared.tell(Err(cancelled));
    }
    true
}

/// Stops all salvages with the node: empties the queue and cancels the running ones. The next life
/// resumes them.
pub(crate) fn stop(inner: &Arc<Inner>) {
    let names: Vec<String> = inner.salvager.state.lock().jobs.keys().cloned().collect();
    for name in names {
        cancel(inner, &name);
    }
}

/// Waits, after [`stop`], for the running salvages to end, but not longer than their grace.
pub(crate) async fn stopped(inner: &Inner) {
    let jobs: Vec<_> =
        inner.salvager.state.lock().jobs.values().map(|job| job.shared.clone()).collect();
    let all = async {
        for job in jobs {
            job.ended.wait().await;
        }
    };
    let _ =
        inner.env.timeout(limits::SALVAGE_STOP_GRACE + limits::SALVAGE_STOP_GRACE / 2, all).await;
}
