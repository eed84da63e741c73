//! Calls that look names up, take them away and move them.

use super::{Answered, Question, directory, passes, some, unknown};
use crate::nfs::handle;
use crate::nfs::permission::Credentials;
use crate::nfs::replies::{self, Failed};
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::xdr::{Args, Garbage};
use crate::target::Target;
use nfs3_types::nfs3::{
    LINK3resfail, LINK3resok, LOOKUP3resfail, LOOKUP3resok, Nfs3Option, RENAME3resfail,
    RENAME3resok, RMDIR3resfail, RMDIR3resok, post_op_attr,
};
use rekindle_file::{Attr, Errno, Halt, Rename, Rights, Sight};

/// Longest name that is read at all; one beyond what a name may have is told so.
const NAME_BYTES_READ: u32 = 1024;

/// A directory's handle, and a name.
pub fn dir_and_name<'a>(args: &mut Args<'a>) -> Result<(&'a [u8], &'a [u8]), Garbage> {
    Ok((handle::read(args)?, args.opaque(NAME_BYTES_READ)?))
}

/// Returns a directory and what a name of it leads to, for a caller who may look there.
pub fn find(
    caller: &Credentials,
    sight: &dyn Sight,
    dir: u64,
    name: &[u8],
) -> Result<(Rights, Option<Rights>), Halt> {
    let dir_attr = sight.rights(dir)?;
    directory(&dir_attr)?;
    caller.look_up(&dir_attr)?;
    Ok((dir_attr, sight.lookup(dir, name)?))
}

/// Lets a caller make a name that a directory does not have.
pub fn may_make(
    caller: &Credentials,
    sight: &dyn Sight,
    dir: u64,
    name: &[u8],
) -> Result<Rights, Halt> {
    match find(caller, sight, dir, name)? {
        (_, Some(_)) => Err(Errno::EXIST.into()),
        (dir, None) => caller.make(&dir).map(|()| dir).map_err(Halt::from),
    }
}

impl<E: Exports> Question<'_, E> {
    pub(super) async fn look_up(&self, mut args: Args<'_>) -> Answered {
        let (dir, name) = dir_and_name(&mut args)?;
        let place = match self.place(dir).await {
            Ok(place) => place,
            Err(failed) => {
                let failure = LOOKUP3resfail::default();
                return self.reply::<LOOKUP3resok, _>(Err(failed), failure);
            }
        };
        let found = self.found(&place, name).await;
        let dir_attributes = self.after(&place, place.ino).await;
        match found {
            Ok(attr) => {
                let obj_attributes = some(replies::attributes(&attr, place.volume()));
                let object = place.handle(attr.ino);
                let done = LOOKUP3resok { object, obj_attributes, dir_attributes };
                self.reply(Ok(done), LOOKUP3resfail::default())
            }
            Err(failed) => {
                self.reply::<LOOKUP3resok, _>(Err(failed), LOOKUP3resfail { dir_attributes })
            }
        }
    }

    async fn found(&self, place: &Place<E::Files>, name: &[u8]) -> Result<Attr, Failed> {
        let files = &place.export.files;
        let dir = files.rights(place.ino).await?;
        directory(&dir)?;
        self.caller.look_up(&dir)?;
        Ok(match name {
            b"." => dir.attr,
            b".." => files.attr(files.parent(place.ino).await?).await?,
            name => files.lookup(place.ino, name).await?,
        })
    }

    /// REMOVE, or RMDIR: their results are the same.
    pub(super) async fn remove(&self, mut args: Args<'_>, is_dir: bool) -> Answered {
        let (dir, name) = dir_and_name(&mut args)?;
        let place = match self.place(dir).await {
            Ok(place) => place,
            Err(failed) => {
                let failure = RMDIR3resfail { dir_wcc: unknown() };
                return self.reply::<RMDIR3resok, _>(Err(failed), failure);
            }
        };
        let watched = [place.ino];
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let (dir, what) = find(caller, sight, place.ino, name)?;
            let what = what.ok_or(Errno::NOENT)?;
            caller.remove(&dir, &what)?;
            Ok(passes())
        };
        let judge = self.judge(&watched, &rule);
        let done = async {
            self.may_change(&place)?;
            let (files, caller) = (&place.export.files, self.with(&judge));
            let done = match is_dir {
                true => files.remove_dir(caller, place.ino, name).await,
                false => files.unlink(caller, place.ino, name).await,
            };
            self.settle(&place, &judge, done).await
        };
        let done = done.await;
        let dir_wcc = self.changed(&place, &judge, place.ino).await;
        match done {
            Ok(_) => {
                let failure = RMDIR3resfail { dir_wcc: unknown() };
                self.reply(Ok(RMDIR3resok { dir_wcc }), failure)
            }
            Err(failed) => self.reply::<RMDIR3resok, _>(Err(failed), RMDIR3resfail { dir_wcc }),
        }
    }

    pub(super) async fn rename(&self, mut args: Args<'_>) -> Answered {
        let (from, from_name) = dir_and_name(&mut args)?;
        let (to, to_name) = dir_and_name(&mut args)?;
        let (from, to) = match self.both(from, to).await {
            Ok(both) => both,
            Err(failed) => {
                let failure = RENAME3resfail::default();
                return self.reply::<RENAME3resok, _>(Err(failed), failure);
            }
        };
        let watched = [from.ino, to.ino];
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let (from_dir, what) = find(caller, sight, from.ino, from_name)?;
            let (to_dir, there) = find(caller, sight, to.ino, to_name)?;
            let what = what.ok_or(Errno::NOENT)?;
            caller.rename(&from_dir, &to_dir, &what, there.as_ref())?;
            Ok(passes())
        };
        let judge = self.judge(&watched, &rule);
        let done = async {
            self.may_change(&from)?;
            let (caller, to_name) = (self.with(&judge), (to.ino, to_name));
            let files = &from.export.files;
            let done = files.rename(caller, (from.ino, from_name), to_name, Rename::Replace).await;
            self.settle(&from, &judge, done).await
        };
        let done = done.await;
        let fromdir_wcc = self.changed(&from, &judge, from.ino).await;
        let todir_wcc = self.changed(&to, &judge, to.ino).await;
        match done {
            Ok(_) => {
                let done = RENAME3resok { fromdir_wcc, todir_wcc };
                self.reply(Ok(done), RENAME3resfail::default())
            }
            Err(failed) => {
                let failure = RENAME3resfail { fromdir_wcc, todir_wcc };
                self.reply::<RENAME3resok, _>(Err(failed), failure)
            }
        }
    }

    /// Returns what two handles of one volume lead to.
    async fn both(
        &self,
        first: &[u8],
        second: &[u8],
    ) -> Result<(Place<E::Files>, Place<E::Files>), Failed> {
        let (first, second) = (self.place(first).await?, self.place(second).await?);
        match first.export.id == second.export.id {
            true => Ok((first, second)),
            false => Err(Errno::XDEV.into()),
        }
    }

    pub(super) async fn link(&self, mut args: Args<'_>) -> Answered {
        let file = handle::read(&mut args)?;
        let (dir, name) = dir_and_name(&mut args)?;
        let (file, dir) = match self.both(file, dir).await {
            Ok(both) => both,
            Err(failed) => return self.link_reply(Err(failed), Nfs3Option::None, unknown()),
        };
        let watched = [dir.ino];
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            may_make(caller, sight, dir.ino, name)?;
            Ok(passes())
        };
        let judge = self.judge(&watched, &rule);
        let done = async {
            self.may_change(&dir)?;
            let files = &dir.export.files;
            let done = files.link(self.with(&judge), file.ino, dir.ino, name).await;
            self.settle(&dir, &judge, done).await
        };
        let done = done.await;
        let linkdir_wcc = self.changed(&dir, &judge, dir.ino).await;
        let file_attributes = self.after(&file, file.ino).await;
        self.link_reply(done.map(drop), file_attributes, linkdir_wcc)
    }

    fn link_reply(
        &self,
        done: Result<(), Failed>,
        file_attributes: post_op_attr,
        linkdir_wcc: nfs3_types::nfs3::wcc_data,
    ) -> Answered {
        match done {
            Ok(()) => {
                let failure =
                    LINK3resfail { file_attributes: Nfs3Option::None, linkdir_wcc: unknown() };
                self.reply(Ok(LINK3resok { file_attributes, linkdir_wcc }), failure)
            }
            Err(failed) => {
                let failure = LINK3resfail { file_attributes, linkdir_wcc };
                self.reply::<LINK3resok, _>(Err(failed), failure)
            }
        }
    }
}
