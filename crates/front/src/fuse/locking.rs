//! Locks of programs that use a mount: kept with the file ([`crate::held`]), so that all mounts and
//! NFS clients of a volume exclude one another, and the next process knows them.
//!
//! What is about the locks of a file goes in the order in which the mount has sent it: a program
//! that closes a file and opens it again finds it free. A lock that is waited for is tried again
//! when something changes; the wait ends with an INTERRUPT, and with the session, over whose
//! successor the mount asks again.

use super::answer::Question;
use super::clients::Key;
use super::limits;
use super::replies::Body;
use super::wire::{InHeader, LockAsk, LockOut, Op};
use crate::held::ranges::Span;
use crate::held::{Conflict, Held, Keeping, Locker, Outcome, Party, Refused, read};
use crate::target::{Failed, Target};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rekindle_file::{Caller, Errno, Ino};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::{OwnedMutexGuard, watch};

/// Hears the reason why a wait is to end.
pub type Cancel = watch::Receiver<Option<Failed>>;

/// The requests about the locks of one file, one after the other.
type Queue = Arc<tokio::sync::Mutex<()>>;

/// All bytes of a file.
const WHOLE: Span = Span { start: 0, end: u64::MAX, exclusive: true };

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
    async fn come(&mut self) -> OwnedMutexGuard<()> {
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

/// What an attempt leaves: the lock that hinders it, and whether the mount has locks of the file.
type Left = (Option<Conflict>, bool);
type Act<'a> = crate::held::Act<'a, Left, Refused>;

impl<T: Target> Question<'_, T> {
    /// Carries a request about locks out.
    pub(super) async fn lock(
        &self,
        op: &Op<'_>,
        mut turn: Turn,
        cancel: Cancel,
    ) -> Result<Body, Failed> {
        match op {
            Op::TestLock(ask) => {
                let locker = self.locker(ask);
                let _turn = turn.come().await;
                let found = self.hindrance(&locker, &ask.span).await?.map(|conflict| {
                    // A process of another mount has no number here.
                    let is_near = conflict.client == locker.mount;
                    (conflict.span, conflict.process.filter(|_| is_near).unwrap_or(0))
                });
                Ok(Body::of(&LockOut::of(found)))
            }
            Op::SetLock { ask, .. } if ask.unlocks => {
                let (locker, span) = (self.locker(ask), ask.span);
                let clear = |held: &mut Held| {
                    held.clear(&locker, &span)?;
                    Ok((None, held.has_mount(locker.mount)))
                };
                let _turn = turn.come().await;
                self.attempt(&clear).await?;
                Ok(Body::default())
            }
            Op::SetLock { ask, waits } => self.take_lock(ask, *waits, turn, cancel).await,
            Op::Flush { owner } => {
                self.unlock(*owner, false, turn).await?;
                Ok(Body::default())
            }
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Gives back all that an owner has locked in one of the two ways.
    pub(super) async fn unlock(
        &self,
        owner: u64,
        is_whole: bool,
        mut turn: Turn,
    ) -> Result<(), Failed> {
        let mount = self.origin.client;
        let locker = Locker { mount, owner, process: 0, is_whole };
        let clear = |held: &mut Held| {
            held.clear(&locker, &WHOLE)?;
            Ok((None, held.has_mount(mount)))
        };
        let _turn = turn.come().await;
        match self.attempt(&clear).await {
            // The file is gone, and its locks with it.
            Ok(_) | Err(Failed::Errno(Errno::STALE)) => Ok(()),
            Err(failed) => Err(failed),
        }
    }

    async fn take_lock(
        &self,
        ask: &LockAsk,
        waits: bool,
        mut turn: Turn,
        mut cancel: Cancel,
    ) -> Result<Body, Failed> {
        let (locker, span) = (self.locker(ask), ask.span);
        let set = |held: &mut Held| {
            let conflict = held.set(&locker, span, &|party| self.has_gone(party))?;
            Ok((conflict, held.has_mount(locker.mount)))
        };
        // Before the first look: no change after it is missed.
        let mut changes = self.target.kept_changes();
        loop {
            {
                let _turn = turn.come().await;
                if let Some(failed) = *cancel.borrow() {
                    return Err(failed);
                }
                changes.mark_unchanged();
                match self.attempt(&set).await? {
                    None => return Ok(Body::default()),
                    Some(_) if !waits => return Err(Errno::AGAIN.into()),
                    Some(_) => {}
                }
            }
            // Looks change nothing, and need no turn.
            while cancel.borrow().is_none() && self.hindrance(&locker, &span).await?.is_some() {
                tokio::select! {
                    biased;
                    _ = cancel.changed() => {}
                    _ = changes.changed() => {}
                    () = self.env.sleep(limits::LOCK_LOOK) => {}
                }
            }
        }
    }

    fn locker(&self, ask: &LockAsk) -> Locker {
        let LockAsk { owner, process, is_whole, .. } = *ask;
        Locker { mount: self.origin.client, owner, process, is_whole }
    }

    /// Whether another holder has gone.
    fn has_gone(&self, party: Party<'_>) -> bool {
        let since = self.target.since();
        match party {
            Party::Client(holder) => (self.has_gone)(holder, since),
            Party::Mount(mount) => self.enrolled.has_gone(mount, since),
        }
    }

    /// Returns the lock that hinders one.
    async fn hindrance(&self, locker: &Locker, span: &Span) -> Result<Option<Conflict>, Failed> {
        let kept = self.target.kept(self.header.ino).await?;
        let held = read(kept.as_deref(), self.enrolled.key().0).map_err(|_| Errno::IO)?;
        Ok(held.probe(locker, span, &|party| self.has_gone(party)))
    }

    /// Carries an act out. The caller has the turn.
    async fn attempt(&self, act: &Act<'_>) -> Result<Option<Conflict>, Failed> {
        let (ino, keeping) = (self.header.ino, Keeping::new(self.enrolled.key().0, act));
        let caller = Caller { keeper: Some(&keeping), ..Caller::default() };
        let done = self.target.keep(caller, ino).await;
        match (done, keeping.take()) {
            (_, Some(Outcome::Refused(_))) => Err(Errno::NOLCK.into()),
            (Ok(_), Some(Outcome::Done((conflict, has_locks)))) => {
                self.enrolled.holds(ino, has_locks);
                Ok(conflict)
            }
            // Nothing changes in a snapshot: any lock of it may be had.
            (Err(rekindle_file::Error::Posix(Errno::ROFS)), _) => Ok(None),
            (Err(rekindle_file::Error::Posix(Errno::NOSPC)), _) => Err(Errno::NOLCK.into()),
            (Err(error), _) => Err(error.into()),
            (Ok(_), _) => Err(Errno::IO.into()),
        }
    }
}

/// Gives back all locks that a mount has of a file.
pub async fn leave<T: Target>(target: &T, (volume, mount): Key, ino: Ino) {
    let act = |held: &mut Held| {
        held.leave(mount);
        Ok::<(), Refused>(())
    };
    let keeping = Keeping::new(volume, &act);
    let caller = Caller { keeper: Some(&keeping), ..Caller::default() };
    if let Err(error) = target.keep(caller, ino).await {
        tracing::debug!(ino, %error, "locks of a mount that is gone stay for now");
    }
}
