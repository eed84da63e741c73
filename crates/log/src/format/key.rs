//! Page: docs/format/segment.md.
//!
//! What makes bytes valid in one segment only: nobody who chooses a payload can know it, so no payload, of whatever age,
//! passes for an entry.

use super::{SegmentHeader, header};
use base::checksum::crc32c_seeded;

/// The secret of a segment: its birth. Before version 4 it was the segment's number, which anybody can guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    seed: u64,
    /// What offsets are XORed with. A checksum alone would be met by one of 2^32 guesses, and a client may write
    /// as many grains as that.
    mask: u32,
}

impl Key {
    /// The checksum of an entry's header, or of descriptors as a certificate and a foot have it.
    pub(crate) fn checksum(self, bytes: &[u8]) -> u32 {
        crc32c_seeded(self.seed, bytes)
    }

    /// An offset as an entry has it, and back.
    pub(super) fn masked(self, offset: u32) -> u32 {
        offset ^ self.mask
    }
}

impl SegmentHeader {
    pub(crate) fn key(&self) -> Key {
        if self.version < header::VERSION_KEYED {
            return Key { seed: self.segment.0, mask: 0 };
        }
        // The halves are independent: both must be guessed.
        Key { seed: self.birth, mask: (self.birth >> 32) as u32 }
    }
}
