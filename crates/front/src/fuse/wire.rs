//! The bytes of FUSE: numbers with names, a decoder of requests that is a total function of any
//! bytes, and the structures of replies.
//!
//! The protocol is that of `linux/fuse.h`, version 7.31 to 7.40, in the byte order of the machine:
//! a mount and its daemon are on one machine. A request is a header, a structure that depends on
//! the opcode, and strings that end with NUL.

mod acls;
mod locks;
mod notices;

pub use acls::{KNOWS_ACLS, Knows, for_any_daemon, lacks_acls};
pub use locks::{KNOWS_LOCKS, LockAsk, LockOut, attributes_are_old, marked, shares_locks};
pub use notices::{ALONE, FOLDER, MEMORY, Memory, UNNAMED};

use super::limits;
use locks::word_at;
use rekindle_file::{AclOf, Allocate, Errno, Ino, NAME_BYTES_MAX, Rename, Seek, SetXattr};
use rekindle_file::{TARGET_BYTES_MAX, XATTR_BYTES_MAX};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version of the protocol: its first number, and the range of the second.
pub const MAJOR: u32 = 7;
pub const MINOR_MIN: u32 = 31;
pub const MINOR_MAX: u32 = 40;

/// Bytes of the header of a request.
pub const IN_HEADER_BYTES: usize = size_of::<InHeader>();
/// Bytes of the header of a reply.
pub const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();

/// The opcodes that are served.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
}

/// Flags of INIT. What is absent here is off: the kernel then checks permissions and truncation by
/// O_TRUNC with requests of their own.
pub mod init {
    const ASYNC_READ: u32 = 1 << 0;
    const EXPORT_SUPPORT: u32 = 1 << 4;
    const BIG_WRITES: u32 = 1 << 5;
    const AUTO_INVAL_DATA: u32 = 1 << 12;
    const DO_READDIRPLUS: u32 = 1 << 13;
    const READDIRPLUS_AUTO: u32 = 1 << 14;
    const ASYNC_DIO: u32 = 1 << 15;
    const PARALLEL_DIROPS: u32 = 1 << 18;
    const MAX_PAGES: u32 = 1 << 22;
    const CACHE_SYMLINKS: u32 = 1 << 23;
    /// The server takes set-id bits away where a request says so. The kernel then asks for
    /// capabilities once for each file, and not before each write.
    const HANDLE_KILLPRIV_V2: u32 = 1 << 28;

    /// The flags that the server takes when the kernel offers them.
    pub const WANTED: u32 = ASYNC_READ
        | EXPORT_SUPPORT
        | BIG_WRITES
        | AUTO_INVAL_DATA
        | DO_READDIRPLUS
        | READDIRPLUS_AUTO
        | ASYNC_DIO
        | PARALLEL_DIROPS
        | MAX_PAGES
        | CACHE_SYMLINKS
        | HANDLE_KILLPRIV_V2;

    /// The server keeps locks (`fcntl`; `flock`), and not the kernel. Only a mount that can
    /// interrupt them gets these.
    pub const POSIX_LOCKS: u32 = 1 << 1;
    pub const FLOCK_LOCKS: u32 = 1 << 10;
    pub const LOCKS: u32 = POSIX_LOCKS | FLOCK_LOCKS;

    const POSIX_ACL: u32 = 1 << 20;
    const DONT_MASK: u32 = 1 << 6;
    const SETXATTR_EXT: u32 = 1 << 29;
    /// The server keeps access control lists, and the kernel goes by them: so the server takes the
    /// umask from modes, and is told when a list takes set-group-id. Only a mount that sends
    /// requests as any daemon understands them ([`super::for_any_daemon`]) gets these.
    pub const ACLS: u32 = POSIX_ACL | DONT_MASK | SETXATTR_EXT;
}

/// Flags of an opened file. The kernel keeps its pages from one open to the next (it drops them
/// when it sees another time of modification), and sends no FLUSH at a close, which only locks
/// need.
pub mod open {
    const KEEP_CACHE: u32 = 1 << 1;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const FILE: u32 = KEEP_CACHE | NOFLUSH;
    /// Reads and writes do not go by way of the kernel's pages.
    pub const DIRECT: u32 = 1 << 0;
}

/// Flag of a WRITE of the kernel's pages, and not of a program.
const WRITE_CACHE: u32 = 1 << 0;
/// Flag of a WRITE by a caller that must not keep set-id bits.
const WRITE_KILL_SET_ID: u32 = 1 << 2;

/// Bits of the flags of open(2) that say whether bytes are read or written; 0: they are read only.
pub const O_ACCMODE: u32 = 0o3;
/// Flags of open(2) that CREATE looks at, and, the last one, WRITE.
pub const O_EXCL: u32 = 0o200;
pub const O_APPEND: u32 = 0o2000;
/// The kernel's flag of an open file that goes past its pages; architectures differ.
pub const O_DIRECT: u32 =
    if cfg!(any(target_arch = "aarch64", target_arch = "arm")) { 0o20_0000 } else { 0o4_0000 };

const RENAME_NOREPLACE: u32 = 1 << 0;
const RENAME_EXCHANGE: u32 = 1 << 1;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const KEEP_SIZE: u32 = 1 << 0;
const PUNCH_HOLE: u32 = 1 << 1;
const ZERO_RANGE: u32 = 1 << 4;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InHeader {
    /// Bytes of the whole request.
    pub length: u32,
    pub opcode: u32,
    /// The kernel's number of the request, which the reply repeats.
    pub unique: u64,
    /// The inode that the request is about.
    pub ino: Ino,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    pub extensions: u32,
}

/// The header of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OutHeader {
    /// Bytes of the whole reply.
    pub length: u32,
    /// Zero, or the negative number of an error.
    pub error: i32,
    pub unique: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct InitOut {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    /// Nanoseconds of the clock's step.
    pub time_granularity: u32,
    pub max_pages: u16,
    pub map_alignment: u16,
    pub unused: [u32; 8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetAttrIn {
    pub valid: u32,
    pub padding: u32,
    pub fh: u64,
    pub size: u64,
    pub lock_owner: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub atime_nanoseconds: u32,
    pub mtime_nanoseconds: u32,
    pub ctime_nanoseconds: u32,
    pub mode: u32,
    pub unused: u32,
    pub uid: u32,
    pub gid: u32,
    pub unused_too: u32,
}

/// The attributes of an inode.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AttrOut {
    pub ino: u64,
    pub size: u64,
    /// Of 512 bytes.
    pub blocks: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub atime_nanoseconds: u32,
    pub mtime_nanoseconds: u32,
    pub ctime_nanoseconds: u32,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u32,
    pub block_bytes: u32,
    pub flags: u32,
}

/// The reply to GETATTR and SETATTR.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ValidAttrOut {
    pub seconds: u64,
    pub nanoseconds: u32,
    pub padding: u32,
    pub attr: AttrOut,
}

/// The reply to a request that finds or makes a name. An inode of 0 says that there is none.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct EntryOut {
    pub ino: u64,
    pub generation: u64,
    pub entry_seconds: u64,
    pub attr_seconds: u64,
    pub entry_nanoseconds: u32,
    pub attr_nanoseconds: u32,
    pub attr: AttrOut,
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct OpenOut {
    pub fh: u64,
    pub flags: u32,
    pub padding: u32,
}

/// The reply to STATFS.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SpaceOut {
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    pub block_bytes: u32,
    pub name_bytes: u32,
    pub fragment_bytes: u32,
    pub padding: u32,
    pub spare: [u32; 6],
}

/// A name of a directory, before its bytes, which are padded to a multiple of 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NameOut {
    pub ino: u64,
    /// The place at which the listing goes on behind this name.
    pub next: u64,
    pub length: u32,
    pub kind: u32,
}

/// A number and what is unused behind it: the size of a WRITE or of an extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SizeOut {
    pub size: u32,
    pub padding: u32,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ReadIn {
    _fh: u64,
    offset: u64,
    size: u32,
    /// Of a WRITE: what it also does.
    flags: u32,
    _lock_owner: u64,
    /// Flags of the open file.
    open_flags: u32,
    _padding: u32,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RenameIn {
    new_dir: u64,
    flags: u32,
    _padding: u32,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct MakeIn {
    mode: u32,
    device: u32,
    umask: u32,
    _padding: u32,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CreateIn {
    flags: u32,
    mode: u32,
    umask: u32,
    _open_flags: u32,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct AllocateIn {
    _fh: u64,
    offset: u64,
    length: u64,
    mode: u32,
    _padding: u32,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SeekIn {
    _fh: u64,
    offset: u64,
    whence: u32,
    _padding: u32,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CopyIn {
    _fh: u64,
    offset: u64,
    to: u64,
    _to_fh: u64,
    to_offset: u64,
    length: u64,
    flags: u64,
}

/// What a request asks for. The inode is in its header. Of something new: bits of its mode that are
/// to go, unless the directory has a default list, are its umask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    Init(InitIn, Knows),
    /// `.` and `..` are lawful here: a server of NFS asks for them.
    Lookup {
        name: &'a [u8],
    },
    GetAttr,
    SetAttr(SetAttrIn),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        device: u32,
    },
    MakeDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        to: (Ino, &'a [u8]),
        how: Rename,
    },
    Link {
        ino: Ino,
        name: &'a [u8],
    },
    Open {
        flags: u32,
    },
    OpenDir,
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: u32,
    },
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        /// `None`: the end of the file, wherever that is. The kernel names the end that it knows of
        /// (`O_APPEND`), and other mounts may have moved it.
        offset: Option<u64>,
        /// Set-id bits go.
        kills_set_id: bool,
        /// All or nothing: pages that the kernel writes back, and what goes past them, where it
        /// makes an error of a part.
        is_whole: bool,
        data: &'a [u8],
    },
    Space,
    /// Of a file or directory. The owner of its `flock`, if it may have one.
    Release {
        unlocks: Option<u64>,
    },
    TestLock(LockAsk),
    SetLock {
        ask: LockAsk,
        waits: bool,
    },
    /// A signal has met the program whose request has this number of the kernel.
    Interrupt {
        unique: u64,
    },
    /// FSYNC, FSYNCDIR and SYNCFS: all changes share one log.
    Sync,
    /// A process has closed a file: its locks go.
    Flush {
        owner: u64,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        how: SetXattr,
        /// An access control list takes set-group-id.
        kills_set_gid: bool,
    },
    Xattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattrs {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    List {
        offset: u64,
        size: u32,
        plus: bool,
    },
    Allocate {
        what: Allocate,
        offset: u64,
        length: u64,
    },
    Seek {
        offset: u64,
        what: Seek,
    },
    Copy {
        offset: u64,
        to: (Ino, u64),
        length: u64,
    },
    /// The mount has ended: nothing is open any more.
    Destroy,
    /// FORGET and BATCH_FORGET: they have no reply, and the server keeps nothing that they are
    /// about.
    Silent,
}

/// Decodes the header of a request. `None`: the bytes are too few, or not as many as they say.
#[must_use]
pub fn header(request: &[u8]) -> Option<InHeader> {
    let (header, _) = InHeader::read_from_prefix(request).ok()?;
    (header.length as usize == request.len()).then_some(header)
}

/// Decodes what follows the header of a request. The error goes to the client.
pub fn op(opcode: u32, body: &[u8]) -> Result<Op<'_>, Errno> {
    let mut body = Body(body);
    Ok(match opcode {
        opcode::INIT => body.init()?,
        opcode::FORGET | opcode::BATCH_FORGET => Op::Silent,
        opcode::INTERRUPT => Op::Interrupt { unique: body.take()? },
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => body.lock(opcode)?,
        opcode::DESTROY => Op::Destroy,
        opcode::GETATTR => Op::GetAttr,
        opcode::SETATTR => Op::SetAttr(body.take()?),
        opcode::READLINK => Op::ReadLink,
        opcode::OPEN => Op::Open { flags: body.take::<[u32; 2]>()?[0] },
        opcode::OPENDIR => Op::OpenDir,
        opcode::RELEASE | opcode::RELEASEDIR => body.release()?,
        opcode::FSYNC | opcode::FSYNCDIR | opcode::SYNCFS => Op::Sync,
        opcode::FLUSH => body.flush()?,
        opcode::STATFS => Op::Space,
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => body.reading(opcode)?,
        opcode::WRITE => body.write()?,
        opcode::FALLOCATE => body.allocate()?,
        opcode::LSEEK => body.seek()?,
        opcode::COPY_FILE_RANGE => body.copy()?,
        opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
            body.xattr(opcode)?
        }
        _ => body.named(opcode)?,
    })
}

/// Whether a request with this opcode gets a reply.
#[must_use]
pub fn has_reply(opcode: u32) -> bool {
    !matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT)
}

/// Returns the inodes that the kernel forgets with a request.
#[must_use]
pub fn forgotten(request: &[u8]) -> Vec<Ino> {
    let Some(header) = header(request) else { return Vec::new() };
    match header.opcode {
        opcode::FORGET => vec![header.ino],
        // Their number and a zero come first; each has its number and a count.
        opcode::BATCH_FORGET => {
            let pairs = request.get(IN_HEADER_BYTES + 8..).unwrap_or_default();
            pairs
                .chunks_exact(16)
                .filter_map(|pair| Some(u64::read_from_prefix(pair).ok()?.0))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the kernel's number of the request whose program a signal has met, if this one tells of
/// that.
#[must_use]
pub fn interrupted(request: &[u8]) -> Option<u64> {
    let is_that = header(request).is_some_and(|header| header.opcode == opcode::INTERRUPT);
    let body = request.get(IN_HEADER_BYTES..).filter(|_| is_that)?;
    u64::read_from_prefix(body).ok().map(|(unique, _)| unique)
}

/// The bytes of a request that are not decoded yet.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take<T: FromBytes>(&mut self) -> Result<T, Errno> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::INVAL)?;
        self.0 = rest;
        Ok(value)
    }

    /// Takes a string that ends with NUL.
    fn string(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(Errno::INVAL)?;
        let (string, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(string)
    }

    /// Takes a name that a lookup may ask for.
    fn any_name(&mut self) -> Result<&'a [u8], Errno> {
        match self.string()? {
            name if name.len() > NAME_BYTES_MAX => Err(Errno::NAMETOOLONG),
            name if name.is_empty() || name.contains(&b'/') => Err(Errno::INVAL),
            name => Ok(name),
        }
    }

    /// Takes a name that may be made or removed.
    fn name(&mut self) -> Result<&'a [u8], Errno> {
        match self.any_name()? {
            b"." | b".." => Err(Errno::INVAL),
            name => Ok(name),
        }
    }

    /// Decodes the requests that are about a name.
    fn named(&mut self, opcode: u32) -> Result<Op<'a>, Errno> {
        Ok(match opcode {
            opcode::LOOKUP => Op::Lookup { name: self.any_name()? },
            opcode::UNLINK => Op::Unlink { name: self.name()? },
            opcode::RMDIR => Op::RemoveDir { name: self.name()? },
            opcode::MKDIR => {
                let [mode, umask] = self.take::<[u32; 2]>()?;
                let (mode, umask) = acls::asked(mode, umask);
                Op::MakeDir { name: self.name()?, mode, umask }
            }
            opcode::MKNOD => {
                let MakeIn { mode, umask, device, .. } = self.take()?;
                let (mode, umask) = acls::asked(mode, umask);
                Op::MakeNode { name: self.name()?, mode, umask, device }
            }
            opcode::CREATE => {
                let CreateIn { flags, mode, umask, .. } = self.take()?;
                let (mode, umask) = acls::asked(mode, umask);
                Op::Create { name: self.name()?, mode, umask, flags }
            }
            opcode::SYMLINK => {
                let (name, target) = (self.name()?, self.string()?);
                match target.len() {
                    0 => return Err(Errno::INVAL),
                    length if length > TARGET_BYTES_MAX => return Err(Errno::NAMETOOLONG),
                    _ => Op::Symlink { name, target },
                }
            }
            opcode::LINK => Op::Link { ino: self.take()?, name: self.name()? },
            opcode::RENAME => self.rename(|body| Ok((body.take()?, 0)))?,
            opcode::RENAME2 => self.rename(|body| {
                let RenameIn { new_dir, flags, .. } = body.take()?;
                Ok((new_dir, flags))
            })?,
            _ => return Err(Errno::NOSYS),
        })
    }

    fn rename(
        &mut self,
        begin: impl Fn(&mut Self) -> Result<(Ino, u32), Errno>,
    ) -> Result<Op<'a>, Errno> {
        let (new_dir, flags) = begin(self)?;
        let how = match flags {
            0 => Rename::Replace,
            RENAME_NOREPLACE => Rename::NoReplace,
            RENAME_EXCHANGE => Rename::Exchange,
            _ => return Err(Errno::INVAL),
        };
        Ok(Op::Rename { name: self.name()?, to: (new_dir, self.name()?), how })
    }

    fn reading(&mut self, opcode: u32) -> Result<Op<'a>, Errno> {
        let ReadIn { offset, size, .. } = self.take()?;
        if size > limits::DATA_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        Ok(match opcode {
            opcode::READ => Op::Read { offset, size },
            _ => Op::List { offset, size, plus: opcode == opcode::READDIRPLUS },
        })
    }

    fn write(&mut self) -> Result<Op<'a>, Errno> {
        // The structures of READ and WRITE are alike.
        let ReadIn { offset, size, flags, open_flags, .. } = self.take()?;
        if size > limits::DATA_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        // The kernel's own pages have their place.
        let is_page = flags & WRITE_CACHE != 0;
        let is_whole = is_page || open_flags & O_DIRECT != 0;
        let appends = open_flags & O_APPEND != 0 && !is_page;
        let offset = (!appends).then_some(offset);
        let kills_set_id = flags & WRITE_KILL_SET_ID != 0;
        let data = self.0.get(..size as usize).ok_or(Errno::INVAL)?;
        Ok(Op::Write { offset, kills_set_id, is_whole, data })
    }

    fn allocate(&mut self) -> Result<Op<'a>, Errno> {
        let AllocateIn { offset, length, mode, .. } = self.take()?;
        let keep_size = mode & KEEP_SIZE != 0;
        let what = match mode & !KEEP_SIZE {
            0 => Allocate::Reserve { keep_size },
            PUNCH_HOLE if keep_size => Allocate::Punch,
            ZERO_RANGE => Allocate::Zero { keep_size },
            _ => return Err(Errno::OPNOTSUPP),
        };
        if length == 0 {
            return Err(Errno::INVAL);
        }
        Ok(Op::Allocate { what, offset, length })
    }

    fn seek(&mut self) -> Result<Op<'a>, Errno> {
        let SeekIn { offset, whence, .. } = self.take()?;
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        Ok(Op::Seek { offset, what })
    }

    fn copy(&mut self) -> Result<Op<'a>, Errno> {
        let CopyIn { offset, to, to_offset, length, flags, .. } = self.take()?;
        match flags {
            0 => Ok(Op::Copy { offset, to: (to, to_offset), length }),
            _ => Err(Errno::INVAL),
        }
    }

    fn xattr(&mut self, opcode: u32) -> Result<Op<'a>, Errno> {
        if opcode == opcode::REMOVEXATTR {
            return Ok(Op::RemoveXattr { name: self.xattr_name()? });
        }
        let [size, flags] = self.take::<[u32; 2]>()?;
        Ok(match opcode {
            opcode::LISTXATTR => Op::ListXattrs { size },
            opcode::GETXATTR => Op::Xattr { name: self.xattr_name()?, size },
            _ => {
                let name = self.xattr_name()?;
                let kills_set_gid = flags & acls::KILLS_SET_GID != 0;
                let how = match flags & !acls::KILLS_SET_GID {
                    0 => SetXattr::Any,
                    XATTR_CREATE => SetXattr::Create,
                    XATTR_REPLACE => SetXattr::Replace,
                    _ => return Err(Errno::INVAL),
                };
                if size as usize > XATTR_BYTES_MAX {
                    return Err(Errno::TOOBIG);
                }
                let value = self.0.get(..size as usize).ok_or(Errno::INVAL)?;
                Op::SetXattr { name, value, how, kills_set_gid }
            }
        })
    }

    /// Takes the name of an extended attribute. Of those of the system, which have a meaning, only
    /// access control lists are known.
    fn xattr_name(&mut self) -> Result<&'a [u8], Errno> {
        match self.string()? {
            name if name.is_empty() || name.len() > NAME_BYTES_MAX => Err(Errno::RANGE),
            name if AclOf::named(name).is_some() => Ok(name),
            name if name.starts_with(b"system.") => Err(Errno::OPNOTSUPP),
            // A class without a name in it.
            name if name.iter().position(|byte| *byte == b'.') == Some(name.len() - 1) => {
                Err(Errno::INVAL)
            }
            name => Ok(name),
        }
    }
}

pub mod valid;

#[cfg(test)]
mod tests;
