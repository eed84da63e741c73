//! OPEN, OPEN_DOWNGRADE, CLOSE.

use super::acls::{self, Of};
use super::handles::{check_name, name};
use super::holding::{Keeping, Left, outcome};
use super::{Done, Work, regular};
use crate::held::{BOTH, Held, Party, READ, WRITE};
use crate::nfs::answer::making::stamps;
use crate::nfs::answer::naming::may_make;
use crate::nfs::permission::Credentials;
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::v4::attributes::{self as words, Asked};
use crate::nfs::v4::codec::{Bitmap, Read, Stateid, Write};
use crate::nfs::v4::limits;
use crate::nfs::v4::status::{Fault, Status};
use crate::nfs::witness::{Judge, Mode, as_asked};
use crate::nfs::xdr::Args;
use crate::target::Target;
use rekindle_file::{Caller, Errno, FileType, Ino, NewNode, Rights, SetAttr, Sight, is_frozen};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bits of an open's access that say what is shared; the others are wishes for a delegation.
const SHARE_BITS: u32 = 3;
/// Bits that OPEN may have at all.
const ACCESS_BITS: u32 = 0x003f_ff03;
/// Flags of the reply: locks are those of POSIX, and a file without a name stays while it is open.
const RESULT: u32 = 4 | 8;

/// How something that exists counts.
enum How<'a> {
    /// A file is fine.
    Unchecked((Bitmap, &'a [u8])),
    /// As an error.
    Guarded((Bitmap, &'a [u8])),
    /// A file that bears the caller's eight bytes is fine.
    Exclusive([u8; 8], (Bitmap, &'a [u8])),
}

enum Claim<'a> {
    /// A name of the current directory.
    Name(&'a [u8]),
    /// The current file, before a restart.
    Previous,
    /// The current file.
    Current,
    /// Of a delegation, which no client has.
    Delegated,
}

/// The arguments of OPEN.
struct Wish<'a> {
    access: u8,
    deny: u8,
    owner: &'a [u8],
    how: Option<How<'a>>,
    claim: Claim<'a>,
}

impl<'a> Wish<'a> {
    fn read(args: &mut Args<'a>) -> Result<Self, Fault> {
        let (_seqid, access, deny) = (args.u32()?, args.u32()?, args.u32()?);
        let _client = args.u64()?;
        let owner = args.opaque(limits::OWNER_BYTES_MAX)?;
        let how = match args.u32()? {
            0 => None,
            1 => Some(match args.u32()? {
                0 => How::Unchecked(words::raw(args)?),
                1 => How::Guarded(words::raw(args)?),
                2 => How::Exclusive(args.eight()?, (Bitmap::default(), b"")),
                3 => How::Exclusive(args.eight()?, words::raw(args)?),
                _ => return Err(Status::BADXDR.into()),
            }),
            _ => return Err(Status::BADXDR.into()),
        };
        let claim = match args.u32()? {
            0 => Claim::Name(name(args)?),
            1 => {
                args.u32()?;
                Claim::Previous
            }
            2 => {
                args.stateid()?;
                name(args)?;
                Claim::Delegated
            }
            3 => {
                name(args)?;
                Claim::Delegated
            }
            4 => Claim::Current,
            5 => {
                args.stateid()?;
                Claim::Delegated
            }
            6 => Claim::Delegated,
            _ => return Err(Status::BADXDR.into()),
        };
        let is_known = access & !ACCESS_BITS == 0 && deny & !SHARE_BITS == 0;
        let (access, deny) = ((access & SHARE_BITS) as u8, (deny & SHARE_BITS) as u8);
        if !is_known || access == 0 {
            return Err(Status::INVAL.into());
        }
        Ok(Self { access, deny, owner, how, claim })
    }
}

/// Lets a caller open a file.
fn may_open(caller: &Credentials, attr: &Rights, access: u8) -> Result<(), Errno> {
    use crate::nfs::permission as bits;
    let reads = caller.has(attr, bits::READ) || caller.has(attr, bits::EXECUTE);
    let may =
        (access & READ == 0 || reads) && (access & WRITE == 0 || caller.has(attr, bits::WRITE));
    if may { Ok(()) } else { Err(Errno::ACCESS) }
}

/// What became of an OPEN.
struct Opened {
    ino: Ino,
    left: Left,
    /// The attributes that were set.
    set: Bitmap,
}

impl<E: Exports> Work<'_, E> {
    pub(super) async fn open(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let wish = Wish::read(args)?;
        let place = self.place()?;
        let writes = wish.access & WRITE != 0;
        if writes {
            self.may_change(&place)?;
        }
        let watched = [place.ino];
        let rule = |caller: &Credentials, sight: &dyn Sight| match &wish.claim {
            Claim::Name(name) => {
                let dir = may_make(caller, sight, place.ino, name)?;
                let caller = caller.clone();
                let mode = move |mode| caller.mode_of_new(&dir, FileType::Regular, mode);
                Ok(Box::new(mode) as Mode)
            }
            _ => Ok(as_asked()),
        };
        let judge = self.judge(&watched, &rule);
        let opened = match &wish.claim {
            Claim::Name(name) => self.open_name(&place, &judge, &wish, name).await?,
            Claim::Current => {
                let left = self.open_inode(&place, place.ino, &wish, None).await?;
                Opened { ino: place.ino, left, set: Bitmap::default() }
            }
            Claim::Previous => {
                // There is nothing to reclaim: the open is there, or another client has been.
                let held = self.held(&place).await?;
                let found = held.find_open(self.client(), wish.owner);
                let found = found.filter(|open| open.access & wish.access == wish.access);
                let found = found.ok_or(Status::NO_GRACE)?;
                let left = (found.id, found.seqid);
                Opened { ino: place.ino, left, set: Bitmap::default() }
            }
            Claim::Delegated => return Err(Status::NOTSUPP.into()),
        };
        let Opened { ino, left: (id, seqid), set } = opened;
        let stateid = match is_frozen(ino) {
            true => self.frozen_stateid(ino),
            false => Stateid::new(ino, id, seqid),
        };
        out.put_stateid(&stateid);
        self.put_change(out, &place, &judge).await;
        out.put_u32(RESULT);
        out.put_bitmap(&set);
        // No delegation.
        out.put_u32(0);
        drop(judge);
        if matches!(wish.claim, Claim::Name(_)) {
            self.go_on(&place, ino);
        }
        self.stateid = Some(stateid);
        Ok(())
    }

    /// Opens, and perhaps makes, what a name leads to.
    async fn open_name(
        &self,
        place: &Place<E::Files>,
        judge: &Judge<'_>,
        wish: &Wish<'_>,
        name: &[u8],
    ) -> Result<Opened, Fault> {
        check_name(name)?;
        let files = &place.export.files;
        let Some(how) = &wish.how else {
            let dir = files.rights(place.ino).await?;
            super::directory(&dir)?;
            self.caller.look_up(&dir)?;
            let ino = files.lookup(place.ino, name).await?.ino;
            let left = self.open_inode(place, ino, wish, None).await?;
            return Ok(Opened { ino, left, set: Bitmap::default() });
        };
        self.may_change(place)?;
        self.note_haunt(place);
        let now = self.now();
        let (asked, stamped) = match how {
            How::Unchecked(raw) | How::Guarded(raw) => (words::asked(*raw, now)?, None),
            How::Exclusive(verifier, raw) => {
                let asked = words::asked(*raw, now)?;
                if !asked.which.without(&words::SETTABLE_EXCLUSIVE).is_empty() {
                    return Err(Status::INVAL.into());
                }
                (asked, Some(stamps(*verifier)))
            }
        };
        let Asked { set, mut which, acl, .. } = asked;
        let lists = acls::asked(acl.as_deref(), FileType::Regular)?;
        if stamped.is_some() {
            which = which.or(&words::VERIFIER_IN);
        }
        self.server.clients.lock().may_hold(self.client())?;
        let times = [set.accessed.unwrap_or(now), set.modified.unwrap_or(now)];
        let stamps = Some(stamped.unwrap_or(times));
        let mode = set.mode.unwrap_or(0);
        let node =
            NewNode { kind: FileType::Regular, mode, umask: 0, device: 0, target: b"", stamps };
        let node = acls::closed(node, lists.as_ref());
        let (holder, drawn) = (self.holder(), self.draw());
        let act = |held: &mut Held| {
            let shares = (wish.access, wish.deny);
            held.open(holder, wish.owner, shares, drawn, &|_| false)
        };
        let keeping = Keeping::new(place.export.id, &act);
        let caller = Caller { keeper: Some(&keeping), ..self.with(judge) };
        let caller = self.owner(&set, caller);
        let made = files.create(caller, place.ino, name, &node).await;
        match self.settle(place, judge.was_done(), made).await {
            Ok(Some(attr)) => {
                let (_, left) = outcome(&keeping, Ok(()))?;
                self.server.clients.lock().count_held(self.client(), true);
                if let Some(size) = set.size.filter(|size| *size > 0) {
                    let size = SetAttr { size: Some(size), ..SetAttr::default() };
                    files.set_attr(Caller::default(), attr.ino, &size).await?;
                    files.sync().await?;
                }
                if let Some(lists) = &lists {
                    self.set_lists(place, attr.ino, lists, Of::New).await?;
                }
                Ok(Opened { ino: attr.ino, left, set: which })
            }
            // Its reply was lost: the open is there, unless it was closed since.
            Ok(None) => {
                let ino = files.lookup(place.ino, name).await?.ino;
                let left = self.opened_before(place, ino, wish).await?;
                if let Some(lists) = &lists {
                    self.set_lists(place, ino, lists, Of::New).await?;
                }
                Ok(Opened { ino, left, set: which })
            }
            Err(Fault::Status(Status::EXIST)) => {
                let found = files.lookup(place.ino, name).await?;
                let (cuts, is_its) = match (how, stamped) {
                    (How::Guarded(_), _) => return Err(Status::EXIST.into()),
                    (How::Unchecked(_), _) => (set.size == Some(0), false),
                    (_, stamped) => {
                        let is_its = stamped == Some([found.accessed, found.modified]);
                        if found.kind != FileType::Regular || !is_its {
                            return Err(Status::EXIST.into());
                        }
                        (false, true)
                    }
                };
                let cut = SetAttr { size: Some(0), ..SetAttr::default() };
                let set = match (cuts, is_its) {
                    (true, _) => Bitmap::of(&[words::SIZE]),
                    (_, true) => which,
                    _ => Bitmap::default(),
                };
                let left = self.open_inode(place, found.ino, wish, cuts.then_some(cut)).await?;
                Ok(Opened { ino: found.ino, left, set })
            }
            Err(fault) => Err(fault),
        }
    }

    /// The owner of something new: root may give it away at once, others may choose among their
    /// groups.
    pub(super) fn owner<'c>(&self, set: &SetAttr, caller: Caller<'c>) -> Caller<'c> {
        let is_root = self.caller.is_root();
        let uid = set.uid.filter(|_| is_root).unwrap_or(caller.uid);
        let gid = set.gid.filter(|gid| is_root || self.caller.is_in(*gid)).unwrap_or(caller.gid);
        Caller { uid, gid, ..caller }
    }

    /// Returns the open that a request made before.
    async fn opened_before(
        &self,
        place: &Place<E::Files>,
        ino: Ino,
        wish: &Wish<'_>,
    ) -> Result<Left, Fault> {
        let held = self.held(&Place { ino, ..place.clone() }).await?;
        let open = held.find_open(self.client(), wish.owner).ok_or(Status::STALE)?;
        Ok((open.id, open.seqid))
    }

    /// Opens a file that exists, and perhaps cuts it.
    async fn open_inode(
        &self,
        place: &Place<E::Files>,
        ino: Ino,
        wish: &Wish<'_>,
        cut: Option<SetAttr>,
    ) -> Result<Left, Fault> {
        let files = &place.export.files;
        regular(&files.attr(ino).await?)?;
        if is_frozen(ino) {
            may_open(self.caller, &files.rights(ino).await?, wish.access)?;
            let writes = wish.access & WRITE != 0;
            return if writes { Err(Status::ROFS.into()) } else { Ok((0, 1)) };
        }
        self.server.clients.lock().may_hold(self.client())?;
        self.note_haunt(place);
        let watched = [ino];
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let attr = sight.rights(ino)?;
            may_open(caller, &attr, wish.access)?;
            let Some(cut) = cut else { return Ok(as_asked()) };
            caller.set(&attr, &cut, true)?;
            let caller = caller.clone();
            Ok(Box::new(move |mode| caller.mode_after_set(&attr, &cut, mode)) as Mode)
        };
        let (holder, drawn) = (self.holder(), self.draw());
        let act = |held: &mut Held| {
            let mut id = drawn;
            while !held.is_free(id) {
                id = (id + 1).max(1);
            }
            let shares = (wish.access, wish.deny);
            let gone = |other: Party<'_>| self.has_gone(place, other);
            held.open(holder, wish.owner, shares, id, &gone)
        };
        let (judge, keeping) = (self.judge(&watched, &rule), Keeping::new(place.export.id, &act));
        let caller = Caller { keeper: Some(&keeping), ..self.with(&judge) };
        let done = match &cut {
            Some(cut) => files.set_attr(caller, ino, cut).await,
            None => files.keep(caller, ino).await,
        };
        match self.settle(place, judge.was_done(), done).await {
            Ok(None) => self.opened_before(place, ino, wish).await,
            done => {
                let (_, left) = outcome(&keeping, done)?;
                if left.1 == 1 {
                    self.server.clients.lock().count_held(self.client(), true);
                }
                Ok(left)
            }
        }
    }

    pub(super) async fn downgrade(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (given, _seqid) = (args.stateid()?, args.u32()?);
        let (access, deny) = (args.u32()? & SHARE_BITS, args.u32()?);
        let place = self.place()?;
        let given = self.meant(given)?;
        let shares = u8::try_from(access).ok().zip(u8::try_from(deny).ok());
        let shares = shares.filter(|(access, deny)| *access > 0 && *deny <= BOTH);
        let shares = shares.ok_or(Status::INVAL)?;
        if is_frozen(place.ino) {
            out.put_stateid(&self.frozen_stateid(place.ino));
            return Ok(());
        }
        let act = |held: &mut Held| held.downgrade(self.client(), given.into(), shares);
        let left = match self.hold(&place, &act).await? {
            Some(left) => left,
            None => {
                let held = self.held(&place).await?;
                let mut opens = held.opens.iter();
                let open = opens.find(|open| open.id == given.id());
                open.map(|open| (open.id, open.seqid)).ok_or(Status::BAD_STATEID)?
            }
        };
        let stateid = Stateid::new(place.ino, left.0, left.1);
        self.stateid = Some(stateid);
        out.put_stateid(&stateid);
        Ok(())
    }

    pub(super) async fn close(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (_seqid, given) = (args.u32()?, args.stateid()?);
        let place = self.place()?;
        let given = self.meant(given)?;
        if !is_frozen(place.ino) {
            if given.ino() != place.ino {
                return Err(Status::BAD_STATEID.into());
            }
            let excluded = AtomicBool::new(true);
            let act = |held: &mut Held| {
                excluded.store(held.close(self.client(), given.into())?, Ordering::Relaxed);
                Ok((given.id(), 0))
            };
            if self.hold_for_now(&place, &act).await?.is_some() {
                self.server.clients.lock().count_held(self.client(), false);
            }
            // Of a CLOSE that a power cut undoes, an open is left until its client has gone. It
            // hinders no client that denies nothing, and spares each file a commit of the log.
            if excluded.load(Ordering::Relaxed) {
                place.export.files.sync().await?;
            }
        }
        out.put_stateid(&Stateid::INVALID);
        self.stateid = None;
        Ok(())
    }
}
