//! A process that shares the worker's memory, does nothing, and dies a moment after it.
//!
//! The kernel gives the memory of a killed process back before it closes its files and tells its parent: with a gigabyte
//! of small pages that takes 50-100 ms, in which the locks are held and no other worker can begin. Memory goes with the
//! last process that has it. So the worker's does not go when the worker dies but with its heir, while the next
//! worker starts already. See `docs/decisions/2026-11-21-the-heir.md`.

use std::ffi::{c_int, c_void};
use std::io;

/// It calls four functions of the kernel, and none of ours.
const STACK_BYTES: usize = 64 << 10;

/// Starts the heir of this process; to be called before there are other threads. The heir holds no file of ours. Without
/// one everything is as it would be, only later after a kill.
pub fn appoint() -> io::Result<()> {
    let stack = Box::leak(vec![0u128; STACK_BYTES / size_of::<u128>()].into_boxed_slice());
    let top = stack.as_mut_ptr_range().end;
    let parent = std::process::id() as usize;
    // SAFETY: the sets are plain memory that the calls fill in.
    let (mut all, mut before) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: as above. No handler may ever run in the heir: it would run on our data, beside us.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    // SAFETY: the stack is never freed and nobody else uses it; `wait` touches no memory but that.
    let child = unsafe { libc::clone(wait, top.cast(), libc::CLONE_VM, parent as *mut c_void) };
    let failed = (child < 0).then(io::Error::last_os_error);
    // SAFETY: puts back what was there.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    failed.map_or(Ok(()), Err)
}

/// The heir's life. It has copies of our descriptors, locks among them: they must go first of all.
extern "C" fn wait(parent: *mut c_void) -> c_int {
    // SAFETY: calls of the kernel that touch no memory of ours, but for the main thread's `errno` when the first ones fail:
    // nobody looks at it without a failure of his own.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) != 0 {
            libc::_exit(0);
        }
        // The next worker's start goes first.
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
        libc::prctl(libc::PR_SET_NAME, c"rekindle-heir".as_ptr());
        // Not by a death signal: that comes when the main thread is dead, and the last of the others would still have to
        // give the memory back.
        let process = libc::syscall(libc::SYS_pidfd_open, parent as usize, 0);
        if process >= 0 && libc::getppid() as usize == parent as usize {
            let mut death = libc::pollfd { fd: process as c_int, events: libc::POLLIN, revents: 0 };
            libc::poll(&raw mut death, 1, -1);
        }
        libc::_exit(0);
    }
}
