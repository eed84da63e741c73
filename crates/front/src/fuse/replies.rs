//! Replies: what the file system says, in the structures of the kernel.

use super::limits;
use super::wire::{
    ALONE, AttrOut, EntryOut, FOLDER, NameOut, OUT_HEADER_BYTES, OutHeader, SpaceOut, UNNAMED,
};
use super::wire::{InitIn, InitOut, Knows, MAJOR, MINOR_MAX, MINOR_MIN, OpenOut, init};
use super::wire::{ValidAttrOut, open};
use bytes::Bytes;
use rekindle_file::{Attr, Errno, FileType, NAME_BYTES_MAX, Space};
use zerocopy::{Immutable, IntoBytes};

/// The size in which STATFS counts, bytes.
const SPACE_BLOCK_BYTES: u32 = 4096;
/// Bytes of a block of `st_blocks`.
const SECTOR_BYTES: u64 = 512;
/// Inodes that STATFS says are free: only space bounds their number.
const INODES_FREE: u64 = 1 << 40;
/// Steps of time that the kernel keeps, nanoseconds.
const TIME_STEP: u32 = 1;

/// A reply: its head, and data that may lie elsewhere.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub head: Vec<u8>,
    /// In order.
    pub data: Vec<Bytes>,
}

/// Returns the number of bytes of pieces.
pub fn total(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

/// Makes the reply to a request: success with a body and data, or an error.
pub fn reply(unique: u64, body: Result<Body, Errno>) -> Reply {
    let (error, body) = match body {
        Ok(body) => (0, body),
        Err(errno) => (-errno.raw_os_error(), Body::default()),
    };
    let length = OUT_HEADER_BYTES + body.bytes.len() + total(&body.data);
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let mut head = Vec::with_capacity(OUT_HEADER_BYTES + body.bytes.len());
    head.extend_from_slice(OutHeader { length, error, unique }.as_bytes());
    head.extend_from_slice(&body.bytes);
    Reply { head, data: body.data }
}

/// Makes what the mount is told beside the kernel's replies.
pub fn notice(error: i32, body: &[u8]) -> Reply {
    let length = (OUT_HEADER_BYTES + body.len()) as u32;
    let head = OutHeader { length, error, unique: 0 };
    Reply { head: [head.as_bytes(), body].concat(), data: Vec::new() }
}

/// What follows the header of a reply.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Body {
    bytes: Vec<u8>,
    data: Vec<Bytes>,
    /// Inodes that have lost their last name.
    unnamed: Vec<Attr>,
    /// Whether a lock was given to a mount that has had no company.
    is_alone: bool,
    /// Folders of which names have changed, as they are after that.
    folders: Vec<Attr>,
}

impl Body {
    /// A structure.
    pub fn of(value: &(impl IntoBytes + Immutable)) -> Self {
        Self { bytes: value.as_bytes().to_vec(), ..Self::default() }
    }

    /// Data alone.
    pub fn data(data: Bytes) -> Self {
        Self::pieces(vec![data])
    }

    /// Data alone, which lies in several places.
    pub fn pieces(data: Vec<Bytes>) -> Self {
        Self { data, ..Self::default() }
    }

    /// Success of a change that took the last name of inodes.
    pub fn unnamed(unnamed: Vec<Attr>) -> Self {
        Self { unnamed, ..Self::default() }
    }

    /// Success of a request for a lock.
    pub fn locked(is_alone: bool) -> Self {
        Self { is_alone, ..Self::default() }
    }

    /// The same, of a change of names in folders that have these attributes after it.
    pub fn in_folders(self, folders: Vec<Attr>) -> Self {
        Self { folders, ..self }
    }

    /// Returns what the mount is told before the reply to a request: what it answers in the place
    /// of the file system, once an inode is no more that a program still has open, or works in;
    /// what it answers of folders; and whether it is alone.
    pub fn notices(&self, unique: u64) -> Vec<Reply> {
        let unnamed = self.unnamed.iter().map(|of| notice(UNNAMED, attr(of).as_bytes()));
        let alone = self.is_alone.then(|| notice(ALONE, unique.as_bytes()));
        let folder = |of| notice(FOLDER, &[unique.as_bytes(), attr(of).as_bytes()].concat());
        unnamed.chain(alone).chain(self.folders.iter().map(folder)).collect()
    }

    /// A name that was found or made.
    pub fn entry(attr: &Attr) -> Self {
        Self::of(&entry(attr))
    }

    /// The answer that a name does not exist, which the kernel believes for as long as any other.
    pub fn no_entry() -> Self {
        Self::of(&EntryOut { entry_seconds: limits::BELIEVED.as_secs(), ..EntryOut::default() })
    }

    /// Attributes.
    pub fn attr(of: &Attr) -> Self {
        Self::of(&ValidAttrOut {
            seconds: limits::BELIEVED.as_secs(),
            attr: attr(of),
            ..ValidAttrOut::default()
        })
    }

    /// An opened file; files have no numbers beside those of their inodes.
    pub fn opened() -> Self {
        Self::of(&OpenOut { flags: open::FILE, ..OpenOut::default() })
    }

    /// A file that was made and opened.
    pub fn created(attr: &Attr) -> Self {
        let mut body = Self::entry(attr);
        body.bytes.extend(Self::opened().bytes);
        body
    }

    /// The space of a volume.
    pub fn space(space: &Space) -> Self {
        let block = u64::from(SPACE_BLOCK_BYTES);
        let free = space.bytes.saturating_sub(space.bytes_used) / block;
        Self::of(&SpaceOut {
            blocks: space.bytes / block,
            free,
            available: free,
            inodes: space.inodes.saturating_add(INODES_FREE),
            inodes_free: INODES_FREE,
            block_bytes: SPACE_BLOCK_BYTES,
            name_bytes: NAME_BYTES_MAX as u32,
            fragment_bytes: SPACE_BLOCK_BYTES,
            ..SpaceOut::default()
        })
    }
}

/// Agrees on a version, bounds and flags.
pub fn init(asked: &InitIn, knows: Knows) -> Result<Body, Errno> {
    if asked.major > MAJOR {
        // The kernel asks again, in our version.
        return Ok(Body::of(&InitOut { major: MAJOR, minor: MINOR_MAX, ..InitOut::default() }));
    }
    if asked.major < MAJOR || asked.minor < MINOR_MIN {
        return Err(Errno::PROTO);
    }
    let pages = limits::DATA_BYTES_MAX / SPACE_BLOCK_BYTES;
    let locks = if knows.locks { init::LOCKS } else { 0 };
    let acls = if knows.acls { init::ACLS } else { 0 };
    Ok(Body::of(&InitOut {
        major: MAJOR,
        minor: asked.minor.min(MINOR_MAX),
        max_readahead: asked.max_readahead.min(limits::DATA_BYTES_MAX),
        flags: asked.flags & (init::WANTED | locks | acls),
        max_background: limits::BACKGROUND_MAX,
        congestion_threshold: limits::BACKGROUND_MANY,
        max_write: limits::DATA_BYTES_MAX,
        time_granularity: TIME_STEP,
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        ..InitOut::default()
    }))
}

fn entry(of: &Attr) -> EntryOut {
    EntryOut {
        ino: of.ino,
        entry_seconds: limits::BELIEVED.as_secs(),
        attr_seconds: limits::BELIEVED.as_secs(),
        attr: attr(of),
        ..EntryOut::default()
    }
}

fn attr(of: &Attr) -> AttrOut {
    AttrOut {
        ino: of.ino,
        size: of.size,
        blocks: of.allocated.div_ceil(SECTOR_BYTES),
        atime: of.accessed.seconds,
        mtime: of.modified.seconds,
        ctime: of.changed.seconds,
        atime_nanoseconds: of.accessed.nanoseconds,
        mtime_nanoseconds: of.modified.nanoseconds,
        ctime_nanoseconds: of.changed.nanoseconds,
        mode: type_bits(of.kind) << 12 | u32::from(of.mode),
        links: of.links,
        uid: of.uid,
        gid: of.gid,
        device: of.device,
        block_bytes: limits::BLOCK_BYTES,
        flags: 0,
    }
}

/// Returns the type of an inode as directories show it, which is bits 12 to 15 of its mode.
fn type_bits(kind: FileType) -> u32 {
    match kind {
        FileType::Fifo => 1,
        FileType::CharDevice => 2,
        FileType::Directory => 4,
        FileType::BlockDevice => 6,
        FileType::Regular => 8,
        FileType::Symlink => 10,
        FileType::Socket => 12,
    }
}

/// Returns the type that a mode asks for, of an inode that MKNOD makes.
pub fn type_of(mode: u32) -> Result<FileType, Errno> {
    match mode >> 12 & 0xf {
        0 | 8 => Ok(FileType::Regular),
        1 => Ok(FileType::Fifo),
        2 => Ok(FileType::CharDevice),
        6 => Ok(FileType::BlockDevice),
        12 => Ok(FileType::Socket),
        _ => Err(Errno::INVAL),
    }
}

/// The names of a directory, as many as the kernel has room for.
pub struct Listing {
    bytes: Vec<u8>,
    size: usize,
    /// Whether the attributes of each name come with it.
    plus: bool,
}

impl Listing {
    pub fn new(size: u32, plus: bool) -> Self {
        Self { bytes: Vec::new(), size: size as usize, plus }
    }

    /// Returns how many names of middle length fit in.
    pub fn estimate(&self) -> usize {
        let each = size_of::<NameOut>() + 16 + if self.plus { size_of::<EntryOut>() } else { 0 };
        (self.size - self.bytes.len()) / each + 1
    }

    /// Adds a name. `next` is where the listing goes on behind it. Without attributes the kernel
    /// looks them up when it needs them. Returns whether there was room.
    pub fn push(
        &mut self,
        name: &[u8],
        (ino, kind): (u64, FileType),
        next: u64,
        attr: Option<&Attr>,
    ) -> bool {
        let head = if self.plus { size_of::<EntryOut>() } else { 0 } + size_of::<NameOut>();
        let total = head + name.len().next_multiple_of(8);
        if self.bytes.len() + total > self.size {
            return false;
        }
        let end = self.bytes.len() + total;
        if self.plus {
            let entry = attr.map(entry).unwrap_or_default();
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let length = u32::try_from(name.len()).unwrap_or(0);
        let name_out = NameOut { ino, next, length, kind: type_bits(kind) };
        self.bytes.extend_from_slice(name_out.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    pub fn body(self) -> Body {
        Body { bytes: self.bytes, ..Body::default() }
    }
}
