//! Header of a bundle: the blob of several chunks of data, whose bodies lie one after another and
//! are compressed as one. 28 bytes, little-endian, then the lengths, then the payload:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | magic `RKBN` |
//! | 4 | 4 | CRC-32C of bytes 8 to the end of the lengths |
//! | 8 | 1 | codec: 0 none, 1 lz4, 2 zstd |
//! | 9 | 3 | reserved: 0 |
//! | 12 | 4 | number of chunks, n |
//! | 16 | 4 | raw length: bytes of all bodies |
//! | 20 | 4 | payload length: bytes of all bodies as stored |
//! | 24 | 4 | CRC-32C of the payload |
//! | 28 | 4 x n | length of each body |
//!
//! Names are not stored: a chunk's bytes and the store's key give its name. The checksum of the
//! payload is for a scan, which has no other proof of the bytes that it names.
//!
//! See also `docs/format/chunk.md`.

use super::blob::Codec;
use super::{Bad, damaged};
use crate::limits;
use rekindle_base::checksum::crc32c;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "bundle header";
const MAGIC: [u8; 4] = *b"RKBN";
/// Bytes of the header in front of the lengths.
pub const BYTES: usize = 28;
/// Where the bytes begin that the checksum covers.
const COVERED: usize = 8;
/// Bytes of a length.
pub const LENGTH_BYTES: usize = 4;

/// The fields of a bundle's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// Encoding of the bodies.
    pub codec: Codec,
    /// Length of the payload, bytes.
    pub payload: u32,
    /// CRC-32C of the payload.
    pub sum: u32,
    /// Length of each body, bytes.
    pub lengths: Vec<u32>,
}

impl Bundle {
    /// Bytes of all bodies.
    #[must_use]
    pub fn raw(&self) -> usize {
        self.lengths.iter().map(|length| *length as usize).sum()
    }

    /// Bytes of header and lengths: where the payload begins.
    #[must_use]
    pub fn head(&self) -> usize {
        head_bytes(self.lengths.len())
    }

    /// Bytes of the whole blob.
    #[must_use]
    pub fn stored(&self) -> usize {
        self.head() + self.payload as usize
    }
}

/// Bytes in front of the payload of a bundle of so many chunks.
#[must_use]
pub fn head_bytes(count: usize) -> usize {
    BYTES + count * LENGTH_BYTES
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    crc: U32,
    codec: u8,
    reserved: [u8; 3],
    count: U32,
    length: U32,
    payload: U32,
    sum: U32,
}
const _: () = assert!(size_of::<Raw>() == BYTES);

/// Whether a blob that begins so is a bundle.
#[must_use]
pub fn is_bundle(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Encodes header and lengths to the begin of `out`, which has [`head_bytes`] of room.
pub fn encode(bundle: &Bundle, out: &mut [u8]) {
    let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let out = &mut out[..bundle.head()];
    let (head, lengths) = out.split_at_mut(BYTES);
    for (length, out) in bundle.lengths.iter().zip(lengths.chunks_exact_mut(LENGTH_BYTES)) {
        out.copy_from_slice(&length.to_le_bytes());
    }
    let raw = Raw {
        magic: MAGIC,
        crc: U32::ZERO,
        codec: super::blob::codec_code(bundle.codec),
        reserved: [0; 3],
        count: narrow(bundle.lengths.len()).into(),
        length: narrow(bundle.raw()).into(),
        payload: bundle.payload.into(),
        sum: bundle.sum.into(),
    };
    head.copy_from_slice(raw.as_bytes());
    let crc = crc32c(&out[COVERED..]);
    out[COVERED - 4..COVERED].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes the header at the begin of `bytes`; its lengths are within bounds and agree with one
/// another.
pub fn decode(bytes: &[u8]) -> Result<Bundle, Bad> {
    let (raw, rest) = Raw::ref_from_prefix(bytes).map_err(|_| damaged(WHAT, "it is too short"))?;
    if raw.magic != MAGIC {
        return Err(damaged(WHAT, "the magic number is wrong"));
    }
    let count = raw.count.get() as usize;
    let lengths = count
        .checked_mul(LENGTH_BYTES)
        .and_then(|bytes| rest.get(..bytes))
        .ok_or_else(|| damaged(WHAT, "it is cut off"))?;
    if raw.crc.get() != crc32c(&bytes[COVERED..BYTES + lengths.len()]) {
        return Err(damaged(WHAT, "the checksum is wrong"));
    }
    let codec =
        super::blob::codec_from(raw.codec).ok_or_else(|| damaged(WHAT, "the codec is unknown"))?;
    let (length, payload) = (raw.length.get(), raw.payload.get());
    let lengths: Vec<u32> = lengths
        .as_chunks::<LENGTH_BYTES>()
        .0
        .iter()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .collect();
    let sum: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
    let sizes_agree = count >= 2
        && lengths.iter().all(|length| *length as usize >= limits::BUNDLE_CHUNK_BYTES_MIN)
        && sum == u64::from(length)
        && length as usize <= limits::BUNDLE_BYTES_MAX
        && payload <= length
        && (codec != Codec::None || payload == length);
    if !sizes_agree {
        return Err(damaged(WHAT, "its lengths contradict one another"));
    }
    Ok(Bundle { codec, payload, sum: raw.sum.get(), lengths })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(bundle: &Bundle) -> Vec<u8> {
        let mut bytes = vec![0; bundle.head()];
        encode(bundle, &mut bytes);
        bytes
    }

    #[test]
    fn a_header_survives() {
        let lengths = vec![4096, 300, 8192];
        let bundle = Bundle { codec: Codec::Zstd, payload: 1000, sum: 77, lengths };
        let bytes = encoded(&bundle);
        assert_eq!(decode(&bytes), Ok(bundle.clone()));
        assert_eq!((bundle.raw(), bundle.head(), bundle.stored()), (12_588, 40, 1040));
        super::super::check_golden("bundle-header.bin", &bytes);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert!(decode(&bad).is_err(), "{at}");
            assert!(decode(&bytes[..at]).is_err(), "cut off at {at}");
        }
        let max = u32::try_from(limits::BUNDLE_BYTES_MAX).unwrap();
        for contradiction in [
            Bundle { payload: 13_000, ..bundle.clone() },
            Bundle { codec: Codec::None, ..bundle.clone() },
            Bundle { lengths: vec![4096], ..bundle.clone() },
            Bundle { lengths: vec![4096, 255], ..bundle.clone() },
            Bundle { lengths: vec![max, 300], ..bundle.clone() },
            Bundle { lengths: vec![u32::MAX, 4097], ..bundle },
        ] {
            assert!(decode(&encoded(&contradiction)).is_err(), "{contradiction:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..100), magic in any::<bool>()) {
            if magic && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&MAGIC);
            }
            let _ = decode(&bytes);
        }
    }
}
