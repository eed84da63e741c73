//! The attributes of version 4.1: those that this server has, as bytes, and those that a client
//! may set, out of bytes.

use super::acl::{self, Lists};
use super::codec::{Bitmap, Read, Write};
use super::limits;
use super::status::{Fault, Status};
use crate::nfs::limits as common;
use crate::nfs::replies;
use crate::nfs::xdr::{Args, Garbage};
use rekindle_file::{Attr, FILE_BYTES_MAX, FileType, NAME_BYTES_MAX, SetAttr, Space, Time};

const SUPPORTED_ATTRS: u32 = 0;
const TYPE: u32 = 1;
const FH_EXPIRE_TYPE: u32 = 2;
const CHANGE: u32 = 3;
pub const SIZE: u32 = 4;
const LINK_SUPPORT: u32 = 5;
const SYMLINK_SUPPORT: u32 = 6;
const NAMED_ATTR: u32 = 7;
const FSID: u32 = 8;
const UNIQUE_HANDLES: u32 = 9;
const LEASE_TIME: u32 = 10;
pub const RDATTR_ERROR: u32 = 11;
pub const ACL: u32 = 12;
const ACLSUPPORT: u32 = 13;
const CANSETTIME: u32 = 15;
const CASE_INSENSITIVE: u32 = 16;
const CASE_PRESERVING: u32 = 17;
const CHOWN_RESTRICTED: u32 = 18;
const FILEHANDLE: u32 = 19;
const FILEID: u32 = 20;
const FILES_AVAIL: u32 = 21;
const FILES_FREE: u32 = 22;
const FILES_TOTAL: u32 = 23;
const HOMOGENEOUS: u32 = 26;
const MAXFILESIZE: u32 = 27;
const MAXLINK: u32 = 28;
const MAXNAME: u32 = 29;
const MAXREAD: u32 = 30;
const MAXWRITE: u32 = 31;
pub const MODE: u32 = 33;
const NO_TRUNC: u32 = 34;
const NUMLINKS: u32 = 35;
pub const OWNER: u32 = 36;
pub const OWNER_GROUP: u32 = 37;
const RAWDEV: u32 = 41;
const SPACE_AVAIL: u32 = 42;
const SPACE_FREE: u32 = 43;
const SPACE_TOTAL: u32 = 44;
const SPACE_USED: u32 = 45;
pub const TIME_ACCESS: u32 = 47;
pub const TIME_ACCESS_SET: u32 = 48;
const TIME_CREATE: u32 = 50;
const TIME_DELTA: u32 = 51;
const TIME_METADATA: u32 = 52;
pub const TIME_MODIFY: u32 = 53;
pub const TIME_MODIFY_SET: u32 = 54;
const MOUNTED_ON_FILEID: u32 = 55;
const SUPPATTR_EXCLCREAT: u32 = 75;

/// Attributes that a client may set.
const SETTABLE: Bitmap =
    Bitmap::of(&[SIZE, ACL, MODE, OWNER, OWNER_GROUP, TIME_ACCESS_SET, TIME_MODIFY_SET]);
/// Those that it may set with an exclusive create: the times have its verifier, and a list comes
/// behind the file, so that the file does not say whether it has come.
pub const SETTABLE_EXCLUSIVE: Bitmap = Bitmap::of(&[SIZE, MODE, OWNER, OWNER_GROUP]);
/// The attributes that an exclusive create uses for the verifier.
pub const VERIFIER_IN: Bitmap = Bitmap::of(&[TIME_ACCESS, TIME_MODIFY]);
/// Attributes that are set only.
const WRITE_ONLY: Bitmap = Bitmap::of(&[TIME_ACCESS_SET, TIME_MODIFY_SET]);
/// Attributes of the volume's space: a call asks for them only if they are wanted.
const OF_SPACE: Bitmap =
    Bitmap::of(&[FILES_AVAIL, FILES_FREE, FILES_TOTAL, SPACE_AVAIL, SPACE_FREE, SPACE_TOTAL]);

/// The attributes that this server has.
pub const SUPPORTED: Bitmap = Bitmap::of(&[
    SUPPORTED_ATTRS,
    TYPE,
    FH_EXPIRE_TYPE,
    CHANGE,
    SIZE,
    LINK_SUPPORT,
    SYMLINK_SUPPORT,
    NAMED_ATTR,
    FSID,
    UNIQUE_HANDLES,
    LEASE_TIME,
    RDATTR_ERROR,
    ACL,
    ACLSUPPORT,
    CANSETTIME,
    CASE_INSENSITIVE,
    CASE_PRESERVING,
    CHOWN_RESTRICTED,
    FILEHANDLE,
    FILEID,
    FILES_AVAIL,
    FILES_FREE,
    FILES_TOTAL,
    HOMOGENEOUS,
    MAXFILESIZE,
    MAXLINK,
    MAXNAME,
    MAXREAD,
    MAXWRITE,
    MODE,
    NO_TRUNC,
    NUMLINKS,
    OWNER,
    OWNER_GROUP,
    RAWDEV,
    SPACE_AVAIL,
    SPACE_FREE,
    SPACE_TOTAL,
    SPACE_USED,
    TIME_ACCESS,
    TIME_ACCESS_SET,
    TIME_CREATE,
    TIME_DELTA,
    TIME_METADATA,
    TIME_MODIFY,
    TIME_MODIFY_SET,
    MOUNTED_ON_FILEID,
    SUPPATTR_EXCLCREAT,
]);

/// What is known of an export that is not looked into: a name in the list of exports.
pub const OF_EXPORT: Bitmap = Bitmap::of(&[TYPE, RDATTR_ERROR, FILEID, MOUNTED_ON_FILEID]);

/// Longest list of attributes that is read, bytes.
const VALUES_BYTES_MAX: u32 = limits::ACL_BYTES_MAX as u32 + (8 << 10);
/// Inodes that are said to be free: their number has no bound of its own.
const INODES_FREE: u64 = 1 << 40;

/// What attributes are asked of.
pub struct Subject<'a> {
    pub attr: &'a Attr,
    /// Its access control lists, if it has more than a mode.
    pub lists: Option<&'a Lists>,
    /// The number of the volume; 0: the list of exports.
    pub volume: u64,
    pub handle: &'a [u8],
    pub space: Option<Space>,
    /// The number that the inode has in the directory above, where it begins a volume.
    pub above: Option<u64>,
}

impl<'a> Subject<'a> {
    /// The list of exports, or one of them.
    pub fn of_exports(attr: &'a Attr, handle: &'a [u8]) -> Self {
        Self { attr, lists: None, volume: 0, handle, space: None, above: None }
    }
}

/// Whether the volume's space is asked for.
pub fn asks_for_space(wanted: &Bitmap) -> bool {
    !wanted.and(&OF_SPACE).is_empty()
}

/// Whether access control lists are asked for.
pub fn asks_for_lists(wanted: &Bitmap) -> bool {
    wanted.has(ACL)
}

/// Returns those of the attributes that an inode of a type does not have: a symlink has no list.
pub fn lacks(kind: FileType) -> Bitmap {
    if kind == FileType::Symlink { Bitmap::of(&[ACL]) } else { Bitmap::default() }
}

/// Returns the number that changes with each change of an inode.
pub fn change(attr: &Attr) -> u64 {
    change_at(replies::time(attr.changed).seconds, replies::time(attr.changed).nseconds)
}

/// The same, by a time as version 3 has it.
pub fn change_at(seconds: u32, nanoseconds: u32) -> u64 {
    u64::from(seconds) * 1_000_000_000 + u64::from(nanoseconds)
}

fn kind(kind: FileType) -> u32 {
    match kind {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::BlockDevice => 3,
        FileType::CharDevice => 4,
        FileType::Symlink => 5,
        FileType::Socket => 6,
        FileType::Fifo => 7,
    }
}

fn put_time(out: &mut Vec<u8>, time: Time) {
    out.put_u64(time.seconds.cast_unsigned());
    out.put_u32(time.nanoseconds);
}

/// Writes the attributes that are wanted and had: which ones, and their values.
pub fn encode(out: &mut Vec<u8>, wanted: &Bitmap, of: &Subject<'_>) {
    let had = wanted.and(&SUPPORTED).without(&WRITE_ONLY).without(&lacks(of.attr.kind));
    out.put_bitmap(&had);
    let mut values = Vec::new();
    for number in had.numbers() {
        value(&mut values, number, of);
    }
    out.put_opaque(&values);
}

fn value(out: &mut Vec<u8>, number: u32, of: &Subject<'_>) {
    let Subject { attr, lists, volume, handle, space, above } = of;
    let none = Space { bytes: 0, bytes_used: 0, inodes: 0 };
    let space = space.unwrap_or(none);
    let free = space.bytes.saturating_sub(space.bytes_used);
    match number {
        SUPPORTED_ATTRS => out.put_bitmap(&SUPPORTED),
        TYPE => out.put_u32(kind(attr.kind)),
        // Handles stay good.
        FH_EXPIRE_TYPE => out.put_u32(0),
        CHANGE => out.put_u64(change(attr)),
        SIZE => out.put_u64(attr.size),
        LINK_SUPPORT | SYMLINK_SUPPORT | UNIQUE_HANDLES | CANSETTIME | CASE_PRESERVING
        | CHOWN_RESTRICTED | HOMOGENEOUS | NO_TRUNC => out.put_flag(true),
        NAMED_ATTR | CASE_INSENSITIVE => out.put_flag(false),
        FSID => {
            out.put_u64(*volume);
            out.put_u64(0);
        }
        LEASE_TIME => out.put_u32(limits::LEASE.as_secs() as u32),
        RDATTR_ERROR => out.put_u32(Status::OK.0),
        ACL => {
            let is_dir = attr.kind == FileType::Directory;
            lists.unwrap_or(&Lists::of_mode(attr.mode)).put(out, is_dir);
        }
        ACLSUPPORT => out.put_u32(acl::SUPPORT),
        FILEHANDLE => out.put_opaque(handle),
        FILEID => out.put_u64(attr.ino),
        MOUNTED_ON_FILEID => out.put_u64(above.unwrap_or(attr.ino)),
        FILES_AVAIL | FILES_FREE => out.put_u64(INODES_FREE),
        FILES_TOTAL => out.put_u64(space.inodes.saturating_add(INODES_FREE)),
        MAXFILESIZE => out.put_u64(FILE_BYTES_MAX),
        MAXLINK => out.put_u32(u32::MAX),
        MAXNAME => out.put_u32(NAME_BYTES_MAX as u32),
        MAXREAD | MAXWRITE => out.put_u64(common::DATA_BYTES_MAX.into()),
        MODE => out.put_u32(attr.mode.into()),
        NUMLINKS => out.put_u32(attr.links),
        OWNER => out.put_opaque(attr.uid.to_string().as_bytes()),
        OWNER_GROUP => out.put_opaque(attr.gid.to_string().as_bytes()),
        RAWDEV => {
            let device = replies::device(attr.device);
            out.put_u32(device.specdata1);
            out.put_u32(device.specdata2);
        }
        SPACE_AVAIL | SPACE_FREE => out.put_u64(free),
        SPACE_TOTAL => out.put_u64(space.bytes),
        SPACE_USED => out.put_u64(attr.allocated),
        TIME_ACCESS => put_time(out, attr.accessed),
        TIME_CREATE => put_time(out, attr.created),
        TIME_DELTA => put_time(out, Time { seconds: 0, nanoseconds: 1 }),
        TIME_METADATA => put_time(out, attr.changed),
        TIME_MODIFY => put_time(out, attr.modified),
        SUPPATTR_EXCLCREAT => out.put_bitmap(&SETTABLE_EXCLUSIVE),
        _ => {}
    }
}

/// Attributes to set.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    pub set: SetAttr,
    /// An access control list, entry by entry.
    pub acl: Option<Vec<acl::Entry>>,
    /// Which ones.
    pub which: Bitmap,
    /// Whether the times among them are the server's.
    pub is_now: bool,
}

/// The bytes of attributes, as a client sends them.
pub fn raw<'a>(args: &mut Args<'a>) -> Result<(Bitmap, &'a [u8]), Garbage> {
    Ok((args.bitmap()?, args.opaque(VALUES_BYTES_MAX)?))
}

/// Reads attributes to set.
pub fn asked((which, values): (Bitmap, &[u8]), now: Time) -> Result<Asked, Fault> {
    if !which.without(&SUPPORTED).is_empty() {
        return Err(Status::ATTRNOTSUPP.into());
    }
    if !which.without(&SETTABLE).is_empty() {
        return Err(Status::INVAL.into());
    }
    let mut args = Args(values);
    let mut asked = Asked { which, is_now: true, ..Asked::default() };
    for number in which.numbers() {
        match number {
            SIZE => {
                let size = args.u64()?;
                if size > FILE_BYTES_MAX {
                    return Err(Status::FBIG.into());
                }
                asked.set.size = Some(size);
            }
            ACL => asked.acl = Some(acl::read(&mut args)?),
            MODE => {
                let mode = args.u32()?;
                let mode = u16::try_from(mode).ok().filter(|mode| *mode <= 0o7777);
                asked.set.mode = Some(mode.ok_or(Status::INVAL)?);
            }
            OWNER => asked.set.uid = Some(id(&mut args)?),
            OWNER_GROUP => asked.set.gid = Some(id(&mut args)?),
            TIME_ACCESS_SET => asked.set.accessed = Some(time(&mut args, now, &mut asked.is_now)?),
            _ => asked.set.modified = Some(time(&mut args, now, &mut asked.is_now)?),
        }
    }
    if args.0.is_empty() { Ok(asked) } else { Err(Status::BADXDR.into()) }
}

/// Reads an owner.
fn id(args: &mut Args<'_>) -> Result<u32, Fault> {
    acl::number(args.opaque(limits::OWNER_BYTES_MAX)?)
}

fn time(args: &mut Args<'_>, now: Time, is_now: &mut bool) -> Result<Time, Fault> {
    match args.u32()? {
        0 => Ok(now),
        1 => {
            *is_now = false;
            let (seconds, nanoseconds) = (args.u64()?.cast_signed(), args.u32()?);
            if nanoseconds >= 1_000_000_000 {
                return Err(Status::INVAL.into());
            }
            Ok(Time { seconds, nanoseconds })
        }
        _ => Err(Status::BADXDR.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(which: &[u32], values: &[u32]) -> Result<Asked, Fault> {
        let bytes: Vec<u8> = values.iter().flat_map(|word| word.to_be_bytes()).collect();
        asked((Bitmap::of(which), &bytes), Time::default())
    }

    #[test]
    fn attributes_to_set_are_read_in_the_order_of_their_numbers() {
        let uid = u32::from_be_bytes(*b"1234");
        let asked = raw(&[MODE, SIZE, OWNER], &[0, 9, 0o644, 4, uid]).unwrap();
        assert_eq!(
            (asked.set.size, asked.set.mode, asked.set.uid),
            (Some(9), Some(0o644), Some(1234))
        );
        assert!(asked.is_now);
        let asked = raw(&[TIME_MODIFY_SET], &[1, u32::MAX, u32::MAX, 5]).unwrap();
        assert_eq!(asked.set.modified, Some(Time { seconds: -1, nanoseconds: 5 }));
        assert!(!asked.is_now);
    }

    #[test]
    fn attributes_that_cannot_be_set_are_refused() {
        let status = |which: &[u32], values: &[u32]| raw(which, values).unwrap_err();
        assert_eq!(status(&[TYPE], &[1]), Status::INVAL.into());
        assert_eq!(status(&[13], &[3]), Status::INVAL.into(), "which lists there may be");
        assert_eq!(status(&[14], &[1]), Status::ATTRNOTSUPP.into(), "archived");
        assert_eq!(status(&[12], &[1]), Status::BADXDR.into(), "a list without its entry");
        assert_eq!(status(&[MODE], &[0o10000]), Status::INVAL.into());
        assert_eq!(status(&[MODE], &[]), Status::BADXDR.into());
        assert_eq!(status(&[MODE], &[0, 0]), Status::BADXDR.into(), "more than it says");
        assert_eq!(status(&[OWNER], &[4, u32::from_be_bytes(*b"root")]), Status::BADOWNER.into());
        assert_eq!(status(&[OWNER], &[u32::MAX]), Status::BADXDR.into());
        assert_eq!(status(&[SIZE], &[u32::MAX, 0]), Status::FBIG.into());
        assert_eq!(status(&[TIME_ACCESS_SET], &[1, 0, 0, 1_000_000_000]), Status::INVAL.into());
    }
}
