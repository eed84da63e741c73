//! Cutting: where a chunk ends in a layout by content.
//!
//! A chunk ends behind a page that a keyed hash picks, so that bytes which move by whole pages are
//! found again. It also ends behind a page whose last bytes are zero: that is where a file system
//! has padded the end of a file, and the file may lie beside another one in the next image. The
//! store's secret decides the hash, so the lengths of chunks say little about known content.
//!
//! Measured on two images of /usr/lib that share 84 percent of their files' bytes: docs/decisions/
//! 2026-11-23-chunks-by-content.md.

use crate::layout::{CHUNK_PAGES_MAX, Layout, Run};
use bytes::Bytes;
use rekindle_base::checksum::crc32c_seeded;
use std::ops::Range;

/// Least count of pages before the hash ends a chunk.
const PAGES_MIN: u64 = 4;
/// One page in so many is picked by the hash.
const MEAN_PAGES: u64 = 8;
/// Zero bytes at the end of a page that end a chunk.
const TAIL: [u8; 16] = [0; 16];

/// Decides behind which page a chunk ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cutter {
    layout: Layout,
    key: u64,
}

impl Cutter {
    pub fn new(layout: Layout, key: u64) -> Self {
        Self { layout, key }
    }

    /// Whether the chunk ends behind `page`, the last one of `count`.
    pub fn ends(&self, count: u64, page: &[u8]) -> bool {
        match self.layout {
            Layout::Fixed { .. } => true,
            Layout::ByContent { .. } => {
                count >= CHUNK_PAGES_MAX
                    || page.ends_with(&TAIL)
                    || count >= PAGES_MIN && self.picks(page)
            }
        }
    }

    fn picks(&self, page: &[u8]) -> bool {
        // A checksum is linear in its seed: the product makes the pick depend on the key.
        let hash = u64::from(crc32c_seeded(self.key, page)).wrapping_mul(self.key | 1);
        (hash >> 32).is_multiple_of(MEAN_PAGES)
    }
}

/// Pages on their way into chunks. Calls ascend.
pub(crate) struct Cutting {
    cutter: Cutter,
    page_bytes: usize,
    /// The chunk that is not complete, and the page behind it.
    chunk: Vec<u8>,
    end: u64,
    cut: Cut,
}

/// Pages of the volume, in their order, and the new chunks that some of them show.
#[derive(Default)]
pub(crate) struct Cut {
    pub pieces: Vec<Piece>,
    pub chunks: Vec<Bytes>,
}

pub(crate) enum Piece {
    /// These pages show the next chunk.
    Chunk(Run),
    /// This page has new bytes, which are zeros.
    Zeros(u64),
    /// These pages become holes.
    Clear(Range<u64>),
}

impl Cutting {
    pub fn new(cutter: Cutter, page_bytes: u64) -> Self {
        let page_bytes = usize::try_from(page_bytes).expect("a page is small");
        Self { cutter, page_bytes, chunk: Vec::new(), end: 0, cut: Cut::default() }
    }

    /// Cuts pages from `first` on. Those behind the last cut wait for the pages that follow.
    pub fn pages(&mut self, first: u64, data: &[u8]) {
        if self.end != first {
            self.end_chunk();
        }
        for (number, page) in (first..).zip(data.chunks_exact(self.page_bytes)) {
            if is_zero(page) {
                self.end_chunk();
                self.cut.pieces.push(Piece::Zeros(number));
                continue;
            }
            self.chunk.extend_from_slice(page);
            self.end = number + 1;
            if self.cutter.ends((self.chunk.len() / self.page_bytes) as u64, page) {
                self.end_chunk();
            }
        }
    }

    pub fn clear(&mut self, pages: Range<u64>) {
        self.end_chunk();
        self.cut.pieces.push(Piece::Clear(pages));
    }

    /// Ends the chunk that is not complete, if there is one.
    pub fn end_chunk(&mut self) {
        let count = (self.chunk.len() / self.page_bytes) as u64;
        if count > 0 {
            self.cut.pieces.push(Piece::Chunk(Run { page: self.end - count, from: 0, count }));
            // A copy has no more memory than its bytes; it may stay in the cache.
            self.cut.chunks.push(Bytes::copy_from_slice(&self.chunk));
            self.chunk.clear();
        }
    }

    /// Returns the pages that were cut since the last call.
    pub fn take(&mut self) -> Cut {
        std::mem::take(&mut self.cut)
    }
}

/// Whether all bytes are zero.
fn is_zero(data: &[u8]) -> bool {
    let mut pieces = data.chunks_exact(64);
    pieces.all(|piece| piece.iter().fold(0, |all, byte| all | byte) == 0)
        && pieces.remainder().iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::PAGE_BYTES;

    fn page(number: u64) -> Vec<u8> {
        let mut random = rekindle_base::random::Random::new(number);
        (0..PAGE_BYTES).map(|_| random.below(255) as u8 + 1).collect()
    }

    fn ends(key: u64, pages: impl Iterator<Item = Vec<u8>>) -> Vec<u64> {
        let cutter = Cutter::new(Layout::default(), key);
        let (mut count, mut ends) = (0, Vec::new());
        for (at, page) in pages.enumerate() {
            count += 1;
            if cutter.ends(count, &page) {
                ends.push(at as u64 + 1);
                count = 0;
            }
        }
        ends
    }

    /// If this fails, what is written again is stored a second time.
    #[test]
    fn the_golden_cuts() {
        assert_eq!(ends(7, (0..160).map(page)), GOLDEN);
    }

    const GOLDEN: [u64; 18] =
        [4, 10, 16, 21, 32, 37, 41, 53, 61, 65, 78, 89, 95, 100, 114, 124, 147, 158];

    #[test]
    fn the_key_decides_and_pages_that_move_are_cut_as_before() {
        let before = ends(7, (0..4000).map(page));
        assert_ne!(before, ends(8, (0..4000).map(page)));
        let mean = 4000 / before.len();
        assert!((9..13).contains(&mean), "{mean}");
        // Three pages more at the front: the cuts from a few chunks later on are the old ones.
        let after = ends(7, (9000..9003).chain(0..4000).map(page));
        let far = |ends: &[u64], shift: u64| -> Vec<u64> {
            ends.iter().map(|end| end - shift.min(*end)).filter(|end| *end > 300).collect()
        };
        assert_eq!(far(&after, 3), far(&before, 0));
    }

    #[test]
    fn a_padded_end_of_a_file_ends_a_chunk_and_so_does_the_greatest_length() {
        let cutter = Cutter::new(Layout::default(), 7);
        let mut padded = page(1);
        padded[4080..].fill(0);
        assert!(cutter.ends(1, &padded));
        padded[4080] = 1;
        assert!(!cutter.ends(1, &padded));
        assert!(cutter.ends(CHUNK_PAGES_MAX, &padded));
        assert!(Cutter::new(Layout::Fixed { block_size: 4096 }, 7).ends(1, &page(1)));
    }
}
