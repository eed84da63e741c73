//! The side protocol of version 3 by which its clients show and set access control lists: program
//! 100227, which no RFC has. A list comes as the number of its entries, and then once more as a
//! counted array of them: tag, whom the entry names, and bits. An entry that names nothing has the
//! owner or the group of the file there. The tags of default lists have one bit more.

use super::{Answered, Mode, Question, passes};
use crate::nfs::permission::{Credentials, SET_GROUP_ID};
use crate::nfs::replies::Failed;
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::xdr::{Args, Garbage};
use crate::nfs::{handle, limits};
use crate::target::Target;
use nfs3_types::nfs3::{Nfs3Option, post_op_attr};
use nfs3_types::xdr_codec::{self, Pack};
use rekindle_file::{ACL_ENTRIES_MAX, Acl, AclEntry, AclOf, Errno, Error, Ino, Rights, Sight, tag};
use std::io::Write;

pub const PROGRAM: u32 = 100_227;
pub const VERSION: u32 = 3;
/// Procedures.
pub const GET: u32 = 1;
pub const SET: u32 = 2;

/// What a call is about: lists, or only how long they are.
const ACCESS: u32 = 1;
const ACCESS_COUNT: u32 = 2;
const DEFAULT: u32 = 4;
const DEFAULT_COUNT: u32 = 8;
const ALL: u32 = ACCESS | ACCESS_COUNT | DEFAULT | DEFAULT_COUNT;

/// The bit of the tags of a default list.
const OF_DEFAULT: u32 = 0x1000;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 12;

/// Most bytes of the lists in a reply.
pub const LISTS_BYTES_MAX: usize = 2 * (8 + ENTRY_BYTES * ACL_ENTRIES_MAX);

const _: () = assert!(LISTS_BYTES_MAX + 2048 < limits::KNOWN_CALL_BYTES);

/// The results of a call: attributes, and words behind them.
struct Told {
    attributes: post_op_attr,
    words: Vec<u32>,
}

impl Pack for Told {
    fn packed_size(&self) -> usize {
        self.attributes.packed_size() + self.words.len() * 4
    }

    fn pack(&self, out: &mut impl Write) -> xdr_codec::Result<usize> {
        let mut bytes = self.attributes.pack(out)?;
        for word in &self.words {
            bytes += word.pack(out)?;
        }
        Ok(bytes)
    }
}

/// Puts a list into words, as far as it is wanted.
fn put(words: &mut Vec<u32>, acl: Option<&Acl>, rights: &Rights, is_whole: bool, bit: u32) {
    let mut entries = acl.map(Acl::entries).unwrap_or_default();
    if let [_, (_, group, _), other] = entries[..] {
        // A list has a mask here.
        entries.splice(2.., [(tag::MASK, group, 0), other]);
    }
    let count = u32::try_from(entries.len()).unwrap_or(0);
    words.push(count);
    words.push(if is_whole { count } else { 0 });
    for (tag, bits, id) in entries.into_iter().filter(|_| is_whole) {
        let id = match tag {
            tag::OWNER => rights.uid,
            tag::GROUP_OF_FILE => rights.gid,
            tag::USER | tag::GROUP => id,
            _ => 0,
        };
        words.extend([u32::from(tag) | bit, id, u32::from(bits)]);
    }
}

/// Returns the default list of an inode, if it has one.
pub async fn default_list(files: &impl Target, ino: Ino) -> Result<Option<Acl>, Failed> {
    match files.xattr(ino, AclOf::Default.name()).await {
        Ok(bytes) => Ok(Some(Acl::parse(&bytes).map_err(|_| Errno::IO)?)),
        Err(Error::Posix(Errno::NODATA)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A list of a call; `None`: it has no entries.
type Asked = Result<Option<Acl>, Errno>;

/// Reads a list.
fn read(args: &mut Args<'_>) -> Result<Asked, Garbage> {
    let (said, count) = (args.u32()?, args.u32()?);
    if said as usize > 2 * ACL_ENTRIES_MAX || count as usize > 2 * ACL_ENTRIES_MAX {
        return Err(Garbage);
    }
    let mut entry = || -> Result<AclEntry, Garbage> {
        let (tag, id, bits) = (args.u32()? & !OF_DEFAULT, args.u32()?, args.u32()?);
        Ok((u16::try_from(tag).unwrap_or(0), u16::try_from(bits).unwrap_or(u16::MAX), id))
    };
    let mut entries = (0..count).map(|_| entry()).collect::<Result<Vec<_>, _>>()?;
    Ok(match entries.len() {
        // Only its length is told.
        _ if said != count => Err(Errno::INVAL),
        0 => Ok(None),
        _ => {
            entries.sort_by_key(|(tag, _, id)| (*tag, *id));
            if let [_, (tag::GROUP_OF_FILE, group, _), (tag::MASK, mask, _), _] = entries[..]
                && group == mask
            {
                // It says what the group's entry says, and is there for the protocol's sake.
                entries.remove(2);
            }
            Acl::new(&entries).map(Some)
        }
    })
}

impl<E: Exports> Question<'_, E> {
    /// Carries a call of the side protocol out.
    pub async fn answer_lists(&self, procedure: u32, args: Args<'_>) -> Answered {
        match procedure {
            0 => Ok(Vec::new()),
            GET => self.lists(args).await,
            SET => self.set_lists(args).await,
            _ => Err(Failed::NoProcedure),
        }
    }

    async fn lists(&self, mut args: Args<'_>) -> Answered {
        let (handle, wanted) = (handle::read(&mut args)?, args.u32()?);
        let place = match self.place(handle).await {
            Ok(place) => place,
            Err(failed) => return self.reply::<Told, _>(Err(failed), post_op_attr::None),
        };
        let words = self.words(&place, wanted).await;
        let attributes = self.after(&place, place.ino).await;
        match words {
            Ok(words) => self.reply(Ok(Told { attributes, words }), post_op_attr::None),
            Err(failed) => self.reply::<Told, _>(Err(failed), attributes),
        }
    }

    async fn words(&self, place: &Place<E::Files>, wanted: u32) -> Result<Vec<u32>, Failed> {
        if wanted & !ALL != 0 {
            return Err(Errno::INVAL.into());
        }
        let files = &place.export.files;
        let rights = files.rights(place.ino).await?;
        let default = default_list(files, place.ino).await?;
        let of_mode = Acl::of_mode(rights.mode);
        let access = rights.acl.as_ref().unwrap_or(&of_mode);
        let access = Some(access).filter(|_| wanted & (ACCESS | ACCESS_COUNT) != 0);
        let default = default.as_ref().filter(|_| wanted & (DEFAULT | DEFAULT_COUNT) != 0);
        let mut words = vec![wanted];
        put(&mut words, access, &rights, wanted & ACCESS != 0, 0);
        put(&mut words, default, &rights, wanted & DEFAULT != 0, OF_DEFAULT);
        Ok(words)
    }

    async fn set_lists(&self, mut args: Args<'_>) -> Answered {
        let (handle, which) = (handle::read(&mut args)?, args.u32()?);
        let (access, default) = (read(&mut args)?, read(&mut args)?);
        let place = match self.place(handle).await {
            Ok(place) => place,
            Err(failed) => return self.reply::<Told, _>(Err(failed), post_op_attr::None),
        };
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let rights = sight.rights(place.ino)?;
            caller.set_list(&rights)?;
            // A client sets the list once more that it knows that something new has got.
            let there = rights.acl.clone().unwrap_or_else(|| Acl::of_mode(rights.mode));
            let is_there = which & ACCESS == 0 || matches!(&access, Ok(Some(acl)) if *acl == there);
            if caller.is_root() || caller.is_in(rights.gid) || is_there {
                return Ok(passes());
            }
            Ok(Box::new(|mode| mode & !SET_GROUP_ID) as Mode)
        };
        let judge = self.judge(&[], &rule);
        let done = async {
            self.may_change(&place)?;
            if which & !ALL != 0 {
                return Err(Errno::INVAL.into());
            }
            let mut lists = Vec::new();
            if which & ACCESS != 0 {
                lists.push((AclOf::Access, access.clone()?));
            }
            if which & DEFAULT != 0 {
                lists.push((AclOf::Default, default?));
            }
            let done = place.export.files.set_acls(self.with(&judge), place.ino, &lists).await;
            self.settle(&place, &judge, done).await
        };
        let done = done.await;
        let attributes = self.after(&place, place.ino).await;
        match done {
            Ok(_) => self.reply(
                Ok(Told { attributes, words: Vec::new() }),
                Nfs3Option::None as post_op_attr,
            ),
            Err(failed) => self.reply::<Told, _>(Err(failed), attributes),
        }
    }
}
