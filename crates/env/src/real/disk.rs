//! Files of the operating system. Each call does its work in the first poll, on the caller's thread.
#![expect(clippy::disallowed_methods, reason = "this is what Env::disk is made of")]

use crate::{BoxFuture, Disk, File, FileKind, Open};
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Zeros written by one call while preallocating, bytes.
const ZEROS_BYTES: usize = 1 << 20;
static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];

pub(super) struct RealDisk;

pub(super) struct RealFile {
    file: std::fs::File,
    /// Whether the file system has taken no `RWF_DSYNC` once: then it is not asked again.
    no_durable_write: AtomicBool,
}

impl Disk for RealDisk {
    fn open<'a>(&'a self, path: &'a Path, how: Open) -> BoxFuture<'a, io::Result<Arc<dyn File>>> {
        Box::pin(async move {
            let mut options = OpenOptions::new();
            options.read(true);
            match how {
                Open::Read => {}
                Open::Write => _ = options.write(true),
                Open::Create => _ = options.write(true).create(true).truncate(false),
                Open::CreateNew => _ = options.write(true).create_new(true),
            }
            let file = options.open(path)?;
            Ok(Arc::new(RealFile { file, no_durable_write: AtomicBool::new(false) })
                as Arc<dyn File>)
        })
    }

    fn create_folder<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { std::fs::create_dir_all(path) })
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
}

/// Bytes that an ordinary user may still write on the file system of `path`, of which the end need not exist yet.
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

impl RealFile {
    fn read(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match rustix::io::pread(&self.file, &mut *buffer, offset) {
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

    fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        write_all(data, offset, |data, offset| rustix::io::pwrite(&self.file, data, offset))
    }

    fn write_durable(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if !self.no_durable_write.load(Ordering::Relaxed) {
            let written = write_all(data, offset, |data, offset| {
                rustix::io::pwritev2(
                    &self.file,
                    &[IoSlice::new(data)],
                    offset,
                    ReadWriteFlags::DSYNC,
                )
            });
            match written {
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
        // A failed fsync is never repeated here: the kernel may have dropped the pages, and the second try would
        // lie. Only an interruption says nothing about the data.
        rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.file)).map_err(io::Error::from)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Nobody else may extend the file meanwhile.
    fn preallocate(&self, length: u64) -> io::Result<()> {
        let present = self.length()?;
        if length > present {
            self.write_zeros(present, length).inspect_err(|_| {
                // Give back what was taken beyond the end: whoever needs it on a full disk cannot know of it.
                let _ = self.file.set_len(present);
            })?;
        }
        self.file.sync_all()
    }

    fn write_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        // First only reserved, in one piece: contiguous, and a full disk says so before anything is written.
        match rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, from, to - from)
        }) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        let mut offset = from;
        while offset < to {
            // Pieces end at multiples of the piece size, so that later ones are aligned.
            let piece = (ZEROS_BYTES as u64 - offset % ZEROS_BYTES as u64).min(to - offset);
            self.write(&ZEROS[..usize::try_from(piece).expect("at most 1 MiB")], offset)?;
            offset += piece;
        }
        Ok(())
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

/// Whether the kernel or the file system does not know the flag. `EINVAL` may have another cause, which the plain
/// write will then meet as well.
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
