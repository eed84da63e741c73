//! Page: docs/format/segment.md.
//!
//! The key that makes bytes valid in one segment only: a client cannot know it, so no payload of a
//! client, of whatever age, passes for an entry.

use super::{SegmentHeader, header};
use rekindle_base::checksum::crc32c_seeded;

/// The secret of a segment: its birth. Before version 4 it was the segment's number, which a client
/// can guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    seed: u64,
    /// The mask that offsets are XORed with. One of 2^32 guesses would meet a checksum alone, and a
    /// client may write as many grains as that.
    mask: u32,
}

impl Key {
    /// The checksum of an entry's header, or of the descriptors that a certificate or a foot
    /// covers.
    pub(crate) fn checksum(self, bytes: &[u8]) -> u32 {
        crc32c_seeded(self.seed, bytes)
    }

    /// Masks an offset as entries store it; a second call unmasks it.
    pub(super) fn masked(self, offset: u32) -> u32 {
        offset ^ self.mask
    }
}

impl SegmentHeader {
    pub(crate) fn key(&self) -> Key {
        if self.version < header::VERSION_KEYED {
            return Key { seed: self.segment.0, mask: 0 };
        }
        // The halves of the birth are independent: a forger must guess both.
        Key { seed: self.birth, mask: (self.birth >> 32) as u32 }
    }
}
