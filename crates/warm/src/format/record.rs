//! Page: docs/format/warm.md.
//!
//! One slot's warm certificate: the segment that lies there, and how much of it is published.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | state: bits 0-17 front, 18-35 back, 36 foot, 37-63 check; 0 = nothing published |
//! | 8 | 8 | durable: bits 0-31 front bytes known to be on flash, 32-63 check |
//! | 16 | 8 | segment id |
//! | 24 | 8 | epoch |
//! | 32 | 4 | file number |
//! | 36 | 4 | CRC-32C of bytes 16..36 seeded with the slot's index |
//! | 40 | 24 | zero |
//!
//! Front and back of the state are lengths in grains; the foot's bit is set once the foot is
//! written. The words at 0 and 8 are stored atomically, each with a check of its own (a CRC-32C
//! seeded with the segment's number), so that a word of an earlier life of the slot means nothing
//! beside a newer label.

use rekindle_base::SegmentId;
use rekindle_base::checksum::crc32c_seeded;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of one record.
pub(crate) const RECORD_BYTES: usize = 64;
const LENGTH_BITS: u32 = 18;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;
const FOOT_BIT: u64 = 1 << (2 * LENGTH_BITS);
const CHECK_SHIFT: u32 = 2 * LENGTH_BITS + 1;
const GRAIN: u32 = crate::limits::GRAIN_BYTES;

const _: () = assert!(
    (crate::limits::SLOT_BYTES_MAX / GRAIN) as u64 <= LENGTH_MASK,
    "lengths fit their bits"
);

/// The segment that lies in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    pub segment: SegmentId,
    /// Replication epoch of the segment.
    pub epoch: u64,
    /// Number of the flash file that is the segment's other copy.
    pub file: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
pub(crate) struct LabelBytes {
    segment: U64,
    epoch: U64,
    file: U32,
    crc: U32,
    zero: [u8; 24],
}

impl LabelBytes {
    pub(crate) fn encode(label: Label, slot: usize) -> LabelBytes {
        let mut bytes = LabelBytes {
            segment: U64::new(label.segment.0),
            epoch: U64::new(label.epoch),
            file: U32::new(label.file),
            crc: U32::new(0),
            zero: [0; 24],
        };
        bytes.crc = U32::new(crc32c_seeded(slot as u64, &bytes.as_bytes()[..20]));
        bytes
    }

    pub(crate) fn decode(&self, slot: usize) -> Option<Label> {
        (self.crc.get() == crc32c_seeded(slot as u64, &self.as_bytes()[..20])).then(|| Label {
            segment: SegmentId(self.segment.get()),
            epoch: self.epoch.get(),
            file: self.file.get(),
        })
    }
}

/// The published part of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Published {
    /// Bytes from the slot's beginning.
    pub(crate) front: u32,
    /// Bytes that end where the foot begins.
    pub(crate) back: u32,
    /// Whether the foot is written.
    pub(crate) foot: bool,
}

impl Published {
    /// Lengths only; the check is added by [`Published::pack`].
    pub(crate) fn word(self) -> u64 {
        assert!(
            self.front.is_multiple_of(GRAIN) && self.back.is_multiple_of(GRAIN),
            "published in whole grains"
        );
        let foot = if self.foot { FOOT_BIT } else { 0 };
        u64::from(self.front / GRAIN) | (u64::from(self.back / GRAIN) << LENGTH_BITS) | foot
    }

    pub(crate) fn from_word(word: u64) -> Published {
        let grains = |bits: u64| u32::try_from(bits & LENGTH_MASK).expect("18 bits") * GRAIN;
        Published {
            front: grains(word),
            back: grains(word >> LENGTH_BITS),
            foot: word & FOOT_BIT != 0,
        }
    }

    pub(crate) fn pack(self, segment: SegmentId) -> u64 {
        let word = self.word();
        word | (check(segment, word) << CHECK_SHIFT)
    }

    /// The lengths, if the word was stored for `segment` and they fit a slot.
    pub(crate) fn unpack(packed: u64, segment: SegmentId, slot_bytes: u32) -> Option<Published> {
        let word = packed & ((1 << CHECK_SHIFT) - 1);
        let state = Published::from_word(word);
        let fits = state.front + state.back + crate::limits::FOOT_BYTES <= slot_bytes;
        (packed != 0 && packed >> CHECK_SHIFT == check(segment, word) && state.front > 0 && fits)
            .then_some(state)
    }
}

fn check(segment: SegmentId, word: u64) -> u64 {
    u64::from(crc32c_seeded(segment.0, &word.to_le_bytes())) & ((1 << (64 - CHECK_SHIFT)) - 1)
}

/// Encodes how many front bytes are on flash.
pub(crate) fn durable_pack(bytes: u32, segment: SegmentId) -> u64 {
    u64::from(bytes) | (u64::from(crc32c_seeded(!segment.0, &bytes.to_le_bytes())) << 32)
}

/// Decodes the word of [`durable_pack`]; 0 when it was not stored for `segment`.
pub(crate) fn durable_unpack(word: u64, segment: SegmentId) -> u32 {
    let bytes = u32::try_from(word & u64::from(u32::MAX)).expect("masked");
    if durable_pack(bytes, segment) == word { bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_label_survives_its_bytes_in_its_own_slot_only() {
        let label = Label { segment: SegmentId(9), epoch: 3, file: 77 };
        let bytes = LabelBytes::encode(label, 5);
        assert_eq!(bytes.decode(5), Some(label));
        assert_eq!(bytes.decode(6), None);
    }

    proptest! {
        #[test]
        fn a_state_survives_its_word(front in 1u32..100_000, back in 0u32..31_000, foot: bool, segment: u64) {
            let state = Published { front: front * GRAIN, back: back * GRAIN, foot };
            let packed = state.pack(SegmentId(segment));
            prop_assert_eq!(Published::unpack(packed, SegmentId(segment), crate::limits::SLOT_BYTES_MAX), Some(state));
            prop_assert_eq!(Published::unpack(packed, SegmentId(segment), 64), None);
            prop_assert_eq!(durable_unpack(durable_pack(front, SegmentId(segment)), SegmentId(segment)), front);
        }

        #[test]
        fn any_word_is_read_without_panic(word: u64, segment: u64) {
            let _ = Published::unpack(word, SegmentId(segment), crate::limits::SLOT_BYTES_MAX);
            let _ = durable_unpack(word, SegmentId(segment));
        }
    }
}
