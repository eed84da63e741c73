//! Listings of directories.
//!
//! A cookie is the position of a name, which stays as long as the name does, whatever else changes:
//! so a listing can go on after any time, over a restart and at another host, and its verifier is
//! always the same.

use super::{Answered, Question, directory, some};
use crate::nfs::handle;
use crate::nfs::limits;
use crate::nfs::replies::{self, Failed};
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::xdr::Args;
use crate::target::Target;
use futures_util::future::join_all;
use nfs3_types::nfs3::{
    Nfs3Option, READDIR3resfail, READDIR3resok, READDIRPLUS3resfail, READDIRPLUS3resok,
    cookieverf3, dirlist3, dirlistplus3, entry3, entryplus3, filename3, nfsstat3, post_op_attr,
};
use nfs3_types::xdr_codec::{BoundedList, List, Opaque, Pack};
use rekindle_file::{Attr, Ino};

/// The cookies of `.` and `..`; the file system uses no position before 16.
const DOT: u64 = 1;
const DOTS: u64 = 2;
/// The verifier of all cookies.
const VERIFIER: cookieverf3 = cookieverf3([0; 8]);
/// Bytes of an entry without its name, and of the reply around the entries.
const ENTRY_BYTES: usize = 24;
const AROUND_BYTES: usize = 4 + 88 + 8 + 8;

/// A listing to be made.
struct Wanted {
    /// Where it goes on.
    after: u64,
    /// Most bytes of names, with what goes with each in any listing.
    names: usize,
    /// Most bytes of the reply.
    all: usize,
    /// Whether the caller may look names up: without that it gets no handles.
    finds: bool,
}

/// An entry, as it is sent with handles or without.
struct Found {
    ino: Ino,
    cookie: u64,
    name: Vec<u8>,
    attr: Option<Attr>,
}

impl<E: Exports> Question<'_, E> {
    /// READDIR, or READDIRPLUS.
    pub(super) async fn list(&self, mut args: Args<'_>, plus: bool) -> Answered {
        let (handle, after, verifier) = (handle::read(&mut args)?, args.u64()?, args.eight()?);
        let count = args.u32()?;
        let most = if plus { args.u32()? } else { count };
        let bytes = |count: u32| count.min(limits::LIST_BYTES_MAX) as usize;
        let is_ours = verifier == VERIFIER.0 && i64::try_from(after).is_ok();
        let place = match self.place(handle).await {
            Ok(place) => place,
            Err(failed) => return self.refuse(failed, Nfs3Option::None, plus),
        };
        let done = async {
            let dir = place.export.files.rights(place.ino).await?;
            directory(&dir)?;
            self.caller.list(&dir)?;
            if !is_ours {
                return Err(nfsstat3::NFS3ERR_BAD_COOKIE.into());
            }
            let dir_attributes = some(replies::attributes(&dir, place.volume()));
            let finds = self.caller.look_up(&dir).is_ok();
            let wanted = Wanted { after, names: bytes(count), all: bytes(most), finds };
            match plus {
                true => self.with_attributes(&place, &wanted, dir_attributes).await,
                false => self.names_only(&place, &wanted, dir_attributes).await,
            }
        };
        match done.await {
            Ok(reply) => Ok(reply),
            Err(failed) => self.refuse(failed, self.after(&place, place.ino).await, plus),
        }
    }

    fn refuse(&self, failed: Failed, dir_attributes: post_op_attr, plus: bool) -> Answered {
        match plus {
            true => {
                let failure = READDIRPLUS3resfail { dir_attributes };
                self.reply::<READDIRPLUS3resok<'_>, _>(Err(failed), failure)
            }
            false => {
                let failure = READDIR3resfail { dir_attributes };
                self.reply::<READDIR3resok<'_>, _>(Err(failed), failure)
            }
        }
    }

    async fn names_only(
        &self,
        place: &Place<E::Files>,
        wanted: &Wanted,
        dir_attributes: post_op_attr,
    ) -> Answered {
        let plain = |found: Found| entry3 {
            fileid: found.ino,
            name: filename3(Opaque::owned(found.name)),
            cookie: found.cookie,
        };
        let (entries, eof) = self.entries(place, wanted, false, plain).await?;
        let reply = dirlist3 { entries, eof };
        let done = READDIR3resok { dir_attributes, cookieverf: VERIFIER, reply };
        self.reply(Ok(done), READDIR3resfail::default())
    }

    async fn with_attributes(
        &self,
        place: &Place<E::Files>,
        wanted: &Wanted,
        dir_attributes: post_op_attr,
    ) -> Answered {
        let plus = |found: Found| entryplus3 {
            fileid: found.ino,
            name: filename3(Opaque::owned(found.name)),
            cookie: found.cookie,
            name_attributes: match &found.attr {
                Some(attr) => some(replies::attributes(attr, place.volume())),
                None => Nfs3Option::None,
            },
            name_handle: match &found.attr {
                Some(_) => some(place.handle(found.ino)),
                None => Nfs3Option::None,
            },
        };
        let (entries, eof) = self.entries(place, wanted, true, plus).await?;
        let reply = dirlistplus3 { entries, eof };
        let done = READDIRPLUS3resok { dir_attributes, cookieverf: VERIFIER, reply };
        self.reply(Ok(done), READDIRPLUS3resfail::default())
    }

    /// Gathers entries as long as they fit. Returns whether the directory ends with them.
    async fn entries<T: Pack>(
        &self,
        place: &Place<E::Files>,
        wanted: &Wanted,
        plus: bool,
        entry: impl Fn(Found) -> T,
    ) -> Result<(List<T>, bool), Failed> {
        let files = &place.export.files;
        let mut list = BoundedList::new(wanted.all.saturating_sub(AROUND_BYTES));
        let (mut names, mut count) = (0, 0);
        let mut push = |found: Found| {
            names += ENTRY_BYTES + found.name.len().next_multiple_of(4);
            let fits = names <= wanted.names && list.try_push(entry(found)).is_ok();
            count += usize::from(fits);
            (fits, count)
        };
        let with_attr = plus && wanted.finds;
        let attr = async |ino| if with_attr { files.attr(ino).await.ok() } else { None };
        let mut is_whole = true;
        if wanted.after < DOT {
            let attr = attr(place.ino).await;
            is_whole = push(Found { ino: place.ino, cookie: DOT, name: b".".to_vec(), attr }).0;
        }
        if is_whole && wanted.after < DOTS {
            let ino = files.parent(place.ino).await?;
            let attr = attr(ino).await;
            is_whole = push(Found { ino, cookie: DOTS, name: b"..".to_vec(), attr }).0;
        }
        let mut after = if wanted.after <= DOTS { 0 } else { wanted.after };
        let at_once = (wanted.names / (ENTRY_BYTES + 8)).clamp(1, 1024);
        while is_whole {
            let found = files.list(place.ino, after, at_once).await?;
            for some in found.chunks(limits::LOOKUPS_AT_ONCE) {
                let attrs = join_all(some.iter().map(async |entry| attr(entry.ino).await)).await;
                for (entry, attr) in some.iter().zip(attrs) {
                    let (ino, cookie, name) = (entry.ino, entry.position, entry.name.to_vec());
                    is_whole = is_whole && push(Found { ino, cookie, name, attr }).0;
                }
                if !is_whole {
                    break;
                }
            }
            match found.last() {
                Some(last) if found.len() >= at_once => after = last.position,
                _ => break,
            }
        }
        if count == 0 && !is_whole {
            return Err(nfsstat3::NFS3ERR_TOOSMALL.into());
        }
        Ok((list.into_inner(), is_whole))
    }
}
