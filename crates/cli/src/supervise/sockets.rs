//! The listening sockets. The supervisor opens them and keeps them, so that clients which come while a worker is
//! restarted wait in the queue of the socket instead of being refused.
#![expect(
    clippy::disallowed_methods,
    reason = "these sockets outlive every process that has an Env"
)]

use crate::failure::{Failure, Outcome};
use crate::parse::Place;
use base::Kind;
use env::Address;
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Connections that may wait in the queue of a socket: every client of a busy node comes back at once.
const QUEUE: i32 = 1024;
/// Longest path that a Unix socket may have, bytes.
const PATH_BYTES_MAX: usize = 107;

/// What is spoken at a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Nbd,
    Http,
}

/// An open listening socket.
#[derive(Debug)]
pub struct Listening {
    pub role: Role,
    pub address: Address,
    pub socket: OwnedFd,
}

/// A listening socket as the worker is told of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Passed {
    pub role: Role,
    pub descriptor: RawFd,
}

/// What shall be opened for one role.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    pub role: Role,
    /// The Unix socket that is always there.
    pub own: &'a Path,
    /// What somebody asked for; `None`: the default.
    pub asked: Option<Vec<Place>>,
    /// The TCP address when nobody asked. Another port is taken when it is in use.
    pub default: SocketAddr,
}

/// How long a worker that lost its supervisor may take to go.
const PREDECESSOR_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// Opens the sockets of a role; `notes` takes what people should know.
pub fn open(wanted: &Wanted<'_>, notes: &mut Vec<String>) -> Outcome<Vec<Listening>> {
    let mut places: Vec<Address> = Vec::new();
    if wanted.own.as_os_str().len() <= PATH_BYTES_MAX {
        places.push(Address::Unix(wanted.own.to_owned()));
    } else {
        notes.push(format!(
            "{} is too long a path for a Unix socket ({PATH_BYTES_MAX} bytes at most): serving without it",
            wanted.own.display()
        ));
    }
    let chosen = wanted.asked.is_none();
    let asked = wanted.asked.clone().unwrap_or_else(|| vec![Some(Address::Tcp(wanted.default))]);
    for place in asked.into_iter().flatten() {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let mut sockets = Vec::new();
    for place in places {
        let own = matches!(&place, Address::Unix(path) if path == wanted.own);
        let socket = match if own { bind_after_predecessor(&place) } else { bind(&place) } {
            Err(error)
                if chosen
                    && error.kind() == io::ErrorKind::AddrInUse
                    && matches!(place, Address::Tcp(_)) =>
            {
                let free = Address::Tcp(SocketAddr::new(wanted.default.ip(), 0));
                let socket = bind(&free).map_err(|error| refused(&free, &error))?;
                notes.push(format!(
                    "port {} is taken: another one was chosen",
                    wanted.default.port()
                ));
                socket
            }
            other => other.map_err(|error| refused(&place, &error))?,
        };
        sockets.push(Listening { role: wanted.role, address: address_of(&socket, place)?, socket });
    }
    Ok(sockets)
}

fn refused(place: &Address, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot listen at {place}")).because(error).kind(Kind::Io);
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            failure.next("stop what listens there, or choose another address")
        }
        io::ErrorKind::PermissionDenied => {
            failure.next("choose a port above 1023 or a folder of your own")
        }
        _ => failure.next("choose another address with --nbd or --http"),
    }
}

/// As [`bind`], for the socket of a folder that is ours: whoever listens there is the worker of a supervisor that was
/// killed, and the kernel is about to end it.
fn bind_after_predecessor(place: &Address) -> io::Result<OwnedFd> {
    let end = std::time::Instant::now() + PREDECESSOR_PATIENCE;
    loop {
        match bind(place) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && std::time::Instant::now() < end =>
            {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

fn bind(place: &Address) -> io::Result<OwnedFd> {
    let socket: OwnedFd = match place {
        Address::Tcp(address) => TcpListener::bind(address)?.into(),
        Address::Unix(path) => {
            remove_stale(path)?;
            UnixListener::bind(path)?.into()
        }
    };
    // Once more, with the queue we want.
    rustix::net::listen(&socket, QUEUE)?;
    Ok(socket)
}

/// Removes a Unix socket that nobody listens at.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket is in the way",
        ));
    }
    match UnixStream::connect(path) {
        Ok(_) => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another process already listens there"))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}

/// Where a socket really listens: port 0 has become one.
fn address_of(socket: &OwnedFd, place: Address) -> Outcome<Address> {
    match place {
        Address::Unix(_) => Ok(place),
        Address::Tcp(_) => {
            let listener = TcpListener::from(socket.try_clone()?);
            Ok(Address::Tcp(listener.local_addr()?))
        }
    }
}

impl Listening {
    /// Lets child processes inherit the socket, and says how they find it.
    pub fn pass_on(&self) -> Outcome<Passed> {
        rustix::io::fcntl_setfd(&self.socket, FdFlags::empty()).map_err(io::Error::from)?;
        Ok(Passed { role: self.role, descriptor: self.socket.as_raw_fd() })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Takes a descriptor that the parent left open for us.
pub fn take(descriptor: RawFd) -> Outcome<OwnedFd> {
    if descriptor <= 2 {
        return Err(Failure::usage("the worker is started by `rekindle up`, not by hand"));
    }
    // SAFETY: the supervisor (or systemd) names each descriptor once, in a variable that is read once, before anything else in this
    // process opens files; so the descriptor is open (checked below) and nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    match rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC) {
        Ok(()) => Ok(socket),
        Err(error) => {
            // Closing what is not open would be an abort in a debug build.
            std::mem::forget(socket);
            Err(Failure::new("the worker was not given its sockets")
                .because(io::Error::from(error)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted<'a>(own: &'a Path, asked: Option<Vec<Place>>, port: u16) -> Wanted<'a> {
        Wanted { role: Role::Nbd, own, asked, default: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    #[test]
    fn a_taken_default_port_is_replaced_and_a_taken_wish_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("nbd.sock");
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("bound").port();
        let mut notes = Vec::new();
        let sockets = open(&wanted(&own, None, port), &mut notes).expect("another port");
        assert_eq!(sockets.len(), 2);
        assert_ne!(sockets[1].address, Address::Tcp(SocketAddr::from(([127, 0, 0, 1], port))));
        assert_eq!(notes.len(), 1);
        drop(sockets);
        let wish = Some(vec![Some(Address::Tcp(SocketAddr::from(([127, 0, 0, 1], port))))]);
        let error = open(&wanted(&own, wish, port), &mut notes).expect_err("taken");
        assert!(error.error.contains("cannot listen"), "{}", error.error);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("nbd.sock");
        drop(UnixListener::bind(&own).expect("a socket"));
        let asked = Some(vec![None, Some(Address::Unix(own.clone()))]);
        let sockets = open(&wanted(&own, asked.clone(), 0), &mut Vec::new()).expect("stale");
        assert_eq!(sockets.len(), 1, "the same place is opened once");
        assert!(open(&wanted(&own, asked.clone(), 0), &mut Vec::new()).is_err());
        drop(sockets);
        assert!(!own.exists());
        std::fs::write(&own, b"precious").expect("a file");
        assert!(open(&wanted(&own, asked, 0), &mut Vec::new()).is_err());
        assert!(own.exists());
    }

    #[test]
    fn too_long_a_path_is_done_without() {
        let own = Path::new("/").join("x".repeat(200)).join("nbd.sock");
        let mut notes = Vec::new();
        let sockets = open(&wanted(&own, None, 0), &mut notes).expect("TCP is left");
        assert_eq!((sockets.len(), notes.len()), (1, 1));
    }
}
