//! The only door to the machine: clock, random numbers, disk, memory that outlives the process,
//! network, tasks.
//!
//! All code above asks an [`Env`], and never names `std::{time, fs, net, thread}`,
//! `tokio::{time, net, fs, spawn}` or a random generator (clippy refuses them). So a whole node
//! runs either on the operating system ([`real`]) or on one thread from one seed with faults
//! ([`sim`]), and the code above cannot tell.
//!
//! Shape of I/O: calls are futures. On the real machine a disk call **does its work in the first
//! poll**, on the caller's thread: a hop to another thread costs 10-22 us each way, and a write to
//! flash about 90 us. So the task that needs the bytes durable drives the disk itself. Work that
//! may block for long (object stores, folders) goes through [`Env::spawn`] or [`Env::blocking`].

mod address;
mod aligned;
pub mod boot;
pub mod limits;
pub mod real;
mod result;
pub mod sim;
mod switch;
#[cfg(test)]
mod tests;
mod traits;
mod way;

pub use address::BadAddress;
pub use aligned::{Aligned, DIRECT_BYTES};
pub use switch::Switch;
pub use traits::{
    Accepted, Acceptor, Address, BoxFuture, Clock, Descriptors, Disk, File, FileKind, Memory,
    Moment, Net, Open, Random, Region, Stream, Task, TaskHandle, Tasks, Timestamp,
};
pub use way::{give_way, ways_given};

use parking_lot::Mutex;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A handle to the machine; clones are cheap and mean the same machine.
#[derive(Clone)]
pub struct Env {
    parts: Arc<Parts>,
    boot: Arc<boot::Record>,
    aging: Arc<Mutex<Aging>>,
}

/// The state of [`Env::aging_clock`] and [`Env::uptime`].
struct Aging {
    /// The moment at which this process began.
    began: Moment,
    /// A moment, and the wall-clock time at that moment.
    seen: (Moment, Timestamp),
}

/// The parts of an environment; [`real::env`] and [`sim::World`] fill it.
pub struct Parts {
    pub clock: Box<dyn Clock>,
    pub random: Box<dyn Random>,
    pub disk: Box<dyn Disk>,
    pub memory: Box<dyn Memory>,
    pub net: Box<dyn Net>,
    pub tasks: Box<dyn Tasks>,
}

/// The error of [`Env::timeout`] when its time has run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

impl Env {
    /// An environment of these parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let (began, wall) = (parts.clock.now(), parts.clock.wall_clock());
        let aging = Arc::new(Mutex::new(Aging { began, seen: (began, wall) }));
        Self { parts: Arc::new(parts), boot: Arc::default(), aging }
    }

    /// Monotonic time since some fixed moment.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.parts.clock.now()
    }

    /// Wall-clock time: for display and records, never for decisions.
    #[must_use]
    pub fn wall_clock(&self) -> Timestamp {
        self.parts.clock.wall_clock()
    }

    /// The wall clock for deletions by age: a leap ahead of the wall clock within this process
    /// makes nothing older.
    #[must_use]
    pub fn aging_clock(&self) -> Timestamp {
        let (now, wall) = (self.now(), self.wall_clock());
        let mut aging = self.aging.lock();
        let (then, clock) = aging.seen;
        let passed = u64::try_from(now.since(then).as_micros()).unwrap_or(u64::MAX);
        let lived = Timestamp(clock.0.saturating_add(passed));
        if wall < lived {
            aging.seen = (now, wall);
        }
        wall.min(lived)
    }

    /// Time for which this process has run: a clock that was wrong at its start may have been set
    /// right since.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.now().since(self.aging.lock().began)
    }

    /// Completes after `duration`. A task may pass it on to another one, on any thread, and end.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.parts.clock.sleep(duration)
    }

    /// Runs `work`, but no longer than `limit`.
    pub async fn timeout<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        let sleep = self.sleep(limit);
        let mut work = std::pin::pin!(work);
        let mut sleep = std::pin::pin!(sleep);
        std::future::poll_fn(|context| {
            if let std::task::Poll::Ready(value) = work.as_mut().poll(context) {
                return std::task::Poll::Ready(Ok(value));
            }
            sleep.as_mut().poll(context).map(|()| Err(Elapsed))
        })
        .await
    }

    /// A random array, for identifiers and nonces.
    #[must_use]
    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.parts.random.fill(&mut bytes);
        bytes
    }

    /// A random number.
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        u64::from_le_bytes(self.random())
    }

    /// The disk.
    #[must_use]
    pub fn disk(&self) -> &dyn Disk {
        &*self.parts.disk
    }

    /// Memory that outlives the process.
    #[must_use]
    pub fn memory(&self) -> &dyn Memory {
        &*self.parts.memory
    }

    /// The network.
    #[must_use]
    pub fn net(&self) -> &dyn Net {
        &*self.parts.net
    }

    /// Starts a background task. The task runs on the background threads (real) or as one more task
    /// (simulation), until it ends or its handle aborts it; dropping the handle lets it run on.
    /// These threads yield to those that clients wait for, and to other programs.
    pub fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> TaskHandle {
        self.parts.tasks.spawn(name, Box::pin(task))
    }

    /// Starts a task that a client waits for, on threads that it shares with others of its kind
    /// (real). They yield to no one, so what may take long does not belong there.
    pub fn spawn_foreground(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> TaskHandle {
        self.parts.tasks.spawn_foreground(name, Box::pin(task))
    }

    /// Starts a task on a thread of its own (real), so that the task may drive the disk without
    /// keeping other tasks waiting.
    pub fn spawn_session(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> TaskHandle {
        self.parts.tasks.spawn_session(name, Box::pin(task))
    }

    /// Reads a file as a whole. One of more than `most` bytes is refused as invalid.
    pub async fn read_file(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let file = self.disk().open(path, Open::Read).await?;
        let length = file.length().await?;
        if length > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is far too long"));
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        file.read_at(&mut bytes, 0).await?;
        Ok(bytes)
    }

    /// Replaces a file in a folder as a whole, durably: after a crash it is the old or the new one.
    pub async fn replace_file(&self, folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
        let next = folder.join(format!("{name}.new"));
        let file = self.disk().open(&next, Open::Create).await?;
        file.set_length(bytes.len() as u64).await?;
        file.write_at(bytes, 0).await?;
        file.sync_data().await?;
        self.disk().rename(&next, &folder.join(name)).await?;
        self.disk().sync_folder(folder).await
    }

    /// Runs `work`, which may block for long, away from the caller's thread, and gives its result.
    /// The work is done even when the future is dropped.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (sender, result) = result::channel("blocking work");
        self.parts.tasks.blocking(Box::new(move || sender.send(work())));
        result.await
    }

    /// Runs `task` as a background task and gives its result: for futures that need the background
    /// threads (an object store's client) when the caller is a session. The task is done even when
    /// the future is dropped.
    pub async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.start(name, task).await
    }

    /// Starts `task` as a background task at once; the future gives its result.
    pub fn start<T: Send + 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = T> + Send + 'static {
        let (sender, result) = result::channel("a background task");
        self.spawn(name, async move { sender.send(task.await) });
        result
    }
}
