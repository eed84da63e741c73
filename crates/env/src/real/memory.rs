//! Memory that outlives the process: shared mappings of files (by default on tmpfs) and of devices
//! (`device`).
#![expect(clippy::disallowed_methods, reason = "this is what Env::memory is made of")]

use super::access::{self, OWN_DESCRIPTORS, own_path};
use super::device::{self, Device};
use super::disk::free_bytes;
use crate::{Memory, Region};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Type that `statfs` tells of a tmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// The tmpfs that every Linux has.
const SHARED_MEMORY_FOLDER: &str = "/dev/shm";
/// Time that the kernel may take to end a process that has the file.
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes that are looked at in one piece.
const PIECE_BYTES: usize = 1 << 20;
/// Unit of `st_blocks`, bytes.
const STAT_BLOCK_BYTES: u64 = 512;

pub(super) struct RealMemory;

struct RealRegion {
    map: MmapRaw,
    /// The file that holds the lock: two processes that write one arena would destroy it. It is
    /// opened apart from the mapped file: a map keeps its file open, and a lock with it, until a
    /// dead process's memory has been given back.
    lock: std::fs::File,
}

impl Region for RealRegion {
    fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.map.len()
    }

    fn is_removed(&self) -> bool {
        let name = own_path(&self.lock);
        std::fs::read_link(name).is_ok_and(|target| {
            let target = target.as_os_str().as_encoded_bytes();
            // Memory that never had a name looks removed from the first.
            target.ends_with(b" (deleted)") && !target.starts_with(b"/memfd:")
        })
    }
}

impl Memory for RealMemory {
    fn map(&self, path: &Path, length: u64) -> io::Result<Arc<dyn Region>> {
        let bytes = usize::try_from(length)
            .ok()
            .filter(|&bytes| bytes > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let file = open_own(path)?;
        let lock = opened_again(&file)?;
        take(&lock, path)?;
        let bytes = match device::of(&file, path)? {
            Some(device) => device.bytes_to_map(bytes, path)?,
            None => {
                allocate(&file, length)?;
                bytes
            }
        };
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        Ok(Arc::new(RealRegion { map, lock }))
    }

    fn head(&self, path: &Path, bytes: usize) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = open_to_look(path)? else { return Ok(None) };
        match device::of(&file, path)? {
            Some(device) => head_of_device(&file, device, bytes),
            None => head_of_file(&file, bytes),
        }
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
        // Memory without a file belongs to no file system that could tell; it comes from the same
        // memory.
        free_bytes(if is_descriptor(path) { Path::new(SHARED_MEMORY_FOLDER) } else { path })
    }

    fn trim(&self) {
        #[cfg(target_env = "gnu")]
        // SAFETY: `malloc_trim` may be called at any time, from any thread.
        unsafe {
            libc::malloc_trim(0);
        }
    }

    fn device_bytes(&self, path: &Path) -> io::Result<Option<u64>> {
        let Some(file) = open_to_look(path)? else { return Ok(None) };
        Ok(device::of(&file, path)?.map(Device::bytes))
    }
}

/// Opens what lies at a path, if anything does. Any user may have put it there.
fn open_to_look(path: &Path) -> io::Result<Option<std::fs::File>> {
    let mut options = OpenOptions::new();
    options.read(true);
    if !is_descriptor(path) {
        // Without `NONBLOCK`, the open of a pipe would wait.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    }
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(|error| not_ours(path, error)),
    }
}

fn head_of_file(file: &std::fs::File, bytes: usize) -> io::Result<Option<Vec<u8>>> {
    let length = file.metadata()?.len();
    let mut head = vec![0; usize::try_from(length).map_or(bytes, |length| length.min(bytes))];
    file.read_exact_at(&mut head, 0)?;
    let mut blank = is_blank(&head);
    let mut piece = vec![0; if blank { PIECE_BYTES } else { 0 }];
    let mut at = head.len() as u64;
    while blank && at < length {
        // Skip what was never written. A file system that does not know it calls all of the file
        // data.
        at = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            other => other?,
        };
        let read = file.read_at(&mut piece, at)?;
        blank = read > 0 && is_blank(&piece[..read]);
        at += read as u64;
    }
    Ok((!blank).then_some(head))
}

/// Devices are mapped, never read.
fn head_of_device(
    file: &std::fs::File,
    device: Device,
    bytes: usize,
) -> io::Result<Option<Vec<u8>>> {
    let length = usize::try_from(device.bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let map = MmapOptions::new().len(length).map_raw_read_only(file)?;
    // SAFETY: mapped to that length for as long as `map` lives. A process that writes meanwhile
    // holds the lock, and makes `Memory::map` fail later; any bytes that are read until then are
    // valid bytes.
    let found = unsafe { std::slice::from_raw_parts(map.as_ptr(), length) };
    Ok((!is_blank(found)).then(|| found[..bytes.min(length)].to_vec()))
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Opens the file (or device) of a mapping, made if it is absent. Makes sure that the file is our
/// own: no other user has put it there, or could have it open for writing. Also for processes that
/// hold the file for others: a descriptor keeps the content when another program (logind at the end
/// of a session) removes the name.
pub fn open_own(path: &Path) -> io::Result<std::fs::File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(access::FILE_MODE);
    if is_descriptor(path) {
        // A descriptor's path is always a link.
        return options.open(path);
    }
    if let Some(folder) = path.parent() {
        access::make_folder(folder)?;
    }
    // Every user may put a link, or a file of that name, into /dev/shm.
    let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
    let file = loop {
        match options.custom_flags(no_follow).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match options.clone().create_new(true).open(path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    other => break other?,
                }
            }
            other => break other.map_err(|error| not_ours(path, error))?,
        }
    };
    let found = file.metadata()?;
    access::check_owner(found.uid(), path)?;
    let refuse = |what: &str| {
        let message = format!("{} {what}: remove it or choose another place", path.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    };
    if found.is_file() && found.nlink() > 1 {
        return refuse("has another name as well, so that it may be anything");
    }
    let is_in_sysfs = rustix::fs::fstatfs(&file).is_ok_and(|found| device::is_sysfs(&found));
    if found.is_file() && !is_in_sysfs {
        if found.mode() & 0o022 != 0 {
            return refuse("can be written by other users, who may have changed it");
        }
        access::close_file(&file);
    }
    Ok(file)
}

/// Says what is in the way when a file cannot be opened.
fn not_ours(path: &Path, error: io::Error) -> io::Error {
    let Ok(found) = std::fs::symlink_metadata(path) else { return error };
    if found.file_type().is_symlink() {
        let message = format!("{} is a link: remove it or choose another place", path.display());
        return io::Error::new(io::ErrorKind::PermissionDenied, message);
    }
    access::check_owner(found.uid(), path).err().unwrap_or(error)
}

/// Whether a path names a descriptor of this process.
fn is_descriptor(path: &Path) -> bool {
    path.parent() == Some(Path::new(OWN_DESCRIPTORS))
}

/// Opens the same file on its own; where that fails, duplicates the descriptor.
fn opened_again(file: &std::fs::File) -> io::Result<std::fs::File> {
    let path = own_path(file);
    std::fs::File::open(path).or_else(|_| file.try_clone())
}

/// Keeps other processes out, until the region is dropped or the process ends. Waits a moment for a
/// predecessor that was killed.
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

/// Gives the first `length` bytes of the file real pages, so that a full tmpfs is an error here and
/// not a fatal signal at the first touch.
fn allocate(file: &std::fs::File, length: u64) -> io::Result<()> {
    let found = file.metadata()?;
    // A warm start finds everything there already, and a walk over gigabytes of pages would be
    // felt.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn refused(path: &Path) -> String {
        let error = RealMemory.map(path, 4096).err().expect("refused");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        error.to_string()
    }

    #[test]
    fn what_others_put_in_the_place_of_warm_memory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [path, target] = ["warm", "target"].map(|name| folder.path().join(name));
        std::fs::write(&target, b"precious").unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o600)).unwrap();

        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(refused(&path).contains("is a link"));
        std::fs::remove_file(&path).unwrap();
        std::fs::hard_link(&target, &path).unwrap();
        assert!(refused(&path).contains("another name"));
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();

        std::fs::write(&path, b"").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(refused(&path).contains("other users"));
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert!(refused(&path).contains("another user (12345)"));
        }
        std::fs::remove_file(&path).unwrap();
        drop(RealMemory.map(&path, 4096).unwrap());
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        RealMemory.map(&path, 4096).expect("our own of an earlier life");
        assert_eq!(mode(), 0o600, "closed");
    }

    #[test]
    fn a_pipe_in_the_place_of_warm_memory_holds_up_no_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warm");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let looked = (RealMemory.device_bytes(&path), RealMemory.head(&path, 16));
            let refused = RealMemory.map(&path, 4096).is_err();
            done.send((looked.0.unwrap(), looked.1.unwrap(), refused)).unwrap();
        });
        let found = is_done.recv_timeout(Duration::from_secs(20)).expect("no open waits");
        assert_eq!(found, (None, None, true));
    }

    #[test]
    fn what_lies_at_a_path_is_seen_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warm");
        let head = |bytes| RealMemory.head(&path, bytes).unwrap();
        assert_eq!(head(16), None, "no file");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(head(16), None, "an empty one");
        std::fs::write(&path, b"small").unwrap();
        assert_eq!(head(16).unwrap(), b"small");
        assert_eq!(std::fs::read(&path).unwrap(), b"small", "it did not grow");
        std::fs::write(&path, vec![0; 3 << 20]).unwrap();
        assert_eq!(head(16), None, "zeros");
        // Like a disk image whose first sectors are empty, with a hole before the first data.
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(9 << 20).unwrap();
        assert_eq!(head(16), None, "zeros and a hole");
        file.write_all_at(b"x", (8 << 20) + 5).unwrap();
        assert_eq!(head(16).unwrap(), [0; 16]);
    }

    #[test]
    fn a_removed_file_is_told_and_what_is_mapped_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warm");
        let held = open_own(&path).unwrap();
        let region = RealMemory.map(&path, 4096).unwrap();
        // SAFETY: inside the mapping, on the only thread.
        unsafe { region.base().write(7) };
        assert!(!region.is_removed());
        std::fs::remove_file(&path).unwrap();
        assert!(region.is_removed());
        drop(region);
        let by_number = own_path(&held);
        let region = RealMemory.map(&by_number, 4096).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { region.base().read() }, 7);
        assert!(region.is_removed());

        let memory = rustix::fs::memfd_create("warm", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let by_number = own_path(&memory);
        assert!(!RealMemory.map(&by_number, 4096).unwrap().is_removed(), "it never had a name");
    }
}
