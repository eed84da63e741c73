//! Ordinary memory in the shape of a mapped region: for arenas that are forgotten with the process.

use env::Region;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

const PAGE_BYTES: usize = 4096;

/// Zeroed, page-aligned bytes. The allocator takes large ones straight from the kernel: what is not touched costs
/// nothing.
pub(crate) struct Heap {
    base: *mut u8,
    layout: Layout,
}

impl Heap {
    pub(crate) fn new(bytes: usize) -> Heap {
        let layout = Layout::from_size_align(bytes.max(PAGE_BYTES), PAGE_BYTES).expect("an arena is far below 2^63 bytes");
        // SAFETY: the layout has a size above zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        Heap { base, layout }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this very layout and is freed only here.
        unsafe { dealloc(self.base, self.layout) }
    }
}

impl Region for Heap {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn length(&self) -> usize {
        self.layout.size()
    }
}

// SAFETY: `Heap` hands out an address only; whoever dereferences it answers for races (see `Region::base`).
unsafe impl Send for Heap {}
// SAFETY: as above; `Heap` itself is never changed after it is made.
unsafe impl Sync for Heap {}
