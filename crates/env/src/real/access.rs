//! Permissions of what this process makes: for its own user alone, unless a group is named for the
//! sockets.

use rustix::fs::{AtFlags, Gid, Mode, OFlags};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Mode of a file that is made.
pub const FILE_MODE: u32 = 0o600;
/// Mode of a folder that is made.
pub const FOLDER_MODE: u32 = 0o700;
/// Folder in which a process finds its open files.
pub(super) const OWN_DESCRIPTORS: &str = "/proc/self/fd";

/// The group that may connect to a Unix socket, besides the user that made it and root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SocketMode {
    /// Number of the group; `None`: no group.
    pub group: Option<u32>,
}

impl SocketMode {
    /// Mode of the socket's file.
    #[must_use]
    pub fn bits(self) -> u32 {
        if self.group.is_some() { 0o660 } else { 0o600 }
    }
}

/// Closes to other users every file that this process and its children make from here on, by
/// whatever library and call.
pub fn keep_private() {
    rustix::process::umask(Mode::from_raw_mode(0o077));
}

/// Makes a folder and its missing parents, for this user alone.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Closes to other users a file that this user owns. Other users' files, and devices, are left
/// alone.
pub(super) fn close_file(file: &File) {
    let Ok(found) = file.metadata() else { return };
    let is_open = found.is_file() && found.mode() & 0o077 != 0;
    if is_open && found.uid() == rustix::process::geteuid().as_raw() {
        // Where a file system knows no modes, its mount decides.
        let _ = rustix::fs::fchmod(file, Mode::from_raw_mode(FILE_MODE));
    }
}

/// Refuses a file of another ordinary user.
pub(super) fn check_owner(owner: u32, path: &Path) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    if owner == user || owner == 0 {
        return Ok(());
    }
    let message = format!(
        "{} belongs to another user ({owner}): remove it or choose another place",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

fn not_a_member(group: u32, path: &Path, error: io::Error) -> io::Error {
    let message = format!(
        "{} cannot be given to group {group} ({error}): run as root or as a member of that group",
        path.display()
    );
    io::Error::new(error.kind(), message)
}

/// Gives a socket's file, made with mode 0600, to the group that may connect.
pub(super) fn admit(path: &Path, mode: SocketMode) -> io::Result<()> {
    let Some(group) = mode.group else { return Ok(()) };
    // Opened once: another file may take the name between the calls below.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)
        .map_err(|error| not_a_member(group, path, error.into()))?;
    rustix::fs::chmod(own_path(&file), Mode::from_raw_mode(mode.bits()))?;
    Ok(())
}

/// The path under which this process finds an open file.
#[must_use]
pub fn own_path(file: &impl AsRawFd) -> PathBuf {
    Path::new(OWN_DESCRIPTORS).join(file.as_raw_fd().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn what_belongs_to_a_stranger_is_refused() {
        let path = Path::new("/dev/shm/rekindle.warm");
        let user = rustix::process::geteuid().as_raw();
        assert!(check_owner(user, path).is_ok() && check_owner(0, path).is_ok());
        let error = check_owner(user + 1, path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("belongs to another user"), "{error}");
    }

    #[test]
    fn a_file_that_others_may_open_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let file = File::create_new(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        close_file(&file);
        assert_eq!(mode(&path), 0o600);
    }
}
