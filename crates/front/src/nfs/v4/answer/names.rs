//! Operations that make, remove and move names: CREATE, REMOVE, RENAME, LINK, READLINK.

use super::acls::{self, Of};
use super::handles::{check_name, name};
use super::{Done, Work, directory};
use crate::nfs::answer::naming::{find, may_make};
use crate::nfs::permission::Credentials;
use crate::nfs::replies;
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::v4::attributes as words;
use crate::nfs::v4::codec::Write;
use crate::nfs::v4::status::{Fault, Status};
use crate::nfs::witness::{Mode, as_asked};
use crate::nfs::xdr::Args;
use crate::target::Target;
use nfs3_types::nfs3::specdata3;
use rekindle_file::{Errno, Error, FileType, NewNode, Rename, Sight, TARGET_BYTES_MAX};

/// Longest target of a symlink that is read at all.
const TARGET_BYTES_READ: u32 = 8192;

/// Reads what is to be made: its type, its device and its target.
fn new<'a>(args: &mut Args<'a>) -> Result<(FileType, u32, &'a [u8]), Fault> {
    let kind = args.u32()?;
    match kind {
        2 => Ok((FileType::Directory, 0, b"")),
        3 | 4 => {
            let spec = specdata3 { specdata1: args.u32()?, specdata2: args.u32()? };
            let device = replies::device_number(&spec).ok_or(Status::INVAL)?;
            let is_block = kind == 3;
            let kind = if is_block { FileType::BlockDevice } else { FileType::CharDevice };
            Ok((kind, device, b""))
        }
        5 => Ok((FileType::Symlink, 0, args.opaque(TARGET_BYTES_READ)?)),
        6 => Ok((FileType::Socket, 0, b"")),
        7 => Ok((FileType::Fifo, 0, b"")),
        // Files are made by OPEN.
        _ => Err(Status::BADTYPE.into()),
    }
}

fn check_target(kind: FileType, target: &[u8]) -> Result<(), Errno> {
    match target.len() {
        _ if kind != FileType::Symlink => Ok(()),
        0 => Err(Errno::INVAL),
        length if length > TARGET_BYTES_MAX || target.contains(&0) => Err(Errno::NAMETOOLONG),
        _ => Ok(()),
    }
}

/// Two places of one volume.
type Both<E> = (Place<<E as Exports>::Files>, Place<<E as Exports>::Files>);

impl<E: Exports> Work<'_, E> {
    pub(super) async fn create(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (kind, device, target) = new(args)?;
        let (name, raw) = (name(args)?, words::raw(args)?);
        check_name(name)?;
        let place = self.place()?;
        self.may_change(&place)?;
        check_target(kind, target)?;
        let now = self.now();
        let asked = words::asked(raw, now)?;
        let set = asked.set;
        let lists = acls::asked(asked.acl.as_deref(), kind)?;
        let watched = [place.ino];
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let dir = may_make(caller, sight, place.ino, name)?;
            caller.make_kind(kind)?;
            let caller = caller.clone();
            Ok(Box::new(move |mode| caller.mode_of_new(&dir, kind, mode)) as Mode)
        };
        let judge = self.judge(&watched, &rule);
        let stamps = Some([set.accessed.unwrap_or(now), set.modified.unwrap_or(now)]);
        // The permissions of a symlink mean nothing.
        let mode = if kind == FileType::Symlink { 0o777 } else { set.mode.unwrap_or(0) };
        let node = NewNode { kind, mode, umask: 0, device, target, stamps };
        let node = acls::closed(node, lists.as_ref());
        let caller = self.owner(&set, self.with(&judge));
        let files = &place.export.files;
        let made = files.create(caller, place.ino, name, &node).await;
        let made = match self.settle(&place, judge.was_done(), made).await? {
            Some(attr) => attr,
            None => files.lookup(place.ino, name).await?,
        };
        if let Some(lists) = &lists {
            self.set_lists(&place, made.ino, lists, Of::New).await?;
        }
        self.put_change(out, &place, &judge).await;
        out.put_bitmap(&asked.which);
        drop(judge);
        self.go_on(&place, made.ino);
        Ok(())
    }

    pub(super) async fn remove(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let name = name(args)?;
        check_name(name)?;
        let place = self.place()?;
        self.may_change(&place)?;
        let watched = [place.ino];
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let (dir, what) = find(caller, sight, place.ino, name)?;
            let what = what.ok_or(Errno::NOENT)?;
            caller.remove(&dir, &what)?;
            Ok(as_asked())
        };
        let judge = self.judge(&watched, &rule);
        let files = &place.export.files;
        let done = match files.unlink(self.with(&judge), place.ino, name).await {
            Err(Error::Posix(Errno::ISDIR)) => {
                files.remove_dir(self.with(&judge), place.ino, name).await
            }
            done => done,
        };
        self.settle(&place, judge.was_done(), done).await?;
        self.put_change(out, &place, &judge).await;
        Ok(())
    }

    /// Returns the saved place and the current one, of one volume.
    fn both(&self) -> Result<Both<E>, Fault> {
        let (saved, current) = (self.saved_place()?, self.place()?);
        match saved.export.id == current.export.id {
            true => Ok((saved, current)),
            false => Err(Errno::XDEV.into()),
        }
    }

    pub(super) async fn rename(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (from_name, to_name) = (name(args)?, name(args)?);
        check_name(from_name)?;
        check_name(to_name)?;
        let (from, to) = self.both()?;
        self.may_change(&from)?;
        for place in [&from, &to] {
            directory(&place.export.files.attr(place.ino).await?)?;
        }
        let watched = [from.ino, to.ino];
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let (from_dir, what) = find(caller, sight, from.ino, from_name)?;
            let (to_dir, there) = find(caller, sight, to.ino, to_name)?;
            let what = what.ok_or(Errno::NOENT)?;
            caller.rename(&from_dir, &to_dir, &what, there.as_ref())?;
            Ok(as_asked())
        };
        let judge = self.judge(&watched, &rule);
        let (caller, there) = (self.with(&judge), (to.ino, to_name));
        let files = &from.export.files;
        let done = files.rename(caller, (from.ino, from_name), there, Rename::Replace).await;
        let done = match done {
            // Version 4 has one status for what cannot be replaced.
            Err(Error::Posix(Errno::NOTDIR | Errno::ISDIR)) if !judge.was_done() => {
                Err(Status::EXIST)
            }
            done => Ok(done),
        };
        self.settle(&from, judge.was_done(), done?).await?;
        self.put_change(out, &from, &judge).await;
        self.put_change(out, &to, &judge).await;
        Ok(())
    }

    pub(super) async fn link(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let name = name(args)?;
        check_name(name)?;
        let (file, dir) = self.both()?;
        self.may_change(&dir)?;
        let watched = [dir.ino];
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            may_make(caller, sight, dir.ino, name)?;
            Ok(as_asked())
        };
        let judge = self.judge(&watched, &rule);
        let files = &dir.export.files;
        if files.attr(file.ino).await?.kind == FileType::Directory {
            return Err(Status::ISDIR.into());
        }
        let done = files.link(self.with(&judge), file.ino, dir.ino, name).await;
        self.settle(&dir, judge.was_done(), done).await?;
        self.put_change(out, &dir, &judge).await;
        Ok(())
    }

    pub(super) async fn read_link(&mut self, out: &mut Vec<u8>) -> Done {
        let place = self.place().map_err(|_| Status::WRONG_TYPE)?;
        let attr = place.export.files.attr(place.ino).await?;
        if attr.kind != FileType::Symlink {
            return Err(Status::WRONG_TYPE.into());
        }
        out.put_opaque(&place.export.files.read_link(place.ino).await?);
        Ok(())
    }
}
