//! A note `moved/<pack>`: where compaction took the live chunks of a pack that was deleted.
//! Little-endian.
//!
//! Header, 40 bytes:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKMOVED` 0 |
//! | 8 | 4 | CRC-32C of bytes 12 to the end |
//! | 12 | 2 | version: 1; 2 when an entry has a part |
//! | 14 | 2 | reserved: 0 |
//! | 16 | 16 | the pack that was deleted |
//! | 32 | 4 | number of entries |
//! | 36 | 4 | reserved: 0 |
//!
//! Entries in ascending order of the old offset and part, 72 bytes each:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | old offset |
//! | 4 | 4 | old part of a bundle; 0: the chunk had a blob of its own |
//! | 8 | 64 | pointer: same name, new place |
//!
//! See also `docs/format/sweep.md`.

use super::{Bad, damaged};
use crate::pointer::{Encoded, Part, Spot};
use crate::{Pointer, limits};
use rekindle_base::PackId;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "note of moved chunks";
const MAGIC: [u8; 8] = *b"RKMOVED\0";
pub(crate) const VERSION: u16 = VERSION_BUNDLES;
const VERSION_BLOBS: u16 = 1;
const VERSION_BUNDLES: u16 = 2;
const HEADER_BYTES: usize = 40;
const ENTRY_BYTES: usize = 72;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    crc: U32,
    version: U16,
    reserved: U16,
    pack: [u8; 16],
    count: U32,
    reserved_too: U32,
}
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    offset: U32,
    part: U32,
    pointer: Encoded,
}
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);

impl RawEntry {
    fn spot(&self) -> Spot {
        Spot { offset: self.offset.get(), part: Part(self.part.get()) }
    }
}

/// The new places of the chunks of one pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The pack that was deleted.
    pub pack: PackId,
    /// Old spot and new pointer, ascending by spot.
    pub entries: Vec<(Spot, Pointer)>,
}

impl Moved {
    /// The new place of the chunk at `pointer`; `None` when the note does not name the chunk.
    #[must_use]
    pub fn place(&self, pointer: &Pointer) -> Option<Pointer> {
        let index = self.entries.binary_search_by_key(&pointer.spot(), |entry| entry.0).ok()?;
        Some(self.entries[index].1).filter(|new| new.name == pointer.name)
    }
}

/// Encodes a note.
#[must_use]
pub fn encode(moved: &Moved) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + moved.entries.len() * ENTRY_BYTES);
    let has_parts =
        |(spot, pointer): &(Spot, Pointer)| !spot.part.is_whole() || !pointer.part.is_whole();
    let header = RawHeader {
        magic: MAGIC,
        crc: U32::ZERO,
        version: match moved.entries.iter().any(has_parts) {
            true => VERSION_BUNDLES.into(),
            false => VERSION_BLOBS.into(),
        },
        reserved: U16::ZERO,
        pack: moved.pack.0,
        count: u32::try_from(moved.entries.len()).unwrap_or(u32::MAX).into(),
        reserved_too: U32::ZERO,
    };
    out.extend_from_slice(header.as_bytes());
    for (spot, pointer) in &moved.entries {
        let raw = RawEntry {
            offset: spot.offset.into(),
            part: spot.part.0.into(),
            pointer: pointer.into(),
        };
        out.extend_from_slice(raw.as_bytes());
    }
    let crc = rekindle_base::checksum::crc32c(&out[12..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Decodes a note.
pub fn decode(bytes: &[u8]) -> Result<Moved, Bad> {
    let (header, rest) =
        RawHeader::ref_from_prefix(bytes).map_err(|_| damaged(WHAT, "it is too short"))?;
    if header.magic != MAGIC {
        return Err(damaged(WHAT, "the magic number is wrong"));
    }
    if header.crc.get() != rekindle_base::checksum::crc32c(&bytes[12..]) {
        return Err(damaged(WHAT, "the checksum is wrong"));
    }
    if header.version.get() > VERSION {
        return Err(Bad::Newer { what: WHAT, found: header.version.get(), known: VERSION });
    }
    let raws = <[RawEntry]>::ref_from_bytes(rest)
        .map_err(|_| damaged(WHAT, "it is no whole number of entries"))?;
    if raws.len() != header.count.get() as usize || raws.len() > limits::PACK_CHUNKS_MAX {
        return Err(damaged(WHAT, "its lengths contradict one another"));
    }
    let entries: Vec<_> =
        raws.iter().map(|raw| (raw.spot(), Pointer::from(&raw.pointer))).collect();
    if !entries.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(damaged(WHAT, "its entries are not in order"));
    }
    Ok(Moved { pack: PackId(header.pack), entries })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_note_survives() {
        let pointer = |i: u8| Pointer {
            name: [i; 32],
            pack: PackId([9; 16]),
            offset: 32,
            stored: 60,
            length: 70,
            part: Part::WHOLE,
        };
        let at = |offset| Spot { offset, part: Part::WHOLE };
        let entries = vec![(at(32), pointer(1)), (at(4000), pointer(2))];
        let moved = Moved { pack: PackId([5; 16]), entries };
        let bytes = encode(&moved);
        assert_eq!(decode(&bytes), Ok(moved.clone()));
        super::super::check_golden("moved.bin", &bytes);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(decode(&bad).is_err(), "{at}");
        }
        let old = |i: u8, offset| Pointer { pack: moved.pack, offset, ..pointer(i) };
        assert_eq!(moved.place(&old(2, 4000)), Some(pointer(2)));
        assert_eq!(moved.place(&old(1, 4000)), None, "another chunk's place is no place");
        assert_eq!(moved.place(&old(2, 33)), None);

        // Two chunks of one bundle, of which each went its own way.
        let part = |begin| Part::new(begin, 700, 100).unwrap();
        let was = |begin| Spot { offset: 4000, part: part(begin) };
        let new = Pointer { part: part(400), ..pointer(4) };
        let entries = vec![(at(32), pointer(1)), (was(0), pointer(3)), (was(400), new)];
        let moved = Moved { entries, ..moved };
        let bytes = encode(&moved);
        assert_eq!(decode(&bytes), Ok(moved.clone()));
        super::super::check_golden("moved-2.bin", &bytes);
        let old = |i: u8, begin| Pointer { part: part(begin), ..old(i, 4000) };
        assert_eq!(moved.place(&old(3, 0)), Some(pointer(3)));
        assert_eq!(moved.place(&old(4, 400)), Some(new));
        assert_eq!(moved.place(&old(3, 400)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }
    }
}
