//! The operating system.
//!
//! Two kinds of threads: a few **background** threads (one tokio runtime) for tasks that wait for
//! the network or for other tasks, and one thread per **session** with a runtime of its own, which
//! may drive the disk and so block.

pub mod access;
mod clock;
pub mod descriptors;
mod device;
mod disk;
pub mod folder;
pub mod memory;
pub mod net;
pub mod netlink;
pub mod panics;
mod random;
pub mod standard_error;
mod tasks;

pub use clock::{before_first_instruction, first_instruction, since_boot};

use crate::{Env, Parts};
use std::future::Future;
use std::io;
use std::time::Duration;

/// Threads of the foreground: what clients wait for reads and writes flash in them.
const FOREGROUND_THREADS: usize = 4;
/// Background threads: two, because they mostly pass messages on; what blocks goes elsewhere.
const BACKGROUND_THREADS: usize = 2;
/// Niceness of the background threads: they yield to what clients wait for when there are not
/// enough processors, in this process and in others.
const BACKGROUND_NICE: i32 = 10;
/// Most threads of each kind that run [`Env::blocking`] work at a time; more work waits in a queue.
const BLOCKING_THREADS_MAX: usize = 64;

/// The threads of tasks: those in the foreground, and those in the background. Its drop stops the
/// threads, and their tasks end at their next suspension.
pub struct Runtime {
    /// Present until drop.
    kinds: Option<Kinds>,
}

/// The tokio runtimes.
struct Kinds {
    foreground: tokio::runtime::Runtime,
    background: tokio::runtime::Runtime,
}

/// Makes the environment of the real machine, and the threads that its background tasks need.
pub fn env() -> io::Result<(Env, Runtime)> {
    access::keep_private();
    descriptors::raise_limit();
    descriptors::outlive_file_size();
    let foreground = threads("foreground", FOREGROUND_THREADS).build()?;
    let mut background = threads("background", BACKGROUND_THREADS);
    let background = background.on_thread_start(tasks::yield_to_others).build()?;
    let tasks = tasks::RealTasks::new(foreground.handle().clone(), background.handle().clone());
    let env = Env::new(Parts {
        clock: Box::new(clock::RealClock::new()),
        random: Box::new(random::RealRandom),
        disk: Box::new(disk::RealDisk),
        memory: Box::new(memory::RealMemory),
        net: Box::new(net::RealNet::new(foreground.handle().clone())),
        tasks: Box::new(tasks),
    });
    Ok((env, Runtime { kinds: Some(Kinds { foreground, background }) }))
}

fn threads(name: &str, count: usize) -> tokio::runtime::Builder {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(count).max_blocking_threads(BLOCKING_THREADS_MAX);
    builder.thread_name(name).enable_all();
    builder
}

impl Runtime {
    /// Runs `work` on the caller's thread, which must not be one of a runtime, and waits for its
    /// end.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.kinds().background.block_on(work)
    }

    /// The tokio runtime of the background threads, for libraries that want one (an HTTP server,
    /// signals).
    #[must_use]
    pub fn handle(&self) -> &tokio::runtime::Handle {
        self.kinds().background.handle()
    }

    /// Stops the threads, giving blocking work that is under way `patience` to finish.
    pub fn shut_down(mut self, patience: Duration) {
        if let Some(Kinds { foreground, background }) = self.kinds.take() {
            foreground.shutdown_timeout(patience / 2);
            background.shutdown_timeout(patience / 2);
        }
    }

    fn kinds(&self) -> &Kinds {
        self.kinds.as_ref().expect("the threads live until drop")
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // Not tokio's own drop: that waits for blocking work without end, and panics inside a task.
        if let Some(Kinds { foreground, background }) = self.kinds.take() {
            foreground.shutdown_background();
            background.shutdown_background();
        }
    }
}
