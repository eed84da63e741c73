//! The state of a world: everything under one lock, because there is only one thread.

use super::disk::DiskState;
use super::executor::{Executor, Ready};
use super::faults::{Faults, Mishaps};
use super::memory::MemoryState;
use super::net::NetState;
use parking_lot::{Mutex, MutexGuard};
use rekindle_base::random::Random;
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Shared {
    pub(super) seed: u64,
    state: Mutex<State>,
    /// Tasks to poll. Apart from the state, because wakers are called from anywhere, also from
    /// under the state's lock.
    pub(super) ready: Arc<Ready>,
}

pub(super) struct State {
    pub(super) rng: Random,
    pub(super) faults: Faults,
    pub(super) trace: Trace,
    /// Virtual time since the beginning of the world.
    pub(super) now: Duration,
    /// Time by which the wall clock is ahead.
    pub(super) leap: Duration,
    /// The last number given to a task, timer, file or connection.
    last_number: u64,
    pub(super) executor: Executor,
    pub(super) hosts: Vec<HostState>,
    pub(super) net: NetState,
    /// Disk operations that took effect or failed.
    pub(super) disk_operations: u64,
    pub(super) mishaps: Mishaps,
    /// Whether a run has been stopped to crash: an operation that is dropped now was interrupted,
    /// not cancelled.
    pub(super) stopped: bool,
}

/// Rate of a clock that is right, in thousandths.
pub(super) const RIGHT_RATE: u32 = 1000;

pub(super) struct HostState {
    pub(super) name: String,
    /// Number of the host's process: the parts of an earlier life are inert.
    pub(super) life: u64,
    /// Set while the tasks of a life are being dropped by a crash.
    pub(super) dying: Option<Death>,
    pub(super) disk: DiskState,
    pub(super) memory: MemoryState,
    /// None of the host's tasks runs sooner.
    pub(super) paused_until: Duration,
    /// Rate of its monotonic clock, in thousandths.
    pub(super) clock_permille: u32,
}

/// The end of a life.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Death {
    pub(super) life: u64,
    pub(super) power: bool,
}

impl HostState {
    pub(super) fn new(name: &str, faults: &Faults) -> Self {
        Self {
            name: name.to_owned(),
            life: 1,
            dying: None,
            disk: DiskState::new(faults.disk_bytes),
            memory: MemoryState::new(faults.memory_bytes),
            paused_until: Duration::ZERO,
            clock_permille: RIGHT_RATE,
        }
    }
}

impl Shared {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        let state = State {
            rng: Random::new(seed),
            faults,
            trace: Trace { hash: 0xcbf2_9ce4_8422_2325, verbose: false },
            now: Duration::ZERO,
            leap: Duration::ZERO,
            last_number: 0,
            executor: Executor::default(),
            hosts: Vec::new(),
            net: NetState::default(),
            disk_operations: 0,
            mishaps: Mishaps::default(),
            stopped: false,
        };
        Self { seed, state: Mutex::new(state), ready: Arc::new(Ready::default()) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    pub(super) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Adds an event to the trace.
    pub(super) fn record(&mut self, event: Event, subject: u64, detail: u64) {
        if self.trace.verbose {
            let (now, step) = (self.now, self.executor.steps);
            eprintln!("{now:>14.6?} step {step:>6} {event:?} {subject} {detail:#x}");
        }
        self.trace.add(event as u64);
        self.trace.add(subject);
        self.trace.add(detail);
    }
}

/// An event in the trace.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Step = 1,
    Jump,
    Spawn,
    Random,
    Read,
    Name,
    Write,
    Sync,
    Fail,
    Interrupt,
    Map,
    Connect,
    Send,
    Receive,
    Crash,
    PowerCut,
}

/// A hash over all events.
pub(super) struct Trace {
    pub(super) hash: u64,
    pub(super) verbose: bool,
}

impl Trace {
    fn add(&mut self, word: u64) {
        // FNV-1a by words, turned so that the upper bits reach the lower ones.
        self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
}

/// One life of one host: each of the parts of an [`crate::Env`] of the simulation.
#[derive(Clone)]
pub(super) struct Machine {
    pub(super) shared: Arc<Shared>,
    pub(super) host: usize,
    pub(super) life: u64,
}

impl Machine {
    pub(super) fn is_alive(&self, state: &State) -> bool {
        state.hosts[self.host].life == self.life
    }

    pub(super) fn check_alive(&self, state: &State) -> io::Result<()> {
        if self.is_alive(state) {
            return Ok(());
        }
        Err(io::Error::other(
            "the process of this environment has crashed: ask the world for a new one",
        ))
    }

    /// The end of this life, while a crash drops its tasks.
    pub(super) fn death(&self, state: &State) -> Option<Death> {
        state.hosts[self.host].dying.filter(|death| death.life == self.life)
    }
}
