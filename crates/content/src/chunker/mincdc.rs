//! Content-defined cuts: a chunk ends where a hash of the last four bytes is smallest between the
//! shortest and the longest length. As fast as copying, and after an edit the old cuts are found
//! again soon.
//!
//! The hash's two parameters come from the store's secret, so the lengths of chunks say less about
//! known content.

use super::Chunker;
use crate::name::chunker_parameters;
use mincdc::{MinCdcHash4, SliceChunker};

/// Shortest chunk, but for the last of a stream, bytes.
const BYTES_MIN: usize = 32 << 10;
/// Longest chunk, bytes. On content without structure lengths are even between the two: 64 KiB in
/// the mean.
const BYTES_MAX: usize = 96 << 10;

/// A chunker that cuts where the content says so; the mean is 64 KiB.
#[derive(Debug, Clone, Copy)]
pub struct MinCdc {
    hash: MinCdcHash4,
}

impl MinCdc {
    /// Creates the chunker of the store with this secret.
    #[must_use]
    pub fn new(secret: &[u8; 32]) -> Self {
        let (multiplier, addend) = chunker_parameters(secret);
        Self { hash: MinCdcHash4::with_params(multiplier, addend) }
    }
}

impl Chunker for MinCdc {
    fn cut(&self, data: &[u8], is_end: bool) -> Option<usize> {
        if data.len() < BYTES_MAX && !is_end {
            return None;
        }
        let window = &data[..data.len().min(BYTES_MAX)];
        SliceChunker::new(window, BYTES_MIN, BYTES_MAX, self.hash).next().map(|chunk| chunk.len())
    }

    fn bytes_max(&self) -> usize {
        BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunker::cuts;
    use crate::testing::random;

    fn ends(secret: u8, data: &[u8]) -> Vec<usize> {
        cuts(&MinCdc::new(&[secret; 32]), data, true).map(|chunk| chunk.end).collect()
    }

    /// If this fails, every file that is written again is stored a second time.
    #[test]
    fn the_golden_cuts() {
        let found = ends(9, &random(1, 1 << 20));
        assert_eq!(found, GOLDEN);
    }

    const GOLDEN: [usize; 16] = [
        38_002, 135_321, 204_062, 265_550, 363_077, 433_593, 503_572, 576_685, 663_210, 733_784,
        775_551, 852_978, 903_963, 991_941, 1_047_178, 1_048_576,
    ];

    #[test]
    fn the_secret_decides_and_an_edit_stays_local() {
        let data = random(1, 8 << 20);
        let before = ends(9, &data);
        assert_ne!(before, ends(8, &data));
        let mean = data.len() / before.len();
        assert!((58 << 10..70 << 10).contains(&mean), "{mean}");
        // 100 bytes more in the middle: the cuts from a few chunks later on are the old ones.
        let mut edited = data.to_vec();
        let at = 4 << 20;
        edited.splice(at..at, random(2, 100));
        let after = ends(9, &edited);
        let far = |ends: &[usize], shift: usize| -> Vec<usize> {
            ends.iter()
                .map(|end| end.saturating_sub(shift))
                .filter(|end| *end > at + (1 << 20))
                .collect()
        };
        assert_eq!(far(&after, 100), far(&before, 0));
        assert_eq!(
            after.iter().take_while(|end| **end < at).count(),
            before.iter().take_while(|end| **end < at).count()
        );
    }
}
