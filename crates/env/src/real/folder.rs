//! A folder, opened once, and the small files in it. Another user may have put anything else there.
//! So a folder that takes the name later is not used, no link in the folder is followed, and only
//! plain files of its owner are believed.

use super::access::{FILE_MODE, FOLDER_MODE, OWN_DESCRIPTORS};
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fstat, fsync, mkdirat, openat,
};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Longest small file that is read, bytes.
const BYTES_MAX: u64 = 64 * 1024;

/// An open folder.
#[derive(Debug)]
pub struct Folder {
    folder: OwnedFd,
    path: PathBuf,
    owner: u32,
}

impl Folder {
    /// Opens a folder of any user, to read what its owner says there.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_at(CWD, path, path, OFlags::empty())
    }

    /// Opens a folder to serve from. The folder belongs to this very user, also when that is root;
    /// not every user may put files into it; and its name is no link.
    pub fn open_own(path: &Path) -> io::Result<Self> {
        let found = Self::open_at(CWD, path, path, OFlags::NOFOLLOW)?;
        found.check_own()?;
        Ok(found)
    }

    /// Opens a folder in this one, as [`Folder::open_own`] does; makes it if it is absent.
    pub fn own_folder(&self, name: &str) -> io::Result<Self> {
        match mkdirat(&self.folder, name, Mode::from_raw_mode(FOLDER_MODE)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let path = self.path.join(name);
        let found = Self::open_at(&self.folder, Path::new(name), &path, OFlags::NOFOLLOW)?;
        found.check_own()?;
        Ok(found)
    }

    fn open_at(at: impl AsFd, name: &Path, path: &Path, flags: OFlags) -> io::Result<Self> {
        // Opened as a place only: that tells the owner of a folder that cannot be read, too.
        let flags = flags | OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(at, name, flags, Mode::empty())?;
        let owner = fstat(&folder)?.st_uid;
        Ok(Self { folder, path: path.to_owned(), owner })
    }

    /// Refuses a folder that belongs to another user, or into which every user may put files.
    pub fn check_own(&self) -> io::Result<()> {
        let user = rustix::process::geteuid().as_raw();
        if self.owner != user {
            return Err(refused(format!(
                "it belongs to user {}, and this command runs as user {user}: run it as that user; or, if you trust \
                 everything in the folder, make it yours with chown -R",
                self.owner
            )));
        }
        let mode = fstat(&self.folder)?.st_mode & 0o7777;
        if mode & 0o002 != 0 {
            return Err(refused(format!(
                "every user of this machine may put files into it (mode {mode:04o}): make a folder of your own in it"
            )));
        }
        Ok(())
    }

    /// The user that owns the folder.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Opens a file for its lock, made if it is absent.
    pub fn lock_file(&self, name: &str) -> io::Result<File> {
        self.file(name, OFlags::RDWR | OFlags::CREATE)
    }

    /// Reads a file; of a longer one, the first 64 KiB.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file(name, OFlags::RDONLY)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes a file, whole or not at all, by way of the name `temporary`.
    pub fn write(&self, name: &str, temporary: &str, bytes: &[u8]) -> io::Result<()> {
        // Left by an attempt that was killed, or put there by another user: never written into.
        self.remove(temporary)?;
        let mut file = self.file(temporary, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        file.write_all(bytes)?;
        Ok(rustix::fs::renameat(&self.folder, temporary, &self.folder, name)?)
    }

    /// Makes a file durable, with its name.
    pub fn sync(&self, name: &str) -> io::Result<()> {
        self.file(name, OFlags::RDONLY)?.sync_all()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(fsync(openat(&self.folder, ".", flags, Mode::empty())?)?)
    }

    /// Removes a file; no error when it is absent.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a process holds the lock of a file. The lock is the only sign of life: a killed
    /// process leaves every file behind.
    pub fn is_locked(&self, name: &str) -> io::Result<bool> {
        let file = match self.file(name, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Signals the process `pid` if it holds the lock of a file; `false` when it does not.
    pub fn signal(&self, name: &str, pid: u32, signal: Signal) -> io::Result<bool> {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
        // Opened before the look at the lock: the kernel may give the number to another process in
        // between.
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(false),
            other => other?,
        };
        let file = self.file(name, OFlags::RDONLY)?.metadata()?;
        if !holds_lock(pid, (file.dev(), file.ino()))? {
            return Ok(false);
        }
        match pidfd_send_signal(&process, signal) {
            Err(Errno::SRCH) => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    /// Opens a plain file of the folder's owner, with no other name; an error for any other file.
    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        // Without `NONBLOCK`, the open of a pipe would wait.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let refuse = |what: &str| {
            let path = self.path.join(name);
            Err(refused(format!("{} {what}: remove it", path.display())))
        };
        let mode = Mode::from_raw_mode(FILE_MODE);
        let file: File = match openat(&self.folder, name, flags, mode) {
            Err(Errno::LOOP) => return refuse("is a link"),
            Err(Errno::NXIO) => return refuse("is not a plain file"),
            other => other?.into(),
        };
        let found = file.metadata()?;
        if !found.is_file() {
            return refuse("is not a plain file");
        }
        if found.uid() != self.owner {
            return refuse("belongs to another user than its folder");
        }
        if found.nlink() > 1 {
            return refuse("has another name as well, so that it may be anything");
        }
        Ok(file)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.folder.as_fd()
    }
}

fn refused(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

/// Whether a process has a file open, and locked by that very opening.
fn holds_lock(pid: Pid, file: (u64, u64)) -> io::Result<bool> {
    let own = PathBuf::from(OWN_DESCRIPTORS.replace("self", &pid.as_raw_pid().to_string()));
    let entries = match std::fs::read_dir(&own) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    Ok(entries.flatten().any(|entry| {
        let found = std::fs::metadata(entry.path());
        let about = own.with_file_name("fdinfo").join(entry.file_name());
        found.is_ok_and(|found| (found.dev(), found.ino()) == file)
            && std::fs::read_to_string(about).is_ok_and(|text| text.contains("FLOCK"))
    }))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests of the real machine")]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn error(result: io::Result<impl Sized>) -> String {
        result.err().expect("refused").to_string()
    }

    #[test]
    fn a_folder_of_another_user_or_of_everybody_is_not_our_own() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("d");
        std::fs::create_dir(&path).unwrap();
        Folder::open_own(&path).expect("ours");
        symlink(&path, place.path().join("link")).unwrap();
        assert!(Folder::open_own(&place.path().join("link")).is_err(), "by a link");
        for mode in [0o777, 0o1777] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(error(Folder::open_own(&path)).contains("every user"));
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(65534), None).unwrap();
            assert!(error(Folder::open_own(&path)).contains("belongs to user 65534"));
        } else {
            // To an ordinary user, root's folder is another user's as well.
            assert!(error(Folder::open_own(Path::new("/"))).contains("belongs to user 0"));
        }
    }

    #[test]
    fn nothing_that_was_planted_is_followed_written_or_read() {
        let place = tempfile::tempdir().unwrap();
        let victim = place.path().join("victim");
        std::fs::write(&victim, b"precious").unwrap();
        let path = place.path().join("d");
        std::fs::create_dir(&path).unwrap();
        let folder = Folder::open_own(&path).unwrap();
        symlink(&victim, path.join("lock")).unwrap();
        assert!(error(folder.lock_file("lock")).contains("is a link"));
        symlink(&victim, path.join("said.new")).unwrap();
        folder.write("said", "said.new", b"ours").unwrap();
        assert_eq!(folder.read("said").unwrap(), b"ours");
        std::fs::hard_link(&victim, path.join("hard")).unwrap();
        assert!(error(folder.read("hard")).contains("another name"));
        let pipe = path.join("pipe");
        rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(error(folder.read("pipe")).contains("not a plain file"));
        folder.write("said", "pipe", b"ours too").unwrap();
        assert_eq!(folder.read("said").unwrap(), b"ours too");
        if rustix::process::geteuid().is_root() {
            chown(path.join("said"), Some(65534), None).unwrap();
            assert!(error(folder.read("said")).contains("another user"));
        }
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        // A user that may read the file may lock it.
        let mode = folder.lock_file("turn").unwrap().metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_folder_in_our_folder_is_made_once_and_is_ours_alone() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open_own(place.path()).unwrap();
        let inner = folder.own_folder("d").unwrap();
        inner.write("said", "said.new", b"ours").unwrap();
        inner.sync("said").unwrap();
        assert_eq!(folder.own_folder("d").unwrap().read("said").unwrap(), b"ours");
        assert_eq!(std::fs::read(place.path().join("d/said")).unwrap(), b"ours");
        symlink(place.path().join("d"), place.path().join("link")).unwrap();
        assert!(folder.own_folder("link").is_err(), "by a link");
        if rustix::process::geteuid().is_root() {
            chown(place.path().join("d"), Some(65534), None).unwrap();
            assert!(error(folder.own_folder("d")).contains("belongs to user 65534"));
        }
    }

    #[test]
    fn a_process_is_signalled_only_while_it_holds_the_lock() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open_own(place.path()).unwrap();
        let lock = folder.lock_file("lock").unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!folder.is_locked("lock").unwrap() && !folder.is_locked("none").unwrap());
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(folder.is_locked("lock").unwrap());
        // The number in a file that a killed process left may be another process's by now.
        assert!(!folder.signal("lock", sleeper.id(), Signal::KILL).unwrap());
        assert!(sleeper.try_wait().unwrap().is_none(), "it lives");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(!folder.signal("lock", sleeper.id(), Signal::KILL).unwrap(), "nobody");
        assert!(folder.signal("lock", std::process::id(), Signal::CONT).unwrap());
        flock(&lock, FlockOperation::Unlock).unwrap();
        assert!(!folder.signal("lock", std::process::id(), Signal::CONT).unwrap());
        assert!(!folder.is_locked("lock").unwrap());
    }
}
