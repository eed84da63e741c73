//! The answer to each request: what the file system says to it.

mod locks;

use super::clients::{Enrolled, HasGone};
use super::limits;
use super::locking::{Cancel, Turn};
use super::replies::{self, Body, Listing};
use super::wire::{InHeader, O_ACCMODE, O_EXCL, Op, SetAttrIn, SizeOut, valid};
use crate::target::{Failed, Target};
use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use rekindle_env::{Env, Timestamp};
use rekindle_file::{
    Attr, Caller, Errno, Error, FILE_BYTES_MAX, FileType, Halt, Ino, NewNode, Origin, SetAttr,
    Sight, Time, Witness, without_set_id,
};

/// Bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;
/// Where the listing of a directory goes on behind `.` and `..`; the file system uses no place
/// before 16.
const BEHIND_DOT: u64 = 1;
const BEHIND_DOTS: u64 = 2;

/// A request, and the mount that it comes from.
pub struct Question<'a, T: Target> {
    pub env: &'a Env,
    pub target: &'a T,
    pub enrolled: &'a Enrolled<T>,
    pub header: InHeader,
    pub origin: Origin,
    /// Whether it was sent before.
    pub is_again: bool,
    /// Whether a change is answered only when it is durable.
    pub durably: bool,
    pub now: Timestamp,
    /// Says of a client of NFS that it has gone.
    pub has_gone: &'a HasGone,
}

impl<T: Target> Question<'_, T> {
    /// Carries the request out. `turn`: that of a request about locks, among those of its file.
    pub async fn answer(&self, op: Op<'_>, turn: Option<(Turn, Cancel)>) -> Result<Body, Failed> {
        let waits = self.durably && is_change(&op);
        let folders = self.folders(&op);
        let answer = match (turn, &op) {
            (Some((turn, cancel)), Op::SetLock { .. } | Op::TestLock(_) | Op::Flush { .. }) => {
                self.lock(&op, turn, cancel).await?
            }
            (Some((turn, _)), Op::Release { unlocks: Some(owner) }) => {
                self.unlock(*owner, true, turn).await?;
                self.carry_out(op).await?
            }
            _ => self.carry_out(op).await?,
        };
        if waits {
            self.target.sync().await?;
        }
        let mut after = Vec::new();
        for folder in folders.into_iter().flatten() {
            after.extend(self.target.attr(folder).await.ok());
        }
        Ok(answer.in_folders(after))
    }

    /// Returns the folders of which a request changes names: the kernel asks for them next.
    fn folders(&self, op: &Op<'_>) -> [Option<Ino>; 2] {
        let dir = self.header.ino;
        match op {
            Op::Rename { to: (to, _), .. } => [Some(dir), Some(*to).filter(|to| *to != dir)],
            _ => [Some(dir).filter(|_| changes_names(op)), None],
        }
    }

    async fn carry_out(&self, op: Op<'_>) -> Result<Body, Failed> {
        let (target, caller, ino) = (self.target, self.caller(), self.header.ino);
        if self.is_again && is_unrepeatable(&op) && target.was_done(self.origin).await {
            return self.answer_again(op).await;
        }
        Ok(match op {
            Op::Init(asked, knows) => replies::init(&asked, knows)?,
            Op::Lookup { name } => self.look_up(name).await?,
            Op::GetAttr => Body::attr(&target.attr(ino).await?),
            Op::SetAttr(set) => {
                if !sets_nothing(&set) || self.is_owner().await? {
                    let kills = sets_nothing(&set) || set.valid & valid::KILL_SET_ID != 0;
                    let witness = kills.then(|| self.no_set_id());
                    let caller = settled(caller, witness.as_ref());
                    let set = set_attr(&set, self.now)?;
                    Body::attr(&target.set_attr(caller, ino, &set).await?)
                } else {
                    Body::attr(&target.attr(ino).await?)
                }
            }
            Op::ReadLink => Body::data(target.read_link(ino).await?),
            Op::Symlink { .. } | Op::MakeNode { .. } | Op::MakeDir { .. } => {
                Body::entry(&self.make(op).await?)
            }
            Op::Create { flags, .. } => match self.make(op).await {
                // Another mount has made it meanwhile. The kernel asks nothing more of a file that
                // it takes for new: so it is to look the name up, and judge who may open that.
                Err(Failed::Errno(Errno::EXIST)) if flags & O_EXCL == 0 => {
                    return Err(Errno::STALE.into());
                }
                made => self.created(&made?).await?,
            },
            Op::Unlink { .. } | Op::RemoveDir { .. } | Op::Rename { .. } => self.unname(op).await?,
            Op::Link { ino: linked, name } => {
                Body::entry(&target.link(caller, linked, ino, name).await?)
            }
            Op::Open { flags } if flags & O_ACCMODE != 0 && rekindle_file::is_frozen(ino) => {
                return Err(Errno::ROFS.into());
            }
            Op::Open { .. } | Op::OpenDir => {
                self.open(ino).await?;
                Body::opened()
            }
            Op::Release { .. } => {
                if self.enrolled.closed(ino) {
                    target.close(ino).await;
                }
                Body::default()
            }
            Op::Space => Body::space(&target.space().await?),
            Op::Sync => done(target.sync().await?),
            // Those about locks have a turn, and do not come here.
            Op::Flush { .. } | Op::Silent | Op::Interrupt { .. } => Body::default(),
            Op::SetLock { .. } | Op::TestLock(_) => return Err(Errno::NOLCK.into()),
            Op::Destroy => {
                self.enrolled.take().end().await;
                Body::default()
            }
            Op::Read { .. }
            | Op::Write { .. }
            | Op::Allocate { .. }
            | Op::Seek { .. }
            | Op::Copy { .. } => self.content(op).await?,
            Op::List { offset, size, plus } => self.list(offset, size, plus).await?,
            Op::SetXattr { .. }
            | Op::Xattr { .. }
            | Op::ListXattrs { .. }
            | Op::RemoveXattr { .. } => self.xattr(op).await?,
        })
    }

    /// Takes a name away, or moves it over another one.
    async fn unname(&self, op: Op<'_>) -> Result<Body, Failed> {
        let (target, dir, unnamed) = (self.target, self.header.ino, Unnamed::default());
        let caller = Caller { witness: Some(&unnamed), ..self.caller() };
        match op {
            Op::Unlink { name } => target.unlink(caller, dir, name).await?,
            Op::RemoveDir { name } => target.remove_dir(caller, dir, name).await?,
            Op::Rename { name, to, how } => target.rename(caller, (dir, name), to, how).await?,
            _ => return Err(Errno::INVAL.into()),
        }
        Ok(Body::unnamed(unnamed.0.into_inner()))
    }

    /// Whether the caller may do what an owner may.
    async fn is_owner(&self) -> Result<bool, Failed> {
        let uid = self.header.uid;
        Ok(uid == 0 || uid == self.target.attr(self.header.ino).await?.uid)
    }

    fn no_set_id(&self) -> NoSetId {
        NoSetId { uid: self.header.uid, gid: self.header.gid }
    }

    fn caller(&self) -> Caller<'static> {
        let origin = Some(self.origin);
        Caller { uid: self.header.uid, gid: self.header.gid, origin, ..Caller::default() }
    }

    /// Answers a request that was carried out before, as the lost reply did.
    async fn answer_again(&self, op: Op<'_>) -> Result<Body, Failed> {
        let found = async |name| self.target.lookup(self.header.ino, name).await;
        Ok(match op {
            Op::Symlink { name, .. }
            | Op::MakeNode { name, .. }
            | Op::MakeDir { name, .. }
            | Op::Link { name, .. } => Body::entry(&found(name).await?),
            Op::Create { name, .. } => match found(name).await? {
                made if made.uid == self.header.uid => self.created(&made).await?,
                // Another mount has put it there since.
                _ => return Err(Errno::STALE.into()),
            },
            Op::Write { data, .. } => size_of_reply(data.len()),
            _ => Body::default(),
        })
    }

    async fn look_up(&self, name: &[u8]) -> Result<Body, Failed> {
        let (target, dir) = (self.target, self.header.ino);
        let found = match name {
            b"." => target.attr(dir).await,
            b".." => target.attr(target.parent(dir).await?).await,
            name => match target.lookup(dir, name).await {
                Err(Error::Posix(Errno::NOENT)) => return Ok(Body::no_entry()),
                found => found,
            },
        };
        Ok(Body::entry(&found?))
    }

    async fn make(&self, op: Op<'_>) -> Result<Attr, Failed> {
        let permissions = |mode: u32| (mode & PERMISSIONS) as u16;
        let plain = NewNode {
            kind: FileType::Regular,
            mode: 0,
            umask: 0,
            device: 0,
            target: b"",
            stamps: None,
        };
        let (name, node) = match op {
            Op::Symlink { name, target } => {
                (name, NewNode { kind: FileType::Symlink, mode: 0o777, target, ..plain })
            }
            Op::MakeDir { name, mode, umask } => {
                let (mode, umask) = (permissions(mode), permissions(umask));
                (name, NewNode { kind: FileType::Directory, mode, umask, ..plain })
            }
            Op::MakeNode { name, mode, umask, device } => {
                let kind = replies::type_of(mode)?;
                let (mode, umask) = (permissions(mode), permissions(umask));
                (name, NewNode { kind, mode, umask, device, ..plain })
            }
            Op::Create { name, mode, umask, .. } => {
                (name, NewNode { mode: permissions(mode), umask: permissions(umask), ..plain })
            }
            _ => return Err(Errno::INVAL.into()),
        };
        Ok(self.target.create(self.caller(), self.header.ino, name, &node).await?)
    }

    async fn created(&self, attr: &Attr) -> Result<Body, Failed> {
        self.open(attr.ino).await?;
        Ok(Body::created(attr))
    }

    async fn open(&self, ino: Ino) -> Result<(), Failed> {
        self.target.open(ino).await?;
        self.enrolled.opened(ino, 1);
        Ok(())
    }

    async fn content(&self, op: Op<'_>) -> Result<Body, Failed> {
        let (target, caller, ino) = (self.target, self.caller(), self.header.ino);
        Ok(match op {
            Op::Read { offset, size } => {
                Body::pieces(target.pieces(ino, offset, size as usize).await?)
            }
            Op::Write { offset, kills_set_id, is_whole, data } => {
                within(offset.unwrap_or(0), data.len() as u64)?;
                let witness = kills_set_id.then(|| self.no_set_id());
                let caller = settled(caller, witness.as_ref());
                let mut written = data.len();
                match offset {
                    Some(offset) if is_whole => target.write(caller, ino, offset, data).await?,
                    Some(offset) => written = target.write_some(caller, ino, offset, data).await?,
                    None => target.write_at_end(caller, ino, data).await?,
                }
                size_of_reply(written)
            }
            Op::Allocate { what, offset, length } => {
                within(offset, length)?;
                // The kernel does not say it here.
                let witness = (self.header.uid != 0).then(|| self.no_set_id());
                let caller = settled(caller, witness.as_ref());
                done(target.allocate(caller, ino, what, (offset, length)).await?)
            }
            Op::Copy { offset, to, length } => {
                // The reply has no room for a greater number.
                let length = length.min(limits::COPY_BYTES_MAX);
                within(offset, 0)?;
                within(to.1, 0)?;
                // The kernel does not say it here.
                let witness = (self.header.uid != 0).then(|| self.no_set_id());
                let caller = settled(caller, witness.as_ref());
                let copied = target.copy(caller, (ino, offset), to, length).await?;
                size_of_reply(usize::try_from(copied).unwrap_or(usize::MAX))
            }
            Op::Seek { offset, what } => Body::of(&target.seek(ino, offset, what).await?),
            _ => return Err(Errno::INVAL.into()),
        })
    }

    async fn xattr(&self, op: Op<'_>) -> Result<Body, Failed> {
        let (target, caller, ino) = (self.target, self.caller(), self.header.ino);
        Ok(match op {
            Op::SetXattr { name, value, how, kills_set_gid } => {
                let caller = Caller { witness: kills_set_gid.then_some(&NoSetGroupId), ..caller };
                done(target.set_xattr(caller, ino, (name, value), how).await?)
            }
            Op::RemoveXattr { name } => done(target.remove_xattr(caller, ino, name).await?),
            Op::Xattr { name, size } => sized(target.xattr(ino, name).await?, size)?,
            Op::ListXattrs { size } => {
                let names = target.list_xattrs(ino).await?;
                let mut all = Vec::new();
                for name in names {
                    all.extend_from_slice(&name);
                    all.push(0);
                }
                sized(all.into(), size)?
            }
            _ => return Err(Errno::INVAL.into()),
        })
    }

    async fn list(&self, offset: u64, size: u32, plus: bool) -> Result<Body, Failed> {
        let (target, dir) = (self.target, self.header.ino);
        let mut listing = Listing::new(size, plus);
        let here = (dir, FileType::Directory);
        // The kernel takes no inode of these two, so they come without attributes.
        if offset < BEHIND_DOT && !listing.push(b".", here, BEHIND_DOT, None) {
            return Ok(listing.body());
        }
        if offset < BEHIND_DOTS {
            let above = (target.parent(dir).await?, FileType::Directory);
            if !listing.push(b"..", above, BEHIND_DOTS, None) {
                return Ok(listing.body());
            }
        }
        let mut after = if offset <= BEHIND_DOTS { 0 } else { offset };
        loop {
            let wanted = listing.estimate();
            let entries = target.list(dir, after, wanted).await?;
            for some in entries.chunks(limits::LOOKUPS_AT_ONCE) {
                let attrs = join_all(some.iter().map(async |entry| {
                    // One that cannot be had now is looked up by the kernel when it is used.
                    if plus { target.attr(entry.ino).await.ok() } else { None }
                }));
                for (entry, attr) in some.iter().zip(attrs.await) {
                    let what = (entry.ino, entry.kind);
                    if !listing.push(&entry.name, what, entry.position, attr.as_ref()) {
                        return Ok(listing.body());
                    }
                }
            }
            match entries.last() {
                Some(last) if entries.len() >= wanted => after = last.position,
                _ => return Ok(listing.body()),
            }
        }
    }
}

/// Whether a request changes what the volume has for good.
fn is_change(op: &Op<'_>) -> bool {
    let is_plain =
        matches!(op, Op::SetAttr(_) | Op::Write { .. } | Op::Allocate { .. } | Op::Copy { .. });
    let is_lock =
        matches!(op, Op::SetLock { .. } | Op::Flush { .. } | Op::Release { unlocks: Some(_) });
    is_plain || is_lock || is_unrepeatable(op) || matches!(op, Op::SetXattr { .. })
}

/// Whether a request cannot be carried out twice with the same outcome.
fn is_unrepeatable(op: &Op<'_>) -> bool {
    use rekindle_file::SetXattr;
    match op {
        Op::SetXattr { how, .. } => *how != SetXattr::Any,
        Op::Write { offset, .. } => offset.is_none(),
        Op::RemoveXattr { .. } => true,
        _ => changes_names(op),
    }
}

/// Whether a request makes, removes or changes a name.
fn changes_names(op: &Op<'_>) -> bool {
    matches!(
        op,
        Op::Symlink { .. }
            | Op::MakeNode { .. }
            | Op::MakeDir { .. }
            | Op::Create { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::RemoveDir { .. }
            | Op::Rename { .. }
    )
}

fn done((): ()) -> Body {
    Body::default()
}

fn size_of_reply(bytes: usize) -> Body {
    Body::of(&SizeOut { size: u32::try_from(bytes).unwrap_or(u32::MAX), padding: 0 })
}

/// Answers with a value that the client has `size` bytes of room for, or with its length to a
/// client without any.
fn sized(value: Bytes, size: u32) -> Result<Body, Errno> {
    match size as usize {
        0 => Ok(size_of_reply(value.len())),
        room if room < value.len() => Err(Errno::RANGE),
        _ => Ok(Body::data(value)),
    }
}

/// Checks that a range ends where a file may.
fn within(offset: u64, length: u64) -> Result<(), Errno> {
    match offset.checked_add(length) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(()),
        _ => Err(Errno::FBIG),
    }
}

/// The caller whose change has a witness.
fn settled<'a>(caller: Caller<'static>, witness: Option<&'a NoSetId>) -> Caller<'a> {
    Caller { witness: witness.map(|witness| witness as &dyn Witness), ..caller }
}

/// Whether a SETATTR sets nothing, as far as can be seen: a change of the owner to the one that it
/// is, which takes set-id bits away. The kernel has not judged whether the caller may do that. It
/// also sends this before a write by anybody to a file with such bits, which takes them itself.
fn sets_nothing(set: &SetAttrIn) -> bool {
    set.valid & !(valid::HANDLE | valid::LOCK_OWNER) == 0
}

/// Lets every change pass: the kernel has judged it. No set-id bit of a file stays. As in Linux, a
/// group's bit without the right to execute stays if the caller is in that group (only his first
/// one is known here) or privileged.
struct NoSetId {
    uid: u32,
    gid: u32,
}

impl Witness for NoSetId {
    fn judge(&self, _sight: &dyn Sight) -> Result<(), Halt> {
        Ok(())
    }

    fn settle_mode(&self, mode: u16) -> u16 {
        without_set_id(mode)
    }

    fn settle(&self, mode: u16, before: &Attr) -> u16 {
        if before.kind == FileType::Directory {
            return mode;
        }
        let is_member = self.uid == 0 || self.gid == before.gid;
        self.settle_mode(mode) & if is_member { !0 } else { !0o2000 }
    }

    fn changed(&self, _attr: &Attr) {}
}

/// Lets an access control list be set, and takes set-group-id: the caller is not in the group.
struct NoSetGroupId;

impl Witness for NoSetGroupId {
    fn judge(&self, _sight: &dyn Sight) -> Result<(), Halt> {
        Ok(())
    }

    fn settle_mode(&self, mode: u16) -> u16 {
        mode & !0o2000
    }

    fn changed(&self, _attr: &Attr) {}
}

/// Notes the inodes whose last name a change takes.
#[derive(Default)]
struct Unnamed(Mutex<Vec<Attr>>);

impl Witness for Unnamed {
    fn judge(&self, _sight: &dyn Sight) -> Result<(), Halt> {
        Ok(())
    }

    fn settle_mode(&self, mode: u16) -> u16 {
        mode
    }

    fn changed(&self, _attr: &Attr) {}

    fn unnamed(&self, attr: &Attr) {
        self.0.lock().push(*attr);
    }
}

fn set_attr(asked: &SetAttrIn, now: Timestamp) -> Result<SetAttr, Errno> {
    let asks = |bit| asked.valid & bit != 0;
    let time = |bit, now_bit, seconds, nanoseconds| match (asks(now_bit), asks(bit)) {
        (true, _) => Ok(Some(now.into())),
        (false, true) if nanoseconds < 1_000_000_000 => Ok(Some(Time { seconds, nanoseconds })),
        (false, true) => Err(Errno::INVAL),
        (false, false) => Ok(None),
    };
    let size = asks(valid::SIZE).then_some(asked.size);
    within(size.unwrap_or(0), 0)?;
    Ok(SetAttr {
        mode: asks(valid::MODE).then_some((asked.mode & PERMISSIONS) as u16),
        uid: asks(valid::UID).then_some(asked.uid),
        gid: asks(valid::GID).then_some(asked.gid),
        size,
        accessed: time(valid::ATIME, valid::ATIME_NOW, asked.atime, asked.atime_nanoseconds)?,
        modified: time(valid::MTIME, valid::MTIME_NOW, asked.mtime, asked.mtime_nanoseconds)?,
        changed: time(valid::CTIME, 0, asked.ctime, asked.ctime_nanoseconds)?,
    })
}
