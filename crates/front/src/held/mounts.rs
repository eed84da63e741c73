//! Locks of mounts: ranges (`fcntl`) and whole files (`flock`). The two do not see one another, as
//! in any file system of Linux. A client of NFS has one kind for both, which both see.

use super::ranges::{self, Span};
use super::{Conflict, HasGone, Held, Refused, limits};

/// A program that locks through a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Locker {
    /// The number that the mount has drawn.
    pub mount: u64,
    /// The owner, as the mount's kernel names it: a process, or an open file.
    pub owner: u64,
    /// The process that asks; several may share an owner.
    pub process: u32,
    /// Whether it locks the file as `flock` does.
    pub is_whole: bool,
}

/// The locks of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountLocks {
    pub mount: u64,
    pub owner: u64,
    /// The process that has asked last.
    pub process: u32,
    pub is_whole: bool,
    pub spans: Vec<Span>,
}

impl MountLocks {
    fn is_of(&self, locker: &Locker) -> bool {
        let other = (locker.mount, locker.owner, locker.is_whole);
        (self.mount, self.owner, self.is_whole) == other
    }
}

impl Held {
    /// Returns the lock of a mount that hinders one, among those of some owners.
    pub(super) fn conflict_with_mounts(
        &self,
        counts: impl Fn(&MountLocks) -> bool,
        span: &Span,
    ) -> Option<Conflict> {
        let theirs = self.mounts.iter().filter(|locks| counts(locks));
        theirs
            .flat_map(|locks| locks.spans.iter().map(move |span| (locks, span)))
            .find(|(_, theirs)| theirs.conflicts(span))
            .map(|(locks, theirs)| Conflict {
                span: *theirs,
                client: locks.mount,
                owner: locks.owner.to_be_bytes().to_vec(),
                process: Some(locks.process),
            })
    }

    /// Returns the lock that hinders one of a mount.
    fn hindrance(&self, locker: &Locker, span: &Span) -> Option<Conflict> {
        let counts = |locks: &MountLocks| locks.is_whole == locker.is_whole && !locks.is_of(locker);
        self.conflict_with_clients(|_| true, span)
            .or_else(|| self.conflict_with_mounts(counts, span))
    }

    /// Locks a range for a program of a mount. Returns the lock that hinders it. A `flock` that is
    /// not given has taken back the one that its owner had: two that both want more than they have
    /// would wait for one another for ever.
    pub fn set(
        &mut self,
        locker: &Locker,
        span: Span,
        has_gone: &HasGone<'_>,
    ) -> Result<Option<Conflict>, Refused> {
        if locker.is_whole {
            self.mounts.retain(|locks| !locks.is_of(locker));
        }
        if self.hindrance(locker, &span).is_some() {
            self.forsake(has_gone);
        }
        if let Some(conflict) = self.hindrance(locker, &span) {
            return Ok(Some(conflict));
        }
        if self.spans() >= limits::SPANS_MAX {
            return Err(Refused::Full);
        }
        let Locker { mount, owner, process, is_whole } = *locker;
        match self.mounts.iter_mut().find(|locks| locks.is_of(locker)) {
            Some(its) => {
                its.process = process;
                ranges::put(&mut its.spans, span);
            }
            None => {
                self.may_grow()?;
                let spans = vec![span];
                self.mounts.push(MountLocks { mount, owner, process, is_whole, spans });
            }
        }
        Ok(None)
    }

    /// Says whether a program of a mount could have a lock.
    pub fn probe(&self, locker: &Locker, span: &Span, has_gone: &HasGone<'_>) -> Option<Conflict> {
        let mut rest = self.clone();
        while let Some(conflict) = rest.hindrance(locker, span) {
            if !rest.gives_way(&conflict, has_gone) {
                return Some(conflict);
            }
        }
        None
    }

    /// Gives back a range that a program of a mount has locked, or none.
    pub fn clear(&mut self, locker: &Locker, span: &Span) -> Result<(), Refused> {
        let Some(its) = self.mounts.iter_mut().find(|locks| locks.is_of(locker)) else {
            return Ok(());
        };
        let mut left = its.spans.clone();
        ranges::take(&mut left, span);
        if left.len() > limits::SPANS_MAX {
            return Err(Refused::Full);
        }
        its.spans = left;
        self.mounts.retain(|locks| !locks.spans.is_empty());
        Ok(())
    }

    /// Drops all locks of a mount.
    pub fn leave(&mut self, mount: u64) {
        self.mounts.retain(|locks| locks.mount != mount);
    }

    /// Whether a mount alone holds anything.
    pub fn is_alone(&self, mount: u64) -> bool {
        self.opens.is_empty()
            && self.locks.is_empty()
            && self.mounts.iter().all(|locks| locks.mount == mount)
    }

    /// Whether a mount has locks.
    pub fn has_mount(&self, mount: u64) -> bool {
        self.mounts.iter().any(|locks| locks.mount == mount)
    }
}
