//! Calls about attributes, and about the volume.

use super::{Answered, Question, directory, some, unknown};
use crate::nfs::handle;
use crate::nfs::limits;
use crate::nfs::permission::{Credentials, EXECUTE, READ, WRITE};
use crate::nfs::replies::{self, Failed, time, time_asked};
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::xdr::Args;
use crate::target::Target;
use nfs3_types::nfs3::{
    self, ACCESS3resfail, ACCESS3resok, FSINFO3resfail, FSINFO3resok, FSSTAT3resfail, FSSTAT3resok,
    GETATTR3resok, Nfs3Option, PATHCONF3resfail, PATHCONF3resok, SETATTR3resfail, SETATTR3resok,
    nfstime3, post_op_attr, sattr3, sattrguard3, set_atime, set_mtime,
};
use nfs3_types::xdr_codec::Void;
use rekindle_file::{
    Attr, Errno, FILE_BYTES_MAX, FileType, NAME_BYTES_MAX, Rights, SetAttr, Sight, Time,
};

/// Inodes that are said to be free: their number has no bound of its own.
const INODES_FREE: u64 = 1 << 40;
/// Names that an inode may have.
const LINKS_MAX: u32 = u32::MAX;
/// Bits of a mode that may be set.
const PERMISSIONS: u32 = 0o7777;

/// Attributes to set, and whether the times among them are the server's.
pub struct Wanted {
    pub set: SetAttr,
    pub is_now: bool,
}

fn option<T: Copy + nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack>(
    of: &Nfs3Option<T>,
) -> Option<T> {
    match of {
        Nfs3Option::Some(value) => Some(*value),
        Nfs3Option::None => None,
    }
}

impl Wanted {
    pub fn new(asked: &sattr3, now: Time) -> Result<Self, Errno> {
        let mut is_now = true;
        let mut at = |time: nfstime3| {
            is_now = false;
            time_asked(time).map(Some)
        };
        let accessed = match asked.atime {
            set_atime::DONT_CHANGE => None,
            set_atime::SET_TO_SERVER_TIME => Some(now),
            set_atime::SET_TO_CLIENT_TIME(time) => at(time)?,
        };
        let modified = match asked.mtime {
            set_mtime::DONT_CHANGE => None,
            set_mtime::SET_TO_SERVER_TIME => Some(now),
            set_mtime::SET_TO_CLIENT_TIME(time) => at(time)?,
        };
        let size = option(&asked.size);
        if size.is_some_and(|size| size > FILE_BYTES_MAX) {
            return Err(Errno::FBIG);
        }
        let set = SetAttr {
            mode: option(&asked.mode).map(|mode| (mode & PERMISSIONS) as u16),
            uid: option(&asked.uid),
            gid: option(&asked.gid),
            size,
            accessed,
            modified,
            changed: None,
        };
        Ok(Self { set, is_now })
    }
}

impl<E: Exports> Question<'_, E> {
    pub(super) async fn attributes(&self, mut args: Args<'_>) -> Answered {
        let handle = handle::read(&mut args)?;
        let done = async {
            let place = self.place(handle).await?;
            let attr = place.export.files.attr(place.ino).await?;
            Ok(GETATTR3resok { obj_attributes: replies::attributes(&attr, place.volume()) })
        };
        self.reply(done.await, Void)
    }

    pub(super) async fn set_attributes(&self, mut args: Args<'_>) -> Answered {
        let (handle, asked) = (handle::read(&mut args)?, args.plain::<sattr3>()?);
        let guard = option(&args.plain::<sattrguard3>()?);
        let place = match self.place(handle).await {
            Ok(place) => place,
            Err(failed) => {
                let failure = SETATTR3resfail { obj_wcc: unknown() };
                return self.reply::<SETATTR3resok, _>(Err(failed), failure);
            }
        };
        let watched = [place.ino];
        let wanted = Wanted::new(&asked, self.now());
        let (set, is_now) = wanted
            .as_ref()
            .map_or((SetAttr::default(), true), |wanted| (wanted.set, wanted.is_now));
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let attr = sight.rights(place.ino)?;
            if guard.is_some_and(|guard| guard != time(attr.changed)) {
                // NFS has a status for this; see `replies::status`.
                return Err(Errno::CANCELED.into());
            }
            caller.set(&attr, &set, is_now)?;
            let caller = caller.clone();
            Ok(Box::new(move |mode| caller.mode_after_set(&attr, &set, mode)) as super::Mode)
        };
        let judge = self.judge(&watched, &rule);
        let done = async {
            self.may_change(&place)?;
            wanted.map(drop)?;
            let done = place.export.files.set_attr(self.with(&judge), place.ino, &set).await;
            self.settle(&place, &judge, done).await
        };
        let done = done.await;
        let obj_wcc = self.changed(&place, &judge, place.ino).await;
        match done {
            Ok(_) => self.reply::<_, SETATTR3resfail>(
                Ok(SETATTR3resok { obj_wcc }),
                SETATTR3resfail::default(),
            ),
            Err(failed) => self.reply::<SETATTR3resok, _>(Err(failed), SETATTR3resfail { obj_wcc }),
        }
    }

    pub(super) async fn access(&self, mut args: Args<'_>) -> Answered {
        let (handle, asked) = (handle::read(&mut args)?, args.u32()?);
        let done = async {
            let place = self.place(handle).await?;
            let attr = place.export.files.rights(place.ino).await?;
            let mut access = asked & granted(self.caller, &attr);
            if self.may_change(&place).is_err() {
                access &= !(nfs3::ACCESS3_MODIFY | nfs3::ACCESS3_EXTEND | nfs3::ACCESS3_DELETE);
            }
            let obj_attributes = some(replies::attributes(&attr, place.volume()));
            Ok(ACCESS3resok { obj_attributes, access })
        };
        self.reply(done.await, ACCESS3resfail::default())
    }

    /// Looks at a volume, for an answer about all of it.
    async fn whole(
        &self,
        args: &mut Args<'_>,
    ) -> Result<(Result<Place<E::Files>, Failed>, post_op_attr), Failed> {
        let handle = handle::read(args)?;
        let place = match self.place(handle).await {
            Ok(place) => place,
            Err(failed) => return Ok((Err(failed), Nfs3Option::None)),
        };
        // The inode may be gone.
        match place.export.files.attr(place.ino).await {
            Ok(attr) => {
                let attributes = some(replies::attributes(&attr, place.volume()));
                Ok((Ok(place), attributes))
            }
            Err(error) => Ok((Err(error.into()), Nfs3Option::None)),
        }
    }

    pub(super) async fn space(&self, mut args: Args<'_>) -> Answered {
        let (place, obj_attributes) = self.whole(&mut args).await?;
        let done = async {
            let space = place?.export.files.space().await?;
            let free = space.bytes.saturating_sub(space.bytes_used);
            Ok(FSSTAT3resok {
                obj_attributes,
                tbytes: space.bytes,
                fbytes: free,
                abytes: free,
                tfiles: space.inodes.saturating_add(INODES_FREE),
                ffiles: INODES_FREE,
                afiles: INODES_FREE,
                invarsec: 0,
            })
        };
        self.reply(done.await, FSSTAT3resfail::default())
    }

    pub(super) async fn bounds(&self, mut args: Args<'_>) -> Answered {
        let (place, obj_attributes) = self.whole(&mut args).await?;
        let most = limits::DATA_BYTES_MAX;
        let done = place.map(|_| FSINFO3resok {
            obj_attributes,
            rtmax: most,
            rtpref: most,
            rtmult: 4096,
            wtmax: most,
            wtpref: most,
            wtmult: 4096,
            dtpref: limits::LIST_BYTES_MAX,
            maxfilesize: FILE_BYTES_MAX,
            time_delta: nfstime3 { seconds: 0, nseconds: 1 },
            properties: nfs3::FSF3_LINK
                | nfs3::FSF3_SYMLINK
                | nfs3::FSF3_HOMOGENEOUS
                | nfs3::FSF3_CANSETTIME,
        });
        self.reply(done, FSINFO3resfail::default())
    }

    pub(super) async fn rules(&self, mut args: Args<'_>) -> Answered {
        let (place, obj_attributes) = self.whole(&mut args).await?;
        let done = place.map(|_| PATHCONF3resok {
            obj_attributes,
            linkmax: LINKS_MAX,
            name_max: NAME_BYTES_MAX as u32,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        });
        self.reply(done, PATHCONF3resfail::default())
    }
}

/// Returns all that a caller may do, in the bits of ACCESS.
pub fn granted(caller: &Credentials, attr: &Rights) -> u32 {
    let is_dir = directory(attr).is_ok();
    let has = |wanted, bits| if caller.has(attr, wanted) { bits } else { 0 };
    let changes = nfs3::ACCESS3_MODIFY | nfs3::ACCESS3_EXTEND;
    has(READ, nfs3::ACCESS3_READ)
        | match is_dir {
            true => {
                has(WRITE, changes)
                    | has(WRITE | EXECUTE, nfs3::ACCESS3_DELETE)
                    | has(EXECUTE, nfs3::ACCESS3_LOOKUP)
            }
            false => has(WRITE, changes) | has(EXECUTE, nfs3::ACCESS3_EXECUTE),
        }
}

/// A type that has bytes.
pub fn regular(attr: &Attr) -> Result<(), Errno> {
    match attr.kind {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}
