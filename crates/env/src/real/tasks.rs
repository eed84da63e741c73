//! Background tasks on tokio's threads, sessions on threads of their own.

use crate::{Task, TaskHandle, Tasks};
use futures_util::future::{AbortHandle, Abortable};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use tokio::runtime::Handle;

pub(super) struct RealTasks {
    background: Handle,
}

impl RealTasks {
    pub(super) fn new(background: Handle) -> Self {
        Self { background }
    }
}

impl Tasks for RealTasks {
    fn spawn(&self, name: &'static str, task: Task) -> TaskHandle {
        let task = self.background.spawn(named(name, task)).abort_handle();
        TaskHandle::new(Box::new(move || task.abort()))
    }

    fn spawn_session(&self, name: &'static str, task: Task) -> TaskHandle {
        let (abort, registration) = AbortHandle::new_pair();
        let task: Task = Box::pin(async move {
            // `Err` means aborted, which is an end like any other.
            let _ = Abortable::new(named(name, task), registration).await;
        });
        // In a slot, so that the task is not lost when its thread cannot be had.
        let slot = Arc::new(Mutex::new(Some(task)));
        let background = self.background.clone();
        let started = std::thread::Builder::new().name(name.to_owned()).spawn({
            let (slot, background) = (slot.clone(), background.clone());
            move || {
                if let Err(error) = drive(&slot) {
                    run_in_background(name, &slot, &background, &error);
                }
            }
        });
        if let Err(error) = started {
            run_in_background(name, &slot, &background, &error);
        }
        TaskHandle::new(Box::new(move || abort.abort()))
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) {
        self.background.spawn_blocking(work);
    }
}

/// Runs the task in `slot` to its end on this thread.
fn drive(slot: &Mutex<Option<Task>>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let task = slot.lock().take();
    if let Some(task) = task {
        runtime.block_on(task);
    }
    // Not tokio's own drop: that would wait for name look-ups and the like, which no task needs any
    // more.
    runtime.shutdown_background();
    Ok(())
}

/// Runs the task on the background threads: a machine without threads or file descriptors to spare
/// serves slowly rather than not at all.
fn run_in_background(
    name: &'static str,
    slot: &Mutex<Option<Task>>,
    background: &Handle,
    error: &io::Error,
) {
    tracing::warn!(task = name, %error, "no thread for this session: it shares the background threads");
    let task = slot.lock().take();
    if let Some(task) = task {
        background.spawn(task);
    }
}

/// Logs the name of a task that panics: threads carry the names of runtimes.
async fn named(name: &'static str, task: Task) {
    struct Named(&'static str);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                tracing::error!(task = self.0, "a task panicked");
            }
        }
    }
    let _named = Named(name);
    task.await;
}
