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
//! | 56 | 4 | length of the content |
//! | 60 | 4 | reserved: 0 |
//!
//! As text (in records): `pack:offset:stored:length:name`, numbers decimal, pack and name in hex.

use rekindle_base::PackId;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an encoded pointer.
pub const POINTER_BYTES: usize = 64;

/// Name and place of a chunk. Two pointers with the same name are the same chunk, wherever they
/// point.
// Aligned, so that it has 64 bytes. 60 bytes would be copied in parts that overlap, and the next
// copy would wait for those.
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
    /// Length of the chunk's content, bytes.
    pub length: u32,
}

/// A pointer as it is stored.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct Encoded {
    name: [u8; 32],
    pack: [u8; 16],
    offset: U32,
    stored: U32,
    length: U32,
    reserved: U32,
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
            reserved: U32::ZERO,
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
    let mut parts = text.split(':');
    let pack = parts.next()?.parse().ok()?;
    let mut number = || {
        let digits = parts.next()?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u32>().ok())?
    };
    let (offset, stored, length) = (number()?, number()?, number()?);
    let hex = parts.next()?.as_bytes();
    if hex.len() != 64 || parts.next().is_some() {
        return None;
    }
    let mut name = [0; 32];
    for (byte, pair) in name.iter_mut().zip(hex.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(Pointer { name, pack, offset, stored, length })
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
        fn a_pointer_survives_bytes_and_text(bytes in proptest::array::uniform32(any::<u8>()), rest in any::<[u8; 28]>()) {
            let mut encoded = [0; POINTER_BYTES];
            encoded[..32].copy_from_slice(&bytes);
            encoded[32..60].copy_from_slice(&rest);
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
        };
        let text = format!("{}:32:100:4096:{}", "01".repeat(16), "ab".repeat(32));
        assert_eq!(pointer.to_string(), text);
        for bad in [
            "",
            ":",
            &text[1..],
            &format!("{text}:"),
            &text.replace(":32:", ":+32:"),
            &text.replace(":32:", "::"),
        ] {
            assert!(bad.parse::<Pointer>().is_err(), "{bad}");
        }
    }
}
