//! The listening sockets. The supervisor opens them and keeps them, so that clients which come
//! while a worker is restarted wait in the queue of the socket instead of being refused.
#![expect(
    clippy::disallowed_methods,
    reason = "these sockets outlive every process that has an Env"
)]

use crate::access::{self, Group};
use rekindle_base::Kind;
use rekindle_env::Address;
use rekindle_env::real::access::SocketMode;
use rekindle_env::real::net::bind_unix;
use rekindle_terminal::failure::{Failure, Outcome};
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Name of the NBD socket in the daemon's folder.
pub const NBD_SOCKET: &str = "nbd.sock";
/// Name of the API's socket there.
pub const HTTP_SOCKET: &str = "rekindle.sock";
/// Connections that may wait in the queue of a socket: all clients of a busy node come back at
/// once.
const QUEUE: i32 = 1024;
/// Longest path that a Unix socket may have, bytes.
const PATH_BYTES_MAX: usize = 107;

/// The protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Volumes.
    Nbd,
    /// File volumes.
    Nfs,
    /// The JSON API.
    Http,
}

/// An open listening socket.
#[derive(Debug)]
pub struct Listening {
    /// The protocol that is spoken there.
    pub role: Role,
    /// The address at which it really listens.
    pub address: Address,
    /// The socket itself.
    pub socket: OwnedFd,
    /// The file of a Unix socket: device and number.
    pub(crate) file: Option<(u64, u64)>,
}

/// A listening socket as the worker is told of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Passed {
    pub role: Role,
    pub descriptor: RawFd,
}

/// The sockets that a user asks for, besides the Unix sockets that are always there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedSockets {
    /// Further addresses for NBD.
    pub nbd: Vec<Address>,
    /// Addresses for NFS.
    pub nfs: Vec<Address>,
    /// Further addresses for the API.
    pub http: Vec<Address>,
    /// Group that may use the Unix sockets for NBD, besides the user who runs the daemon.
    pub group: Option<Group>,
    /// Group that may use those of the API.
    pub http_group: Option<Group>,
    /// Whether TCP beyond this machine is meant.
    pub insecure: bool,
}

impl WantedSockets {
    /// Settles which users may enter the daemon's folder, and opens all sockets. Adds notes for the
    /// user.
    pub fn open(&self, dir: &Path, notes: &mut Vec<String>) -> Outcome<Vec<Listening>> {
        let (insecure, group, http_group) = (self.insecure, self.group, self.http_group);
        let mut groups: Vec<Group> = group.into_iter().chain(http_group).collect();
        groups.dedup();
        access::settle(dir, &groups, notes)?;
        let (disks, api) = (dir.join(NBD_SOCKET), dir.join(HTTP_SOCKET));
        let wanted = [
            (Role::Nbd, Some(&*disks), &self.nbd, group),
            (Role::Nfs, None, &self.nfs, group),
            (Role::Http, Some(&*api), &self.http, http_group),
        ];
        let mut sockets = Vec::new();
        for (role, own, asked, group) in wanted {
            sockets.extend(open(&Wanted { role, own, asked, group, insecure }, notes)?);
        }
        Ok(sockets)
    }
}

/// The sockets to open for one role.
#[derive(Debug, Clone)]
struct Wanted<'a> {
    role: Role,
    /// The Unix socket that is always there, if the role has one.
    own: Option<&'a Path>,
    /// Places that the user asked for besides.
    asked: &'a [Address],
    /// Group that may connect to the Unix sockets, besides the user who runs the daemon.
    group: Option<Group>,
    /// Whether TCP beyond this machine is meant.
    insecure: bool,
}

/// Longest time for a worker that lost its supervisor to end.
const PREDECESSOR_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// Opens the sockets of a role, and adds notes for the user.
fn open(wanted: &Wanted<'_>, notes: &mut Vec<String>) -> Outcome<Vec<Listening>> {
    let mut places: Vec<Address> = Vec::new();
    match wanted.own {
        Some(own) if own.as_os_str().len() > PATH_BYTES_MAX => notes.push(format!(
            "{} is too long a path for a Unix socket ({PATH_BYTES_MAX} bytes at most): there is none",
            own.display()
        )),
        own => places.extend(own.map(|own| Address::Unix(own.to_owned()))),
    }
    for place in wanted.asked {
        if let Address::Tcp(place) = place {
            notes.push(stranger(wanted, *place)?);
        }
        if !places.contains(place) {
            places.push(place.clone());
        }
    }
    if places.is_empty() && wanted.own.is_some() {
        return Err(Failure::usage(notes.pop().unwrap_or_default()).next(
            "choose a shorter --dir, or name a socket with --nbd unix:PATH and --http unix:PATH",
        ));
    }
    let mut sockets = Vec::new();
    for place in places {
        let own = matches!(&place, Address::Unix(path) if Some(&**path) == wanted.own);
        let group = wanted.group;
        let bound = if own { bind_after_predecessor(&place, group) } else { bind(&place, group) };
        let socket = bound.map_err(|error| refused(&place, &error))?;
        let address = address_of(&socket, place)?;
        let file = file_of(&address);
        sockets.push(Listening { role: wanted.role, address, socket, file });
    }
    Ok(sockets)
}

/// The file that has the name of a Unix socket now.
fn file_of(address: &Address) -> Option<(u64, u64)> {
    let Address::Unix(path) = address else { return None };
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Returns a note about what clients can do at a TCP port, where none is authenticated. Refuses an
/// address beyond this machine unless it is meant.
fn stranger(wanted: &Wanted<'_>, place: SocketAddr) -> Outcome<String> {
    if wanted.role == Role::Nfs && place.ip().is_loopback() {
        return Ok(format!("TCP at {place}: root of this machine can use every file volume"));
    }
    let does = match wanted.role {
        Role::Nfs => "can read and write every file volume as any user but root",
        Role::Nbd => "can read and write every volume",
        Role::Http => "can command this daemon, and read and write every volume",
    };
    if place.ip().is_loopback() {
        return Ok(format!("TCP at {place}: every user of this machine {does}"));
    }
    if wanted.insecure {
        return Ok(format!(
            "TCP at {place}: every client that reaches it {does}, and can listen in"
        ));
    }
    Err(Failure::usage(format!(
        "every client that reaches {place} {does}: clients are not authenticated"
    ))
    .next("use unix:PATH or 127.0.0.1:PORT, or say --insecure if every client there may"))
}

fn refused(place: &Address, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot listen at {place}")).because(error).kind(Kind::Io);
    match (error.kind(), place) {
        (io::ErrorKind::AddrInUse, _) => {
            failure.next("stop what listens there, or choose another address")
        }
        (io::ErrorKind::PermissionDenied, Address::Tcp(_)) => {
            failure.next("choose a port above 1023")
        }
        (io::ErrorKind::PermissionDenied, Address::Unix(_)) => failure
            .next("choose a folder of your own, and with --socket-group a group that you are in"),
        _ => failure.next("choose another address with --nbd, --nfs or --http"),
    }
}

/// As [`bind`], for the socket of a folder that is ours. A process that listens there already is
/// the worker of a killed supervisor, and the kernel is about to end it.
fn bind_after_predecessor(place: &Address, group: Option<Group>) -> io::Result<OwnedFd> {
    let end = std::time::Instant::now() + PREDECESSOR_PATIENCE;
    loop {
        match bind(place, group) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && std::time::Instant::now() < end =>
            {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

fn bind(place: &Address, group: Option<Group>) -> io::Result<OwnedFd> {
    match place {
        Address::Tcp(address) => {
            let socket: OwnedFd = TcpListener::bind(address)?.into();
            // Listens again, with the queue that we want.
            rustix::net::listen(&socket, QUEUE)?;
            Ok(socket)
        }
        Address::Unix(path) => bind_unix(path, SocketMode { group }, QUEUE),
    }
}

/// Returns the address at which a socket really listens: port 0 has become a real one.
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
    pub(crate) fn pass_on(&self) -> Outcome<Passed> {
        rustix::io::fcntl_setfd(&self.socket, FdFlags::empty()).map_err(io::Error::from)?;
        Ok(Passed { role: self.role, descriptor: self.socket.as_raw_fd() })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address
            // Another daemon may have put its own there since.
            && self.file.is_some()
            && file_of(&self.address) == self.file
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Takes a descriptor that the parent left open for us.
pub(crate) fn take(descriptor: RawFd) -> Outcome<OwnedFd> {
    if descriptor <= 2 {
        return Err(Failure::usage("the worker is started by `rekindle up`, not by hand"));
    }
    // SAFETY: the supervisor (or systemd) names each descriptor once, in a variable that is read
    // once, before anything else in this process opens files. So the descriptor is open (checked
    // below) and no other code owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    match rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC) {
        Ok(()) => Ok(socket),
        Err(error) => {
            // Closing a descriptor that is not open would abort a debug build.
            std::mem::forget(socket);
            Err(Failure::new("the worker was not given its sockets")
                .because(io::Error::from(error)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn wanted<'a>(own: &'a Path, asked: &'a [Address]) -> Wanted<'a> {
        Wanted { role: Role::Nbd, own: Some(own), asked, group: None, insecure: false }
    }

    #[test]
    fn nobody_listens_on_tcp_unless_asked_and_a_taken_wish_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("nbd.sock");
        let mut notes = Vec::new();
        let sockets = open(&wanted(&own, &[]), &mut notes).expect("a socket");
        assert_eq!((sockets.len(), notes.len()), (1, 0));
        assert_eq!(sockets[0].address, Address::Unix(own.clone()));
        drop(sockets);
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let wish = [Address::Tcp(taken.local_addr().expect("bound"))];
        let error = open(&wanted(&own, &wish), &mut notes).expect_err("taken");
        assert!(error.error.contains("cannot listen"), "{}", error.error);
    }

    #[test]
    fn tcp_is_told_and_beyond_this_machine_it_must_be_meant() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("nbd.sock");
        let at = |text: &str| [Address::Tcp(text.parse().expect("an address"))];
        let mut notes = Vec::new();
        open(&wanted(&own, &at("127.0.0.1:0")), &mut notes).expect("a port");
        assert!(notes[0].contains("every user of this machine can read and write"), "{notes:?}");
        for place in ["0.0.0.0:0", "[::]:0"] {
            let error = open(&wanted(&own, &at(place)), &mut notes).expect_err("not meant");
            assert!(error.next.is_some_and(|next| next.contains("--insecure")));
        }
        let anywhere = at("0.0.0.0:0");
        let meant = Wanted { insecure: true, ..wanted(&own, &anywhere) };
        open(&meant, &mut notes).expect("meant");
        assert!(notes[1].contains("every client that reaches it"), "{notes:?}");
    }

    #[test]
    fn a_socket_is_for_its_user_and_for_the_group_that_was_named() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("nbd.sock");
        let group = rustix::process::getegid().as_raw();
        for (group, mode) in [(None, 0o600), (Some(group), 0o660)] {
            let _open = open(&Wanted { group, ..wanted(&own, &[]) }, &mut Vec::new());
            let found = std::fs::metadata(&own).expect("there").permissions().mode();
            assert_eq!(found & 0o777, mode);
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("nbd.sock");
        drop(UnixListener::bind(&own).expect("a socket"));
        let asked = [Address::Unix(own.clone())];
        let sockets = open(&wanted(&own, &asked), &mut Vec::new()).expect("stale");
        assert_eq!(sockets.len(), 1, "the same place is opened once");
        assert!(open(&wanted(&own, &asked), &mut Vec::new()).is_err());
        drop(sockets);
        assert!(!own.exists());
        std::fs::write(&own, b"precious").expect("a file");
        assert!(open(&wanted(&own, &asked), &mut Vec::new()).is_err());
        assert!(own.exists());
    }

    #[test]
    fn whoever_has_taken_the_name_of_a_socket_keeps_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("nbd.sock");
        let sockets = open(&wanted(&own, &[]), &mut Vec::new()).expect("a socket");
        std::fs::rename(&own, folder.path().join("before")).expect("ours");
        let _other = UnixListener::bind(&own).expect("free");
        drop(sockets);
        assert!(own.exists());
    }

    #[test]
    fn too_long_a_path_is_done_without_when_there_is_another() {
        let own = Path::new("/").join("x".repeat(200)).join("nbd.sock");
        let mut notes = Vec::new();
        let error = open(&wanted(&own, &[]), &mut notes).expect_err("nowhere");
        assert!(error.error.contains("too long"), "{}", error.error);
        let folder = tempfile::tempdir().expect("a folder");
        let other = [Address::Unix(folder.path().join("x.sock"))];
        let sockets = open(&wanted(&own, &other), &mut notes).expect("another is left");
        assert_eq!((sockets.len(), notes.len()), (1, 1));
    }
}
