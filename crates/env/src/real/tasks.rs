//! Tasks on tokio's threads, sessions on threads of their own.
//!
//! A thread has the niceness of the one that starts it, and only root may lower it again. So
//! background threads start none but their own kind.

use crate::{Task, TaskHandle, Tasks};
use futures_util::future::{AbortHandle, Abortable};
use parking_lot::Mutex;
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use tokio::runtime::Handle;

thread_local! {
    /// Whether the thread is one of the background.
    static YIELDS: Cell<bool> = const { Cell::new(false) };
}

/// Makes the calling thread one of the background.
pub(super) fn yield_to_others() {
    YIELDS.set(true);
    // A refusal is no error: the thread then does not yield.
    let _ = rustix::process::setpriority_process(None, super::BACKGROUND_NICE);
}

pub(super) struct RealTasks {
    foreground: Handle,
    background: Handle,
}

impl RealTasks {
    pub(super) fn new(foreground: Handle, background: Handle) -> Self {
        Self { foreground, background }
    }
}

impl Tasks for RealTasks {
    fn spawn(&self, name: &'static str, task: Task) -> TaskHandle {
        let task = self.background.spawn(named(name, task)).abort_handle();
        TaskHandle::new(Box::new(move || task.abort()))
    }

    fn spawn_foreground(&self, name: &'static str, task: Task) -> TaskHandle {
        let task = self.foreground.spawn(named(name, task)).abort_handle();
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
        let foreground = self.foreground.clone();
        let start = move || {
            let started = std::thread::Builder::new().name(name.to_owned()).spawn({
                let (slot, foreground) = (slot.clone(), foreground.clone());
                move || {
                    if let Err(error) = drive(&slot) {
                        run_with_others(name, &slot, &foreground, &error);
                    }
                }
            });
            if let Err(error) = started {
                run_with_others(name, &slot, &foreground, &error);
            }
        };
        if YIELDS.get() {
            self.foreground.spawn(async move { start() });
        } else {
            start();
        }
        TaskHandle::new(Box::new(move || abort.abort()))
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) {
        let kind = if YIELDS.get() { &self.background } else { &self.foreground };
        kind.spawn_blocking(work);
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

/// Runs the task on the threads of the foreground: a machine without threads or file descriptors to
/// spare serves slowly rather than not at all.
fn run_with_others(
    name: &'static str,
    slot: &Mutex<Option<Task>>,
    foreground: &Handle,
    error: &io::Error,
) {
    tracing::warn!(task = name, %error, "no thread for this session: it shares those of others");
    let task = slot.lock().take();
    if let Some(task) = task {
        foreground.spawn(task);
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn only_the_background_yields() {
        let (env, _runtime) = crate::real::env().unwrap();
        let (tell, told) = mpsc::channel();
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let usual = niceness();
        let note = move |what: &'static str| {
            let tell = tell.clone();
            move || tell.send((what, niceness() > usual)).unwrap()
        };
        let (session, blocking) = (note("a session of the background"), note("its blocking work"));
        let (far, background) = (env.clone(), note("background"));
        env.spawn("test", async move {
            background();
            far.spawn_session("test", async move { session() });
            far.blocking(blocking).await;
        });
        let (far, foreground) = (env.clone(), note("foreground"));
        let blocking = note("blocking work of the foreground");
        env.spawn_foreground("test", async move {
            foreground();
            far.blocking(blocking).await;
        });
        let session = note("a session");
        env.spawn_session("test", async move { session() });
        let wait = || told.recv_timeout(Duration::from_secs(30)).unwrap();
        let mut all: Vec<_> = (0..6).map(|_| wait()).collect();
        all.sort();
        let expected = [
            ("a session", false),
            ("a session of the background", false),
            ("background", true),
            ("blocking work of the foreground", false),
            ("foreground", false),
            ("its blocking work", true),
        ];
        assert_eq!(all, expected);
    }
}
