//! The salvage server: repairs damaged volumes while the others serve.
//!
//! [`queue`] decides (pure) who is next, [`attempts`] (pure) whether another attempt makes sense, `work` is one salvage. Here
//! they are driven: whoever asks, or ends, hands out what can be handed out, so no task has to live for that and none can hang.
//!
//! A volume in service is repaired in service: clients go on, and only what is lost is refused. One that could not be
//! attached, or that is out of service, is `salvaging` from the moment it is asked for, also while it waits for a worker;
//! who comes for it waits with it, and is told how it went.

pub(crate) mod attempts;
pub(crate) mod queue;
mod work;

use crate::entry::{Entry, Handle, Live, Step, Waiting};
use crate::machine::{Event, State};
use crate::registry::{Exclusive, Inner};
use crate::{Error, attach, limits, offline};
use attempts::By;
use env::{Moment, Switch};
use parking_lot::Mutex;
use queue::{Asked, Cancelled, Queue};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

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

/// What a request is about, beside its place in the queue.
struct Job {
    /// The say over the volume, if it is out of service. The worker takes it.
    exclusive: Option<Exclusive>,
    /// Else a hold on it, so that the collector leaves it in service until the end. The worker takes it.
    hold: Option<Handle>,
    shared: Arc<Shared>,
}

/// What others see of a salvage that waits or runs.
pub(crate) struct Shared {
    by: By,
    /// Chunks read and checked.
    chunks: AtomicU64,
    cancel: Switch,
    ended: Switch,
    /// How, once it has.
    outcome: OnceLock<Result<String, Error>>,
}

/// A volume that is to be salvaged, or is being salvaged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Queued {
    pub volume: String,
    /// URL of its datastore.
    pub device: String,
    pub priority: u64,
    pub reason: String,
    pub age_ms: u64,
    /// The worker that has it; `None` while it waits.
    pub worker: Option<usize>,
    /// Chunks that it has read and checked so far.
    pub chunks: u64,
}

impl Shared {
    fn tell(&self, outcome: Result<String, Error>) {
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
    /// A client waits for a volume.
    pub fn raise(&self, name: &str, now: Moment) {
        self.state.lock().queue.raise(name, now);
    }

    /// Those that run first, then those that wait, the next one first.
    pub fn view(&self, now: Moment) -> Vec<Queued> {
        let state = self.state.lock();
        let row = |(volume, request): (&str, &queue::Request)| Queued {
            volume: volume.to_owned(),
            device: request.device.clone(),
            priority: request.priority,
            reason: request.reason.clone(),
            age_ms: u64::try_from(now.since(request.asked).as_millis()).unwrap_or(u64::MAX),
            worker: request.worker,
            chunks: state
                .jobs
                .get(volume)
                .map_or(0, |job| job.shared.chunks.load(Ordering::Relaxed)),
        };
        state.queue.all().into_iter().map(row).collect()
    }
}

/// Hears of damage that readers and the destager meet, until the registry is gone.
pub(crate) async fn listen(inner: Weak<Inner>) {
    let Some((env, mut hurt)) =
        inner.upgrade().and_then(|inner| Some((inner.env.clone(), inner.staging.hurt()?)))
    else {
        return;
    };
    loop {
        let round = env.timeout(limits::SALVAGE_ROUND, hurt.recv()).await;
        let Some(inner) = inner.upgrade().filter(|inner| !inner.is_stopping()) else { return };
        match round {
            Ok(Some(hurt)) if waits(&inner, &hurt.volume) => {}
            Ok(Some(hurt)) => {
                let (name, reason) = (&hurt.volume, &hurt.reason);
                tracing::warn!(volume = name, "is damaged and will be salvaged: {reason}");
                drop(request(&inner, name, reason, By::Itself, None));
            }
            Ok(None) => return,
            Err(_) => look_again(&inner),
        }
    }
}

/// Whether what is wrong with a volume is known, and not due to be looked at.
fn waits(inner: &Inner, name: &str) -> bool {
    let now = inner.env.wall_clock().0;
    inner.find(name).is_some_and(|entry| {
        entry.inside.lock().waits.as_ref().is_some_and(|waits| waits.due > now)
    })
}

/// Asks for a look at the volumes in service that wait and are due.
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

/// Puts a volume into the queue, with the say over it if it is out of service; or joins the request that there is.
pub(crate) fn request(
    inner: &Arc<Inner>,
    name: &str,
    reason: &str,
    by: By,
    exclusive: Option<Exclusive>,
) -> Result<Arc<Shared>, Error> {
    let device = inner.writer.store.describe();
    let mut exclusive = exclusive;
    let mut hold = match &exclusive {
        Some(_) => None,
        None => inner.find(name).and_then(|entry| {
            let inside = entry.inside.lock();
            let live = inside.live.as_ref().filter(|_| inside.machine.state().is_in_service());
            live.map(Live::hold)
        }),
    };
    if let Some(say) = &exclusive {
        let step = Step { what: "a salvage worker", since: inner.env.now() };
        say.entry.inside.lock().step = Some(step);
    }
    let shared = {
        let mut state = inner.salvager.state.lock();
        match state.queue.ask(name, &device, reason, inner.env.now()) {
            Asked::Coalesced if exclusive.is_none() => {
                return Ok(state.jobs.get(name).expect("a job for each request").shared.clone());
            }
            // A salvage of it in service that has not noticed yet that the volume went out of service.
            Asked::Coalesced | Asked::Full => None,
            Asked::Queued => {
                let shared = Arc::new(Shared {
                    by,
                    chunks: AtomicU64::new(0),
                    cancel: Switch::default(),
                    ended: Switch::default(),
                    outcome: OnceLock::new(),
                });
                let (exclusive, hold) = (exclusive.take(), hold.take());
                let job = Job { exclusive, hold, shared: shared.clone() };
                state.jobs.insert(name.to_owned(), job);
                Some(shared)
            }
        }
    };
    let Some(shared) = shared else {
        let busy = "another salvage of it is just ending, or too many volumes wait: try again";
        let busy: Error = datastore::Error::Unavailable(format!(
            "volume '{name}' cannot be salvaged now: {busy}"
        ))
        .into();
        exclusive.into_iter().for_each(|say| work::give_up(say, busy.clone()));
        return Err(busy);
    };
    hand_out(inner);
    Ok(shared)
}

/// Gives free workers what waits.
fn hand_out(inner: &Arc<Inner>) {
    loop {
        let (name, job) = {
            let mut state = inner.salvager.state.lock();
            let Some((name, _)) = state.queue.next() else { return };
            let job = state.jobs.get_mut(&name).expect("a job for each request");
            let (exclusive, hold) = (job.exclusive.take(), job.hold.take());
            let job = Job { exclusive, hold, shared: job.shared.clone() };
            (name, job)
        };
        let end = End { inner: inner.clone(), name, shared: job.shared.clone() };
        inner.env.spawn("salvage", async move {
            let outcome = work::run(&end.inner, &end.name, &job).await;
            // First, so that whoever finds the volume out of `salvaging` can ask for another one.
            end.free();
            drop(job.hold);
            job.exclusive.into_iter().for_each(|say| work::conclude(say, &outcome));
            end.tell(outcome);
        });
    }
}

/// The end of a salvage, however it comes about: the worker is free, who waits is told.
struct End {
    inner: Arc<Inner>,
    name: String,
    shared: Arc<Shared>,
}

impl End {
    fn tell(&self, outcome: Result<String, Error>) {
        self.shared.tell(outcome);
    }

    fn free(&self) {
        let mut state = self.inner.salvager.state.lock();
        // Another request for this volume may be there by now.
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

/// Salvages a volume because a person said so, and waits for the end; what came of it, in a sentence. One that goes on
/// without changes that the log has lost is taken out of service for that, which its clients can refuse by holding it.
pub(crate) async fn run(
    inner: &Arc<Inner>,
    name: &str,
    accept_losses: bool,
) -> Result<String, Error> {
    let (by, cause) = match accept_losses {
        false => (By::Operator, "an operator asked"),
        true => (By::Accepting, "an operator accepts what is lost"),
    };
    loop {
        let shared = ask(inner, name, cause, by).await?;
        shared.ended.wait().await;
        match shared.outcome.get().cloned().unwrap_or(Err(Error::Interrupted(name.to_owned()))) {
            // It was one that nobody had asked for; of a person's no attempt is too many, and none too soon.
            Err(Error::Salvage { .. }) if shared.by == By::Itself => {}
            // It was one that may give up less.
            Ok(_) if shared.by < by => {}
            ended => return ended,
        }
    }
}

/// Asks for a salvage of a volume in which somebody has found damage, and does not wait for it. The volume comes into
/// service for that: who wants it is served meanwhile, and a salvage that is refused is nobody's error.
pub(crate) async fn ask_in_service(
    inner: &Arc<Inner>,
    name: &str,
    reason: &str,
) -> Result<(), Error> {
    // When it cannot be attached because of damage, that has brought a salvage about.
    let _held_until_asked = attach::attach(inner, name).await?;
    request(inner, name, reason, By::Itself, None).map(drop)
}

/// Asks for a salvage of a volume because a person said so, in service or out of it; does not wait for it.
async fn ask(inner: &Arc<Inner>, name: &str, cause: &str, by: By) -> Result<Arc<Shared>, Error> {
    base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let mut held = None;
    let mut is_tried = false;
    loop {
        if inner.is_stopping() {
            return Err(Error::Stopping);
        }
        let entry = inner.entry(name);
        // Its clients are served meanwhile, if it can be served at all. Who does not exist, or is elsewhere, is not damaged.
        if !is_tried && is_idle(&entry) {
            is_tried = true;
            match attach::attach(inner, name).await {
                Ok(handle) => held = Some(handle),
                Err(error) if error.is_lasting() => {}
                Err(error) => return Err(error),
            }
            continue;
        }
        // Reads all unfinished changes. To go on without some of them it has to leave service.
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

/// Whether nobody has it in service, nor anything else to do with it.
fn is_idle(entry: &Entry) -> bool {
    let state = entry.inside.lock().machine.state();
    matches!(state, State::Unattached | State::Preattached | State::Error)
}

/// Whether changes in the log are lost. Only then does a volume have to leave service to go on without something.
async fn has_lost_changes(entry: &Entry) -> bool {
    let Some(live) = entry.inside.lock().live.clone() else { return false };
    // The destager knows of what it has met; what it has not is looked for.
    live.staged.has_lost_changes()
        || live.staged.examine_unfinished().await.is_ok_and(|damage| !damage.is_empty())
}

enum Claimed {
    /// It is in service, or being salvaged already.
    InService,
    Say(Exclusive),
    /// Another task has the say.
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
            let say = Exclusive::enter(inner, entry, &mut inside, Event::Salvage, cause)?;
            // Who comes now waits for this, and takes no older failure for its outcome.
            inside.attempts += 1;
            Claimed::Say(say)
        }
        _ => Claimed::Again(entry.subscribe()),
    })
}

/// Takes a volume out of the queue, or breaks its salvage off. Whether there was one.
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
        if let Some(exclusive) = job.exclusive {
            work::give_up(exclusive, cancelled.clone());
        }
        job.shared.tell(Err(cancelled));
    }
    true
}

/// The node stops: nothing waits, and what runs is told to end. The next life goes on.
pub(crate) fn stop(inner: &Arc<Inner>) {
    let names: Vec<String> = inner.salvager.state.lock().jobs.keys().cloned().collect();
    for name in names {
        cancel(inner, &name);
    }
}

/// After [`stop`]: none runs any more, or has had the time to end.
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
