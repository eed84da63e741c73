//! A pointer: a chunk's name and its place.
//!
//! Encoded (64 bytes, little-endian), as children of a chunk and inside `moved/` notes:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 32 | name |
//! | 32 | 16 | pack |
//! | 48 | 4 | offset of the blob in the pack |
//! | 52 | 4 | length of the blob in the pack |
//! | 56 | 4 | length of the body |
//! | 60 | 4 | part of a bundle; 0: the chunk has a blob of its own |
//!
//! As text (in records): `pack:offset:stored:length:name`, numbers decimal, pack and name in hex;
//! with a part, `pack:offset:stored:length:part:name`.

use crate::limits;
use rekindle_base::PackId;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an encoded pointer.
pub const POINTER_BYTES: usize = 64;

/// The part of a bundle's bytes that is one chunk.
///
/// It says where the chunk begins, and how many bytes of the pack stand for how many of the bundle.
/// So each chunk of a bundle has a position of its own in the pack: marks of live chunks, and sums
/// of stored bytes, need no more than pointers or footers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Part(pub(crate) u32);

/// Bits of a part for the scale; the others say where the chunk begins.
const SCALE_BITS: u32 = 12;

impl Part {
    /// The part of a chunk that has a blob of its own.
    pub const WHOLE: Part = Part(0);

    /// Returns the part that begins at `begin` of a bundle of `raw` bytes, whose blob has `stored`
    /// bytes. `None`: no part can say so.
    pub(crate) fn new(begin: usize, raw: usize, stored: usize) -> Option<Self> {
        let scale = (stored << SCALE_BITS).checked_div(raw)?;
        if begin >= raw || raw > limits::BUNDLE_BYTES_MAX || !(1..1 << SCALE_BITS).contains(&scale)
        {
            return None;
        }
        u32::try_from(begin << SCALE_BITS | scale).ok().map(Self)
    }

    /// Whether the chunk has a blob of its own.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self == Self::WHOLE
    }

    /// The byte of the bundle at which the chunk begins.
    #[must_use]
    pub fn begin(self) -> usize {
        (self.0 >> SCALE_BITS) as usize
    }

    /// Bytes of the pack that stand for so many bytes of the bundle.
    fn scaled(self, bytes: u32) -> u32 {
        let scale = u64::from(self.0 & ((1 << SCALE_BITS) - 1));
        // A scale is less than one, so that the product is less than `bytes`.
        u32::try_from((u64::from(bytes) * scale) >> SCALE_BITS).unwrap_or(bytes)
    }

    /// The position of the chunk, in a pack where its blob begins at `offset`.
    pub(crate) fn position(self, offset: u32) -> u32 {
        offset.saturating_add(self.scaled(self.0 >> SCALE_BITS))
    }

    /// The bytes that a chunk of `length` bytes takes of its blob of `stored` bytes.
    pub(crate) fn share(self, stored: u32, length: u32) -> u32 {
        match self.is_whole() {
            true => stored,
            false => self.scaled(length),
        }
    }
}

/// The place of a chunk within its pack: a key, in order of position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spot {
    /// Offset of the chunk's blob, bytes.
    pub offset: u32,
    /// The part of the blob.
    pub part: Part,
}

impl Spot {
    /// The position of the chunk: within its blob, and not before that of the chunk before it.
    #[must_use]
    pub fn position(self) -> u32 {
        self.part.position(self.offset)
    }
}

/// Name and place of a chunk. Two pointers with the same name are the same chunk, wherever they
/// point.
// Aligned, so that copies are aligned too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(align(16))]
pub struct Pointer {
    /// Keyed BLAKE3 of content and children.
    pub name: [u8; 32],
    /// The pack that held the chunk when the pointer was made.
    pub pack: PackId,
    /// Offset of the chunk's blob in the pack, bytes.
    pub offset: u32,
    /// Length of the chunk's blob in the pack, bytes.
    pub stored: u32,
    /// Length of the chunk's body, bytes.
    pub length: u32,
    /// The part of the blob that is the chunk.
    pub part: Part,
}

const _: () = assert!(size_of::<Pointer>() == POINTER_BYTES);

/// A pointer as it is stored.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct Encoded {
    name: [u8; 32],
    pack: [u8; 16],
    offset: U32,
    stored: U32,
    length: U32,
    part: U32,
}

const _: () = assert!(size_of::<Encoded>() == POINTER_BYTES);

impl From<&Pointer> for Encoded {
    fn from(pointer: &Pointer) -> Self {
        Self {
            name: pointer.name,
            pack: pointer.pack.0,
            offset: pointer.offset.into(),
            stored: pointer.stored.into(),
            length: pointer.length.into(),
            part: pointer.part.0.into(),
        }
    }
}
impl From<&Encoded> for Pointer {
    fn from(encoded: &Encoded) -> Self {
        Self {
            name: encoded.name,
            pack: PackId(encoded.pack),
            offset: encoded.offset.get(),
            stored: encoded.stored.get(),
            length: encoded.length.get(),
            part: Part(encoded.part.get()),
        }
    }
}

impl Pointer {
    /// Encodes the pointer as it is stored.
    #[must_use]
    pub fn encode(&self) -> [u8; POINTER_BYTES] {
        zerocopy::transmute!(Encoded::from(self))
    }

    /// Decodes a stored pointer. Any bytes are a pointer; whether a chunk is there is for the
    /// reader to find out.
    #[must_use]
    pub fn decode(bytes: &[u8; POINTER_BYTES]) -> Self {
        let encoded: &Encoded = zerocopy::transmute_ref!(bytes);
        encoded.into()
    }

    /// The place of the chunk within its pack.
    #[must_use]
    pub fn spot(&self) -> Spot {
        Spot { offset: self.offset, part: self.part }
    }

    /// The bytes of the pack that the chunk takes: its blob, or its share of a bundle.
    #[must_use]
    pub fn share(&self) -> u32 {
        self.part.share(self.stored, self.length)
    }

    /// The bytes of the pack that are the chunk's blob.
    #[must_use]
    pub fn blob(&self) -> Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + u64::from(self.stored)
    }

    /// First bytes of the name, in hex: for messages.
    #[must_use]
    pub fn short_name(&self) -> String {
        self.name[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Encoded pointers as a slice; `None` when the bytes are not a whole number of them.
pub(crate) fn encoded_slice(bytes: &[u8]) -> Option<&[Encoded]> {
    <[Encoded]>::ref_from_bytes(bytes).ok()
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}:", self.pack, self.offset, self.stored, self.length)?;
        if !self.part.is_whole() {
            write!(f, "{}:", self.part.0)?;
        }
        self.name.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Text that is not a pointer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a pointer: pack:offset:stored:length:name is expected")]
pub struct BadPointer(pub String);

impl FromStr for Pointer {
    type Err = BadPointer;
    fn from_str(text: &str) -> Result<Self, BadPointer> {
        parse(text).ok_or_else(|| BadPointer(text.chars().take(160).collect()))
    }
}

fn parse(text: &str) -> Option<Pointer> {
    let fields: Vec<&str> = text.split(':').collect();
    let number = |digits: &str| {
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u32>().ok())?
    };
    let (pack, offset, stored, length, part, hex) = match fields[..] {
        [pack, offset, stored, length, hex] => (pack, offset, stored, length, Part::WHOLE, hex),
        [pack, offset, stored, length, part, hex] => {
            let part = number(part).filter(|part| *part != 0)?;
            (pack, offset, stored, length, Part(part), hex)
        }
        _ => return None,
    };
    let (pack, hex) = (pack.parse().ok()?, hex.as_bytes());
    let (offset, stored, length) = (number(offset)?, number(stored)?, number(length)?);
    if hex.len() != 64 {
        return None;
    }
    let mut name = [0; 32];
    for (byte, pair) in name.iter_mut().zip(hex.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(Pointer { name, pack, offset, stored, length, part })
}

impl Serialize for Pointer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Pointer {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_ascend_within_their_blob_and_share_it(
            lengths in proptest::collection::vec(256..40_000usize, 2..20), percent in 0..94usize, offset in 32..1u32 << 30,
        ) {
            let raw = lengths.iter().sum::<usize>();
            let stored = (raw * percent / 100).max(raw / 4096 + 1);
            let (mut begin, mut last, mut shares) = (0, 0, 0);
            for length in lengths {
                let part = Part::new(begin, raw, stored).unwrap();
                prop_assert!(!part.is_whole());
                prop_assert_eq!(part.begin(), begin);
                let position = Spot { offset, part }.position();
                prop_assert!(position >= last.max(offset));
                prop_assert!(position < offset + stored as u32);
                last = position;
                shares += part.share(stored as u32, length as u32) as usize;
                begin += length;
            }
            prop_assert!(shares <= stored && shares + raw / 4096 + 20 >= stored, "{} of {}", shares, stored);
        }

        #[test]
        fn a_pointer_survives_bytes_and_text(bytes in proptest::array::uniform32(any::<u8>()), rest in any::<[u8; 32]>()) {
            let mut encoded = [0; POINTER_BYTES];
            encoded[..32].copy_from_slice(&bytes);
            encoded[32..].copy_from_slice(&rest);
            let pointer = Pointer::decode(&encoded);
            prop_assert_eq!(pointer.encode(), encoded);
            prop_assert_eq!(pointer.to_string().parse::<Pointer>(), Ok(pointer));
            let json = serde_json::to_string(&pointer).unwrap();
            prop_assert_eq!(serde_json::from_str::<Pointer>(&json).unwrap(), pointer);
        }

        #[test]
        fn any_text_is_a_pointer_or_an_error(text in "[0-9a-f:+é ]{0,140}") {
            if let Ok(pointer) = text.parse::<Pointer>() {
                prop_assert_eq!(pointer.to_string().parse(), Ok(pointer));
            }
        }
    }

    #[test]
    fn the_text_of_a_pointer_stays_as_it_is() {
        let pointer = Pointer {
            name: [0xab; 32],
            pack: PackId([1; 16]),
            offset: 32,
            stored: 100,
            length: 4096,
            part: Part::WHOLE,
        };
        let text = format!("{}:32:100:4096:{}", "01".repeat(16), "ab".repeat(32));
        assert_eq!(pointer.to_string(), text);
        let in_a_bundle = Pointer { part: Part::new(8192, 65536, 16384).unwrap(), ..pointer };
        let with_part = format!("{}:32:100:4096:33555456:{}", "01".repeat(16), "ab".repeat(32));
        assert_eq!(in_a_bundle.to_string(), with_part);
        assert_eq!(with_part.parse(), Ok(in_a_bundle));
        for bad in [
            "",
            ":",
            &text[1..],
            &format!("{text}:"),
            &text.replace(":32:", ":+32:"),
            &text.replace(":32:", "::"),
            &text.replace(":4096:", ":4096:0:"),
        ] {
            assert!(bad.parse::<Pointer>().is_err(), "{bad}");
        }
    }
}
