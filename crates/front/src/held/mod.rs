//! What clients hold of one file: opens of NFS clients with their share reservations, and locks of
//! NFS clients and of mounts. Pure, but for [`Keeping`].
//!
//! It is kept with the file ([`rekindle_file::Keeper`]): each change of it is in the log before its
//! client has the reply, so there is nothing to reclaim after a restart, and no grace period. A
//! client that has not been heard of for a lease keeps what it holds until another one wants it:
//! each call is told which holders have gone.

mod format;
mod keeping;
pub mod limits;
mod mounts;
pub mod ranges;
#[cfg(test)]
mod tests;

pub use format::Bad;
pub use keeping::{Act, Keeping, Outcome, read};
pub use mounts::{Locker, MountLocks};

use ranges::Span;

/// A client, in the eyes of what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The client: a machine since its last start.
    pub client: u64,
    /// The machine; 0: not known.
    pub machine: u64,
}

/// One that holds something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party<'a> {
    /// A client of NFS.
    Client(&'a Holder),
    /// A mount, by the number that it has drawn.
    Mount(u64),
}

/// Says of a holder that it has gone.
pub type HasGone<'a> = dyn Fn(Party<'_>) -> bool + 'a;

/// The name that a client gives to an open or to locks of its: their number, and how often they
/// have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    pub id: u64,
    pub seqid: u32,
}

/// Bits of access and of what is denied to others.
pub const READ: u8 = 1;
pub const WRITE: u8 = 2;
pub const BOTH: u8 = 3;

/// An open of the file by an owner: a process or a user of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    pub id: u64,
    pub seqid: u32,
    pub holder: Holder,
    pub owner: Vec<u8>,
    pub access: u8,
    pub deny: u8,
}

/// The locks of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locks {
    pub id: u64,
    pub seqid: u32,
    pub client: u64,
    pub owner: Vec<u8>,
    /// The open that they were asked for with.
    pub open: u64,
    pub spans: Vec<Span>,
}

/// What clients hold of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    pub opens: Vec<Open>,
    pub locks: Vec<Locks>,
    pub mounts: Vec<MountLocks>,
}

/// The lock that hinders another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub span: Span,
    /// The client, or the mount.
    pub client: u64,
    pub owner: Vec<u8>,
    /// Of a mount: the process that has asked for it.
    pub process: Option<u32>,
}

/// Why something is not given, or not taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The client has nothing of that name.
    Unknown,
    /// It has changed since.
    Outdated,
    /// The access is denied by an open, or the denial hinders one.
    Shared,
    /// An open denies it to a caller without one.
    Denies,
    /// The open is not for that.
    Access,
    Invalid,
    /// The file has as many as it may have.
    Full,
    /// Something is held under that name.
    Holds,
    Locked(Conflict),
}

/// Compares the sequence of a stateid with that of its state. A client that says 0 means the last.
fn check_seqid(given: u32, current: u32) -> Result<(), Refused> {
    match given {
        0 => Ok(()),
        given if given == current => Ok(()),
        given if given < current => Err(Refused::Outdated),
        _ => Err(Refused::Unknown),
    }
}

/// Returns the next sequence; 0 means something else.
fn next(seqid: u32) -> u32 {
    seqid.checked_add(1).unwrap_or(1)
}

impl Held {
    pub fn is_empty(&self) -> bool {
        self.opens.is_empty() && self.locks.is_empty() && self.mounts.is_empty()
    }

    /// Drops all that some holders have.
    pub fn forsake(&mut self, has_gone: &HasGone<'_>) {
        let gone = self.opens.iter().filter(|open| has_gone(Party::Client(&open.holder)));
        let gone: Vec<u64> = gone.map(|open| open.holder.client).collect();
        self.opens.retain(|open| !gone.contains(&open.holder.client));
        self.locks.retain(|locks| !gone.contains(&locks.client));
        self.mounts.retain(|locks| !has_gone(Party::Mount(locks.mount)));
    }

    fn machine_of(&self, client: u64) -> Holder {
        let open = self.opens.iter().find(|open| open.holder.client == client);
        open.map_or(Holder { client, machine: 0 }, |open| open.holder)
    }

    fn open_mut(&mut self, client: u64, given: Given) -> Result<&mut Open, Refused> {
        let is_it = |open: &&mut Open| open.id == given.id && open.holder.client == client;
        let open = self.opens.iter_mut().find(is_it).ok_or(Refused::Unknown)?;
        check_seqid(given.seqid, open.seqid)?;
        Ok(open)
    }

    /// Returns the place of some locks.
    fn locks_at(&self, client: u64, given: Given) -> Result<usize, Refused> {
        let is_it = |locks: &Locks| locks.id == given.id && locks.client == client;
        let at = self.locks.iter().position(is_it).ok_or(Refused::Unknown)?;
        check_seqid(given.seqid, self.locks[at].seqid)?;
        Ok(at)
    }

    fn may_grow(&self) -> Result<(), Refused> {
        let all = self.opens.len() + self.locks.len() + self.mounts.len();
        if all < limits::HELD_MAX { Ok(()) } else { Err(Refused::Full) }
    }

    /// Opens the file, or widens the open that the owner has. `id` is that of a new one.
    pub fn open(
        &mut self,
        holder: Holder,
        owner: &[u8],
        (access, deny): (u8, u8),
        id: u64,
        has_gone: &HasGone<'_>,
    ) -> Result<(u64, u32), Refused> {
        let is_its = |open: &Open| open.holder.client == holder.client && open.owner == owner;
        let hinders =
            |open: &Open| !is_its(open) && (open.deny & access != 0 || open.access & deny != 0);
        if self.opens.iter().any(hinders) {
            self.forsake(has_gone);
        }
        if self.opens.iter().any(hinders) {
            return Err(Refused::Shared);
        }
        if let Some(open) = self.opens.iter_mut().find(|open| is_its(open)) {
            (open.access, open.deny) = (open.access | access, open.deny | deny);
            open.seqid = next(open.seqid);
            return Ok((open.id, open.seqid));
        }
        self.may_grow()?;
        let owner = owner.to_vec();
        self.opens.push(Open { id, seqid: 1, holder, owner, access, deny });
        Ok((id, 1))
    }

    /// Returns the open of an owner.
    pub fn find_open(&self, client: u64, owner: &[u8]) -> Option<&Open> {
        self.opens.iter().find(|open| open.holder.client == client && open.owner == owner)
    }

    /// Takes access or denial back.
    pub fn downgrade(
        &mut self,
        client: u64,
        given: Given,
        (access, deny): (u8, u8),
    ) -> Result<(u64, u32), Refused> {
        let open = self.open_mut(client, given)?;
        if access == 0 || access & !open.access != 0 || deny & !open.deny != 0 {
            return Err(Refused::Invalid);
        }
        (open.access, open.deny) = (access, deny);
        open.seqid = next(open.seqid);
        Ok((open.id, open.seqid))
    }

    /// Closes an open. The locks that were asked for with it go, too. Says whether it excluded
    /// others from anything.
    pub fn close(&mut self, client: u64, given: Given) -> Result<bool, Refused> {
        let open = self.open_mut(client, given)?;
        let (id, denied) = (open.id, open.deny != 0);
        let before = self.locks.len();
        self.opens.retain(|open| open.id != id);
        self.locks.retain(|locks| locks.open != id);
        Ok(denied || self.locks.len() != before)
    }

    /// Returns the lock of another owner that hinders one.
    fn conflict(&self, client: u64, owner: &[u8], span: &Span) -> Option<Conflict> {
        let counts = |other: &Locks| (other.client, &other.owner[..]) != (client, owner);
        self.conflict_with_clients(counts, span)
            .or_else(|| self.conflict_with_mounts(|_| true, span))
    }

    /// Returns the lock of a client of NFS that hinders one, among those of some owners.
    fn conflict_with_clients(
        &self,
        counts: impl Fn(&Locks) -> bool,
        span: &Span,
    ) -> Option<Conflict> {
        let theirs = self.locks.iter().filter(|locks| counts(locks));
        theirs
            .flat_map(|locks| locks.spans.iter().map(move |span| (locks, span)))
            .find(|(_, theirs)| theirs.conflicts(span))
            .map(|(locks, theirs)| Conflict {
                span: *theirs,
                client: locks.client,
                owner: locks.owner.clone(),
                process: None,
            })
    }

    /// Counts the ranges that are locked.
    fn spans(&self) -> usize {
        let of_clients = self.locks.iter().map(|locks| locks.spans.len());
        of_clients.chain(self.mounts.iter().map(|locks| locks.spans.len())).sum()
    }

    /// Drops what a holder of a conflict has, if that has gone.
    fn gives_way(&mut self, conflict: &Conflict, has_gone: &HasGone<'_>) -> bool {
        let client = conflict.client;
        if conflict.process.is_some() {
            let has_gone = has_gone(Party::Mount(client));
            self.mounts.retain(|locks| !has_gone || locks.mount != client);
            return has_gone;
        }
        let has_gone = has_gone(Party::Client(&self.machine_of(client)));
        self.locks.retain(|locks| !has_gone || locks.client != client);
        has_gone
    }

    /// Says whether an owner could have a lock.
    pub fn test(
        &self,
        client: u64,
        owner: &[u8],
        span: &Span,
        has_gone: &HasGone<'_>,
    ) -> Result<(), Conflict> {
        let mut rest = self.clone();
        while let Some(conflict) = rest.conflict(client, owner, span) {
            if !rest.gives_way(&conflict, has_gone) {
                return Err(conflict);
            }
        }
        Ok(())
    }

    /// Locks a range for an owner that has an open, and perhaps locks already.
    pub fn lock_first(
        &mut self,
        client: u64,
        given: Given,
        owner: &[u8],
        span: Span,
        id: u64,
        has_gone: &HasGone<'_>,
    ) -> Result<(u64, u32), Refused> {
        let open = self.open_mut(client, given)?.id;
        let is_its = |locks: &Locks| locks.client == client && locks.owner == owner;
        let at = match self.locks.iter().position(is_its) {
            Some(at) => at,
            None => {
                self.may_grow()?;
                let (owner, spans) = (owner.to_vec(), Vec::new());
                self.locks.push(Locks { id, seqid: 0, client, owner, open, spans });
                self.locks.len() - 1
            }
        };
        let id = self.locks[at].id;
        let done = self.lock_at(id, span, has_gone);
        self.locks.retain(|locks| locks.seqid > 0);
        done
    }

    /// Locks a range for an owner that has locks.
    pub fn lock_more(
        &mut self,
        client: u64,
        given: Given,
        span: Span,
        has_gone: &HasGone<'_>,
    ) -> Result<(u64, u32), Refused> {
        let at = self.locks_at(client, given)?;
        self.lock_at(self.locks[at].id, span, has_gone)
    }

    fn lock_at(
        &mut self,
        id: u64,
        span: Span,
        has_gone: &HasGone<'_>,
    ) -> Result<(u64, u32), Refused> {
        let lost = Refused::Unknown;
        let its = self.locks.iter().find(|locks| locks.id == id).ok_or(lost.clone())?;
        let (client, owner, open) = (its.client, its.owner.clone(), its.open);
        let access = self.opens.iter().find(|one| one.id == open).map_or(0, |one| one.access);
        let wanted = if span.exclusive { WRITE } else { READ };
        if access & wanted == 0 {
            return Err(Refused::Access);
        }
        if self.conflict(client, &owner, &span).is_some() {
            self.forsake(has_gone);
        }
        if let Some(conflict) = self.conflict(client, &owner, &span) {
            return Err(Refused::Locked(conflict));
        }
        if self.spans() >= limits::SPANS_MAX {
            return Err(Refused::Full);
        }
        let its = self.locks.iter_mut().find(|locks| locks.id == id).ok_or(lost)?;
        ranges::put(&mut its.spans, span);
        its.seqid = next(its.seqid);
        Ok((its.id, its.seqid))
    }

    /// Returns the locks of an owner.
    pub fn find_locks(&self, client: u64, owner: &[u8]) -> Option<&Locks> {
        self.locks.iter().find(|locks| locks.client == client && locks.owner == owner)
    }

    /// Whether a stateid is of an owner that has a range locked as it says.
    pub fn has_lock(&self, client: u64, owner: &[u8], span: &Span) -> bool {
        let its = self.find_locks(client, owner);
        its.is_some_and(|its| {
            let mut after = its.spans.clone();
            ranges::put(&mut after, *span);
            after == its.spans
        })
    }

    /// Gives a range back.
    pub fn unlock(
        &mut self,
        client: u64,
        given: Given,
        span: &Span,
    ) -> Result<(u64, u32), Refused> {
        let at = self.locks_at(client, given)?;
        let its = &mut self.locks[at];
        let mut left = its.spans.clone();
        ranges::take(&mut left, span);
        if left.len() > limits::SPANS_MAX {
            return Err(Refused::Full);
        }
        its.spans = left;
        its.seqid = next(its.seqid);
        Ok((its.id, its.seqid))
    }

    /// Frees a stateid that holds nothing any more.
    pub fn free(&mut self, client: u64, given: Given) -> Result<(), Refused> {
        if self.open_mut(client, given).is_ok() {
            return Err(Refused::Holds);
        }
        let at = self.locks_at(client, given)?;
        if !self.locks[at].spans.is_empty() {
            return Err(Refused::Holds);
        }
        self.locks.remove(at);
        Ok(())
    }

    /// Says whether a stateid is good.
    pub fn look(&mut self, client: u64, given: Given) -> Result<(), Refused> {
        match self.open_mut(client, given) {
            Err(Refused::Unknown) => self.locks_at(client, given).map(drop),
            found => found.map(drop),
        }
    }

    /// Lets a client read or write with a stateid.
    pub fn may(&mut self, client: u64, given: Given, wanted: u8) -> Result<(), Refused> {
        let access = match self.open_mut(client, given) {
            Ok(open) => open.access,
            Err(Refused::Unknown) => {
                let open = self.locks[self.locks_at(client, given)?].open;
                self.opens.iter().find(|one| one.id == open).map_or(0, |one| one.access)
            }
            Err(status) => return Err(status),
        };
        if access & wanted == wanted { Ok(()) } else { Err(Refused::Access) }
    }

    /// Lets a caller without an open read or write.
    pub fn may_without(&self, wanted: u8, has_gone: &HasGone<'_>) -> Result<(), Refused> {
        let hinders =
            |open: &Open| open.deny & wanted != 0 && !has_gone(Party::Client(&open.holder));
        if self.opens.iter().any(hinders) { Err(Refused::Denies) } else { Ok(()) }
    }

    /// Whether no stateid of the file has a number.
    pub fn is_free(&self, id: u64) -> bool {
        id != 0
            && self.opens.iter().all(|open| open.id != id)
            && self.locks.iter().all(|locks| locks.id != id)
    }
}
