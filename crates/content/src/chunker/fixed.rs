//! Blocks of one size. A stream begins at a multiple of the size, so the blocks are aligned.

use super::Chunker;

/// A chunker that cuts blocks of one size.
#[derive(Debug, Clone, Copy)]
pub struct Fixed {
    bytes: usize,
}

impl Fixed {
    /// Creates a chunker of blocks of `bytes` (at least 1).
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self { bytes: bytes.max(1) }
    }
}

impl Chunker for Fixed {
    fn cut(&self, data: &[u8], is_end: bool) -> Option<usize> {
        if data.len() >= self.bytes {
            return Some(self.bytes);
        }
        (is_end && !data.is_empty()).then_some(data.len())
    }

    fn bytes_max(&self) -> usize {
        self.bytes
    }
}
