//! Ordinary memory in the shape of a mapped region: for arenas that are forgotten with the process.

use rekindle_env::Region;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;

/// Zeroed, page-aligned bytes straight from the kernel: untouched pages cost nothing.
/// (`alloc_zeroed` with a page's alignment would write all of them.)
pub(crate) struct Heap {
    base: *mut u8,
    bytes: usize,
}

impl Heap {
    pub(crate) fn new(bytes: usize) -> io::Result<Heap> {
        // SAFETY: a new private mapping at an address of the kernel's choice; no existing memory is
        // touched.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Ok(Heap { base: base.cast(), bytes })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: `base` came from `mmap_anonymous` with this very length, and is unmapped only
        // here.
        let unmapped = unsafe { munmap(self.base.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
    }
}

impl Region for Heap {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn length(&self) -> usize {
        self.bytes
    }
}

// SAFETY: `Heap` hands out an address only; the code that dereferences it answers for races (see
// `Region::base`).
unsafe impl Send for Heap {}
// SAFETY: as above; `Heap` itself is never changed after it is made.
unsafe impl Sync for Heap {}
