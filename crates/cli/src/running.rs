//! The daemons that run on this machine.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use rekindle_env::real::net::knock;
use rekindle_supervise::sockets::HTTP_SOCKET;
use std::path::{Path, PathBuf};

/// The kernel's list of Unix sockets.
const SOCKETS: &str = "/proc/net/unix";
/// Most folders that are returned.
const MANY: usize = 5;

/// Returns the folders of daemons that this user can talk to, a few of them.
pub fn folders() -> Vec<PathBuf> {
    let text = std::fs::read(SOCKETS).unwrap_or_default();
    let found = listed(&String::from_utf8_lossy(&text)).into_iter();
    found.filter(|dir| answers(dir)).take(MANY).collect()
}

/// Whether a daemon takes clients there. Any user may listen at a socket of that name and take
/// none: then its queue is full, and a connect would wait.
fn answers(dir: &Path) -> bool {
    knock(&dir.join(HTTP_SOCKET)).is_ok()
}

/// Returns the folders in which a process listens at a socket named [`HTTP_SOCKET`].
fn listed(text: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = text
        .lines()
        // Number, references, protocol, flags (listening), type, state, inode, path.
        .filter(|line| line.split_whitespace().nth(3) == Some("00010000"))
        .filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])))
        .filter(|path| path.file_name().is_some_and(|name| name == HTTP_SOCKET))
        .filter_map(|path| path.parent().map(Path::to_owned))
        .collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_env::real::access::SocketMode;
    use rekindle_env::real::net::bind_unix;

    #[test]
    fn a_socket_that_takes_no_clients_makes_nothing_wait() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(HTTP_SOCKET);
        let listener = bind_unix(&path, SocketMode::default(), 0).expect("a socket");
        let (sender, full) = std::sync::mpsc::channel();
        let dir = folder.path().to_owned();
        // Nothing is ever accepted: the queue fills up.
        std::thread::spawn(move || sender.send((0..5).any(|_| !answers(&dir))));
        assert!(full.recv_timeout(std::time::Duration::from_secs(10)).expect("no wait"));
        drop(listener);
        assert!(!answers(folder.path()));
    }

    #[test]
    fn daemons_are_found_by_the_sockets_at_which_they_listen() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 24 /srv/my disks/rekindle.sock\n\
            1: 00000003 00000000 00000000 0001 03 25 /srv/connected/rekindle.sock\n\
            2: 00000002 00000000 00010000 0001 01 26 /run/other.sock\n\
            3: 00000002 00000000 00010000 0001 01 27 @abstract\n";
        assert_eq!(listed(text), [PathBuf::from("/srv/my disks")]);
    }
}
