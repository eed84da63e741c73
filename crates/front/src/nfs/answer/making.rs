//! Calls that make inodes: CREATE, MKDIR, SYMLINK, MKNOD.

use super::about::{Wanted, regular};
use super::naming::{dir_and_name, may_make};
use super::{Answered, Mode, Question, some};
use crate::nfs::permission::Credentials;
use crate::nfs::replies::{self, Failed};
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::xdr::{Args, Garbage};
use crate::target::Target;
use nfs3_types::nfs3::{
    CREATE3resfail, CREATE3resok, Nfs3Option, devicedata3, ftype3, nfsstat3, sattr3, wcc_data,
};
use rekindle_file::{
    Attr, Caller, Errno, Error, FileType, NewNode, SetAttr, Sight, TARGET_BYTES_MAX, Time,
};

/// Longest target of a symlink that is read at all.
const TARGET_BYTES_READ: u32 = 8192;

/// What is to be made.
struct New<'a> {
    dir: &'a [u8],
    name: &'a [u8],
    kind: FileType,
    device: u32,
    target: &'a [u8],
    how: How,
}

/// How something that exists counts.
enum How {
    /// As an error.
    Guarded(sattr3),
    /// A file is fine.
    Unchecked(sattr3),
    /// A file that this caller has made is fine: it bears the caller's eight bytes in its times,
    /// until the caller sets those.
    Exclusive([u8; 8]),
}

/// The times of a file that was made exclusively.
pub fn stamps(verifier: [u8; 8]) -> [Time; 2] {
    let [a, b, c, d, e, f, g, h] = verifier;
    let at = |bytes| Time { seconds: u32::from_be_bytes(bytes).into(), nanoseconds: 0 };
    [at([a, b, c, d]), at([e, f, g, h])]
}

impl<E: Exports> Question<'_, E> {
    pub(super) async fn create(&self, mut args: Args<'_>) -> Answered {
        let (dir, name) = dir_and_name(&mut args)?;
        let how = match args.u32()? {
            0 => How::Unchecked(args.plain()?),
            1 => How::Guarded(args.plain()?),
            2 => How::Exclusive(args.eight()?),
            _ => return Err(Failed::Garbage),
        };
        let kind = FileType::Regular;
        self.make(Ok(New { dir, name, kind, device: 0, target: b"", how })).await
    }

    pub(super) async fn make_dir(&self, mut args: Args<'_>) -> Answered {
        let (dir, name) = dir_and_name(&mut args)?;
        let (kind, how) = (FileType::Directory, How::Guarded(args.plain()?));
        self.make(Ok(New { dir, name, kind, device: 0, target: b"", how })).await
    }

    pub(super) async fn make_link(&self, mut args: Args<'_>) -> Answered {
        let (dir, name) = dir_and_name(&mut args)?;
        let mut asked: sattr3 = args.plain()?;
        // The permissions of a symlink mean nothing.
        asked.mode = some(0o777);
        let target = args.opaque(TARGET_BYTES_READ)?;
        let (kind, how) = (FileType::Symlink, How::Guarded(asked));
        let new = New { dir, name, kind, device: 0, target, how };
        self.make(match target.len() {
            0 => Err((dir, Errno::INVAL.into())),
            length if length > TARGET_BYTES_MAX || target.contains(&0) => {
                Err((dir, Errno::NAMETOOLONG.into()))
            }
            _ => Ok(new),
        })
        .await
    }

    pub(super) async fn make_node(&self, mut args: Args<'_>) -> Answered {
        let (dir, name) = dir_and_name(&mut args)?;
        let type_ = args.plain::<ftype3>()?;
        let device = |args: &mut Args<'_>| -> Result<_, Garbage> {
            let devicedata3 { dev_attributes, spec } = args.plain()?;
            Ok((dev_attributes, replies::device_number(&spec)))
        };
        let (kind, (asked, device)) = match type_ {
            ftype3::NF3CHR => (FileType::CharDevice, device(&mut args)?),
            ftype3::NF3BLK => (FileType::BlockDevice, device(&mut args)?),
            ftype3::NF3SOCK => (FileType::Socket, (args.plain()?, Some(0))),
            ftype3::NF3FIFO => (FileType::Fifo, (args.plain()?, Some(0))),
            // Files, directories and symlinks have calls of their own.
            _ => return self.make(Err((dir, nfsstat3::NFS3ERR_BADTYPE.into()))).await,
        };
        let how = How::Guarded(asked);
        let new = device.map(|device| New { dir, name, kind, device, target: b"", how });
        self.make(new.ok_or((dir, Errno::INVAL.into()))).await
    }

    /// Makes an inode; the results of the four calls are the same. A call that is refused for what
    /// it asks comes with its directory.
    async fn make(&self, new: Result<New<'_>, (&[u8], Failed)>) -> Answered {
        let dir = match &new {
            Ok(new) => new.dir,
            Err((dir, _)) => dir,
        };
        let place = match self.place(dir).await {
            Ok(place) => place,
            Err(failed) => {
                return self.reply::<CREATE3resok, _>(Err(failed), CREATE3resfail::default());
            }
        };
        let (made, dir_wcc) = match new {
            Ok(new) => self.made(&place, &new).await,
            Err((_, failed)) => {
                let after = self.after(&place, place.ino).await;
                (Err(failed), replies::only_after(after))
            }
        };
        match made {
            Ok(attr) => {
                let obj = attr.map_or(Nfs3Option::None, |attr| some(place.handle(attr.ino)));
                let attributes = |attr| some(replies::attributes(&attr, place.volume()));
                let obj_attributes = attr.map_or(Nfs3Option::None, attributes);
                let done = CREATE3resok { obj, obj_attributes, dir_wcc };
                self.reply(Ok(done), CREATE3resfail::default())
            }
            Err(failed) => self.reply::<CREATE3resok, _>(Err(failed), CREATE3resfail { dir_wcc }),
        }
    }

    /// Makes it, or finds what counts as made. `None`: it was made before, and is gone.
    async fn made(
        &self,
        place: &Place<E::Files>,
        new: &New<'_>,
    ) -> (Result<Option<Attr>, Failed>, wcc_data) {
        let now = self.now();
        let wanted = match &new.how {
            How::Guarded(asked) | How::Unchecked(asked) => Wanted::new(asked, now),
            How::Exclusive(_) => Ok(Wanted { set: SetAttr::default(), is_now: true }),
        };
        let watched = [place.ino];
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let dir = may_make(caller, sight, place.ino, new.name)?;
            caller.make_kind(new.kind)?;
            let (caller, kind) = (caller.clone(), new.kind);
            Ok(Box::new(move |mode| caller.mode_of_new(&dir, kind, mode)) as Mode)
        };
        let judge = self.judge(&watched, &rule);
        let made = async {
            self.may_change(place)?;
            let set = wanted?.set;
            let stamps = match &new.how {
                How::Exclusive(verifier) => Some(stamps(*verifier)),
                _ => Some([set.accessed.unwrap_or(now), set.modified.unwrap_or(now)]),
            };
            let mode = set.mode.unwrap_or(0);
            let node = NewNode {
                kind: new.kind,
                mode,
                umask: 0,
                device: new.device,
                target: new.target,
                stamps,
            };
            let caller = self.owner(&set, self.with(&judge));
            let made = place.export.files.create(caller, place.ino, new.name, &node).await;
            match self.settle(place, &judge, made).await {
                Ok(Some(attr)) => self.sized(place, attr, &set).await.map(Some),
                // Its reply was lost.
                Ok(None) => match place.export.files.lookup(place.ino, new.name).await {
                    Err(Error::Posix(Errno::NOENT)) => Ok(None),
                    found => Ok(Some(found?)),
                },
                Err(Failed::Status(nfsstat3::NFS3ERR_EXIST)) => {
                    self.existing(place, new, &set).await.map(Some)
                }
                Err(failed) => Err(failed),
            }
        };
        let made = made.await;
        (made, self.changed(place, &judge, place.ino).await)
    }

    /// The owner of something new: root may give it away at once, others may choose among their
    /// groups.
    fn owner<'c>(&self, set: &SetAttr, caller: Caller<'c>) -> Caller<'c> {
        let is_root = self.caller.is_root();
        let uid = set.uid.filter(|_| is_root).unwrap_or(caller.uid);
        let gid = set.gid.filter(|gid| is_root || self.caller.is_in(*gid)).unwrap_or(caller.gid);
        Caller { uid, gid, ..caller }
    }

    /// Gives a new file the size that was asked for, if any.
    async fn sized(
        &self,
        place: &Place<E::Files>,
        attr: Attr,
        set: &SetAttr,
    ) -> Result<Attr, Failed> {
        match set.size {
            Some(size) if size != attr.size && attr.kind == FileType::Regular => {
                let size = SetAttr { size: Some(size), ..SetAttr::default() };
                let set = place.export.files.set_attr(Caller::default(), attr.ino, &size).await?;
                place.export.files.sync().await?;
                Ok(set)
            }
            _ => Ok(attr),
        }
    }

    /// Finds a file that exists, where that is what the caller wants.
    async fn existing(
        &self,
        place: &Place<E::Files>,
        new: &New<'_>,
        set: &SetAttr,
    ) -> Result<Attr, Failed> {
        let files = &place.export.files;
        let found = files.lookup(place.ino, new.name).await?;
        let exists = || Failed::from(Errno::EXIST);
        match &new.how {
            How::Guarded(_) => Err(exists()),
            How::Exclusive(verifier) => {
                let is_its = [found.accessed, found.modified] == stamps(*verifier);
                if regular(&found).is_ok() && is_its { Ok(found) } else { Err(exists()) }
            }
            How::Unchecked(_) => {
                regular(&found).map_err(|_| exists())?;
                let Some(size) = set.size else { return Ok(found) };
                let size = SetAttr { size: Some(size), ..SetAttr::default() };
                let rule = |caller: &Credentials, sight: &dyn Sight| {
                    let attr = sight.rights(found.ino)?;
                    caller.set(&attr, &size, true)?;
                    let caller = caller.clone();
                    Ok(Box::new(move |mode| caller.mode_after_set(&attr, &size, mode)) as Mode)
                };
                let judge = self.judge(&[], &rule);
                let done = files.set_attr(self.with(&judge), found.ino, &size).await;
                let done = self.settle(place, &judge, done).await?;
                Ok(done.unwrap_or(found))
            }
        }
    }
}
