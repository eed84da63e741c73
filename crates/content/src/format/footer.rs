//! Footer and trailer at the end of a pack: what lies where. Little-endian.
//!
//! The footer is an array of entries in ascending order of offset and part, 48 bytes each. It names
//! all chunks of a bundle, or none of them:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | offset of the blob |
//! | 4 | 4 | length of the blob, header included |
//! | 8 | 4 | raw length |
//! | 12 | 4 | part of a bundle; 0: the chunk has a blob of its own |
//! | 16 | 32 | name |
//!
//! The trailer, 24 bytes, are the last of the pack:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | number of entries |
//! | 4 | 4 | length of the footer, bytes |
//! | 8 | 2 | version: 1; 2 when an entry has a part |
//! | 10 | 2 | reserved: 0 |
//! | 12 | 4 | CRC-32C of footer and bytes 0..12 of the trailer |
//! | 16 | 8 | magic `RKFOOT` 0 0 |
//!
//! See also `docs/format/pack.md`.

use super::{Bad, damaged, pack};
use crate::limits;
use crate::pointer::{Part, Spot};
use std::ops::Range;
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
    /// The part of the blob that is the chunk.
    pub part: Part,
    /// The chunk's name.
    pub name: [u8; 32],
}

impl Entry {
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

    /// Whether both are chunks of one blob.
    #[must_use]
    pub fn is_beside(&self, other: &Self) -> bool {
        self.offset == other.offset
    }
}

/// Whether any of these chunks lies in a bundle.
pub(crate) fn have_bundles(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| !entry.part.is_whole())
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    offset: U32,
    stored: U32,
    length: U32,
    part: U32,
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

/// Appends footer and trailer of `entries` (ascending spots) to a pack.
pub fn append(entries: &[Entry], out: &mut Vec<u8>) {
    let begin = out.len();
    out.reserve(entries.len() * ENTRY_BYTES + TRAILER_BYTES);
    for entry in entries {
        let raw = RawEntry {
            offset: entry.offset.into(),
            stored: entry.stored.into(),
            length: entry.length.into(),
            part: entry.part.0.into(),
            name: entry.name,
        };
        out.extend_from_slice(raw.as_bytes());
    }
    // A pack has at most PACK_CHUNKS_MAX entries, so both fit.
    let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut trailer = RawTrailer {
        count: narrow(entries.len()).into(),
        footer_bytes: narrow(out.len() - begin).into(),
        version: match have_bundles(entries) {
            true => pack::VERSION_BUNDLES.into(),
            false => pack::VERSION_BLOBS.into(),
        },
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
    let mut entries: Vec<Entry> = Vec::with_capacity(raws.len());
    for raw in raws {
        let entry = Entry {
            offset: raw.offset.get(),
            stored: raw.stored.get(),
            length: raw.length.get(),
            part: Part(raw.part.get()),
            name: raw.name,
        };
        let is_apart = match entries.last() {
            None => entry.offset as usize >= pack::BYTES,
            Some(last) if last.is_beside(&entry) => {
                last.stored == entry.stored
                    && !last.part.is_whole()
                    && last.part.begin() + last.length as usize <= entry.part.begin()
            }
            Some(last) => last.blob().end <= entry.blob().start,
        };
        if !is_apart {
            return Err(damaged(WHAT, "its entries overlap"));
        }
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
                part: Part::WHOLE,
                name: [i; 32],
            })
            .collect()
    }

    /// A chunk with a blob of its own, then a bundle of two.
    fn with_a_bundle() -> Vec<Entry> {
        let part = |begin| Part::new(begin, 700, 100).unwrap();
        let [first, second, third] = entries().try_into().unwrap();
        let second = Entry { length: 300, part: part(0), ..second };
        let third = Entry { length: 400, part: part(300), offset: second.offset, ..third };
        vec![first, second, third]
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
    fn a_footer_with_bundles_survives_and_is_of_a_newer_version() {
        let mut bytes = Vec::new();
        append(&with_a_bundle(), &mut bytes);
        assert_eq!(decode(&bytes), Ok(with_a_bundle()));
        super::super::check_golden("pack-footer-2.bin", &bytes);
        let version = |entries: &[Entry]| {
            let mut bytes = Vec::new();
            append(entries, &mut bytes);
            bytes[bytes.len() - 16]
        };
        assert_eq!((version(&entries()), version(&with_a_bundle())), (1, 2));
    }

    #[test]
    fn entries_that_overlap_are_refused() {
        let [first, second, third] = with_a_bundle().try_into().unwrap();
        for overlap in [
            [entries()[0], Entry { offset: 131, ..entries()[1] }],
            [entries()[0], Entry { offset: entries()[0].offset, ..entries()[1] }],
            [Entry { offset: 31, ..first }, second],
            [second, second],
            [third, second],
            [second, Entry { part: Part::new(299, 700, 100).unwrap(), ..third }],
            [second, Entry { stored: 101, ..third }],
            [second, Entry { part: Part::WHOLE, ..third }],
        ] {
            let mut bytes = Vec::new();
            append(&overlap, &mut bytes);
            assert!(decode(&bytes).is_err(), "{overlap:?}");
        }
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
