//! File descriptors of this process: how many it may have, and has.

use crate::Descriptors;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;

/// Where a process finds what it has open.
const OWN_DESCRIPTORS: &str = "/proc/self/fd";

/// Raises the soft limit to the hard one; the usual soft one (1,024) is there for programs that cannot count further.
/// Processes started from here on inherit it.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && current.is_some() {
        let raised = Rlimit { current: maximum, maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of file descriptors stays as it is");
        }
    }
}

/// A write beyond the limit of a file's size is an error from here on, here and in child processes: by default the kernel
/// kills the process for it.
pub fn outlive_file_size() {
    // SAFETY: nothing runs when the signal comes.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

pub(super) fn count() -> Descriptors {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    Descriptors { limit, open: open(Path::new(OWN_DESCRIPTORS)) }
}

/// Kernels since 6.2 say how many there are; before that they are counted.
fn open(folder: &Path) -> u64 {
    match rustix::fs::stat(folder) {
        Ok(found) if found.st_size > 0 => u64::try_from(found.st_size).unwrap_or(0),
        _ => std::fs::read_dir(folder).map_or(0, |entries| entries.count() as u64),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests of the real machine")]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_file_kills_nobody() {
        // As it is at the start of a process.
        // SAFETY: the action that every process begins with.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
        }
        let (_env, _runtime) = crate::real::env().unwrap();
        // SAFETY: it would end the test.
        unsafe {
            libc::raise(libc::SIGXFSZ);
        }
    }

    #[test]
    fn descriptors_are_counted_and_the_limit_is_raised() {
        raise_limit();
        let limits = getrlimit(Resource::Nofile);
        assert_eq!(limits.current, limits.maximum);
        let before = count();
        assert_eq!(before.limit, limits.current.unwrap_or(u64::MAX));
        let files: Vec<_> = (0..200).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests open and close some meanwhile.
        let open = count().open;
        assert!(open >= before.open + 150, "{open}");
        drop(files);
        let folder = tempfile::tempdir().unwrap();
        (0..3).for_each(|name| std::fs::write(folder.path().join(name.to_string()), b"").unwrap());
        let counted = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(counted, 3);
    }
}
