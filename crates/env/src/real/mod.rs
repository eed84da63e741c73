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

/// Background threads: two, because they only pass messages on; what blocks goes elsewhere.
const BACKGROUND_THREADS: usize = 2;
/// Niceness of the background threads: they yield to those of the sessions when there are not
/// enough processors.
const BACKGROUND_NICE: i32 = 10;
/// Most threads that run [`Env::blocking`] work at a time; more work waits in a queue.
const BLOCKING_THREADS_MAX: usize = 64;

/// The background threads. Its drop stops the threads, and their tasks end at their next
/// suspension.
pub struct Runtime {
    /// Present until drop.
    background: Option<tokio::runtime::Runtime>,
}

/// Makes the environment of the real machine, and the threads that its background tasks need.
pub fn env() -> io::Result<(Env, Runtime)> {
    access::keep_private();
    descriptors::raise_limit();
    descriptors::outlive_file_size();
    let background = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(BACKGROUND_THREADS)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name("background")
        .on_thread_start(|| {
            // The work that clients wait for directly runs on their sessions' threads. A refusal is
            // no error: the threads then do not yield.
            let _ = rustix::process::setpriority_process(None, BACKGROUND_NICE);
        })
        .enable_all()
        .build()?;
    let handle = background.handle().clone();
    let env = Env::new(Parts {
        clock: Box::new(clock::RealClock::new()),
        random: Box::new(random::RealRandom),
        disk: Box::new(disk::RealDisk),
        memory: Box::new(memory::RealMemory),
        net: Box::new(net::RealNet::new(handle.clone())),
        tasks: Box::new(tasks::RealTasks::new(handle)),
    });
    Ok((env, Runtime { background: Some(background) }))
}

impl Runtime {
    /// Runs `work` on the caller's thread, which must not be one of a runtime, and waits for its
    /// end.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.background().block_on(work)
    }

    /// The tokio runtime of the background threads, for libraries that want one (an HTTP server,
    /// signals).
    #[must_use]
    pub fn handle(&self) -> &tokio::runtime::Handle {
        self.background().handle()
    }

    /// Stops the background threads, giving blocking work that is under way `patience` to finish.
    pub fn shut_down(mut self, patience: Duration) {
        if let Some(background) = self.background.take() {
            background.shutdown_timeout(patience);
        }
    }

    fn background(&self) -> &tokio::runtime::Runtime {
        self.background.as_ref().expect("the background threads live until drop")
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // Not tokio's own drop: that waits for blocking work without end, and panics inside a task.
        if let Some(background) = self.background.take() {
            background.shutdown_background();
        }
    }
}
