//! Page: docs/format/warm.md.
//!
//! The frames part of an arena: its header (at 2048 of the header page), and the word that
//! publishes a frame.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKNDLfrm` |
//! | 8 | 4 | layout version of this part, 1 |
//! | 12 | 4 | sets |
//! | 16 | 16 | node id |
//! | 32 | 16 | store id |
//! | 48 | 8 | where the part begins, from the beginning of the file |
//! | 56 | 4 | bytes of a small frame |
//! | 60 | 4 | bytes of a large frame |
//! | 64 | 8 | salt: drawn when the part is made, in every check below; never 0 |
//! | 72 | 52 | zero |
//! | 124 | 4 | CRC-32C of bytes 0..124 |
//!
//! A set is a record of [`SET_BYTES`], all records first, then the frames of all sets:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 x 16 | words: of the small frames, then of the large ones |
//! | 128 | 32 x 16 | their keys |
//! | 640 | 4 x 16 | hashes of keys that were evicted lately: a hint for counters, not checked |
//!
//! A word is 0 (no frame) or: bits 0-31 the CRC-32C of frame number, key, length and bytes, seeded
//! with the salt; 32-47 length; 48-62 the low bits of the key's hash; 63 set.

use crate::limits::{FRAME_BYTES, SETS_MAX, WAYS};
use rekindle_base::checksum::{crc32c, crc32c_parts, crc32c_seeded};
use rekindle_base::{NodeId, StoreId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Offset of the header in the arena's header page. A binary that knows no frames leaves these
/// bytes alone.
pub(crate) const FRAMES_HEADER_AT: usize = 2048;
/// Bytes of the encoded header.
pub(crate) const FRAMES_HEADER_BYTES: usize = 128;
/// Frames of a set, of all sizes.
pub(crate) const SET_FRAMES: usize = WAYS * FRAME_BYTES.len();
/// Offset of the keys in a set's record.
pub(crate) const KEYS_AT: usize = SET_FRAMES * 8;
/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// Offset of the hashes of evicted keys in a set's record.
pub(crate) const EVICTED_AT: usize = KEYS_AT + SET_FRAMES * KEY_BYTES;
/// Bytes of a set's record.
pub(crate) const SET_BYTES: usize = EVICTED_AT + SET_FRAMES * 4;

pub(super) const MAGIC: [u8; 8] = *b"RKNDLfrm";
pub(crate) const VERSION: u32 = 1;
const PRESENT: u64 = 1 << 63;
const MARK_SHIFT: u32 = 48;
const LENGTH_SHIFT: u32 = 32;

const _: () = assert!(SET_BYTES.is_multiple_of(64), "a set's record is whole cache lines");
const _: () = assert!(FRAME_BYTES[0] < FRAME_BYTES[1] && FRAME_BYTES[1] <= u16::MAX as usize);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Bytes {
    magic: [u8; 8],
    version: U32,
    sets: U32,
    node: [u8; 16],
    store: [u8; 16],
    start: U64,
    frame_bytes: [U32; 2],
    salt: U64,
    zero: [u8; 52],
    crc: U32,
}
const _: () = assert!(size_of::<Bytes>() == FRAMES_HEADER_BYTES);

/// The header of the frames part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FramesHeader {
    pub(crate) node: NodeId,
    pub(crate) store: StoreId,
    pub(crate) sets: u32,
    pub(crate) start: u64,
    pub(crate) salt: u64,
}

/// The reason why bytes are no header that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// All zero: there were never frames here, or they were given up.
    Nothing,
    /// Neither zero nor a header.
    Damaged,
    /// Whole, but of this version, or with frames of other sizes.
    OtherLayout(u32),
}

impl FramesHeader {
    pub(crate) fn encode(&self) -> [u8; FRAMES_HEADER_BYTES] {
        let mut bytes = Bytes {
            magic: MAGIC,
            version: U32::new(VERSION),
            sets: U32::new(self.sets),
            node: self.node.0,
            store: self.store.0,
            start: U64::new(self.start),
            frame_bytes: FRAME_BYTES.map(|bytes| U32::new(u32::try_from(bytes).unwrap_or(0))),
            salt: U64::new(self.salt),
            zero: [0; 52],
            crc: U32::new(0),
        };
        bytes.crc = U32::new(crc32c(&bytes.as_bytes()[..FRAMES_HEADER_BYTES - 4]));
        zerocopy::transmute!(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<FramesHeader, NoHeader> {
        let (header, _) = Bytes::read_from_prefix(bytes).map_err(|_| NoHeader::Damaged)?;
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return Err(NoHeader::Nothing);
        }
        let is_whole = header.crc.get() == crc32c(&header.as_bytes()[..FRAMES_HEADER_BYTES - 4]);
        if header.magic != MAGIC || !is_whole {
            return Err(NoHeader::Damaged);
        }
        let sizes = header.frame_bytes.map(|bytes| bytes.get() as usize);
        if header.version.get() != VERSION || sizes != FRAME_BYTES {
            return Err(NoHeader::OtherLayout(header.version.get()));
        }
        if u64::from(header.sets.get()) > SETS_MAX || header.sets == 0 || header.salt == 0 {
            return Err(NoHeader::Damaged);
        }
        Ok(FramesHeader {
            node: NodeId(header.node),
            store: StoreId(header.store),
            sets: header.sets.get(),
            start: header.start.get(),
            salt: header.salt.get(),
        })
    }
}

/// The word of a published frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameWord {
    pub(crate) crc: u32,
    pub(crate) length: u16,
    /// Low 15 bits of the key's hash.
    pub(crate) mark: u16,
}

impl FrameWord {
    pub(crate) fn pack(self) -> u64 {
        PRESENT
            | u64::from(self.mark & 0x7fff) << MARK_SHIFT
            | u64::from(self.length) << LENGTH_SHIFT
            | u64::from(self.crc)
    }

    /// Decodes a word; `None` when there is no frame. Only [`frame_crc`] tells whether the word is
    /// true.
    pub(crate) fn unpack(word: u64) -> Option<FrameWord> {
        let low = |bits: u64| u16::try_from(bits & 0xffff).expect("masked");
        (word & PRESENT != 0).then(|| FrameWord {
            crc: u32::try_from(word & u64::from(u32::MAX)).expect("masked"),
            length: low(word >> LENGTH_SHIFT),
            mark: low(word >> MARK_SHIFT) & 0x7fff,
        })
    }
}

/// The hash of a key: its high bits choose the set, its low ones are the mark.
pub(crate) fn key_hash(salt: u64, key: &[u8; KEY_BYTES]) -> u32 {
    crc32c_seeded(salt, key)
}

/// The mark of a hash.
pub(crate) fn mark(hash: u32) -> u16 {
    u16::try_from(hash & 0x7fff).expect("masked")
}

/// The checksum of a frame: bytes are valid under one salt, in one frame, for one key, with one
/// length only.
pub(crate) fn frame_crc(salt: u64, frame: u64, key: &[u8; KEY_BYTES], parts: &[&[u8]]) -> u32 {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let (frame, length) = (frame.to_le_bytes(), (length as u64).to_le_bytes());
    match parts {
        [bytes] => crc32c_parts(salt, &[&frame, key, &length, bytes]),
        [first, second] => crc32c_parts(salt, &[&frame, key, &length, first, second]),
        _ => crc32c_parts(salt, &[&frame, key, &length, &parts.concat()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: FramesHeader = FramesHeader {
        node: NodeId([7; 16]),
        store: StoreId([8; 16]),
        sets: 12,
        start: 1 << 30,
        salt: 99,
    };

    #[test]
    fn a_header_survives_its_bytes_and_every_flipped_bit_is_seen() {
        assert_eq!(FramesHeader::decode(&HEADER.encode()), Ok(HEADER));
        for bit in 0..FRAMES_HEADER_BYTES * 8 {
            let mut bytes = HEADER.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FramesHeader::decode(&bytes), Err(NoHeader::Damaged), "bit {bit}");
        }
        assert_eq!(FramesHeader::decode(&HEADER.encode()[..127]), Err(NoHeader::Damaged));
        assert_eq!(FramesHeader::decode(&[0; 128]), Err(NoHeader::Nothing));
    }

    #[test]
    fn another_version_is_told_from_damage() {
        for version in [0u32, 2, 77] {
            let mut bytes = HEADER.encode();
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            let crc = crc32c(&bytes[..124]);
            bytes[124..].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(FramesHeader::decode(&bytes), Err(NoHeader::OtherLayout(version)));
        }
    }

    #[test]
    fn a_checksum_does_not_depend_on_how_the_bytes_are_cut() {
        let whole = frame_crc(1, 2, &[3; 32], &[b"abcdef"]);
        assert_eq!(frame_crc(1, 2, &[3; 32], &[b"ab", b"cdef"]), whole);
        assert_eq!(frame_crc(1, 2, &[3; 32], &[b"ab", b"cd", b"ef"]), whole);
        for other in [
            frame_crc(9, 2, &[3; 32], &[b"abcdef"]),
            frame_crc(1, 9, &[3; 32], &[b"abcdef"]),
            frame_crc(1, 2, &[9; 32], &[b"abcdef"]),
            frame_crc(1, 2, &[3; 32], &[b"abcde"]),
        ] {
            assert_ne!(other, whole);
        }
    }

    proptest! {
        #[test]
        fn a_word_survives(crc: u32, length: u16, mark in 0u16..0x8000) {
            let word = FrameWord { crc, length, mark };
            prop_assert_eq!(FrameWord::unpack(word.pack()), Some(word));
            prop_assert_eq!(FrameWord::unpack(word.pack() & !PRESENT), None);
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), word: u64) {
            let _ = FramesHeader::decode(&bytes);
            let _ = FrameWord::unpack(word);
        }
    }
}
