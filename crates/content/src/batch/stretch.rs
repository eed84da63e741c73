//! Chunks that a batch gets together, and which of them go into one bundle. Pure.

use crate::limits;
use bytes::Bytes;
use std::ops::Range;

/// Bytes that lie side by side, cut into chunks of data.
#[derive(Debug, Clone)]
pub struct Stretch {
    /// The chunks, one after the other.
    pub bytes: Bytes,
    /// Where each chunk ends, ascending; the last one at the end of the bytes.
    pub ends: Vec<usize>,
    /// Whether the stretch lies apart from the one before it, so that no reader wants both.
    pub is_apart: bool,
}

impl Stretch {
    /// The bytes of each chunk.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| begin..*end)
    }
}

/// The decision which chunks are compressed together.
///
/// A reader gets a bundle as a whole. Chunks that lie side by side are likely to be wanted
/// together; of others only a few are compressed together, so that a read of one does not cost
/// much.
#[derive(Debug, Default)]
pub(super) struct Filling {
    bytes: usize,
    /// Whether the bundle has chunks of several places.
    is_mixed: bool,
}

impl Filling {
    /// Takes the next chunk into the bundle. `false`: it begins another bundle.
    pub(super) fn take(&mut self, length: usize, is_apart: bool) -> bool {
        let is_mixed = self.is_mixed || is_apart;
        let most = if is_mixed { limits::BUNDLE_APART_BYTES } else { limits::BUNDLE_RUN_BYTES };
        let is_short = |length| length < limits::BUNDLE_CHUNK_BYTES_MIN;
        let fits = self.bytes + length <= most && !is_short(self.bytes) && !is_short(length);
        if fits && self.bytes > 0 {
            *self = Self { bytes: self.bytes + length, is_mixed };
        } else {
            *self = Self { bytes: length, is_mixed: false };
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of the bundles.
    fn bundles(chunks: &[(usize, bool)]) -> Vec<usize> {
        let (mut filling, mut bundles) = (Filling::default(), Vec::<usize>::new());
        for (length, is_apart) in chunks {
            match filling.take(*length, *is_apart) {
                true => *bundles.last_mut().unwrap() += length,
                false => bundles.push(*length),
            }
        }
        bundles
    }

    #[test]
    fn neighbours_make_long_bundles_and_others_short_ones() {
        let run = [(16 << 10, false); 40];
        assert_eq!(bundles(&run), [256 << 10, 256 << 10, 128 << 10]);
        let apart = [(16 << 10, true); 9];
        assert_eq!(bundles(&apart), [64 << 10, 64 << 10, 16 << 10]);
        // A run behind chunks of other places makes long bundles once theirs is full.
        let mixed = [&apart[..2], &run[..20]].concat();
        assert_eq!(bundles(&mixed), [64 << 10, 256 << 10, 32 << 10]);
        assert_eq!(bundles(&[&run[..6], &apart[..2]].concat()), [96 << 10, 32 << 10]);
    }

    #[test]
    fn long_and_very_short_chunks_stay_alone() {
        let chunks = [300 << 10, 4096, 255, 4096, 256, 256, 10, 10];
        let chunks = chunks.map(|length| (length, false));
        assert_eq!(bundles(&chunks), [300 << 10, 4096, 255, 4608, 10, 10]);
    }

    #[test]
    fn chunks_end_where_the_stretch_says() {
        let stretch =
            Stretch { bytes: Bytes::from_static(b"abcdef"), ends: vec![2, 3, 6], is_apart: false };
        assert_eq!(stretch.chunks().collect::<Vec<_>>(), [0..2, 2..3, 3..6]);
    }
}
