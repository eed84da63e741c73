//! The parity section of a pack, between its last blob and its footer: its layout, and the heads
//! that describe it. Little-endian.
//!
//! The bytes in front of the section are cut into `data` shards of equal length (the last ones
//! padded with zeros), shards into cells. The n-th cells of all shards are stripe n. The section
//! has a part for each parity shard:
//!
//! | bytes | what |
//! | --- | --- |
//! | 48 | head |
//! | stripes x cell | the parity shard |
//! | (data + parity) x stripes x 4 | CRC-32C of all cells unpadded, by shard; same in each part |
//! | 48 | the head once more |
//!
//! A head:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKPRTY` 0 0 |
//! | 8 | 2 | version: 1 |
//! | 10 | 1 | data cells of a stripe |
//! | 11 | 1 | parity cells of a stripe; together at most 255 |
//! | 12 | 1 | number of this part, from 0 |
//! | 13 | 3 | reserved: 0 |
//! | 16 | 16 | pack id |
//! | 32 | 4 | length of a cell, bytes: a multiple of 64, at most 64 KiB |
//! | 36 | 4 | where the section begins in the pack, bytes |
//! | 40 | 4 | reserved: 0 |
//! | 44 | 4 | CRC-32C of bytes 0..44 |
//!
//! The stripes are as many as a shard of (bytes in front of the section / data), rounded up, needs.
//! See also `docs/format/pack.md`.

use super::{Bad, damaged, footer, pack};
use crate::{Parity, limits};
use rekindle_base::PackId;
use std::ops::Range;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "pack parity";
const MAGIC: [u8; 8] = *b"RKPRTY\0\0";
/// Version of the section.
pub const VERSION: u16 = 1;
/// Bytes of a head.
pub const HEAD_BYTES: usize = 48;
const CHECKSUM_BYTES: usize = 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U16,
    data: u8,
    parity: u8,
    part: u8,
    reserved: [u8; 3],
    pack: [u8; 16],
    cell: U32,
    covered: U32,
    reserved_too: U32,
    crc: U32,
}
const _: () = assert!(size_of::<Raw>() == HEAD_BYTES);

/// The layout of a section; offsets are those of the pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Data cells of a stripe.
    pub data: usize,
    /// Parity cells of a stripe.
    pub parity: usize,
    /// Length of a cell, bytes.
    pub cell: usize,
    /// Bytes in front of the section.
    pub covered: usize,
}

impl Layout {
    /// Chooses the layout for a pack of which `covered` bytes are in front of its section: cells of
    /// 4 KiB, or smaller ones when the bytes are fewer than a stripe of such cells.
    #[must_use]
    pub fn new(parity: Parity, covered: usize) -> Self {
        let least = limits::PARITY_CELL_BYTES_MIN;
        let cell = covered.div_ceil(parity.data()).next_multiple_of(least);
        let cell = cell.clamp(least, limits::PARITY_CELL_BYTES);
        Self { data: parity.data(), parity: parity.parity(), cell, covered }
    }

    /// Cells of a stripe.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.data + self.parity
    }

    /// Cells of a shard.
    #[must_use]
    pub fn stripes(&self) -> usize {
        self.covered.div_ceil(self.data).div_ceil(self.cell)
    }

    /// Bytes of a shard, padding included.
    #[must_use]
    pub fn shard_bytes(&self) -> usize {
        self.stripes() * self.cell
    }

    fn part_bytes(&self) -> usize {
        2 * HEAD_BYTES + self.shard_bytes() + self.shards() * self.stripes() * CHECKSUM_BYTES
    }

    /// Offset of a part.
    fn part(&self, part: usize) -> usize {
        self.covered + part * self.part_bytes()
    }

    /// Offset of the section's end.
    #[must_use]
    pub fn end(&self) -> usize {
        self.part(self.parity)
    }

    /// Place of a cell, without padding. Parity shards follow the data shards.
    #[must_use]
    pub fn cell(&self, shard: usize, stripe: usize) -> Range<usize> {
        if shard >= self.data {
            let begin = self.part(shard - self.data) + HEAD_BYTES + stripe * self.cell;
            return begin..begin + self.cell;
        }
        let begin = shard * self.shard_bytes() + stripe * self.cell;
        begin.min(self.covered)..(begin + self.cell).min(self.covered)
    }

    /// Place of a cell's checksum in a part.
    #[must_use]
    pub fn checksum(&self, part: usize, shard: usize, stripe: usize) -> Range<usize> {
        let begin = self.part(part) + HEAD_BYTES + self.shard_bytes();
        let at = begin + (shard * self.stripes() + stripe) * CHECKSUM_BYTES;
        at..at + CHECKSUM_BYTES
    }

    /// Encodes the head of a part.
    #[must_use]
    pub fn head(&self, pack: PackId, part: usize) -> [u8; HEAD_BYTES] {
        // Both settings and decoder keep the numbers of cells below 256; a pack is shorter than 4
        // GiB.
        let byte = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        let long = |number: usize| U32::from(u32::try_from(number).unwrap_or(u32::MAX));
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            data: byte(self.data),
            parity: byte(self.parity),
            part: byte(part),
            reserved: [0; 3],
            pack: pack.0,
            cell: long(self.cell),
            covered: long(self.covered),
            reserved_too: U32::ZERO,
            crc: U32::ZERO,
        };
        raw.crc = rekindle_base::checksum::crc32c(&raw.as_bytes()[..HEAD_BYTES - 4]).into();
        zerocopy::transmute!(raw)
    }

    /// Whether a head of part `part` may lie at `at`: first or last in its part.
    fn has_head_at(&self, part: usize, at: usize) -> bool {
        at == self.part(part) || at + HEAD_BYTES == self.part(part + 1)
    }
}

/// The fields of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The layout of the section.
    pub layout: Layout,
    /// The number of the head's part.
    pub part: usize,
    /// The pack.
    pub pack: PackId,
}

/// Decodes the head at the begin of `bytes`.
pub fn decode(bytes: &[u8]) -> Result<Head, Bad> {
    let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| damaged(WHAT, "it is too short"))?;
    if raw.magic != MAGIC {
        return Err(damaged(WHAT, "the magic number is wrong"));
    }
    if raw.crc.get() != rekindle_base::checksum::crc32c(&raw.as_bytes()[..HEAD_BYTES - 4]) {
        return Err(damaged(WHAT, "the checksum is wrong"));
    }
    if raw.version.get() > VERSION {
        return Err(Bad::Newer { what: WHAT, found: raw.version.get(), known: VERSION });
    }
    let layout = Layout {
        data: raw.data.into(),
        parity: raw.parity.into(),
        cell: raw.cell.get() as usize,
        covered: raw.covered.get() as usize,
    };
    let least = limits::PARITY_CELL_BYTES_MIN;
    let is_possible = layout.data > 0
        && raw.part < raw.parity
        && layout.shards() <= 255
        && (least..=limits::PARITY_CELL_BYTES_MAX).contains(&layout.cell)
        && layout.cell.is_multiple_of(least)
        && layout.covered >= pack::BYTES;
    if !is_possible {
        return Err(damaged(WHAT, "its lengths are impossible"));
    }
    Ok(Head { layout, part: raw.part.into(), pack: PackId(raw.pack) })
}

/// Finds the section of a pack: by its last head, which lies before the footer, else by any head
/// that is sound and lies where its own layout puts it. `id` is that of the pack, if it is known.
/// Bytes that a client wrote cannot pass for a section, because no client knows the id of a pack
/// beforehand.
#[must_use]
pub fn find(id: Option<PackId>, object: &[u8]) -> Option<Layout> {
    let at = |at: usize| {
        let head = decode(object.get(at..)?).ok()?;
        let is_it = id.is_none_or(|id| head.pack == id) && head.layout.has_head_at(head.part, at);
        is_it.then_some(head.layout)
    };
    let footer = footer::length_from_tail(object).ok();
    let last = footer.and_then(|bytes| object.len().checked_sub(bytes + HEAD_BYTES));
    if let Some(layout) = last.and_then(at) {
        return Some(layout);
    }
    let places = object.windows(MAGIC.len()).enumerate();
    places.filter(|(_, window)| *window == MAGIC).find_map(|(place, _)| at(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout() -> Layout {
        Layout::new("4+2".parse().unwrap(), 100_000)
    }

    #[test]
    fn a_head_survives() {
        let bytes = layout().head(PackId([7; 16]), 1);
        let head = Head { layout: layout(), part: 1, pack: PackId([7; 16]) };
        assert_eq!(decode(&bytes), Ok(head));
        super::super::check_golden("parity-head.bin", &bytes);
        for at in 0..HEAD_BYTES {
            let mut bad = bytes;
            bad[at] ^= 0x10;
            assert!(decode(&bad).is_err(), "{at}");
        }
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let good = layout();
        for bad in [
            Layout { data: 0, ..good },
            Layout { parity: 1, ..good },
            Layout { data: 254, ..good },
            Layout { cell: 0, ..good },
            Layout { cell: 100, ..good },
            Layout { cell: 1 << 20, ..good },
            Layout { covered: 31, ..good },
        ] {
            assert!(decode(&bad.head(PackId([7; 16]), 1)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn cells_cover_everything_once() {
        for covered in [32, 33, 500, 4096, 65_536, 65_537, 1_000_000] {
            for shape in ["2+1", "16+1", "64+8", "5+3"] {
                let layout = Layout::new(shape.parse().unwrap(), covered);
                let mut at = 0;
                for shard in 0..layout.data {
                    for stripe in 0..layout.stripes() {
                        let cell = layout.cell(shard, stripe);
                        assert_eq!(cell.start, at, "{layout:?}");
                        at = cell.end;
                    }
                }
                assert_eq!(at, covered);
                let last =
                    layout.checksum(layout.parity - 1, layout.shards() - 1, layout.stripes() - 1);
                assert_eq!(last.end + HEAD_BYTES, layout.end());
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>()) {
            if bytes.len() >= HEAD_BYTES {
                let at = at.index(bytes.len() - HEAD_BYTES + 1);
                bytes[at..at + 8].copy_from_slice(&MAGIC);
                let crc = rekindle_base::checksum::crc32c(&bytes[at..at + HEAD_BYTES - 4]);
                bytes[at + HEAD_BYTES - 4..at + HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
                let _ = decode(&bytes[at..]);
            }
            let _ = find(None, &bytes);
        }
    }
}
