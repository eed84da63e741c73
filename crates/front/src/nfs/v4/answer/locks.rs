//! LOCK, LOCKT, LOCKU.

use super::holding::fault;
use super::{Done, Work};
use crate::held::ranges::Span;
use crate::held::{Held, Party, Refused};
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::v4::codec::{Read, Stateid, Write};
use crate::nfs::v4::limits;
use crate::nfs::v4::status::{Fault, Status};
use crate::nfs::xdr::Args;
use crate::target::Target;

/// Reads whether a lock is for writing; a client that would wait asks again.
fn is_exclusive(kind: u32) -> Result<bool, Status> {
    match kind {
        1 | 3 => Ok(false),
        2 | 4 => Ok(true),
        _ => Err(Status::BADXDR),
    }
}

/// Party asks for a lock.
enum Locker<'a> {
    /// An owner that has perhaps none, by its open.
    First(Stateid, &'a [u8]),
    /// One that has some.
    More(Stateid),
}

impl<E: Exports> Work<'_, E> {
    pub(super) async fn lock(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (kind, reclaims) = (is_exclusive(args.u32()?)?, args.flag()?);
        let (offset, length) = (args.u64()?, args.u64()?);
        let locker = match args.flag()? {
            true => {
                let (_seqid, open, _) = (args.u32()?, args.stateid()?, args.u32()?);
                let _client = args.u64()?;
                let owner = args.opaque(limits::OWNER_BYTES_MAX)?;
                Locker::First(self.meant(open)?, owner)
            }
            false => {
                let (given, _seqid) = (args.stateid()?, args.u32()?);
                Locker::More(self.meant(given)?)
            }
        };
        let place = self.place()?;
        let span = Span::new(offset, length, kind).ok_or(Status::INVAL)?;
        let client = self.client();
        let (Locker::First(given, _) | Locker::More(given)) = &locker;
        if given.ino() != place.ino {
            return Err(Status::BAD_STATEID.into());
        }
        let left = match (reclaims, &locker) {
            (false, _) => self.lock_now(&place, &locker, span).await?,
            // There is nothing to reclaim: the lock is there, or another client may have it.
            (true, Locker::First(_, owner)) => {
                let held = self.held(&place).await?;
                let its = held.find_locks(client, owner);
                let its = its.filter(|_| held.has_lock(client, owner, &span));
                its.map(|its| (its.id, its.seqid)).ok_or(Status::NO_GRACE)?
            }
            (true, Locker::More(_)) => return Err(Status::NO_GRACE.into()),
        };
        let stateid = Stateid::new(place.ino, left.0, left.1);
        self.stateid = Some(stateid);
        out.put_stateid(&stateid);
        Ok(())
    }

    async fn lock_now(
        &self,
        place: &Place<E::Files>,
        locker: &Locker<'_>,
        span: Span,
    ) -> Result<(u64, u32), Fault> {
        let (client, drawn) = (self.client(), self.draw());
        let act = |held: &mut Held| {
            let gone = |other: Party<'_>| self.has_gone(place, other);
            match locker {
                Locker::First(open, owner) => {
                    let mut id = drawn;
                    while !held.is_free(id) {
                        id = (id + 1).max(1);
                    }
                    held.lock_first(client, (*open).into(), owner, span, id, &gone)
                }
                Locker::More(given) => held.lock_more(client, (*given).into(), span, &gone),
            }
        };
        if let Some(left) = self.hold(place, &act).await? {
            return Ok(left);
        }
        // It was carried out before: its reply was lost.
        let held = self.held(place).await?;
        let its = match locker {
            Locker::First(_, owner) => held.find_locks(client, owner),
            Locker::More(given) => held.locks.iter().find(|locks| locks.id == given.id()),
        };
        Ok(its.map(|its| (its.id, its.seqid)).ok_or(Status::BAD_STATEID)?)
    }

    pub(super) async fn test_lock(&mut self, args: &mut Args<'_>) -> Done {
        let (kind, offset, length) = (is_exclusive(args.u32()?)?, args.u64()?, args.u64()?);
        let _client = args.u64()?;
        let owner = args.opaque(limits::OWNER_BYTES_MAX)?;
        let place = self.place()?;
        super::regular(&place.export.files.attr(place.ino).await?)?;
        let span = Span::new(offset, length, kind).ok_or(Status::INVAL)?;
        let held = self.held(&place).await?;
        let gone = |other: Party<'_>| self.has_gone(&place, other);
        held.test(self.client(), owner, &span, &gone)
            .map_err(|conflict| fault(Refused::Locked(conflict)))
    }

    pub(super) async fn unlock(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (kind, _seqid, given) = (is_exclusive(args.u32()?)?, args.u32()?, args.stateid()?);
        let (offset, length) = (args.u64()?, args.u64()?);
        let place = self.place()?;
        let span = Span::new(offset, length, kind).ok_or(Status::INVAL)?;
        let given = self.meant(given)?;
        if given.ino() != place.ino {
            return Err(Status::BAD_STATEID.into());
        }
        let act = |held: &mut Held| held.unlock(self.client(), given.into(), &span);
        let left = match self.hold(&place, &act).await? {
            Some(left) => left,
            None => {
                let held = self.held(&place).await?;
                let its = held.locks.iter().find(|locks| locks.id == given.id());
                its.map(|its| (its.id, its.seqid)).ok_or(Status::BAD_STATEID)?
            }
        };
        let stateid = Stateid::new(place.ino, left.0, left.1);
        self.stateid = Some(stateid);
        out.put_stateid(&stateid);
        Ok(())
    }
}
