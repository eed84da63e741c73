//! What clients hold of a file, in the turn of a change: opens and locks are kept with the file, in
//! the record of the change that makes them.

use super::Work;
use crate::held::{self, Conflict, Held, Outcome, Party, READ, Refused};
use crate::nfs::permission::Credentials;
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::v4::codec::{Special, Stateid, Write};
use crate::nfs::v4::status::{Fault, Status};
use crate::nfs::witness::as_asked;
use crate::target::Target;
use parking_lot::Mutex;
use rekindle_base::VolumeId;
use rekindle_file::{Caller, Errno, Halt, Ino, Sight, is_frozen};

/// Bits of a stateid's parts.
const PART: u64 = (1 << 48) - 1;

/// Number and sequence of the state that an act leaves.
pub type Left = (u64, u32);

/// What is done to what is held of a file.
pub type Act<'a> = held::Act<'a, Left, Refused>;

/// Carries an act out in the turn of a change.
pub type Keeping<'a> = held::Keeping<'a, Left, Refused>;

/// Returns what an act left, or why the change was refused: by it, or for another reason.
pub fn outcome<T>(keeping: &Keeping<'_>, done: Result<T, Fault>) -> Result<(T, Left), Fault> {
    match (done, keeping.take()) {
        (_, Some(Outcome::Refused(refused))) => Err(fault(refused)),
        (_, Some(Outcome::Unreadable)) => Err(Status::IO.into()),
        (Ok(done), Some(Outcome::Done(left))) => Ok((done, left)),
        (Err(fault), _) => Err(fault),
        // The file system has not asked.
        (Ok(_), None) => Err(Status::IO.into()),
    }
}

/// Writes why a lock is not given.
pub fn fault(refused: Refused) -> Fault {
    match refused {
        Refused::Locked(conflict) => Fault::With(Status::DENIED, denied(&conflict)),
        refused => Status::from(refused).into(),
    }
}

/// Writes the lock that hinders another one.
fn denied(conflict: &Conflict) -> Vec<u8> {
    let Conflict { span, client, owner, .. } = conflict;
    let mut out = Vec::new();
    out.put_u64(span.start);
    out.put_u64(span.length());
    out.put_u32(if span.exclusive { 2 } else { 1 });
    out.put_u64(*client);
    out.put_opaque(owner);
    out
}

/// Reads what is held of a file.
pub fn read(kept: Option<&[u8]>, volume: VolumeId) -> Result<Held, Status> {
    held::read(kept, volume).map_err(|_| Status::IO)
}

/// A status that a rule of a change ends with.
#[derive(Default)]
pub struct Refusal(Mutex<Option<Status>>);

impl Refusal {
    pub fn halt(&self, status: Status) -> Halt {
        *self.0.lock() = Some(status);
        Errno::BUSY.into()
    }

    pub fn forget(&self) {
        *self.0.lock() = None;
    }

    pub fn or<T>(&self, done: Result<T, Fault>) -> Result<T, Fault> {
        match (*self.0.lock(), done) {
            (Some(status), Err(_)) => Err(status.into()),
            (_, done) => done,
        }
    }
}

impl<E: Exports> Work<'_, E> {
    /// Whether a holder has gone, in the eyes of this client.
    pub(super) fn has_gone(&self, place: &Place<E::Files>, who: Party<'_>) -> bool {
        let holder = match who {
            Party::Client(holder) => holder,
            Party::Mount(mount) => return self.server.has_mount_gone(&place.export, mount),
        };
        let clients = self.server.clients.lock();
        let asks = clients.holder(self.client());
        clients.has_gone(holder, &asks, place.since, self.server.env.now())
    }

    /// Draws the number of a new stateid.
    pub(super) fn draw(&self) -> u64 {
        (self.server.env.random_u64() & PART).max(1)
    }

    /// Returns the stateid that a client means.
    pub(super) fn meant(&self, given: Stateid) -> Result<Stateid, Status> {
        match given.special() {
            Some(Special::Current) => self.stateid.ok_or(Status::BAD_STATEID),
            _ => Ok(given),
        }
    }

    /// Returns the stateid of an open of a file in a snapshot: nothing is kept of it.
    pub(super) fn frozen_stateid(&self, ino: Ino) -> Stateid {
        let words = [self.client(), ino].map(u64::to_be_bytes).concat();
        let id = self.seal.check(&[&b"nfs4 frozen"[..], &words].concat()) & PART;
        Stateid::new(ino & PART, id.max(1), 1)
    }

    /// Says whether a stateid lets its client read or write a file as one that it has open.
    /// `false`: it is of no open, and permissions decide.
    pub(super) fn check_opened(
        &self,
        place: &Place<E::Files>,
        kept: Option<&[u8]>,
        given: Stateid,
        wanted: u8,
    ) -> Result<bool, Status> {
        let given = self.meant(given)?;
        let mut held = read(kept, place.export.id)?;
        match given.special() {
            Some(Special::Bypass) if wanted == READ => Ok(false),
            Some(_) => {
                held.may_without(wanted, &|holder| self.has_gone(place, holder))?;
                Ok(false)
            }
            None if is_frozen(place.ino) => {
                let is_it = given.other == self.frozen_stateid(place.ino).other;
                if is_it { Ok(true) } else { Err(Status::BAD_STATEID) }
            }
            None if given.ino() != place.ino => Err(Status::BAD_STATEID),
            None => Ok(held.may(self.client(), given.into(), wanted).map(|()| true)?),
        }
    }

    /// The same, for what the file is now.
    pub(super) async fn opened_for(
        &self,
        place: &Place<E::Files>,
        given: Stateid,
        wanted: u8,
    ) -> Result<bool, Fault> {
        let kept = place.export.files.kept(place.ino).await?;
        Ok(self.check_opened(place, kept.as_deref(), given, wanted)?)
    }

    /// Carries an act out on what is held of a file, as a durable change of its own. `None`: it was
    /// carried out before.
    pub(super) async fn hold(
        &self,
        place: &Place<E::Files>,
        act: &Act<'_>,
    ) -> Result<Option<Left>, Fault> {
        let left = self.hold_for_now(place, act).await?;
        place.export.files.sync().await?;
        Ok(left)
    }

    /// The same, without a wait until it is durable.
    pub(super) async fn hold_for_now(
        &self,
        place: &Place<E::Files>,
        act: &Act<'_>,
    ) -> Result<Option<Left>, Fault> {
        if is_frozen(place.ino) {
            return Err(Status::ROFS.into());
        }
        self.note_haunt(place);
        let keeping = Keeping::new(place.export.id, act);
        let rule = |_: &Credentials, _: &dyn Sight| Ok(as_asked());
        let judge = self.judge(&[], &rule);
        let caller = Caller { keeper: Some(&keeping), ..self.with(&judge) };
        let done = place.export.files.keep(caller, place.ino).await;
        match self.carried_out(judge.was_done(), done) {
            Ok(None) => Ok(None),
            done => outcome(&keeping, done).map(|(_, left)| Some(left)),
        }
    }

    /// Returns what is held of the place.
    pub(super) async fn held(&self, place: &Place<E::Files>) -> Result<Held, Fault> {
        let kept = place.export.files.kept(place.ino).await?;
        Ok(read(kept.as_deref(), place.export.id)?)
    }
}
