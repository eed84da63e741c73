//! Memory that direct I/O takes: file systems ask for a page's alignment at most.

use std::ops::{Deref, DerefMut};

/// Alignment that suits direct I/O everywhere, bytes: of memory, offset and length.
pub const DIRECT_BYTES: usize = 4096;

/// A buffer that begins on a multiple of [`DIRECT_BYTES`].
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// Makes a buffer of zeros.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        let bytes = vec![0; length + DIRECT_BYTES];
        let start = bytes.as_ptr().align_offset(DIRECT_BYTES);
        Self { bytes, start: start.min(DIRECT_BYTES) }
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.bytes.len() - DIRECT_BYTES]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        let end = self.start + self.bytes.len() - DIRECT_BYTES;
        &mut self.bytes[self.start..end]
    }
}
