//! The daemons that run on this machine.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use rekindle_supervise::sockets::HTTP_SOCKET;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The kernel's list of Unix sockets.
const SOCKETS: &str = "/proc/net/unix";
/// Most folders that are returned.
const MANY: usize = 5;

/// Returns the folders of daemons that this user can talk to, a few of them.
pub fn folders() -> Vec<PathBuf> {
    let text = std::fs::read(SOCKETS).unwrap_or_default();
    let mut found = listed(&String::from_utf8_lossy(&text));
    found.retain(|dir| UnixStream::connect(dir.join(HTTP_SOCKET)).is_ok());
    found.truncate(MANY);
    found
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
