//! The handle by which a test rules the world.

use super::executor::{Bell, Bounds, Ended, Main, Slot};
use super::faults::{Faults, Mishaps};
use super::state::{Death, Event, HostState, Machine, Shared};
use crate::{Env, Parts};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Deref;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Virtual time that one run may take: a test that waits longer waits for nothing.
const RUN_TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// Steps that one run may take.
const RUN_STEPS_MAX: u64 = 50_000_000;
/// Name of the host that a world begins with.
const MAIN_HOST: &str = "main";

/// A world with one host, `main` (which the world dereferences to), and as many more as the test
/// wants.
pub struct World {
    main: Host,
}

/// A host of a world: its disk and memory, and the process that runs on it. Clones mean the same
/// host.
#[derive(Clone)]
pub struct Host {
    pub(super) shared: Arc<Shared>,
    pub(super) index: usize,
}

/// A point at which to stop a run, counted from the run's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Not before the end.
    Never,
    /// After this many steps (polls of a task).
    Step(u64),
    /// Once this many disk operations have taken effect or failed; the caller of the last one has
    /// no result yet.
    DiskOperation(u64),
    /// After this much virtual time.
    Time(Duration),
}

impl World {
    /// A new world.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        let host = HostState::new(MAIN_HOST, &faults);
        let shared = Arc::new(Shared::new(seed, faults));
        shared.lock().hosts.push(host);
        Self { main: Host { shared, index: 0 } }
    }

    /// The host of that name, made if there is none.
    #[must_use]
    pub fn host(&self, name: &str) -> Host {
        let mut state = self.shared.lock();
        let index = state.hosts.iter().position(|host| host.name == name).unwrap_or_else(|| {
            let host = HostState::new(name, &state.faults);
            state.hosts.push(host);
            state.hosts.len() - 1
        });
        Host { shared: self.shared.clone(), index }
    }

    /// Runs the world until `work` is done. Background tasks stay as they are then, and go on with
    /// the next run.
    ///
    /// # Panics
    /// When `work` cannot end any more (nothing is ready, no timer is set), or goes on for more
    /// than a day of virtual time or 50 million steps.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.block_on_until(Stop::Never, work).expect("a run without a stop ends with its work")
    }

    /// As [`World::block_on`], but gives up at `stop` with `None`: crash there.
    pub fn block_on_until<T>(&self, stop: Stop, work: impl Future<Output = T>) -> Option<T> {
        let mut output = None;
        {
            let mut work = pin!(work);
            let mut poll = |context: &mut std::task::Context<'_>| match work.as_mut().poll(context)
            {
                Poll::Ready(value) => {
                    output = Some(value);
                    true
                }
                Poll::Pending => false,
            };
            let (bounds, stop) = self.bounds(stop);
            let number = self.shared.lock().number();
            let main = Main { bell: Bell::new(number, &self.shared.ready), poll: &mut poll };
            let ended = self.shared.drive(Some(main), bounds);
            self.judge(ended, stop);
            // What `work` leaves unfinished when it is dropped here was interrupted by the crash to
            // come.
            self.shared.lock().stopped = ended == Ended::Stopped;
        }
        self.shared.lock().stopped = false;
        output
    }

    /// Runs the tasks there are, up to `stop`; `false` when everything came to rest before.
    pub fn run_until(&self, stop: Stop) -> bool {
        let (bounds, stop) = self.bounds(stop);
        let ended = self.shared.drive(None, bounds);
        if ended != Ended::Idle {
            self.judge(ended, stop);
        }
        ended == Ended::Stopped
    }

    /// Runs the tasks there are until the world has made `step` steps in all; `false` when it came
    /// to rest before.
    pub fn run_until_step(&self, step: u64) -> bool {
        self.run_until(Stop::Step(step.saturating_sub(self.steps())))
    }

    fn bounds(&self, stop: Stop) -> (Bounds, Stop) {
        let state = self.shared.lock();
        let mut bounds = Bounds {
            steps: state.executor.steps + RUN_STEPS_MAX,
            disk_operations: u64::MAX,
            time: state.now + RUN_TIME_MAX,
        };
        match stop {
            Stop::Never => {}
            Stop::Step(count) => bounds.steps = state.executor.steps.saturating_add(count),
            Stop::DiskOperation(count) => {
                bounds.disk_operations = state.disk_operations.saturating_add(count)
            }
            Stop::Time(duration) => bounds.time = state.now.saturating_add(duration),
        }
        (bounds, stop)
    }

    /// Panics at an end that the caller did not ask for.
    fn judge(&self, ended: Ended, stop: Stop) {
        let seed = self.shared.seed;
        let what = match (ended, stop) {
            (Ended::Idle, _) => "deadlock: nothing is ready and no timer is set",
            (Ended::Stopped, Stop::Never) => "no end: the run took too many steps or too much time",
            _ => return,
        };
        panic!(
            "{what} (seed {seed}, step {}); waiting tasks: {}",
            self.steps(),
            self.shared.waiting()
        );
    }

    /// A hash of all events so far: the same for the same seed.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace.hash
    }

    /// Prints every event to the standard error, to look into a seed that fails.
    pub fn set_verbose(&self, verbose: bool) {
        self.shared.lock().trace.verbose = verbose;
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// Polls so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.shared.lock().executor.steps
    }

    /// Tasks started so far, blocking work among them.
    #[must_use]
    pub fn tasks_started(&self) -> u64 {
        self.shared.lock().executor.started
    }

    /// Disk operations so far, on all hosts.
    #[must_use]
    pub fn disk_operations(&self) -> u64 {
        self.shared.lock().disk_operations
    }

    /// Virtual time since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.shared.lock().now
    }

    /// Sets the wall clock ahead of the right time, by `leap`.
    pub fn set_wall_clock_ahead(&self, leap: Duration) {
        self.shared.lock().leap = leap;
    }

    /// Cuts the network between two hosts: nothing arrives any more, and waits for [`World::heal`].
    pub fn cut(&self, one: &Host, other: &Host) {
        self.cut_way(one, other);
        self.cut_way(other, one);
    }

    /// Cuts the way from one host to another: what is sent there waits for [`World::heal`]. The
    /// other way stays, for the connections that there are.
    pub fn cut_way(&self, from: &Host, to: &Host) {
        self.shared.lock().net.cut_way(from.index, to.index);
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        let wakers = self.shared.lock().net.heal();
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}

impl Deref for World {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.main
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Tasks hold environments, which hold the world: without this, it would never be freed.
        let (tasks, never) = {
            let mut state = self.shared.lock();
            (std::mem::take(&mut state.executor.tasks), std::mem::take(&mut state.executor.never))
        };
        drop((tasks, never));
        let count = self.shared.lock().hosts.len();
        for index in 0..count {
            let connections = self.shared.lock().net.remove_host(index);
            drop(connections);
        }
    }
}

impl Host {
    /// An environment for the process that runs now. After a crash, ask again: an old one is dead.
    #[must_use]
    pub fn env(&self) -> Env {
        let life = self.shared.lock().hosts[self.index].life;
        let machine = Machine { shared: self.shared.clone(), host: self.index, life };
        Env::new(Parts {
            clock: Box::new(machine.clone()),
            random: Box::new(machine.clone()),
            disk: Box::new(machine.clone()),
            memory: Box::new(machine.clone()),
            net: Box::new(machine.clone()),
            tasks: Box::new(machine),
        })
    }

    /// Stops the process for so long (`SIGSTOP`, a machine that is stunned): none of its tasks
    /// runs, while time goes on.
    pub fn pause(&self, length: Duration) {
        let mut state = self.shared.lock();
        let until = state.now.saturating_add(length);
        let host = &mut state.hosts[self.index];
        host.paused_until = host.paused_until.max(until);
    }

    /// Lets the monotonic clock of the host run at another rate, in thousandths of the right one.
    /// To be called before any process runs there.
    pub fn set_clock_rate(&self, permille: u32) {
        self.shared.lock().hosts[self.index].clock_permille = permille;
    }

    /// Ends the process without warning (`kill -9`): its tasks are gone, its files are closed and
    /// unlocked, its connections end. Bytes that it wrote, synced or not, and mapped memory are as
    /// it left them; of a write under way a part is done.
    pub fn crash_process(&self) {
        self.crash(false);
    }

    /// Cuts the power of the machine: as [`Host::crash_process`], and mapped memory is gone. Of the
    /// bytes that were not synced each sector, and the last changes of each folder, are kept or
    /// lost at random.
    pub fn cut_power(&self) {
        self.crash(true);
    }

    fn crash(&self, power: bool) {
        let tasks = {
            let mut state = self.shared.lock();
            state.record(if power { Event::PowerCut } else { Event::Crash }, self.index as u64, 0);
            let host = &mut state.hosts[self.index];
            host.dying = Some(Death { life: host.life, power });
            host.life += 1;
            let tasks = std::mem::take(&mut state.executor.tasks);
            let (gone, kept) = tasks.into_iter().partition(|(_, slot)| slot.host == self.index);
            state.executor.tasks = kept;
            let gone: BTreeMap<u64, Slot> = gone;
            gone
        };
        let gone: Vec<u64> = tasks.keys().copied().collect();
        // Without the lock: the drop of an operation takes it, to decide the operation's effect.
        drop(tasks);
        let connections = self.shared.lock().net.remove_host(self.index);
        drop(connections);
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        // The dropped tasks have rung the bells of others, in whatever order a hash map had them:
        // that order must not matter.
        let mut queue = self.shared.ready.queue.lock();
        queue.retain(|number| gone.binary_search(number).is_err());
        queue.sort_unstable();
        drop(queue);
        let host = &mut state.hosts[self.index];
        host.dying = None;
        if power {
            host.disk.cut_power(state.faults.cut, &mut state.rng);
            host.memory.clear();
        }
    }

    /// Changes the faults from here on, on all hosts.
    pub fn change_faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.shared.lock().faults);
    }

    /// Faults that happened so far, on all hosts.
    #[must_use]
    pub fn mishaps(&self) -> Mishaps {
        self.shared.lock().mishaps
    }

    /// Changes the size of the disk; smaller than what is in use means full.
    pub fn set_disk_bytes(&self, bytes: u64) {
        self.shared.lock().hosts[self.index].disk.capacity_bytes = bytes;
    }

    /// Flips one random bit of the byte at `offset`, on the medium and in the page cache; `false`
    /// when there is no such byte.
    pub fn flip_bit(&self, path: impl AsRef<Path>, offset: u64) -> bool {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let mask = 1 << state.rng.below(8);
        state.hosts[self.index].disk.flip(path.as_ref(), offset, mask)
    }

    /// Flips one random bit of mapped memory; `false` when there is no such byte. The caller
    /// guarantees that no task uses the byte during the call.
    pub fn flip_memory_bit(&self, path: impl AsRef<Path>, offset: u64) -> bool {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let mask = 1 << state.rng.below(8);
        state.hosts[self.index].memory.flip(path.as_ref(), offset, mask)
    }

    /// Bytes of a file just now, for a test to look at: no operation, no delay, no fault.
    #[must_use]
    pub fn peek(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.shared.lock().hosts[self.index].disk.peek(path.as_ref())
    }
}
