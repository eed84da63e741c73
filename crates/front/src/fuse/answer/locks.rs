//! Locks of programs that use a mount: kept with the file ([`crate::held`]), so that all mounts and
//! NFS clients of a volume exclude one another, and the next process knows them. A lock that is
//! waited for is tried again when something changes.

use super::Question;
use crate::fuse::limits;
use crate::fuse::locking::{Cancel, Turn};
use crate::fuse::replies::Body;
use crate::fuse::wire::{LockAsk, LockOut, Op};
use crate::held::ranges::Span;
use crate::held::{Conflict, Held, Keeping, Locker, Outcome, Party, Refused, read};
use crate::target::{Failed, Target};
use rekindle_file::{Caller, Errno};

/// All bytes of a file.
const WHOLE: Span = Span { start: 0, end: u64::MAX, exclusive: true };

/// What an attempt leaves.
struct Left {
    /// The lock that hinders it.
    conflict: Option<Conflict>,
    /// Whether the mount has locks of the file, and whether it alone has.
    has_locks: bool,
    is_alone: bool,
}

impl Left {
    fn of(conflict: Option<Conflict>, held: &Held, mount: u64) -> Self {
        Self { conflict, has_locks: held.has_mount(mount), is_alone: held.is_alone(mount) }
    }
}

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
                    Ok(Left::of(None, held, locker.mount))
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
            Ok(Left::of(None, held, mount))
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
            Ok(Left::of(conflict, held, locker.mount))
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
                    Left { conflict: None, is_alone, .. } => {
                        return Ok(Body::locked(is_alone && self.has_been_alone()));
                    }
                    _ if !waits => return Err(Errno::AGAIN.into()),
                    _ => {}
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

    /// Whether no other client of the volume has taken or given anything back for so long that the
    /// kernel of this mount believes no name from then.
    fn has_been_alone(&self) -> bool {
        let others = self.target.kept_changes().borrow().by_others(self.origin.client);
        let last = others.map_or(self.target.since(), |at| at.max(self.target.since()));
        self.env.now() - last > 2 * limits::BELIEVED
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
    async fn attempt(&self, act: &Act<'_>) -> Result<Left, Failed> {
        let (volume, mount) = self.enrolled.key();
        let (ino, keeping) = (self.header.ino, Keeping::new(volume, act).of_mount(mount));
        let caller = Caller { keeper: Some(&keeping), ..Caller::default() };
        let done = self.target.keep(caller, ino).await;
        match (done, keeping.take()) {
            (_, Some(Outcome::Refused(_))) => Err(Errno::NOLCK.into()),
            (Ok(_), Some(Outcome::Done(left))) => {
                self.enrolled.holds(ino, left.has_locks);
                Ok(left)
            }
            // Nothing changes in a snapshot: any lock of it may be had.
            (Err(rekindle_file::Error::Posix(Errno::ROFS)), _) => {
                Ok(Left { conflict: None, has_locks: false, is_alone: true })
            }
            (Err(rekindle_file::Error::Posix(Errno::NOSPC)), _) => Err(Errno::NOLCK.into()),
            (Err(error), _) => Err(error.into()),
            (Ok(_), _) => Err(Errno::IO.into()),
        }
    }
}
