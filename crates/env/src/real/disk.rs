//! Files of the operating system. Each call does its work in the first poll, on the caller's
//! thread.
#![expect(clippy::disallowed_methods, reason = "this is what Env::disk is made of")]

use super::access;
use crate::{BoxFuture, Disk, File, FileKind, Open};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Zeros written by one call while preallocating, and bytes read ahead at a time. A commit waits
/// for the pieces that the device has before it.
const PIECE_BYTES: usize = 256 << 10;
/// Alignment of direct I/O, bytes: of memory, offset and length. A device with larger sectors
/// refuses the first write.
const SECTOR_BYTES: usize = 512;

#[repr(align(4096))]
struct Zeros([u8; PIECE_BYTES]);

static ZEROS: Zeros = Zeros([0; PIECE_BYTES]);

pub(super) struct RealDisk;

pub(super) struct RealFile {
    file: std::fs::File,
    /// Whether the file is open for writing too.
    is_writable: bool,
    /// The same file, opened for direct I/O at the first need; `None` where the open failed.
    direct: OnceLock<Option<std::fs::File>>,
    /// Whether direct I/O was refused once.
    no_direct: AtomicBool,
    /// Whether the file system has refused `RWF_DSYNC` once: then no write asks for it again.
    no_durable_write: AtomicBool,
}

impl Disk for RealDisk {
    fn open<'a>(&'a self, path: &'a Path, how: Open) -> BoxFuture<'a, io::Result<Arc<dyn File>>> {
        Box::pin(async move {
            let mut options = OpenOptions::new();
            options.read(true).mode(access::FILE_MODE);
            match how {
                Open::Read => {}
                Open::Write => _ = options.write(true),
                Open::Create => _ = options.write(true).create(true).truncate(false),
                Open::CreateNew => _ = options.write(true).create_new(true),
            }
            let file = options.open(path)?;
            if how != Open::Read {
                // Any process that can open a file can hold its lock.
                access::close_file(&file);
            }
            Ok(Arc::new(RealFile::new(file, how != Open::Read)) as Arc<dyn File>)
        })
    }

    fn create_folder<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { access::make_folder(path) })
    }

    fn list<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Vec<(String, FileKind)>>> {
        Box::pin(async move {
            let mut entries = Vec::new();
            for entry in std::fs::read_dir(path)? {
                let entry = entry?;
                let kind = entry.file_type()?;
                let kind = if kind.is_file() {
                    FileKind::File
                } else if kind.is_dir() {
                    FileKind::Folder
                } else {
                    FileKind::Other
                };
                // We write no name that is not UTF-8, so such a name is not ours.
                if let Ok(name) = entry.file_name().into_string() {
                    entries.push((name, kind));
                }
            }
            entries.sort_unstable_by(|left, right| left.0.cmp(&right.0));
            Ok(entries)
        })
    }

    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { std::fs::rename(from, to) })
    }

    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { std::fs::remove_file(path) })
    }

    fn sync_folder<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { std::fs::File::open(path)?.sync_all() })
    }

    fn free_bytes<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<u64>> {
        Box::pin(async move { free_bytes(path) })
    }

    fn taken_bytes<'a>(&'a self, folder: &'a Path) -> BoxFuture<'a, io::Result<u64>> {
        Box::pin(async move { taken_bytes(folder) })
    }

    fn sector_bytes<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, u32> {
        Box::pin(async move { physical_sector(path).unwrap_or(UNKNOWN_SECTOR_BYTES) })
    }
}

/// The physical sector of the block device under `path`, as the kernel tells it; of a partition,
/// that of its disk.
fn physical_sector(path: &Path) -> Option<u32> {
    let device = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(path).ok()?);
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let of = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join("queue/physical_block_size")).ok()?;
        text.trim().parse().ok()
    };
    of(&device).or_else(|| of(device.parent()?))
}

/// Bytes that the files below a folder take, as `du` counts them, without the folders themselves.
fn taken_bytes(folder: &Path) -> io::Result<u64> {
    /// Unit of `st_blocks`, bytes.
    const BLOCK_BYTES: u64 = 512;
    let mut taken = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let found = match entry.metadata() {
            Ok(found) => found,
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        taken += match found.is_dir() {
            true => taken_bytes(&entry.path())?,
            false => std::os::unix::fs::MetadataExt::blocks(&found) * BLOCK_BYTES,
        };
    }
    Ok(taken)
}

/// Bytes that an ordinary user may still write on the file system of `path`. The last parts of
/// `path` need not exist yet.
pub(super) fn free_bytes(path: &Path) -> io::Result<u64> {
    let mut place = path;
    loop {
        match rustix::fs::statvfs(place) {
            Ok(found) => return Ok(found.f_bavail.saturating_mul(found.f_frsize)),
            Err(Errno::NOENT) => match place.parent() {
                Some(parent) if parent.as_os_str().is_empty() => place = Path::new("."),
                Some(parent) => place = parent,
                None => return Err(Errno::NOENT.into()),
            },
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sector size where the kernel tells none (a file system without one block device), bytes. No
/// drive in use has larger sectors.
const UNKNOWN_SECTOR_BYTES: u32 = 4096;

impl RealFile {
    fn new(file: std::fs::File, is_writable: bool) -> RealFile {
        RealFile {
            file,
            is_writable,
            direct: OnceLock::new(),
            no_direct: AtomicBool::new(false),
            no_durable_write: AtomicBool::new(false),
        }
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        read_all(&self.file, buffer, offset)
    }

    fn read_direct(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let direct = self.direct(buffer, offset);
        // A file that ends off a sector reads short, and the rest is no aligned read any more.
        let read = direct.is_some_and(|direct| read_all(direct, buffer, offset).is_ok());
        if read { Ok(()) } else { self.read(buffer, offset) }
    }

    fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        write_all(data, offset, |data, offset| rustix::io::pwrite(&self.file, data, offset))
    }

    /// The file for direct I/O, if these bytes are aligned for it and no direct call was refused.
    fn direct(&self, data: &[u8], offset: u64) -> Option<&std::fs::File> {
        let sector = SECTOR_BYTES as u64;
        let aligned = data.as_ptr().addr().is_multiple_of(SECTOR_BYTES)
            && data.len().is_multiple_of(SECTOR_BYTES)
            && offset.is_multiple_of(sector);
        if !aligned || self.no_direct.load(Ordering::Relaxed) {
            return None;
        }
        let open = || {
            // Opened by its descriptor: the name may mean another file by now.
            let flags = OFlags::DIRECT.bits().cast_signed();
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(self.is_writable)
                .custom_flags(flags)
                .open(access::own_path(&self.file))
                .ok()
        };
        self.direct.get_or_init(open).as_ref()
    }

    /// Runs `write` past the page cache; `None` where that is not possible.
    fn directly(
        &self,
        data: &[u8],
        offset: u64,
        write: impl FnOnce(&std::fs::File) -> io::Result<()>,
    ) -> Option<io::Result<()>> {
        match write(self.direct(data, offset)?) {
            // No disk reads the memory of another device (warm memory as a PCI device) by itself:
            // the kernel reports a bad address.
            Err(error)
                if is_unsupported(&error)
                    || error.raw_os_error() == Some(Errno::FAULT.raw_os_error()) =>
            {
                self.no_direct.store(true, Ordering::Relaxed);
                None
            }
            done => Some(done),
        }
    }

    fn write_direct(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let written =
            self.directly(data, offset, |direct| write_all(data, offset, durably(direct)));
        written.unwrap_or_else(|| self.write_durable(data, offset))
    }

    fn write_durable(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if !self.no_durable_write.load(Ordering::Relaxed) {
            match write_all(data, offset, durably(&self.file)) {
                Err(error) if is_unsupported(&error) => {
                    self.no_durable_write.store(true, Ordering::Relaxed)
                }
                other => return other,
            }
        }
        self.write(data, offset)?;
        self.sync_data()
    }

    fn sync_data(&self) -> io::Result<()> {
        // A failed fsync is never repeated here: the kernel may have dropped the pages, and the
        // second try would lie. Only an interruption says nothing about the data.
        rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.file)).map_err(io::Error::from)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// The caller guarantees that no other task extends the file during the call.
    fn preallocate(&self, length: u64) -> io::Result<()> {
        let present = self.length()?;
        if length > present {
            self.write_zeros(present, length).inspect_err(|_| {
                // Give back the blocks beyond the end: other code that needs room on a full disk
                // cannot know of them.
                let _ = self.file.set_len(present);
            })?;
        }
        self.file.sync_all()
    }

    fn write_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        // Reserve the range first, in one piece: the blocks are contiguous, and a full disk is an
        // error before anything is written.
        match rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, from, to - from)
        }) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        let mut offset = from;
        while offset < to {
            // Pieces end at multiples of the piece size, so that later ones are aligned.
            let piece = (PIECE_BYTES as u64 - offset % PIECE_BYTES as u64).min(to - offset);
            let zeros = &ZEROS.0[..usize::try_from(piece).expect("at most 1 MiB")];
            // No reader wants the zeros: they need not take memory.
            let plainly = |direct: &_| {
                write_all(zeros, offset, |data, offset| rustix::io::pwrite(direct, data, offset))
            };
            self.directly(zeros, offset, plainly).unwrap_or_else(|| self.write(zeros, offset))?;
            offset += piece;
        }
        Ok(())
    }

    /// Reads one piece after the other: a commit would queue behind a request for all of them.
    fn read_ahead(&self, offset: u64, length: u64) -> io::Result<()> {
        let end = offset.saturating_add(length);
        let mut at = offset;
        while at < end {
            let piece = (PIECE_BYTES as u64).min(end - at);
            let hint = rustix::fs::Advice::WillNeed;
            rustix::fs::fadvise(&self.file, at, NonZeroU64::new(piece), hint)?;
            at += piece;
            self.read(&mut [0], at - 1)?;
        }
        Ok(())
    }
}

fn read_all(file: &std::fs::File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match rustix::io::pread(file, &mut *buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A write call that returns when the bytes are on the device.
fn durably(file: &std::fs::File) -> impl Fn(&[u8], u64) -> rustix::io::Result<usize> + '_ {
    move |data, offset| {
        rustix::io::pwritev2(file, &[IoSlice::new(data)], offset, ReadWriteFlags::DSYNC)
    }
}

fn write_all(
    mut data: &[u8],
    mut offset: u64,
    write: impl Fn(&[u8], u64) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    while !data.is_empty() {
        match write(data, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                data = &data[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether the kernel or the file system does not know the flag. `EINVAL` may have another cause,
/// which the plain write will then meet as well.
fn is_unsupported(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL))
}

impl File for RealFile {
    fn read_at<'a>(&'a self, buffer: &'a mut [u8], offset: u64) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { self.read(buffer, offset) })
    }

    fn write_at<'a>(&'a self, data: &'a [u8], offset: u64) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { self.write(data, offset) })
    }

    fn write_durable<'a>(&'a self, data: &'a [u8], offset: u64) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { self.write_durable(data, offset) })
    }

    fn write_direct<'a>(&'a self, data: &'a [u8], offset: u64) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { self.write_direct(data, offset) })
    }

    fn read_direct<'a>(
        &'a self,
        buffer: &'a mut [u8],
        offset: u64,
    ) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { self.read_direct(buffer, offset) })
    }

    fn read_ahead(&self, offset: u64, length: u64) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.read_ahead(offset, length) })
    }

    fn sync_data(&self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.sync_data() })
    }

    fn length(&self) -> BoxFuture<'_, io::Result<u64>> {
        Box::pin(async move { self.length() })
    }

    fn preallocate(&self, length: u64) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.preallocate(length) })
    }

    fn set_length(&self, length: u64) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.file.set_len(length) })
    }

    fn try_lock(&self) -> io::Result<bool> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
