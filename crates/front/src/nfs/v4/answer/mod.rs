//! The answer to each operation of version 4.1.
//!
//! A change is judged in its turn by the witness of version 3, carried out once, and durable before
//! its reply; a WRITE may ask for less. What a client opens and locks is a change, too.

mod acls;
mod attributes;
mod bytes;
mod handles;
mod holding;
mod listing;
mod locks;
mod names;
mod opens;
mod session;
mod stateids;

use super::attributes as words;
use super::codec::{Stateid, Write};
use super::ops::Op;
use super::slots::Begun;
use super::status::{Fault, Status};
use crate::held::Holder;
use crate::nfs::forward::{Ask, Away, Lines, Part, Reply, Standing, Told, Visited, Who};
use crate::nfs::handle::Handle;
use crate::nfs::meters::Meters;
use crate::nfs::permission::Credentials;
use crate::nfs::server::{Place, Server};
use crate::nfs::target::Exports;
use crate::nfs::witness::{Judge, Rule};
use crate::nfs::xdr::Args;
use crate::target::Target;
use rekindle_base::VolumeId;
use rekindle_file::{Attr, Call, Caller, Errno, FileType, Ino, ROOT, Seal, Time};
use session::Turn;

pub use holding::Keeping;

/// A call, and where it comes from.
pub struct Asked<'a, E: Exports> {
    pub server: &'a Server<E>,
    pub caller: &'a Credentials,
    pub meters: &'a Meters,
    /// The machine's lines to other hosts; `None`: the call has come from another one.
    pub lines: Option<&'a Lines>,
    /// The machine's address.
    pub host: &'a str,
    /// The volume of a call that has come from another host.
    pub visited: Option<Visited>,
}

/// Where a COMPOUND is.
enum Spot<T> {
    /// At the list of exports.
    Exports,
    At(Place<T>),
}

impl<T> Clone for Spot<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Exports => Self::Exports,
            Self::At(place) => Self::At(place.clone()),
        }
    }
}

/// A COMPOUND that is being carried out.
pub struct Work<'a, E: Exports> {
    server: &'a Server<E>,
    caller: &'a Credentials,
    meters: &'a Meters,
    visited: Option<Visited>,
    lines: Option<&'a Lines>,
    host: &'a str,
    seal: Seal,
    turn: Option<Turn>,
    /// The place of the operation in the COMPOUND.
    pub at: u32,
    spot: Option<Spot<E::Files>>,
    saved: Option<Spot<E::Files>>,
    stateid: Option<Stateid>,
    saved_stateid: Option<Stateid>,
    /// Bytes of data that the reply may still have.
    room: usize,
    /// Bytes and operations of the COMPOUND.
    pub size: (usize, u32),
}

type Done = Result<(), Fault>;

impl<'a, E: Exports> Work<'a, E> {
    pub fn new(asked: &Asked<'a, E>, seal: Seal, room: usize) -> Self {
        Self {
            server: asked.server,
            caller: asked.caller,
            meters: asked.meters,
            visited: asked.visited,
            lines: asked.lines,
            host: asked.host,
            seal,
            turn: None,
            at: 0,
            spot: None,
            saved: None,
            stateid: None,
            saved_stateid: None,
            room,
            size: (0, 0),
        }
    }

    /// Refuses to send what an operation shows, where the client takes no reply with so many bytes
    /// of results. What changes something has a short result, and is done by then.
    pub fn check_reply(&self, op: Op, bytes: usize) -> Result<(), Status> {
        let most = self.turn.as_ref().map_or(usize::MAX, Turn::reply_bytes_max);
        if op.only_shows() && bytes > most { Err(Status::REP_TOO_BIG) } else { Ok(()) }
    }

    pub fn is_in_session(&self) -> bool {
        self.turn.is_some()
    }

    /// Carries an operation out: the table of all.
    pub async fn run(&mut self, op: Op, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        match op {
            Op::ACCESS => self.access(args, out).await,
            Op::CLOSE => self.close(args, out).await,
            Op::COMMIT => self.commit(args, out).await,
            Op::CREATE => self.create(args, out).await,
            Op::GETATTR => self.attributes(args, out).await,
            Op::GETFH => self.handle(out),
            Op::LINK => self.link(args, out).await,
            Op::LOCK => self.lock(args, out).await,
            Op::LOCKT => self.test_lock(args).await,
            Op::LOCKU => self.unlock(args, out).await,
            Op::LOOKUP => self.look_up(args).await,
            Op::LOOKUPP => self.look_up_parent().await,
            Op::VERIFY => self.verify(args, true).await,
            Op::NVERIFY => self.verify(args, false).await,
            Op::OPEN => self.open(args, out).await,
            Op::OPEN_DOWNGRADE => self.downgrade(args, out).await,
            Op::PUTFH => self.put_handle(args).await,
            Op::PUTPUBFH | Op::PUTROOTFH => self.put_root(),
            Op::READ => self.read(args, out).await,
            Op::READDIR => self.list(args, out).await,
            Op::READLINK => self.read_link(out).await,
            Op::REMOVE => self.remove(args, out).await,
            Op::RENAME => self.rename(args, out).await,
            Op::RESTOREFH => self.restore(),
            Op::SAVEFH => self.save(),
            Op::SECINFO => self.security(args, out).await,
            Op::SECINFO_NO_NAME => self.own_security(args, out).await,
            Op::SETATTR => self.set_attributes(args, out).await,
            Op::WRITE => self.write(args, out).await,
            Op::BIND_CONN_TO_SESSION => self.bind(args, out),
            Op::EXCHANGE_ID => self.exchange_id(args, out).await,
            Op::CREATE_SESSION => self.create_session(args, out),
            Op::DESTROY_SESSION => self.destroy_session(args),
            Op::DESTROY_CLIENTID => self.destroy_client(args),
            Op::RECLAIM_COMPLETE => self.reclaim_complete(args),
            Op::FREE_STATEID => self.free_stateid(args).await,
            Op::TEST_STATEID => self.test_stateids(args, out).await,
            Op::ILLEGAL => Err(Status::OP_ILLEGAL.into()),
            // No delegations, no layouts.
            _ => Err(Status::NOTSUPP.into()),
        }
    }

    /// Takes a request of a session.
    pub fn begin(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Result<Begun, Fault> {
        self.sequence(args, out)
    }

    /// Ends the request, with its reply.
    pub fn end(self, reply: &[u8]) {
        if let Some(turn) = self.turn {
            turn.end(reply);
        }
    }

    /// Looks anew for the volumes of the places where the COMPOUND is.
    pub async fn look_again(&mut self) -> Done {
        for spot in [&mut self.spot, &mut self.saved] {
            if let Some(Spot::At(place)) = spot {
                let handle = place.handle(place.ino).data.to_vec();
                self.server.forget(&handle);
                *place = self.server.place(&handle).await?;
            }
        }
        Ok(())
    }

    /// Returns what another host needs to go on with the operations `ops`, of which the first is at
    /// `at` of `count`. `None`: the COMPOUND is of no session.
    pub fn part<'o>(
        &self,
        (at, count): (u32, u32),
        is_at_root: bool,
        ops: &'o [u8],
    ) -> Option<Part<'o>> {
        let turn = self.turn.as_ref()?;
        let (session, slot, sequence) = turn.request();
        let Holder { client, machine } = self.holder();
        let handle = |spot: &Option<Spot<E::Files>>| match spot {
            Some(Spot::At(place)) => Some(place.handle(place.ino).data.to_vec()),
            Some(Spot::Exports) | None => None,
        };
        let standing = Standing {
            spot: if is_at_root { Some(Vec::new()) } else { handle(&self.spot) },
            saved: handle(&self.saved),
            stateid: self.stateid.filter(|_| !is_at_root),
            saved_stateid: self.saved_stateid,
        };
        let room = self.room as u32;
        Some(Part { session, client, machine, slot, sequence, at, count, room, standing, ops })
    }

    /// Returns the handle of the root of the volume that a client of another host asks for.
    fn root_of(&self, visited: Visited) -> Vec<u8> {
        Handle { volume: visited.volume, ino: ROOT }.encode(&self.seal).data.to_vec()
    }

    /// Goes on with a part of a COMPOUND that another host has begun.
    pub async fn go_on_for(&mut self, part: &Part<'_>, visited: Visited) -> Done {
        let (ids, now) = ((part.session, part.client, part.machine), self.server.env.now());
        let session = self.server.clients.lock().visit(ids, now)?;
        self.turn = Some(Turn::of_visitor(session, part.slot, part.sequence));
        let root = self.root_of(visited);
        for (handle, is_saved) in [(&part.standing.saved, true), (&part.standing.spot, false)] {
            let Some(handle) = handle else { continue };
            let handle = if handle.is_empty() { &root } else { handle };
            // A place in another volume is none here.
            let its = Handle::decode(handle, &self.seal).filter(|its| its.volume == visited.volume);
            if its.is_none() {
                continue;
            }
            let spot = Some(Spot::At(self.server.place(handle).await?));
            match is_saved {
                true => self.saved = spot,
                false => self.spot = spot,
            }
        }
        self.stateid = part.standing.stateid;
        self.saved_stateid = part.standing.saved_stateid;
        Ok(())
    }

    /// Notes that another host has changed something for the request.
    pub fn note_change(&self) {
        self.turn.iter().for_each(Turn::note_change);
    }

    pub fn has_changed(&self) -> bool {
        self.turn.as_ref().is_some_and(Turn::has_changed)
    }

    fn spot(&self) -> Result<&Spot<E::Files>, Fault> {
        self.spot.as_ref().ok_or(Status::NOFILEHANDLE.into())
    }

    /// Returns where the COMPOUND is, in a volume.
    fn place(&self) -> Result<Place<E::Files>, Fault> {
        match self.spot()? {
            Spot::At(place) => Ok(place.clone()),
            // The list of exports is a directory that no client changes.
            Spot::Exports => Err(Status::ROFS.into()),
        }
    }

    fn saved_place(&self) -> Result<Place<E::Files>, Fault> {
        match self.saved.as_ref().ok_or(Status::NOFILEHANDLE)? {
            Spot::At(place) => Ok(place.clone()),
            Spot::Exports => Err(Status::ROFS.into()),
        }
    }

    /// Goes to another inode.
    fn go(&mut self, spot: Spot<E::Files>) {
        self.spot = Some(spot);
        self.stateid = None;
    }

    /// Goes to another inode of the same volume.
    fn go_on(&mut self, place: &Place<E::Files>, ino: Ino) {
        self.go(Spot::At(Place { ino, ..place.clone() }));
    }

    /// Returns the session's client.
    fn client(&self) -> u64 {
        self.turn.as_ref().map_or(0, Turn::client)
    }

    /// Returns the session's client as it holds things.
    fn holder(&self) -> Holder {
        self.server.clients.lock().holder(self.client())
    }

    /// Notes that the session's client holds something of a volume here.
    fn note_haunt(&self, place: &Place<E::Files>) {
        // Of one that has come to another host that host knows it.
        if self.visited.is_none() {
            self.server.note_haunt(self.client(), self.host, &place.export.name);
        }
    }

    /// Asks the host at which a volume's owner runs to go on.
    pub async fn ask_there(&self, volume: &str, part: Part<'_>) -> Result<Told, Away> {
        let never = Away { may_be_done: false };
        let lines = self.lines.ok_or(never)?;
        self.server.note_haunt(part.client, self.host, volume);
        let who = Who {
            host: self.host.to_owned(),
            caller: self.caller.clone(),
            is_read_only: self.server.settings.is_read_only(volume),
        };
        let room = part.room as usize;
        let line = self.server.line(lines, self.host, volume);
        match line.ask(&who, Ask::Part(part), room).await? {
            Reply::Part(told) => Ok(told),
            Reply::Record(_) | Reply::Away => Err(Away { may_be_done: true }),
        }
    }

    fn now(&self) -> Time {
        self.server.env.wall_clock().into()
    }

    /// Returns by what the operation is known when it comes again.
    fn known_as(&self) -> Option<Call> {
        self.known_at(self.at)
    }

    /// The same, of a change at a place.
    fn known_at(&self, place: u32) -> Option<Call> {
        let turn = self.turn.as_ref()?;
        let at = self.server.env.wall_clock().0 / 1_000_000;
        Some(Call { client: turn.client(), at, key: turn.key(&self.seal, place) })
    }

    /// Refuses changes of a volume that is read-only here.
    fn may_change(&self, place: &Place<E::Files>) -> Done {
        match self.server.is_read_only(self.visited.as_ref(), &place.export.name) {
            true => Err(Status::ROFS.into()),
            false => Ok(()),
        }
    }

    /// Makes a judge of a change that must not be carried out twice.
    fn judge<'j>(&'j self, watched: &'j [Ino], rule: &'j Rule<'j>) -> Judge<'j> {
        Judge::new(self.caller, self.known_as(), watched, rule)
    }

    /// Returns the caller of a change, with its judge.
    fn with<'j>(&self, judge: &'j Judge<'j>) -> Caller<'j> {
        Caller {
            uid: self.caller.uid,
            gid: self.caller.gid,
            call: self.known_as(),
            witness: Some(judge),
            ..Caller::default()
        }
    }

    /// Ends a change: it becomes durable. `None`: it was carried out before.
    async fn settle<T>(
        &self,
        place: &Place<E::Files>,
        was_done: bool,
        done: Result<T, rekindle_file::Error>,
    ) -> Result<Option<T>, Fault> {
        let done = self.carried_out(was_done, done)?;
        place.export.files.sync().await?;
        Ok(done)
    }

    /// Notes a change that was made, perhaps before: `None`.
    fn carried_out<T>(
        &self,
        was_done: bool,
        done: Result<T, rekindle_file::Error>,
    ) -> Result<Option<T>, Fault> {
        let done = match done {
            Err(_) if was_done => {
                self.meters.replayed();
                None
            }
            done => Some(done?),
        };
        if let Some(turn) = &self.turn {
            turn.note_change();
        }
        Ok(done)
    }

    /// Writes what a directory was before a change and after it.
    async fn put_change(&self, out: &mut Vec<u8>, place: &Place<E::Files>, judge: &Judge<'_>) {
        use nfs3_types::nfs3::Nfs3Option::Some as There;
        let number = |seconds, nanoseconds| words::change_at(seconds, nanoseconds);
        if let Some(seen) = judge.seen(place.ino, place.volume())
            && let (There(before), There(after)) = (&seen.before, &seen.after)
        {
            out.put_flag(true);
            out.put_u64(number(before.ctime.seconds, before.ctime.nseconds));
            out.put_u64(number(after.ctime.seconds, after.ctime.nseconds));
            return;
        }
        let now = place.export.files.attr(place.ino).await;
        let now = now.map_or(0, |attr| words::change(&attr));
        // Nothing has changed; or it was carried out before, and nothing is known of then.
        let before = if judge.was_done() { now.wrapping_sub(1) } else { now };
        out.put_flag(!judge.was_done());
        out.put_u64(before);
        out.put_u64(now);
    }

    /// The list of exports, as a directory.
    fn exports_attr(&self) -> Attr {
        let now = self.now();
        Attr {
            ino: ROOT,
            kind: FileType::Directory,
            mode: 0o555,
            links: 2,
            uid: 0,
            gid: 0,
            device: 0,
            size: 0,
            allocated: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: Time::default(),
        }
    }

    /// The number of an export in their list.
    fn export_number(&self, name: &str) -> u64 {
        self.seal.check(name.as_bytes()) | 1
    }

    fn exports_handle(&self) -> Vec<u8> {
        exports().encode(&self.seal).data.to_vec()
    }
}

/// The handle of the list of exports: no volume has its id.
fn exports() -> Handle {
    Handle { volume: VolumeId([0; 16]), ino: ROOT }
}

/// Refuses what has no bytes.
fn regular(attr: &Attr) -> Result<(), Status> {
    match attr.kind {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Status::ISDIR),
        FileType::Symlink => Err(Status::SYMLINK),
        _ => Err(Status::WRONG_TYPE),
    }
}

/// Refuses what is no directory.
fn directory(attr: &Attr) -> Result<(), Errno> {
    match attr.kind {
        FileType::Directory => Ok(()),
        _ => Err(Errno::NOTDIR),
    }
}
