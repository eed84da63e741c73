//! Memory that is a device: its length is given, and its content outlives the kernel of this
//! machine.
//!
//! Inside a virtual machine such a device is RAM of the host: `ivshmem` (the memory of a PCI
//! device, a file of fixed length in sysfs) or persistent memory (a DAX device, or a file on a file
//! system that is mounted with `-o dax`).

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Type that `statfs` tells of sysfs.
const SYSFS_MAGIC: u64 = 0x6265_6572;
/// Bytes of zeros in one write.
const PIECE_BYTES: usize = 1 << 20;

/// A device of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Device {
    bytes: u64,
    /// Whether the device is mapped whole or not at all: a DAX device is mapped in huge pages.
    whole: bool,
}

impl Device {
    pub(super) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Bytes to map for a caller that wants `bytes`; an error when the device has fewer.
    pub(super) fn bytes_to_map(self, bytes: usize, path: &Path) -> io::Result<usize> {
        if self.bytes < bytes as u64 {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "{} has {} bytes, and {bytes} are needed: give the machine a larger device, or ask for less",
                    path.display(),
                    self.bytes
                ),
            ));
        }
        let whole = || usize::try_from(self.bytes).map_err(|_| io::ErrorKind::InvalidInput.into());
        if self.whole { whole() } else { Ok(bytes) }
    }
}

/// Returns the device that an open file is, or `None` for a file in a file system. An error for a
/// file or device that would lose its content when the machine is reset.
pub(super) fn of(file: &File, path: &Path) -> io::Result<Option<Device>> {
    let found = file.metadata()?;
    let kind = found.file_type();
    let refuse = |text: String| Err(io::Error::new(io::ErrorKind::Unsupported, text));
    if kind.is_block_device() {
        let path = path.display();
        return refuse(format!(
            "{path} is a block device, which is mapped through the page cache, and that is lost with the kernel: \
             mkfs.ext4 -b 4096 {path}, mount -o dax {path} /mnt, and name a file there (or a DAX device, /dev/daxN.M)"
        ));
    }
    if kind.is_char_device() {
        return Ok(Some(Device { bytes: dax_bytes(found.rdev(), path)?, whole: true }));
    }
    if is_sysfs(&rustix::fs::fstatfs(file)?) {
        return Ok(Some(Device { bytes: found.len(), whole: false }));
    }
    if let (false, Some(device)) = (is_direct(file), persistent_memory_under(found.dev())) {
        return refuse(format!(
            "{} lies on /dev/{device}, but is mapped through the page cache, which is lost with the kernel: make the \
             file system with mkfs.ext4 -b 4096, and mount it with -o dax",
            path.display()
        ));
    }
    Ok(None)
}

/// Whether a file lies in sysfs, which has rules of its own.
pub(super) fn is_sysfs(found: &rustix::fs::StatFs) -> bool {
    u64::try_from(found.f_type).is_ok_and(|magic| magic == SYSFS_MAGIC)
}

/// Whether mappings of the file are the device's own memory.
pub(super) fn is_direct(file: &File) -> bool {
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::DAX))
}

/// Gives the file real blocks up to `length`. A store to a direct mapping reaches the device
/// without the file system. So the metadata (which blocks there are, and that they were written) is
/// on the device before the first store.
pub(super) fn write_zeros(mut file: &File, from: u64, length: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};
    let zeros = vec![0; PIECE_BYTES];
    // An attempt that a crash ended may have left a part of a piece: go on from there.
    let mut at = file.seek(SeekFrom::Start(from.min(length)))?;
    while at < length {
        let piece = usize::try_from(length - at).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        file.write_all(&zeros[..piece])?;
        at += piece as u64;
    }
    file.sync_all()
}

/// Bytes of a DAX device.
fn dax_bytes(number: u64, path: &Path) -> io::Result<u64> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let size = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"));
    size.ok().and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{} is no device of memory: DAX devices are, as /dev/dax0.0", path.display()),
        )
    })
}

/// Name of the persistent memory under the file system of this device number.
fn persistent_memory_under(number: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let name = link.file_name()?.to_str()?;
    name.starts_with("pmem").then(|| name.to_owned())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests of the real machine")]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_as_long_as_it_is() {
        let path = Path::new("/sys/bus/pci/devices/0000:00:04.0/resource2_wc");
        let memory = Device { bytes: 1 << 20, whole: false };
        assert_eq!(memory.bytes_to_map(4096, path).unwrap(), 4096);
        assert_eq!(memory.bytes_to_map(1 << 20, path).unwrap(), 1 << 20);
        let error = memory.bytes_to_map((1 << 20) + 1, path).unwrap_err();
        assert!(error.to_string().contains("larger device"), "{error}");
        let dax = Device { whole: true, ..memory };
        assert_eq!(dax.bytes_to_map(4096, path).unwrap(), 1 << 20);
    }

    #[test]
    fn what_is_no_memory_is_refused_and_files_are_files() {
        let null = File::open("/dev/null").unwrap();
        let error = of(&null, Path::new("/dev/null")).unwrap_err();
        assert!(error.to_string().contains("no device of memory"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warm");
        let file = File::create_new(&path).unwrap();
        assert_eq!(of(&file, &path).unwrap(), None);
        assert!(!is_direct(&file), "tmpfs and disks have no DAX");
        let sysfs = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
        if let Ok(file) = File::open(sysfs) {
            let device = of(&file, sysfs).unwrap().unwrap();
            assert_eq!((device.bytes, device.whole), (4096, false));
        }
    }

    #[test]
    fn zeros_go_behind_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warm");
        std::fs::write(&path, b"kept").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        write_zeros(&file, 4, (2 << 20) + 5).unwrap();
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found.len(), (2 << 20) + 5);
        assert!(found.starts_with(b"kept") && found[4..].iter().all(|&byte| byte == 0));
    }
}
