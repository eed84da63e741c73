//! File descriptors of this process: their limit and their number.

use super::access::OWN_DESCRIPTORS;
use crate::Descriptors;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;

/// Raises the soft limit to the hard one, for this process and for those that it starts from here
/// on. The usual soft limit (1,024) is there for programs that cannot count further.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && current.is_some() {
        let raised = Rlimit { current: maximum, maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of file descriptors stays as it is");
        }
    }
}

/// Makes a write beyond the limit of a file's size an error, in this process and in its children:
/// by default the kernel kills the process for such a write.
pub fn outlive_file_size() {
    // SAFETY: the signal is ignored, so that no code runs when it comes.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

pub(super) fn count() -> Descriptors {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    Descriptors { limit, open: open(Path::new(OWN_DESCRIPTORS)) }
}

/// Number of open descriptors. Kernels since 6.2 tell it as the size of the folder; on older ones
/// the entries are counted.
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
        // The signal's action at the start of a process.
        // SAFETY: the action that every process begins with.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
        }
        let (_env, _runtime) = crate::real::env().unwrap();
        // SAFETY: the signal is ignored by now; otherwise it would end the test.
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
        // Other tests open and close files meanwhile.
        let open = count().open;
        assert!(open >= before.open + 150, "{open}");
        drop(files);
        let folder = tempfile::tempdir().unwrap();
        (0..3).for_each(|name| std::fs::write(folder.path().join(name.to_string()), b"").unwrap());
        let counted = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(counted, 3);
    }
}
