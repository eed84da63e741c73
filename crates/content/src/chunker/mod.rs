//! Cutting a stream into chunks.
//!
//! A [`Chunker`] decides from the bytes at hand where the next chunk ends, never from how they
//! arrived: it says "not yet" until it has seen enough. [`Fixed`] cuts aligned blocks (block
//! volumes), [`MinCdc`] where the content says so (files). Runs of zeros have no content to go by:
//! [`zeros::split`] takes them out first.

mod fixed;
mod mincdc;
pub mod zeros;

pub use fixed::Fixed;
pub use mincdc::MinCdc;

use std::ops::Range;

/// A rule that decides where chunks end.
pub trait Chunker: Send + Sync {
    /// Returns the length of the first chunk of `data`; `None` when more bytes are needed to tell.
    /// With `is_end`, `data` is the whole rest of the stream, and the answer is `None` only when it
    /// is empty.
    fn cut(&self, data: &[u8], is_end: bool) -> Option<usize>;

    /// Longest chunk, bytes: with as many bytes at hand `cut` always knows.
    fn bytes_max(&self) -> usize;
}

/// Cuts `data` into those chunks that can be told, in order. The rest begins where the last one
/// ends.
pub fn cuts<'a>(
    chunker: &'a (impl Chunker + ?Sized),
    data: &'a [u8],
    is_end: bool,
) -> impl Iterator<Item = Range<usize>> + 'a {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let length = chunker.cut(&data[begin..], is_end)?;
        let chunk = begin..begin + length;
        begin = chunk.end;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;
    use proptest::prelude::*;

    /// The lengths of all chunks when the stream arrives in slices of these sizes.
    fn cut_slices(chunker: &dyn Chunker, data: &[u8], sizes: &[usize]) -> Vec<usize> {
        let mut lengths = Vec::new();
        let mut buffer: Vec<u8> = Vec::new();
        let mut rest = data;
        let mut sizes = sizes.iter().cycle();
        while !rest.is_empty() {
            let (slice, after) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
            buffer.extend_from_slice(slice);
            rest = after;
            let chunks: Vec<_> = cuts(chunker, &buffer, rest.is_empty()).collect();
            lengths.extend(chunks.iter().map(|chunk| chunk.len()));
            buffer.drain(..chunks.last().map_or(0, |chunk| chunk.end));
        }
        assert!(buffer.is_empty());
        lengths
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn cuts_do_not_depend_on_how_the_stream_arrives(
            seed in any::<u64>(),
            length in 0usize..600_000,
            sizes in proptest::collection::vec(1usize..200_000, 1..6),
            zeros in any::<bool>(),
        ) {
            let mut data = random(seed, length).to_vec();
            if zeros {
                data[length / 3..length / 2].fill(0);
            }
            for chunker in [&Fixed::new(16 << 10) as &dyn Chunker, &MinCdc::new(&[9; 32])] {
                let whole: Vec<_> = cuts(chunker, &data, true).map(|chunk| chunk.len()).collect();
                prop_assert_eq!(whole.iter().sum::<usize>(), length);
                prop_assert!(whole.iter().all(|length| *length <= chunker.bytes_max()));
                prop_assert_eq!(cut_slices(chunker, &data, &sizes), whole);
            }
        }
    }
}
