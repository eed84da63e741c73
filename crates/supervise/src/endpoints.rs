//! Two files in the daemon's folder: `rekindle.pid`, locked for as long as the daemon serves, and
//! `endpoints.json`, which says where it serves.
#![expect(clippy::disallowed_methods, reason = "these files outlive every process that has an Env")]

use crate::sockets::{Listening, NBD_SOCKET, Role};
use rekindle_base::Kind;
use rekindle_env::Address;
use rekindle_env::real::folder::Folder;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output::quoted;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The addresses and processes of a daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// The process that keeps the sockets.
    pub pid: u32,
    /// The process that serves; 0 before the first one does.
    pub worker: u32,
    /// Addresses of the NBD sockets.
    pub nbd: Vec<String>,
    /// Addresses of the NFS sockets.
    #[serde(default)]
    pub nfs: Vec<String>,
    /// Addresses of the API's sockets.
    pub http: Vec<String>,
    /// Version of the binary.
    pub version: String,
    /// Whether `pid` takes `rekindle upgrade`: it would die of the signal otherwise.
    #[serde(default)]
    pub upgradable: bool,
    /// Whether the daemon runs in a guest, which `pid` keeps alive: its processes are not this
    /// machine's.
    #[serde(default)]
    pub guest: bool,
}

impl Endpoints {
    /// Describes sockets that this process keeps.
    pub fn of(sockets: &[Listening], worker: u32) -> Self {
        let at = |role| {
            let here = sockets.iter().filter(move |socket| socket.role == role);
            here.map(|socket| socket.address.to_string()).collect()
        };
        Self {
            pid: std::process::id(),
            worker,
            nbd: at(Role::Nbd),
            nfs: at(Role::Nfs),
            http: at(Role::Http),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            upgradable: false,
            guest: false,
        }
    }

    /// Marks the process as one that listens for `rekindle upgrade`.
    #[must_use]
    pub(crate) fn upgradable(self) -> Self {
        Self { upgradable: true, ..self }
    }

    /// Returns the addresses of the API.
    pub fn http_places(&self) -> Vec<Address> {
        self.http.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Returns the nearest NBD socket: a Unix socket, else any.
    pub fn nbd(&self) -> Option<Address> {
        first(&self.nbd, |place| matches!(place, Address::Unix(_)))
            .or_else(|| first(&self.nbd, |_| true))
    }

    /// Writes the file, whole or not at all.
    pub fn write(&self, dir: &Path) -> Outcome {
        let write = || {
            let mut text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)?;
            text.push('\n');
            Folder::open_own(dir)?.write(NAME, TEMPORARY, text.as_bytes())
        };
        write().map_err(|error: std::io::Error| {
            Failure::new(format!("cannot write in {}", dir.display()))
                .because(error)
                .next("free space, or choose another folder with --dir")
        })
    }
}

const NAME: &str = "endpoints.json";
const TEMPORARY: &str = "endpoints.json.new";
const LOCK: &str = "rekindle.pid";
/// Longest time for a command to hold the lock of a folder: it only looks whether a daemon does.
const LOOK_PATIENCE: Duration = Duration::from_millis(200);

fn first(places: &[String], wanted: impl Fn(&Address) -> bool) -> Option<Address> {
    places.iter().filter_map(|text| text.parse().ok()).find(wanted)
}

/// Reads where the daemon of a folder serves; `None` when no daemon serves or says so.
pub fn read(dir: &Path) -> Option<Endpoints> {
    let folder = Folder::open(dir).ok()?;
    // A killed daemon leaves the file behind: its ports and its number may belong to others by now.
    let serves = folder.is_locked(LOCK).ok()?;
    serves.then(|| serde_json::from_slice(&folder.read(NAME).ok()?).ok()).flatten()
}

/// Whether a daemon holds the folder, as far as this user may know.
pub fn is_held(dir: &Path) -> bool {
    Folder::open(dir).and_then(|folder| folder.is_locked(LOCK)).unwrap_or(false)
}

/// Whether the last daemon of a folder was killed: it did not remove its endpoints.
pub fn was_killed(dir: &Path) -> bool {
    !is_held(dir) && Folder::open(dir).is_ok_and(|folder| folder.read(NAME).is_ok())
}

/// Signals the process that keeps the sockets of a folder; `false` when `pid` is another process by
/// now.
pub fn signal(dir: &Path, pid: u32, signal: Signal) -> std::io::Result<bool> {
    Folder::open(dir)?.signal(LOCK, pid, signal)
}

/// Returns the nearest NBD socket of the daemon of a folder.
pub fn nbd(dir: &Path) -> Outcome<Address> {
    // A user who may use a socket may be unable to read the endpoints beside it.
    let beside = || Some(dir.join(NBD_SOCKET)).filter(|path| path.exists()).map(Address::Unix);
    read(dir).and_then(|endpoints| endpoints.nbd()).or_else(beside).ok_or_else(|| {
        Failure::new(format!("the daemon in {} says nowhere that it serves NBD", dir.display()))
            .next(format!("start it with `rekindle up --dir {}`", quoted(dir)))
            .kind(Kind::NotFound)
    })
}

/// The lock of a folder: held by one daemon at a time, released by the kernel however the process
/// ends.
pub struct Lock {
    file: OwnedFd,
    dir: PathBuf,
}

impl Lock {
    /// Takes the folder.
    pub fn take(dir: &Path) -> Outcome<Self> {
        let failed = |error: std::io::Error| {
            Failure::new(format!("cannot use the folder {}", dir.display()))
                .because(error)
                .next("choose another one with --dir")
        };
        // The folder is checked before any file is made in it.
        let folder = Folder::open_own(dir).map_err(failed)?;
        // A user who can read a file can lock it: this one is private.
        let mut file = folder.lock_file(LOCK).map_err(failed)?;
        match lock(&file) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                let other = match text.trim() {
                    "" => "another daemon".to_owned(),
                    pid => format!("another daemon (pid {pid})"),
                };
                return Err(Failure::new(format!(
                    "the folder {} is in use by {other}",
                    dir.display()
                ))
                .next("stop that one, or choose another folder with --dir")
                .kind(Kind::Conflict));
            }
            Err(error) => return Err(failed(error.into())),
        }
        // Only the lock matters: on a full disk the file does not tell its holder.
        let _ = file.set_len(0);
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Self { file: file.into(), dir: dir.to_owned() })
    }

    /// Wraps the lock that this process took as another binary.
    pub(crate) fn held(file: OwnedFd, dir: &Path) -> Self {
        Self { file, dir: dir.to_owned() }
    }
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The locked file stays: its removal could take away the lock of a successor.
        let _ = Folder::open_own(&self.dir).and_then(|folder| folder.remove(NAME));
    }
}

/// Takes the lock; waits a moment for a command that only looks at it.
fn lock(file: &File) -> rustix::io::Result<()> {
    let end = Instant::now() + LOOK_PATIENCE;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = Lock::take(folder.path()).expect("free");
        let Err(error) = Lock::take(folder.path()) else { panic!("taken twice") };
        assert!(error.error.contains(&std::process::id().to_string()), "{}", error.error);
        drop(lock);
        assert!(Lock::take(folder.path()).is_ok());
    }

    #[test]
    fn endpoints_are_found_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = Lock::take(folder.path()).expect("free");
        assert_eq!(read(folder.path()), None);
        let endpoints = Endpoints {
            nbd: vec!["tcp:127.0.0.1:10809".into(), "unix:/x/nbd.sock".into()],
            http: vec!["unix:/x/rekindle.sock".into(), "tcp:127.0.0.1:8809".into()],
            ..Endpoints::default()
        };
        endpoints.write(folder.path()).expect("written");
        let found = read(folder.path()).expect("there");
        assert_eq!(found, endpoints);
        assert_eq!(found.nbd(), Some(Address::Unix("/x/nbd.sock".into())));
        assert_eq!(found.http_places().len(), 2);
        assert!(is_held(folder.path()) && !was_killed(folder.path()));
        drop(lock);
        assert!(!is_held(folder.path()) && !was_killed(folder.path()), "an orderly end");
    }

    #[test]
    fn what_a_killed_daemon_left_is_no_sign_of_life() {
        let folder = tempfile::tempdir().expect("a folder");
        let pid = std::process::id();
        Endpoints { pid, ..Endpoints::default() }.write(folder.path()).expect("written");
        std::fs::write(folder.path().join(LOCK), pid.to_string()).expect("written");
        assert_eq!(read(folder.path()), None);
        assert!(!is_held(folder.path()) && was_killed(folder.path()));
        // `pid` is this very process, which a signal would kill.
        assert!(!signal(folder.path(), pid, Signal::KILL).expect("looked at"));
    }
}
