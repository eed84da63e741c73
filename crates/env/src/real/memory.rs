//! Memory that outlives the process: shared mappings of files, by default on tmpfs; of devices (`device`).
#![expect(clippy::disallowed_methods, reason = "this is what Env::memory is made of")]

use super::device::{self, Device};
use super::disk::free_bytes;
use crate::{Memory, Region};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What `statfs` says of a tmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// The tmpfs that every Linux has.
const SHARED_MEMORY_FOLDER: &str = "/dev/shm";
/// Where a process finds what it has open.
const OWN_DESCRIPTORS: &str = "/proc/self/fd";
/// How long the kernel may take to end a process that has the file.
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(2);
/// Unit of `st_blocks`, bytes.
const STAT_BLOCK_BYTES: u64 = 512;

pub(super) struct RealMemory;

struct RealRegion {
    map: MmapRaw,
    /// Locked: two processes that write one arena would destroy it. Not the file that is mapped: a map keeps its file open,
    /// and the lock with it, until a dead process's memory has been given back.
    _lock: std::fs::File,
}

impl Region for RealRegion {
    fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.map.len()
    }
}

impl Memory for RealMemory {
    fn map(&self, path: &Path, length: u64) -> io::Result<Arc<dyn Region>> {
        let bytes = usize::try_from(length)
            .ok()
            .filter(|&bytes| bytes > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        // Anybody may put a link into /dev/shm; what this process holds open is always one.
        let (is_ours, flags) = match is_descriptor(path) {
            true => (true, OFlags::empty()),
            false => (false, OFlags::NOFOLLOW),
        };
        if let (Some(folder), false) = (path.parent(), is_ours) {
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(!is_ours)
            .truncate(false)
            .mode(0o600)
            .custom_flags(i32::try_from(flags.bits()).expect("a flag of open fits an int"))
            .open(path)?;
        let lock = opened_again(&file)?;
        take(&lock, path)?;
        let bytes = match device::of(&file, path)? {
            Some(device) => device.bytes_to_map(bytes, path)?,
            None => {
                allocate(&file, path, length)?;
                bytes
            }
        };
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        Ok(Arc::new(RealRegion { map, _lock: lock }))
    }

    fn unmap(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn default_folder(&self) -> Option<PathBuf> {
        let found = rustix::fs::statfs(SHARED_MEMORY_FOLDER).ok()?;
        (u64::try_from(found.f_type).ok()? == TMPFS_MAGIC)
            .then(|| PathBuf::from(SHARED_MEMORY_FOLDER))
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        // Memory without a file belongs to no file system that could say; it is the same memory.
        free_bytes(if is_descriptor(path) { Path::new(SHARED_MEMORY_FOLDER) } else { path })
    }

    fn device_bytes(&self, path: &Path) -> io::Result<Option<u64>> {
        match std::fs::File::open(path) {
            Ok(file) => Ok(device::of(&file, path)?.map(Device::bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether a path means what this process has open under a number.
fn is_descriptor(path: &Path) -> bool {
    path.parent() == Some(Path::new(OWN_DESCRIPTORS))
}

/// The same file, opened on its own; where that cannot be had, the same opening.
fn opened_again(file: &std::fs::File) -> io::Result<std::fs::File> {
    let path = Path::new(OWN_DESCRIPTORS).join(file.as_raw_fd().to_string());
    std::fs::File::open(path).or_else(|_| file.try_clone())
}

/// Keeps others out, until the region is dropped or the process ends. A predecessor that was killed gets a moment.
fn take(file: &std::fs::File, path: &Path) -> io::Result<()> {
    let end = Instant::now() + PREDECESSOR_PATIENCE;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            // A device, or a file system without locks.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOLCK) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    format!("{} is in use by another process: choose another file", path.display()),
                ));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Gives the first `length` bytes of the file real pages, so that a full tmpfs is an error here and not a fatal
/// signal at the first touch.
fn allocate(file: &std::fs::File, path: &Path, length: u64) -> io::Result<()> {
    let found = file.metadata()?;
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user && found.uid() != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{} belongs to another user ({}): remove it or choose another folder",
                path.display(),
                found.uid()
            ),
        ));
    }
    // A warm start finds everything there already, and a walk over gigabytes of pages would be felt.
    if found.len() >= length && found.blocks().saturating_mul(STAT_BLOCK_BYTES) >= length {
        return Ok(());
    }
    if device::is_direct(file) {
        return device::write_zeros(file, found.len(), length);
    }
    Ok(rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length)
    })?)
}
