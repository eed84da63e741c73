//! A file of counts: how often the counted roots name each place of some packs. Little-endian.
//!
//! ```text
//! header | places of 512 packs | their rows | the next 512 | their rows | ... | index | trailer
//! ```
//!
//! Header, 64 bytes:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKCOUNTS` |
//! | 8 | 4 | CRC-32C of bytes 12 to 64 |
//! | 12 | 2 | version: 1 |
//! | 14 | 2 | reserved: 0 |
//! | 16 | 16 | fingerprint of the store |
//! | 32 | 8 | number of the file |
//! | 40 | 24 | reserved: 0 |
//!
//! Places of a pack, ascending: for each four numbers of seven bits a byte, the lowest first, the
//! high bit says that more follow: the distance of its blob from that of the place before (from 0
//! the first one); its part, in the same blob the part's distance from the one before; how often it
//! is named (at least once); and the bytes that it takes of its pack.
//!
//! Rows, 64 bytes each, in ascending order of the packs, in blocks of 512 (the last one may have
//! fewer):
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 16 | the pack |
//! | 16 | 8 | where its places begin in the file |
//! | 24 | 4 | their length, bytes |
//! | 28 | 4 | their CRC-32C |
//! | 32 | 4 | number of places; 0: the pack is not named any more, whatever older files say |
//! | 36 | 4 | bytes of all blobs of the pack, as its footer said; 0: not known |
//! | 40 | 8 | bytes that the named places take |
//! | 48 | 8 | how often places of the pack are named, in all |
//! | 56 | 1 | length of the longest chain of notes that leads into the pack |
//! | 57 | 7 | reserved: 0 |
//!
//! The index, 32 bytes a block of rows: its first pack (16), where it begins in the file (8), its
//! CRC-32C (4), its number of rows (4).
//!
//! Trailer, 48 bytes:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKCOUNTE` |
//! | 8 | 4 | CRC-32C of bytes 12 to 48 |
//! | 12 | 4 | CRC-32C of the index |
//! | 16 | 8 | where the index begins |
//! | 24 | 8 | number of blocks |
//! | 32 | 16 | reserved: 0 |
//!
//! See also `docs/format/tally.md`.

use super::{Bad, damaged};
use crate::Spot;
use crate::pointer::Part;
use rekindle_base::PackId;
use rekindle_base::checksum::crc32c;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "file of counts";
const MAGIC: [u8; 8] = *b"RKCOUNTS";
const MAGIC_END: [u8; 8] = *b"RKCOUNTE";
/// The version of files of counts and of their head.
pub const VERSION: u16 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 48;
/// Bytes of a row.
pub const ROW_BYTES: usize = 64;
/// Rows of a block, but of the last one.
pub const BLOCK_ROWS: usize = 512;
/// Bytes of a block in the index.
pub const INDEX_BYTES: usize = 32;

/// A place that is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedPlace {
    /// The place in its pack.
    pub spot: Spot,
    /// How often it is named.
    pub count: u32,
    /// Bytes that it takes of its pack.
    pub stored: u32,
}

/// The row of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The pack.
    pub pack: PackId,
    /// Where its places begin in the file.
    pub begin: u64,
    /// Their length, bytes.
    pub length: u32,
    /// Their checksum.
    pub crc: u32,
    /// Number of places; none: the pack is not named any more.
    pub places: u32,
    /// Bytes of all blobs of the pack, if its footer was asked; else 0.
    pub blobs: u32,
    /// Bytes that the named places take.
    pub bytes: u64,
    /// How often places of the pack are named, in all.
    pub edges: u64,
    /// Length of the longest chain of notes that leads into the pack.
    pub hops: u8,
}

/// A block of rows in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The first pack of the block.
    pub first: PackId,
    /// Where the block begins in the file.
    pub begin: u64,
    /// The block's checksum.
    pub crc: u32,
    /// The block's number of rows.
    pub rows: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    crc: U32,
    version: U16,
    reserved: U16,
    store: [u8; 16],
    number: U64,
    reserved_too: [u8; 24],
}
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRow {
    pack: [u8; 16],
    begin: U64,
    length: U32,
    crc: U32,
    places: U32,
    blobs: U32,
    bytes: U64,
    edges: U64,
    hops: u8,
    reserved: [u8; 7],
}
const _: () = assert!(size_of::<RawRow>() == ROW_BYTES);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBlock {
    first: [u8; 16],
    begin: U64,
    crc: U32,
    rows: U32,
}
const _: () = assert!(size_of::<RawBlock>() == INDEX_BYTES);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTrailer {
    magic: [u8; 8],
    crc: U32,
    index_crc: U32,
    index_begin: U64,
    blocks: U64,
    reserved: [u8; 16],
}
const _: () = assert!(size_of::<RawTrailer>() == TRAILER_BYTES);

/// Encodes the header of a file.
#[must_use]
pub fn header(store: [u8; 16], number: u64) -> Vec<u8> {
    let raw = RawHeader {
        magic: MAGIC,
        crc: U32::ZERO,
        version: VERSION.into(),
        reserved: U16::ZERO,
        store,
        number: number.into(),
        reserved_too: [0; 24],
    };
    sealed(raw.as_bytes())
}

/// Checks that a header is that of this file of this store.
pub fn check_header(bytes: &[u8], store: [u8; 16], number: u64) -> Result<(), Bad> {
    let (raw, _) = RawHeader::ref_from_prefix(bytes).map_err(|_| cut())?;
    if raw.magic != MAGIC || raw.crc.get() != crc32c(&raw.as_bytes()[12..]) {
        return Err(damaged(WHAT, "its header is wrong"));
    }
    if raw.version.get() > VERSION {
        return Err(Bad::Newer { what: WHAT, found: raw.version.get(), known: VERSION });
    }
    if raw.store != store || raw.number.get() != number {
        return Err(damaged(WHAT, "it is another file"));
    }
    Ok(())
}

/// Encodes a trailer.
#[must_use]
pub fn trailer(index: &[u8], index_begin: u64) -> Vec<u8> {
    let raw = RawTrailer {
        magic: MAGIC_END,
        crc: U32::ZERO,
        index_crc: crc32c(index).into(),
        index_begin: index_begin.into(),
        blocks: ((index.len() / INDEX_BYTES) as u64).into(),
        reserved: [0; 16],
    };
    sealed(raw.as_bytes())
}

/// The fields of a trailer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// The checksum of the index.
    pub index_crc: u32,
    /// Where the index begins.
    pub index_begin: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Decodes the trailer of a file.
pub fn decode_trailer(bytes: &[u8]) -> Result<Trailer, Bad> {
    let (_, raw) = RawTrailer::ref_from_suffix(bytes).map_err(|_| cut())?;
    if raw.magic != MAGIC_END || raw.crc.get() != crc32c(&raw.as_bytes()[12..]) {
        return Err(damaged(WHAT, "its trailer is wrong"));
    }
    Ok(Trailer {
        index_crc: raw.index_crc.get(),
        index_begin: raw.index_begin.get(),
        blocks: raw.blocks.get(),
    })
}

/// Puts the checksum of what follows into bytes 8 to 12.
fn sealed(raw: &[u8]) -> Vec<u8> {
    let mut bytes = raw.to_vec();
    let crc = crc32c(&bytes[12..]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn cut() -> Bad {
    damaged(WHAT, "it is too short")
}

/// Appends a row.
pub fn push_row(row: &Row, out: &mut Vec<u8>) {
    let raw = RawRow {
        pack: row.pack.0,
        begin: row.begin.into(),
        length: row.length.into(),
        crc: row.crc.into(),
        places: row.places.into(),
        blobs: row.blobs.into(),
        bytes: row.bytes.into(),
        edges: row.edges.into(),
        hops: row.hops,
        reserved: [0; 7],
    };
    out.extend_from_slice(raw.as_bytes());
}

/// Appends a block to an index.
pub fn push_block(block: &Block, out: &mut Vec<u8>) {
    let raw = RawBlock {
        first: block.first.0,
        begin: block.begin.into(),
        crc: block.crc.into(),
        rows: block.rows.into(),
    };
    out.extend_from_slice(raw.as_bytes());
}

/// Decodes the rows of a block.
pub fn decode_rows(bytes: &[u8], block: &Block) -> Result<Vec<Row>, Bad> {
    if crc32c(bytes) != block.crc {
        return Err(damaged(WHAT, "a block of its rows is wrong"));
    }
    let raws = <[RawRow]>::ref_from_bytes(bytes).map_err(|_| cut())?;
    let rows: Vec<Row> = raws
        .iter()
        .map(|raw| Row {
            pack: PackId(raw.pack),
            begin: raw.begin.get(),
            length: raw.length.get(),
            crc: raw.crc.get(),
            places: raw.places.get(),
            blobs: raw.blobs.get(),
            bytes: raw.bytes.get(),
            edges: raw.edges.get(),
            hops: raw.hops,
        })
        .collect();
    if !rows.is_sorted_by(|one, next| one.pack < next.pack) {
        return Err(damaged(WHAT, "its rows are not in order"));
    }
    Ok(rows)
}

/// Decodes the index of a file.
pub fn decode_index(bytes: &[u8], crc: u32) -> Result<Vec<Block>, Bad> {
    if crc32c(bytes) != crc {
        return Err(damaged(WHAT, "its index is wrong"));
    }
    let raws = <[RawBlock]>::ref_from_bytes(bytes).map_err(|_| cut())?;
    let blocks = raws.iter().map(|raw| Block {
        first: PackId(raw.first),
        begin: raw.begin.get(),
        crc: raw.crc.get(),
        rows: raw.rows.get(),
    });
    Ok(blocks.collect())
}

/// Appends a number, seven bits a byte.
pub(crate) fn push_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        #[expect(clippy::cast_possible_truncation, reason = "the low seven bits")]
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is less than 128")]
    out.push(number as u8);
}

/// Takes a number from the front of `bytes`.
pub(crate) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The spot before the first one.
pub(crate) const NO_SPOT: Spot = Spot { offset: 0, part: Part::WHOLE };

/// Appends a spot, which comes after `before`.
pub(crate) fn push_spot(before: Spot, spot: Spot, out: &mut Vec<u8>) {
    let is_same_blob = spot.offset == before.offset;
    push_number(u64::from(spot.offset - before.offset), out);
    push_number(u64::from(spot.part.0 - if is_same_blob { before.part.0 } else { 0 }), out);
}

/// Takes the spot after `before` from the front of `bytes`.
pub(crate) fn take_spot(before: Spot, bytes: &mut &[u8]) -> Option<Spot> {
    let mut number = || u32::try_from(take_number(bytes)?).ok();
    let (distance, part) = (number()?, number()?);
    let offset = before.offset.checked_add(distance)?;
    let part = if distance == 0 { before.part.0.checked_add(part)? } else { part };
    Some(Spot { offset, part: Part(part) })
}

/// Appends places, ascending.
pub fn push_places(places: &[CountedPlace], out: &mut Vec<u8>) {
    let mut before = NO_SPOT;
    for place in places {
        push_spot(before, place.spot, out);
        push_number(u64::from(place.count), out);
        push_number(u64::from(place.stored), out);
        before = place.spot;
    }
}

/// Decodes the places of a row.
pub fn decode_places(mut bytes: &[u8], row: &Row) -> Result<Vec<CountedPlace>, Bad> {
    if crc32c(bytes) != row.crc {
        return Err(damaged(WHAT, "the places of a pack are wrong"));
    }
    let mut places = Vec::with_capacity((row.places as usize).min(bytes.len() / 4));
    let mut before = NO_SPOT;
    let mut next = || {
        let spot = take_spot(before, &mut bytes)?;
        let mut number = || u32::try_from(take_number(&mut bytes)?).ok();
        before = spot;
        Some(CountedPlace { spot, count: number()?, stored: number()? })
    };
    for _ in 0..row.places {
        places.push(next().ok_or_else(|| damaged(WHAT, "the places of a pack are cut off"))?);
    }
    let is_ascending = places.is_sorted_by(|one, next| one.spot < next.spot);
    if !bytes.is_empty() || !is_ascending || places.iter().any(|place| place.count == 0) {
        return Err(damaged(WHAT, "the places of a pack contradict one another"));
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn places() -> Vec<CountedPlace> {
        let place = |offset, part, count, stored| {
            let spot = Spot { offset, part: Part(part) };
            CountedPlace { spot, count, stored }
        };
        vec![
            place(32, 0, 1, 100),
            place(132, 2048, 300, 70_000),
            place(132, 5 << 12 | 2048, 1, 9),
            place(132, u32::MAX, 1, 9),
            place(u32::MAX, 4, u32::MAX, 1),
        ]
    }

    fn row(bytes: &[u8]) -> Row {
        Row {
            pack: PackId([7; 16]),
            begin: 64,
            length: u32::try_from(bytes.len()).unwrap(),
            crc: crc32c(bytes),
            places: 5,
            blobs: 500,
            bytes: 70_119,
            edges: 304,
            hops: 2,
        }
    }

    #[test]
    fn a_file_of_counts_survives() {
        let mut file = header([3; 16], 9);
        let mut bytes = Vec::new();
        push_places(&places(), &mut bytes);
        let row = row(&bytes);
        file.extend_from_slice(&bytes);
        let rows_begin = file.len();
        push_row(&row, &mut file);
        let crc = crc32c(&file[rows_begin..]);
        let block = Block { first: row.pack, begin: rows_begin as u64, crc, rows: 1 };
        let mut index = Vec::new();
        push_block(&block, &mut index);
        file.extend_from_slice(&index);
        let index_begin = (rows_begin + ROW_BYTES) as u64;
        file.extend(trailer(&index, index_begin));
        super::super::check_golden("counts.bin", &file);

        check_header(&file, [3; 16], 9).unwrap();
        assert!(
            check_header(&file, [4; 16], 9).is_err() && check_header(&file, [3; 16], 8).is_err()
        );
        let trailer = decode_trailer(&file).unwrap();
        assert_eq!((trailer.index_begin, trailer.blocks), (index_begin, 1));
        assert_eq!(decode_index(&index, trailer.index_crc), Ok(vec![block]));
        let rows = &file[rows_begin..rows_begin + ROW_BYTES];
        assert_eq!(decode_rows(rows, &block), Ok(vec![row]));
        assert_eq!(decode_places(&bytes, &row), Ok(places()));
        // Every bit is covered by one of the checksums.
        for at in 0..file.len() {
            let mut bad = file.clone();
            bad[at] ^= 1;
            let decoded = check_header(&bad, [3; 16], 9).is_ok()
                && decode_places(&bad[64..rows_begin], &row).is_ok()
                && decode_trailer(&bad).is_ok_and(|trailer| {
                    let begin = rows_begin + ROW_BYTES;
                    decode_index(&bad[begin..begin + INDEX_BYTES], trailer.index_crc).is_ok()
                })
                && decode_rows(&bad[rows_begin..rows_begin + ROW_BYTES], &block).is_ok();
            assert!(!decoded, "{at}");
        }
    }

    #[test]
    fn places_that_contradict_one_another_are_refused() {
        for (places, count) in [
            (vec![CountedPlace { count: 0, ..places()[0] }], 1),
            (vec![places()[0], places()[0]], 2),
            (vec![places()[1], places()[1]], 2),
            (places(), 4),
            (places(), 6),
        ] {
            let mut bytes = Vec::new();
            push_places(&places, &mut bytes);
            let row = Row { places: count, ..row(&bytes) };
            assert!(decode_places(&bytes, &row).is_err(), "{places:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0u32..20) {
            let row = Row { places: count, ..row(&bytes) };
            let _ = decode_places(&bytes, &row);
            let block = Block { first: row.pack, begin: 0, crc: crc32c(&bytes), rows: count };
            let _ = decode_rows(&bytes, &block);
            let _ = decode_index(&bytes, crc32c(&bytes));
            let _ = decode_trailer(&bytes);
            let _ = check_header(&bytes, [0; 16], 0);
        }

        #[test]
        fn numbers_survive(number in any::<u64>()) {
            let mut bytes = Vec::new();
            push_number(number, &mut bytes);
            let mut rest = &bytes[..];
            prop_assert_eq!(take_number(&mut rest), Some(number));
            prop_assert!(rest.is_empty());
        }
    }
}
