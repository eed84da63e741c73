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
use crate::limits;
use crate::spare::Spare;
use rekindle_base::checksum::crc32c_seeded;
use rekindle_content::Stretch;
use rekindle_env::give_way;
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
    /// Pages that lie side by side: those of whole chunks, then those of a chunk that is not
    /// complete.
    bytes: Vec<u8>,
    /// Where the whole chunks end in `bytes`.
    ends: Vec<usize>,
    /// The page behind `bytes`.
    end: u64,
    /// The page behind everything that came, zeros and holes too.
    seen: u64,
    /// Whether `bytes` lie apart from what came before.
    is_apart: bool,
    cut: Cut,
    spare: Spare,
}

/// Pages of the volume, in their order, and the new chunks that some of them show.
#[derive(Default)]
pub(crate) struct Cut {
    pub pieces: Vec<Piece>,
    pub stretches: Vec<Stretch>,
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
    pub fn new(cutter: Cutter, page_bytes: u64, spare: Spare) -> Self {
        let page_bytes = usize::try_from(page_bytes).expect("a page is small");
        Self {
            cutter,
            page_bytes,
            bytes: Vec::new(),
            ends: Vec::new(),
            end: 0,
            seen: 0,
            is_apart: false,
            cut: Cut::default(),
            spare,
        }
    }

    /// Cuts pages from `first` on. Those behind the last cut wait for the pages that follow.
    pub fn pages(&mut self, first: u64, data: &[u8]) {
        for (number, page) in (first..).zip(data.chunks_exact(self.page_bytes)) {
            if is_zero(page) {
                self.end_chunk();
                self.cut.pieces.push(Piece::Zeros(number));
            } else {
                self.page(number, page);
            }
            self.seen = number + 1;
        }
    }

    fn page(&mut self, number: u64, page: &[u8]) {
        if self.end != number {
            self.end_chunk();
            self.end_stretch();
            // Zeros and holes between files are no distance.
            self.is_apart = self.seen != number;
        }
        self.bytes.extend_from_slice(page);
        self.end = number + 1;
        if self.cutter.ends(self.pages_of_chunk(), page) {
            self.end_chunk();
        }
    }

    pub fn clear(&mut self, pages: Range<u64>) {
        self.end_chunk();
        self.seen = pages.end;
        self.cut.pieces.push(Piece::Clear(pages));
    }

    /// The count of pages of the chunk that is not complete.
    fn pages_of_chunk(&self) -> u64 {
        let begin = self.ends.last().copied().unwrap_or(0);
        ((self.bytes.len() - begin) / self.page_bytes) as u64
    }

    /// Ends the chunk that is not complete, if there is one.
    pub fn end_chunk(&mut self) {
        let count = self.pages_of_chunk();
        if count > 0 {
            give_way();
            self.cut.pieces.push(Piece::Chunk(Run { page: self.end - count, from: 0, count }));
            self.ends.push(self.bytes.len());
        }
    }

    /// Ends the stretch of whole chunks. What is behind them begins the next one.
    fn end_stretch(&mut self) {
        if let Some(end) = self.ends.last() {
            // The next stretch is likely to be as long.
            let mut rest = Vec::new();
            if *end >= limits::SPARE_BYTES_MIN {
                rest = self.spare.take();
                rest.clear();
                rest.reserve_exact(end + end / 8);
            }
            rest.extend_from_slice(&self.bytes[*end..]);
            self.bytes.truncate(*end);
            let bytes = self.spare.lend(std::mem::replace(&mut self.bytes, rest));
            let (ends, is_apart) =
                (std::mem::take(&mut self.ends), std::mem::take(&mut self.is_apart));
            self.cut.stretches.push(Stretch { bytes, ends, is_apart });
        }
    }

    /// Returns the pages that were cut since the last call.
    pub fn take(&mut self) -> Cut {
        self.end_stretch();
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
    fn other_threads_may_go_first_before_each_chunk() {
        let mut cutting =
            Cutting::new(Cutter::new(Layout::default(), 7), PAGE_BYTES, Spare::default());
        let data = (0..160).flat_map(page).collect::<Vec<_>>();
        let before = rekindle_env::ways_given();
        cutting.pages(0, &data);
        let chunk = |piece: &&Piece| matches!(piece, Piece::Chunk(_));
        let count = cutting.take().pieces.iter().filter(chunk).count();
        assert!(count >= GOLDEN.len(), "{count}");
        assert_eq!(rekindle_env::ways_given() - before, count as u64);
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

    #[test]
    fn chunks_that_lie_side_by_side_make_a_stretch_and_zeros_are_no_distance() {
        let mut cutting =
            Cutting::new(Cutter::new(Layout::default(), 7), PAGE_BYTES, Spare::default());
        let pages = |numbers: Range<u64>| numbers.map(page).collect::<Vec<_>>().concat();
        // A page of zeros, and pages that nothing was written to.
        cutting.pages(0, &[pages(0..20), vec![0; PAGE_BYTES as usize], pages(21..40)].concat());
        cutting.pages(100, &pages(100..101));
        cutting.pages(101, &pages(101..140));
        let first = cutting.take();
        cutting.end_chunk();
        let rest = cutting.take();
        let shape = |cut: &Cut| -> Vec<_> {
            let stretches = cut.stretches.iter();
            stretches.map(|all| (all.bytes.len() / PAGE_BYTES as usize, all.is_apart)).collect()
        };
        let [(20, false), (19, false), (whole, true)] = shape(&first)[..] else {
            panic!("{:?}", shape(&first))
        };
        assert!((20..40).contains(&whole), "whole chunks only");
        assert_eq!(shape(&rest), [(40 - whole, false)], "it goes on where the last one ended");
        let mut shown = Vec::new();
        for cut in [&first, &rest] {
            let lengths = cut.stretches.iter().flat_map(|stretch| {
                let begins = std::iter::once(0).chain(stretch.ends.iter().copied());
                begins.zip(&stretch.ends).map(|(begin, end)| end - begin)
            });
            let runs = cut.pieces.iter().filter_map(|piece| match piece {
                Piece::Chunk(run) => Some(*run),
                _ => None,
            });
            for (run, length) in runs.zip(lengths) {
                assert_eq!(run.count as usize * PAGE_BYTES as usize, length);
                shown.extend(run.pages());
            }
        }
        assert_eq!(shown, (0..20).chain(21..40).chain(100..140).collect::<Vec<_>>());
        let bytes: Vec<u8> = [&first, &rest]
            .iter()
            .flat_map(|cut| &cut.stretches)
            .flat_map(|s| s.bytes.to_vec())
            .collect();
        assert!(bytes == [pages(0..20), pages(21..40), pages(100..140)].concat());
    }
}
