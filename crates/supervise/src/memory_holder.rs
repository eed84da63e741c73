//! A process that shares the worker's memory, does nothing, and dies a moment after the worker.
//!
//! The kernel frees the memory of a killed process before it closes the files and tells the parent.
//! With a gigabyte of small pages that takes 50-100 ms, in which the locks are held and no other
//! worker can begin. Memory is freed with the last process that has it: the worker's goes with its
//! holder, while the next worker starts already. See `docs/decisions/2026-11-21-the-heir.md`.

use std::ffi::{c_int, c_void};
use std::io;

/// Stack of the holder, which calls a few functions of the kernel and none of ours.
const STACK_BYTES: usize = 64 << 10;

/// Starts the holder of this process; to be called before there are other threads. The holder holds
/// no file of ours. Without a holder only the start after a kill is later.
pub fn spawn() -> io::Result<()> {
    let stack = Box::leak(vec![0u128; STACK_BYTES / size_of::<u128>()].into_boxed_slice());
    let top = stack.as_mut_ptr_range().end;
    let parent = std::process::id() as usize;
    // SAFETY: the sets are plain memory that the calls fill in.
    let (mut all, mut before) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: as above. No handler may ever run in the holder: it would run on our data, beside us.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    // SAFETY: the stack is never freed and only the holder uses it; `wait` touches no other memory.
    let child = unsafe { libc::clone(wait, top.cast(), libc::CLONE_VM, parent as *mut c_void) };
    let failed = (child < 0).then(io::Error::last_os_error);
    // SAFETY: restores the mask that the call above has saved.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    failed.map_or(Ok(()), Err)
}

/// Runs the holder. It has copies of our descriptors, locks among them, which must be closed first
/// of all.
extern "C" fn wait(parent: *mut c_void) -> c_int {
    // SAFETY: calls of the kernel that touch no memory of ours, except the main thread's `errno`
    // when the first ones fail. The main thread reads `errno` only after a failure of its own.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) != 0 {
            libc::_exit(0);
        }
        // The start of the next worker is more urgent.
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
        libc::prctl(libc::PR_SET_NAME, c"rekindle-memory".as_ptr());
        // No death signal: it comes when the main thread is dead, and the last of the other threads
        // would still have to free the memory.
        let process = libc::syscall(libc::SYS_pidfd_open, parent as usize, 0);
        if process >= 0 && libc::getppid() as usize == parent as usize {
            let mut death = libc::pollfd { fd: process as c_int, events: libc::POLLIN, revents: 0 };
            libc::poll(&raw mut death, 1, -1);
        }
        libc::_exit(0);
    }
}
