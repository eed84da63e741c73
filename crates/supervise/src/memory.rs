//! Warm memory without a file: memory of the kernel (a memfd) that lives for as long as a process
//! holds it open.
//!
//! Run by hand, the supervisor holds the memory: it outlives every worker, and is gone with `up`.
//! Under systemd the descriptor store holds the memory (`FileDescriptorStoreMax=1` in the unit): it
//! outlives every start until the unit is stopped. The worker finds the memory as `/proc/self/fd/N`
//! and opens it anew, so that the lock on it is the worker's own.

use crate::sockets;
use rekindle_env::real::access::own_path;
use rekindle_terminal::failure::{Failure, Outcome};
use rustix::fs::MemfdFlags;
use sd_notify::NotifyState;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Value of `--warm` that asks for this memory.
pub const WORD: &str = "memfd";
/// Name of the memory in systemd's store, and in `/proc`.
const NAME: &str = "rekindle-warm";

/// Finds or makes the memory, if `warm` asks for it instead of a file, and sets `warm` to its path
/// for the worker. The caller keeps the result open.
pub fn hold(warm: &mut Option<PathBuf>, under_systemd: bool) -> Outcome<Option<OwnedFd>> {
    if warm.as_deref() != Some(Path::new(WORD)) {
        return Ok(None);
    }
    let memory = if under_systemd { of_systemd()? } else { make(MemfdFlags::empty())? };
    *warm = Some(own_path(&memory));
    Ok(Some(memory))
}

/// Makes new memory. With no flags, child processes inherit it under the same number.
fn make(flags: MemfdFlags) -> Outcome<OwnedFd> {
    rustix::fs::memfd_create(NAME, flags).map_err(|error| {
        Failure::new("the kernel gives no memory of its own (memfd)")
            .because(io::Error::from(error))
            .next("rekindle up --warm /dev/shm/rekindle.warm")
    })
}

/// Returns the memory that an earlier start has left with systemd, else new memory for systemd to
/// keep.
fn of_systemd() -> Outcome<OwnedFd> {
    let kept = sd_notify::listen_fds_with_names()
        .ok()
        .and_then(|mut kept| kept.find(|(_, name)| name == NAME));
    if let Some((descriptor, _)) = kept {
        return sockets::take(descriptor);
    }
    let memory = make(MemfdFlags::CLOEXEC)?;
    let states = [NotifyState::FdStore, NotifyState::FdName(NAME)];
    sd_notify::notify_with_fds(&states, &[memory.as_fd()])?;
    Ok(memory)
}
