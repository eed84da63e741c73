//! Footer and trailer at the end of a pack: what lies where. Little-endian.
//!
//! The footer is an array of entries in ascending order of offset, 48 bytes each:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | offset of the blob |
//! | 4 | 4 | length of the blob, header included |
//! | 8 | 4 | raw length |
//! | 12 | 4 | reserved: 0 |
//! | 16 | 32 | name |
//!
//! The trailer, 24 bytes, are the last of the pack:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | number of entries |
//! | 4 | 4 | length of the footer, bytes |
//! | 8 | 2 | version: 1 |
//! | 10 | 2 | reserved: 0 |
//! | 12 | 4 | CRC-32C of footer and bytes 0..12 of the trailer |
//! | 16 | 8 | magic `RKFOOT` 0 0 |
//!
//! See also `docs/format/pack.md`.

use super::{Bad, damaged, pack};
use crate::limits;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "pack footer";
const MAGIC: [u8; 8] = *b"RKFOOT\0\0";
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 48;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 24;

/// The place of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Offset of the chunk's blob, bytes.
    pub offset: u32,
    /// Length of the chunk's blob, bytes.
    pub stored: u32,
    /// Length of the chunk's body, bytes.
    pub length: u32,
    /// The chunk's name.
    pub name: [u8; 32],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    offset: U32,
    stored: U32,
    length: U32,
    reserved: U32,
    name: [u8; 32],
}
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTrailer {
    count: U32,
    footer_bytes: U32,
    version: U16,
    reserved: U16,
    crc: U32,
    magic: [u8; 8],
}
const _: () = assert!(size_of::<RawTrailer>() == TRAILER_BYTES);

/// Appends footer and trailer of `entries` (ascending offsets) to a pack.
pub fn append(entries: &[Entry], out: &mut Vec<u8>) {
    let begin = out.len();
    out.reserve(entries.len() * ENTRY_BYTES + TRAILER_BYTES);
    for entry in entries {
        let raw = RawEntry {
            offset: entry.offset.into(),
            stored: entry.stored.into(),
            length: entry.length.into(),
            reserved: U32::ZERO,
            name: entry.name,
        };
        out.extend_from_slice(raw.as_bytes());
    }
    // A pack has at most PACK_CHUNKS_MAX entries, so both fit.
    let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut trailer = RawTrailer {
        count: narrow(entries.len()).into(),
        footer_bytes: narrow(out.len() - begin).into(),
        version: pack::VERSION.into(),
        reserved: U16::ZERO,
        crc: U32::ZERO,
        magic: MAGIC,
    };
    out.extend_from_slice(&trailer.as_bytes()[..12]);
    trailer.crc = rekindle_base::checksum::crc32c(&out[begin..]).into();
    out.extend_from_slice(&trailer.as_bytes()[12..]);
}

/// Reads from a pack's last bytes how many bytes footer and trailer take.
pub fn length_from_tail(tail: &[u8]) -> Result<usize, Bad> {
    let trailer = trailer(tail)?;
    Ok(trailer.footer_bytes.get() as usize + TRAILER_BYTES)
}

fn trailer(tail: &[u8]) -> Result<&RawTrailer, Bad> {
    let (_, trailer) =
        RawTrailer::ref_from_suffix(tail).map_err(|_| damaged(WHAT, "it is too short"))?;
    if trailer.magic != MAGIC {
        return Err(damaged(WHAT, "the magic number is wrong"));
    }
    if trailer.version.get() > pack::VERSION {
        return Err(Bad::Newer { what: WHAT, found: trailer.version.get(), known: pack::VERSION });
    }
    let count = trailer.count.get() as usize;
    if count > limits::PACK_CHUNKS_MAX || trailer.footer_bytes.get() as usize != count * ENTRY_BYTES
    {
        return Err(damaged(WHAT, "its lengths contradict one another"));
    }
    Ok(trailer)
}

/// Decodes the footer that ends with `tail`'s last byte.
pub fn decode(tail: &[u8]) -> Result<Vec<Entry>, Bad> {
    let length = length_from_tail(tail)?;
    let trailer = trailer(tail)?;
    let begin = tail.len().checked_sub(length).ok_or_else(|| damaged(WHAT, "it is cut off"))?;
    let covered = &tail[begin..tail.len() - TRAILER_BYTES + 12];
    if trailer.crc.get() != rekindle_base::checksum::crc32c(covered) {
        return Err(damaged(WHAT, "the checksum is wrong"));
    }
    let raws = <[RawEntry]>::ref_from_bytes(&tail[begin..tail.len() - TRAILER_BYTES])
        .map_err(|_| damaged(WHAT, "it is no whole number of entries"))?;
    let mut end = pack::BYTES as u64;
    let mut entries = Vec::with_capacity(raws.len());
    for raw in raws {
        let entry = Entry {
            offset: raw.offset.get(),
            stored: raw.stored.get(),
            length: raw.length.get(),
            name: raw.name,
        };
        if u64::from(entry.offset) < end {
            return Err(damaged(WHAT, "its entries overlap"));
        }
        end = u64::from(entry.offset) + u64::from(entry.stored);
        entries.push(entry);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries() -> Vec<Entry> {
        (0..3u8)
            .map(|i| Entry {
                offset: 32 + u32::from(i) * 100,
                stored: 100,
                length: 200,
                name: [i; 32],
            })
            .collect()
    }

    #[test]
    fn a_footer_survives() {
        let mut bytes = b"blobs".to_vec();
        append(&entries(), &mut bytes);
        assert_eq!(decode(&bytes), Ok(entries()));
        assert_eq!(
            length_from_tail(&bytes[bytes.len() - TRAILER_BYTES..]),
            Ok(3 * ENTRY_BYTES + TRAILER_BYTES)
        );
        super::super::check_golden("pack-footer.bin", &bytes[5..]);
        for at in 5..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(decode(&bad).is_err(), "{at}");
        }
        assert!(decode(&bytes[6..]).is_err(), "a footer that is cut off");
    }

    #[test]
    fn entries_that_overlap_are_refused() {
        let mut bytes = Vec::new();
        append(&[entries()[0], Entry { offset: 131, ..entries()[1] }], &mut bytes);
        assert!(decode(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), magic in any::<bool>()) {
            if magic && bytes.len() >= 8 {
                let at = bytes.len() - 8;
                bytes[at..].copy_from_slice(&MAGIC);
            }
            let _ = decode(&bytes);
        }
    }
}
