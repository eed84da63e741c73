//! Two files in the daemon's folder: `rekindle.pid`, locked for as long as it serves, and `endpoints.json`, which says
//! where.
#![expect(clippy::disallowed_methods, reason = "these files outlive every process that has an Env")]

use super::sockets::{Listening, Role};
use crate::failure::{Failure, Outcome};
use base::Kind;
use env::Address;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Where a daemon serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// The process that keeps the sockets.
    pub pid: u32,
    /// The process that serves; 0 before the first one does.
    pub worker: u32,
    pub nbd: Vec<String>,
    pub http: Vec<String>,
    /// Of the binary.
    pub version: String,
    /// Whether `pid` takes `rekindle upgrade`: it would die of the signal otherwise.
    #[serde(default)]
    pub upgradable: bool,
    /// Whether the daemon runs in a guest, which `pid` keeps alive: its processes are not this machine's.
    #[serde(default)]
    pub guest: bool,
}

impl Endpoints {
    /// Of sockets that this process keeps.
    pub fn of(sockets: &[Listening], worker: u32) -> Self {
        let at = |role| {
            let here = sockets.iter().filter(move |socket| socket.role == role);
            here.map(|socket| socket.address.to_string()).collect()
        };
        Self {
            pid: std::process::id(),
            worker,
            nbd: at(Role::Nbd),
            http: at(Role::Http),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            upgradable: false,
            guest: false,
        }
    }

    /// Of a process that listens for `rekindle upgrade`.
    #[must_use]
    pub fn upgradable(self) -> Self {
        Self { upgradable: true, ..self }
    }

    /// Where the API is.
    pub fn http_places(&self) -> Vec<Address> {
        self.http.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// The NBD socket that is nearest.
    pub fn nbd(&self) -> Option<Address> {
        first(&self.nbd, |place| matches!(place, Address::Unix(_)))
            .or_else(|| first(&self.nbd, |_| true))
    }

    /// Writes the file, whole or not at all.
    pub fn write(&self, dir: &Path) -> Outcome {
        let write = || {
            let temporary = dir.join("endpoints.json.new");
            let mut text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)?;
            text.push('\n');
            std::fs::write(&temporary, text)?;
            std::fs::rename(&temporary, dir.join(NAME))
        };
        write().map_err(|error: std::io::Error| {
            Failure::new(format!("cannot write in {}", dir.display()))
                .because(error)
                .next("free space, or choose another folder with --dir")
        })
    }
}

const NAME: &str = "endpoints.json";

fn first(places: &[String], wanted: impl Fn(&Address) -> bool) -> Option<Address> {
    places.iter().filter_map(|text| text.parse().ok()).find(wanted)
}

/// Where the daemon of a folder serves, if it says so.
pub fn read(dir: &Path) -> Option<Endpoints> {
    serde_json::from_slice(&std::fs::read(dir.join(NAME)).ok()?).ok()
}

/// The NBD socket of the daemon of a folder that is nearest.
pub fn nbd(dir: &Path) -> Outcome<Address> {
    // Who may use a socket may not read the file beside it.
    let beside = || Some(dir.join("nbd.sock")).filter(|path| path.exists()).map(Address::Unix);
    read(dir).and_then(|endpoints| endpoints.nbd()).or_else(beside).ok_or_else(|| {
        Failure::new(format!("the daemon in {} says nowhere that it serves NBD", dir.display()))
            .next(format!("start it with `rekindle up --dir {}`", crate::output::quoted(dir)))
            .kind(Kind::NotFound)
    })
}

/// The lock of a folder: held by one daemon at a time, given back by the kernel however the process ends.
pub struct Lock {
    file: OwnedFd,
    dir: std::path::PathBuf,
}

impl Lock {
    /// Takes the folder.
    pub fn take(dir: &Path) -> Outcome<Self> {
        let path = dir.join("rekindle.pid");
        let failed = |error: std::io::Error| {
            Failure::new(format!("cannot use the folder {}", dir.display()))
                .because(error)
                .next("choose another one with --dir")
        };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            // Whoever may read a file may lock it.
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
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
        // Only the lock matters: on a full disk nobody reads whose it is.
        let _ = file.set_len(0);
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Self { file: file.into(), dir: dir.to_owned() })
    }

    /// The lock that this process took as another binary.
    pub fn held(file: OwnedFd, dir: &Path) -> Self {
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
        // The locked file stays: who removes it could remove the lock of a successor.
        let _ = std::fs::remove_file(self.dir.join(NAME));
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
    }
}
