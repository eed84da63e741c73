//! The order of requests about locks, and the waits for them.
//!
//! What is about the locks of a file goes in the order in which the mount has sent it: a program
//! that closes a file and opens it again finds it free. A wait ends with an INTERRUPT, and with the
//! session, over whose successor the mount asks again.

use super::limits;
use super::wire::{InHeader, LockAsk, Op};
use crate::target::Failed;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rekindle_file::{Errno, Ino};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::{OwnedMutexGuard, watch};

/// Hears the reason why a wait is to end.
pub type Cancel = watch::Receiver<Option<Failed>>;

/// The requests about the locks of one file, one after the other.
type Queue = Arc<tokio::sync::Mutex<()>>;

/// The turn of a request among those about the locks of its file.
pub struct Turn {
    queue: Queue,
    /// The place that it has taken when it came.
    place: Option<BoxFuture<'static, OwnedMutexGuard<()>>>,
}

impl Turn {
    async fn take(queue: Queue) -> Self {
        let mut place: BoxFuture<'static, _> = Box::pin(queue.clone().lock_owned());
        // The first poll takes the place in the queue.
        let place = match poll_fn(|context| Poll::Ready(place.as_mut().poll(context))).await {
            Poll::Ready(guard) => Box::pin(async move { guard }),
            Poll::Pending => place,
        };
        Self { queue, place: Some(place) }
    }

    /// Waits until it is there.
    pub async fn come(&mut self) -> OwnedMutexGuard<()> {
        match self.place.take() {
            Some(place) => place.await,
            None => self.queue.clone().lock_owned().await,
        }
    }
}

/// What is under way about locks in a session.
#[derive(Default)]
pub struct Locking {
    queues: Mutex<HashMap<Ino, Queue>>,
    waits: Mutex<Waits>,
}

/// Locks that are waited for, by the kernel's number of the request.
#[derive(Default)]
struct Waits {
    all: HashMap<u64, Wait>,
    has_ended: bool,
}

struct Wait {
    ino: Ino,
    owner: u64,
    is_whole: bool,
    cancel: watch::Sender<Option<Failed>>,
}

impl Locking {
    /// Gives a request about locks its turn. `None`: it is about something else.
    pub async fn enter(&self, header: &InHeader, op: &Op<'_>) -> Option<(Turn, Cancel)> {
        let (ino, (cancel, cancelled)) = (header.ino, watch::channel(None));
        match op {
            Op::SetLock { ask, waits: true } if !ask.unlocks => {
                let LockAsk { owner, is_whole, .. } = *ask;
                self.waits.lock().begin(header.unique, Wait { ino, owner, is_whole, cancel });
            }
            // A process that has closed the file wants no lock of it.
            Op::Flush { owner } => self.waits.lock().give_up(ino, *owner),
            Op::SetLock { .. } | Op::TestLock(_) | Op::Release { unlocks: Some(_) } => {}
            _ => return None,
        }
        let queue = {
            let mut queues = self.queues.lock();
            if queues.len() > limits::LOCK_WAITS_MAX {
                queues.retain(|_, queue| Arc::strong_count(queue) > 1);
            }
            queues.entry(ino).or_default().clone()
        };
        Some((Turn::take(queue).await, cancelled))
    }

    /// Ends the wait of a request whose program a signal has met.
    pub fn interrupt(&self, unique: u64) {
        if let Some(wait) = self.waits.lock().all.remove(&unique) {
            wait.cancel.send_replace(Some(Errno::INTR.into()));
        }
    }

    /// Ends all waits without a reply.
    pub fn end_waits(&self) {
        let mut waits = self.waits.lock();
        waits.has_ended = true;
        for (_, wait) in waits.all.drain() {
            wait.cancel.send_replace(Some(Failed::HangUp));
        }
    }

    /// Whether the session takes no further requests.
    pub fn has_ended(&self) -> bool {
        self.waits.lock().has_ended
    }
}

impl Waits {
    fn begin(&mut self, unique: u64, wait: Wait) {
        self.all.retain(|_, other| !other.cancel.is_closed());
        if self.all.len() >= limits::LOCK_WAITS_MAX {
            wait.cancel.send_replace(Some(Errno::NOLCK.into()));
        } else {
            self.all.insert(unique, wait);
        }
    }

    fn give_up(&mut self, ino: Ino, owner: u64) {
        let is_its = |wait: &Wait| (wait.ino, wait.owner, wait.is_whole) == (ino, owner, false);
        for (_, wait) in self.all.extract_if(|_, wait| is_its(wait)) {
            wait.cancel.send_replace(Some(Errno::NOLCK.into()));
        }
    }
}
