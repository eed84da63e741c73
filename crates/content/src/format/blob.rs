//! Header of a blob: a chunk as it lies in a pack, unless it lies in a [`super::bundle`]. The
//! header describes the whole blob, so that a footer can be rebuilt by scanning. 56 bytes,
//! little-endian, then the payload:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | magic `RKBL` |
//! | 4 | 1 | codec: 0 none, 1 lz4, 2 zstd |
//! | 5 | 1 | class: 1 data, 2 metadata |
//! | 6 | 2 | reserved: 0 |
//! | 8 | 4 | raw length: bytes of the body (encoded children, then content) |
//! | 12 | 4 | payload length: bytes of the body as stored |
//! | 16 | 4 | number of children |
//! | 20 | 32 | name |
//! | 52 | 4 | CRC-32C of bytes 0..52 |
//!
//! See also `docs/format/chunk.md`.

use super::{Bad, damaged};
use crate::{Class, limits};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "blob header";
const MAGIC: [u8; 4] = *b"RKBL";
/// Bytes of the header.
pub const BYTES: usize = 56;

/// The encoding of a stored body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// As it is.
    None,
    /// An LZ4 block.
    Lz4,
    /// A zstd frame.
    Zstd,
}

pub(super) fn codec_code(codec: Codec) -> u8 {
    match codec {
        Codec::None => 0,
        Codec::Lz4 => 1,
        Codec::Zstd => 2,
    }
}

pub(super) fn codec_from(code: u8) -> Option<Codec> {
    match code {
        0 => Some(Codec::None),
        1 => Some(Codec::Lz4),
        2 => Some(Codec::Zstd),
        _ => None,
    }
}

/// The fields of a blob's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blob {
    /// Encoding of the body.
    pub codec: Codec,
    /// Class of the chunk.
    pub class: Class,
    /// Length of the body, bytes.
    pub length: u32,
    /// Length of the payload, bytes.
    pub payload: u32,
    /// Number of children.
    pub children: u32,
    /// The chunk's name.
    pub name: [u8; 32],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    codec: u8,
    class: u8,
    reserved: U16,
    length: U32,
    payload: U32,
    children: U32,
    name: [u8; 32],
    crc: U32,
}
const _: () = assert!(size_of::<Raw>() == BYTES);

/// Encodes a header.
#[must_use]
pub fn encode(blob: &Blob) -> [u8; BYTES] {
    let mut raw = Raw {
        magic: MAGIC,
        codec: codec_code(blob.codec),
        class: super::pack::class_code(blob.class),
        reserved: U16::ZERO,
        length: blob.length.into(),
        payload: blob.payload.into(),
        children: blob.children.into(),
        name: blob.name,
        crc: U32::ZERO,
    };
    raw.crc = rekindle_base::checksum::crc32c(&raw.as_bytes()[..BYTES - 4]).into();
    zerocopy::transmute!(raw)
}

/// Decodes the header at the begin of `bytes`; its lengths are within bounds and agree with one
/// another.
pub fn decode(bytes: &[u8]) -> Result<Blob, Bad> {
    let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| damaged(WHAT, "it is too short"))?;
    if raw.magic != MAGIC {
        return Err(damaged(WHAT, "the magic number is wrong"));
    }
    if raw.crc.get() != rekindle_base::checksum::crc32c(&raw.as_bytes()[..BYTES - 4]) {
        return Err(damaged(WHAT, "the checksum is wrong"));
    }
    let codec = codec_from(raw.codec).ok_or_else(|| damaged(WHAT, "the codec is unknown"))?;
    let class =
        super::pack::class_from(raw.class).ok_or_else(|| damaged(WHAT, "the class is unknown"))?;
    let (length, payload, children) = (raw.length.get(), raw.payload.get(), raw.children.get());
    let sizes_agree = length as usize <= limits::CHUNK_BYTES_MAX
        && payload <= length
        && (codec != Codec::None || payload == length)
        && u64::from(children) * crate::POINTER_BYTES as u64 <= u64::from(length)
        && (class == Class::Metadata || children == 0);
    if !sizes_agree {
        return Err(damaged(WHAT, "its lengths contradict one another"));
    }
    Ok(Blob { codec, class, length, payload, children, name: raw.name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_survives() {
        let blob = Blob {
            codec: Codec::Zstd,
            class: Class::Metadata,
            length: 4096,
            payload: 1000,
            children: 3,
            name: [9; 32],
        };
        let bytes = encode(&blob);
        assert_eq!(decode(&bytes), Ok(blob));
        super::super::check_golden("blob-header.bin", &bytes);
        for at in 0..BYTES {
            let mut bad = bytes;
            bad[at] ^= 4;
            assert!(decode(&bad).is_err(), "{at}");
        }
        for contradiction in [
            Blob { payload: 5000, ..blob },
            Blob { codec: Codec::None, ..blob },
            Blob { children: 65, ..blob },
            Blob { children: u32::MAX, ..blob },
            Blob { length: u32::MAX, ..blob },
            Blob { class: Class::Data, ..blob },
        ] {
            assert!(decode(&encode(&contradiction)).is_err(), "{contradiction:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&bytes);
        }
    }
}
