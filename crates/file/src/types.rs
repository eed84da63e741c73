//! What a caller of a file system gives and gets: attributes, names, space, errors.

use bytes::Bytes;
use rekindle_env::Timestamp;
pub use rustix::io::Errno;

/// The number of an inode: never used again for another one.
pub type Ino = u64;

/// Bits of the numbers of a volume's inodes. Numbers beyond are of snapshots.
pub(crate) const INO_BITS: u32 = 42;

/// The inode of the root directory.
pub const ROOT: Ino = 1;

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    Regular = 1,
    Directory = 2,
    Symlink = 3,
    Fifo = 4,
    Socket = 5,
    CharDevice = 6,
    BlockDevice = 7,
}

impl FileType {
    pub(crate) const ALL: [FileType; 7] = [
        FileType::Regular,
        FileType::Directory,
        FileType::Symlink,
        FileType::Fifo,
        FileType::Socket,
        FileType::CharDevice,
        FileType::BlockDevice,
    ];
}

/// A moment of the wall clock, as file systems keep it. Orders by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    /// Nanoseconds, less than 1,000,000,000.
    pub nanoseconds: u32,
}

impl From<Timestamp> for Time {
    fn from(Timestamp(micros): Timestamp) -> Self {
        Self {
            seconds: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
            nanoseconds: u32::try_from(micros % 1_000_000).unwrap_or(0) * 1000,
        }
    }
}

/// The attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileType,
    /// Permission bits, with set-user-id, set-group-id and sticky: 12 bits.
    pub mode: u16,
    /// Names of the inode; of a directory, two more than it has subdirectories.
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of a device: its number.
    pub device: u32,
    /// Bytes; of a symlink, of its target.
    pub size: u64,
    /// Bytes that the content takes, without holes, before compression.
    pub allocated: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub created: Time,
}

/// Returns a mode without set-user-id, and without set-group-id where that is one (with the group's
/// execute bit; without it, it asks for mandatory locks): what a change by a caller without
/// privilege leaves.
#[must_use]
pub fn without_set_id(mode: u16) -> u16 {
    mode & if mode & 0o010 == 0 { !0o4000 } else { !0o6000 }
}

/// Attributes to set; what is `None` stays.
#[derive(Debug, Clone, Copy, Default)]
pub struct SetAttr {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub accessed: Option<Time>,
    pub modified: Option<Time>,
    /// Set by a kernel that keeps times itself; else the moment of the call.
    pub changed: Option<Time>,
}

/// The identity of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The client, drawn at random when it begins.
    pub client: u64,
    /// The request's number at the client, ascending.
    pub request: u64,
    /// The client will not send again what is before this number.
    pub oldest: u64,
}

/// The identity of a request of a client that does not number its requests: NFS has xids, which
/// ascend or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// The client.
    pub client: u64,
    /// Seconds since 1970 when it came: what is old is forgotten.
    pub at: u64,
    /// A hash of the request.
    pub key: u64,
}

/// A new inode.
#[derive(Debug, Clone, Copy)]
pub struct NewNode<'a> {
    pub kind: FileType,
    /// 12 bits.
    pub mode: u16,
    /// Bits of the mode that go, unless the directory says what is made in it gets (a default
    /// access control list).
    pub umask: u16,
    pub device: u32,
    /// Of a symlink: its target.
    pub target: &'a [u8],
    /// When it was accessed and modified, if not now.
    pub stamps: Option<[Time; 2]>,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The entry's place in the order of the listing: the next call begins behind it. It stays as
    /// long as the name does, whatever else changes, and has 63 bits; the first 16 places are never
    /// used.
    pub position: u64,
    pub name: Bytes,
    pub ino: Ino,
    pub kind: FileType,
}

/// How a rename treats a target that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// The target is replaced.
    Replace,
    /// It is an error.
    NoReplace,
    /// Both names exist, and change places.
    Exchange,
}

/// What becomes of a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Its bytes stay, and space is counted for it; the size grows with it unless `keep_size`.
    Reserve { keep_size: bool },
    /// It becomes a hole; the size stays.
    Punch,
    /// It reads as zeros; the size grows with it unless `keep_size`.
    Zero { keep_size: bool },
}

/// What a search in a file looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// What an extended attribute must be before it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    Any,
    Create,
    Replace,
}

/// The space of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The volume's size: most bytes that its files may have.
    pub bytes: u64,
    pub bytes_used: u64,
    /// Inodes that exist.
    pub inodes: u64,
}

/// Most bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;
/// Most bytes of a symlink's target.
pub const TARGET_BYTES_MAX: usize = 4095;
/// Most bytes of the value of an extended attribute.
pub const XATTR_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a file: those of the largest disk. The keys of its extents name no page beyond.
pub const FILE_BYTES_MAX: u64 = rekindle_base::limits::VOLUME_BYTES_MAX;

/// The error of a call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// POSIX names it; the client gets this number.
    #[error("{0}")]
    Posix(Errno),
    /// The volume cannot serve now, or not here: see its kind.
    #[error(transparent)]
    Volume(#[from] rekindle_volume::Error),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Posix(errno)
    }
}

impl From<rekindle_staging::Error> for Error {
    fn from(error: rekindle_staging::Error) -> Self {
        Self::Volume(error.into())
    }
}

impl From<rekindle_content::Error> for Error {
    fn from(error: rekindle_content::Error) -> Self {
        rekindle_staging::Error::from(error).into()
    }
}
