//! Tasks, timers and virtual time.

use super::state::{Event, Machine, RIGHT_RATE, Shared, State};
use crate::{BoxFuture, Clock, Moment, Random, Task, TaskHandle, Tasks, Timestamp};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Virtual time of a step: next to nothing, but a task that spins until a deadline reaches it.
const STEP: Duration = Duration::from_nanos(100);
/// Wall-clock time at the beginning of a world, microseconds: 2026-01-01.
const WALL_CLOCK_START: u64 = 1_767_225_600_000_000;
/// A timer further away than this never fires: it is a way to say "no limit".
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[derive(Default)]
pub(super) struct Executor {
    /// Polls so far.
    pub(super) steps: u64,
    /// Tasks started so far.
    pub(super) started: u64,
    pub(super) tasks: BTreeMap<u64, Slot>,
    /// Wakers by time, then in the order in which the timers were made.
    timers: BTreeMap<(Duration, u64), Waker>,
    /// Tasks of a process that was dead already when it started them: never polled, and kept so
    /// that no task that waits for them is woken.
    pub(super) never: Vec<Task>,
}

pub(super) struct Slot {
    pub(super) name: &'static str,
    pub(super) host: usize,
    /// Absent while it is being polled.
    pub(super) task: Option<Task>,
    aborted: bool,
    bell: Arc<Bell>,
    waker: Waker,
}

/// Numbers of the tasks that want to be polled.
#[derive(Default)]
pub(super) struct Ready {
    pub(super) queue: Mutex<Vec<u64>>,
}

/// The waker of one task.
pub(super) struct Bell {
    number: u64,
    is_queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Bell {
    pub(super) fn new(number: u64, ready: &Arc<Ready>) -> Arc<Self> {
        Arc::new(Self { number, is_queued: AtomicBool::new(false), ready: ready.clone() })
    }

    fn ring(&self) {
        if !self.is_queued.swap(true, Ordering::Relaxed) {
            self.ready.queue.lock().push(self.number);
        }
    }

    fn reset(&self) {
        self.is_queued.store(false, Ordering::Relaxed);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

/// The future of a run, with its type forgotten; `poll` gives `true` when the future is done.
pub(super) struct Main<'a> {
    pub(super) bell: Arc<Bell>,
    pub(super) poll: &'a mut dyn FnMut(&mut Context<'_>) -> bool,
}

/// Bounds of one run, as counts of the world. The run stops at whichever bound is reached first.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) steps: u64,
    pub(super) disk_operations: u64,
    pub(super) time: Duration,
}

/// The reason why a run ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    Stopped,
    /// Nothing is ready and no timer is set.
    Idle,
}

impl Shared {
    /// Runs everything until the main future is done, a bound is reached, or nothing can happen any
    /// more.
    pub(super) fn drive(self: &Arc<Self>, mut main: Option<Main<'_>>, bounds: Bounds) -> Ended {
        let waker = main.as_ref().map(|main| {
            main.bell.ring();
            Waker::from(main.bell.clone())
        });
        let mut due = Vec::new();
        loop {
            let next = {
                let mut state = self.lock();
                if bounds.reached(&state) {
                    return Ended::Stopped;
                }
                state.take_due(&mut due);
                if !due.is_empty() {
                    drop(state);
                    due.drain(..).for_each(Waker::wake);
                    continue;
                }
                let Some(next) = self.pick(&mut state) else {
                    if !state.jump(bounds.time) {
                        return Ended::Idle;
                    }
                    continue;
                };
                if state.puts_off(next) {
                    continue;
                }
                state.executor.steps += 1;
                state.now += STEP;
                state.record(Event::Step, next, 0);
                next
            };
            match (&mut main, &waker) {
                (Some(main), Some(waker)) if main.bell.number == next => {
                    main.bell.reset();
                    let _report = Report { shared: self, name: "main" };
                    if (main.poll)(&mut Context::from_waker(waker)) {
                        return Ended::Done;
                    }
                }
                _ => self.poll_task(next),
            }
        }
    }

    /// Takes any of the ready tasks.
    fn pick(&self, state: &mut State) -> Option<u64> {
        let mut queue = self.ready.queue.lock();
        if queue.is_empty() {
            return None;
        }
        let index = state.rng.index(queue.len());
        Some(queue.swap_remove(index))
    }

    fn poll_task(self: &Arc<Self>, number: u64) {
        let (task, name, waker, aborted) = {
            let mut state = self.lock();
            // The task may be gone: a waker can outlive it.
            let Some(slot) = state.executor.tasks.get_mut(&number) else { return };
            slot.bell.reset();
            (slot.task.take(), slot.name, slot.waker.clone(), slot.aborted)
        };
        let Some(mut task) = task else { return };
        let _report = Report { shared: self, name };
        let is_over = aborted || task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut state = self.lock();
        if is_over {
            state.executor.tasks.remove(&number);
        } else if let Some(slot) = state.executor.tasks.get_mut(&number) {
            slot.task = Some(task);
            return;
        }
        // The task is over, or its process crashed in this very step. It is dropped without the
        // lock, which its content may want.
        drop(state);
        drop(task);
    }

    /// Names of the waiting tasks, for a message.
    pub(super) fn waiting(&self) -> String {
        let state = self.lock();
        let names: Vec<String> = state
            .executor
            .tasks
            .iter()
            .map(|(number, slot)| {
                format!("{} #{number} on {}", slot.name, state.hosts[slot.host].name)
            })
            .collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

impl Bounds {
    fn reached(&self, state: &State) -> bool {
        state.executor.steps >= self.steps
            || state.disk_operations >= self.disk_operations
            || state.now >= self.time
    }
}

impl State {
    fn take_due(&mut self, due: &mut Vec<Waker>) {
        while let Some(first) = self.executor.timers.first_entry() {
            if first.key().0 > self.now {
                break;
            }
            due.push(first.remove());
        }
    }

    /// Puts a task off until its host's process runs again; `false` if that runs.
    fn puts_off(&mut self, number: u64) -> bool {
        let Some(slot) = self.executor.tasks.get(&number) else { return false };
        let until = self.hosts[slot.host].paused_until;
        if until <= self.now {
            return false;
        }
        slot.bell.reset();
        self.executor.timers.insert((until, number), slot.waker.clone());
        true
    }

    /// Advances the time to the next timer, or to `limit` if that is earlier; `false` when there is
    /// no timer.
    fn jump(&mut self, limit: Duration) -> bool {
        let Some((&(deadline, _), _)) = self.executor.timers.first_key_value() else {
            return false;
        };
        self.now = deadline.min(limit).max(self.now);
        let nanoseconds = u64::try_from(self.now.as_nanos()).unwrap_or(u64::MAX);
        self.record(Event::Jump, nanoseconds, 0);
        true
    }
}

/// A guard that prints the seed and the step of a panic, so that the panic can be repeated.
struct Report<'a> {
    shared: &'a Shared,
    name: &'static str,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let steps = self.shared.lock().executor.steps;
            eprintln!(
                "simulation: seed {}, step {steps}, in task '{}'",
                self.shared.seed, self.name
            );
        }
    }
}

/// A future that is done at a moment of virtual time.
pub(super) struct Delay {
    shared: Arc<Shared>,
    deadline: Duration,
    /// Number of the timer, once there is one.
    timer: Option<u64>,
}

impl Delay {
    pub(super) fn until(shared: &Arc<Shared>, deadline: Duration) -> Self {
        Self { shared: shared.clone(), deadline, timer: None }
    }
}

impl Future for Delay {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let mut state = this.shared.lock();
        if state.now >= this.deadline {
            return Poll::Ready(());
        }
        if this.deadline < NEVER {
            let number = match this.timer {
                Some(number) => number,
                None => *this.timer.insert(state.number()),
            };
            let old =
                state.executor.timers.insert((this.deadline, number), context.waker().clone());
            drop(state);
            drop(old);
        }
        Poll::Pending
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        if let Some(number) = self.timer {
            let timer = self.shared.lock().executor.timers.remove(&(self.deadline, number));
            drop(timer);
        }
    }
}

impl Clock for Machine {
    fn now(&self) -> Moment {
        let state = self.shared.lock();
        match state.hosts[self.host].clock_permille {
            RIGHT_RATE => Moment(state.now),
            rate => Moment(state.now * rate / RIGHT_RATE),
        }
    }

    fn wall_clock(&self) -> Timestamp {
        let state = self.shared.lock();
        let since = u64::try_from((state.now + state.leap).as_micros()).unwrap_or(0);
        Timestamp(WALL_CLOCK_START + since)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let state = self.shared.lock();
        let duration = match state.hosts[self.host].clock_permille {
            RIGHT_RATE => duration,
            rate => duration.min(NEVER) * RIGHT_RATE / rate,
        };
        let until = state.now.saturating_add(duration);
        drop(state);
        Box::pin(Delay::until(&self.shared, until))
    }
}

impl Random for Machine {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.shared.lock();
        state.record(Event::Random, bytes.len() as u64, 0);
        state.rng.fill(bytes);
    }
}

impl Tasks for Machine {
    fn spawn(&self, name: &'static str, task: Task) -> TaskHandle {
        let mut state = self.shared.lock();
        if !self.is_alive(&state) {
            state.executor.never.push(task);
            return TaskHandle::new(Box::new(|| {}));
        }
        state.executor.started += 1;
        let number = state.number();
        let bell = Bell::new(number, &self.shared.ready);
        let waker = Waker::from(bell.clone());
        state.record(Event::Spawn, number, self.host as u64);
        bell.ring();
        let slot = Slot { name, host: self.host, task: Some(task), aborted: false, bell, waker };
        state.executor.tasks.insert(number, slot);
        drop(state);
        // Weak: a handle kept somewhere in the world must not keep the world.
        let shared = Arc::downgrade(&self.shared);
        TaskHandle::new(Box::new(move || {
            if let Some(slot) = shared.upgrade().and_then(|shared| {
                let mut state = shared.lock();
                let slot = state.executor.tasks.get_mut(&number)?;
                slot.aborted = true;
                Some(slot.bell.clone())
            }) {
                slot.ring();
            }
        }))
    }

    fn spawn_foreground(&self, name: &'static str, task: Task) -> TaskHandle {
        self.spawn(name, task)
    }

    fn spawn_session(&self, name: &'static str, task: Task) -> TaskHandle {
        self.spawn(name, task)
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) {
        // The handle is dropped: the work is done in any case.
        let _ = self.spawn("blocking", Box::pin(async move { work() }));
    }
}
