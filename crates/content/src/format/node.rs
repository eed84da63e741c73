//! A tree node: the content of a metadata chunk whose declared children are the node's pointers,
//! one for each key. Little-endian:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | magic `RKND` |
//! | 4 | 4 | CRC-32C of bytes 8 to the end |
//! | 8 | 2 | version: 1 |
//! | 10 | 2 | level: 0 is a leaf |
//! | 12 | 4 | number of keys = number of children |
//! | 16 | 8 each | keys, ascending. Leaf: the entries' keys. Inner node: each child's first key |
//!
//! A node is used as it lies in RAM: a lookup searches the bytes, nothing is unpacked.
//!
//! See also `docs/format/tree.md`.

use super::{Bad, damaged};
use crate::pointer::{self, Encoded};
use crate::{POINTER_BYTES, Pointer, limits};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "tree node";
const MAGIC: [u8; 4] = *b"RKND";
pub(crate) const VERSION: u16 = 1;
const HEADER_BYTES: usize = 16;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 4],
    crc: U32,
    version: U16,
    level: U16,
    count: U32,
}
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

/// Bytes of the body of the largest node.
pub(crate) const fn bytes_max() -> usize {
    HEADER_BYTES + limits::NODE_ENTRIES_MAX * (POINTER_BYTES + size_of::<u64>())
}

/// A node in its body (encoded children, then content).
#[derive(Clone, Copy)]
pub struct View<'a> {
    level: u16,
    keys: &'a [U64],
    children: &'a [Encoded],
}

/// Encodes the body of a node: children, then content. `entries` are ascending.
#[must_use]
pub fn encode(level: u16, entries: &[(u64, Pointer)]) -> Vec<u8> {
    let mut body = Vec::with_capacity(entries.len() * (POINTER_BYTES + 8) + HEADER_BYTES);
    for (_, pointer) in entries {
        body.extend_from_slice(&pointer.encode());
    }
    let begin = body.len();
    let header = RawHeader {
        magic: MAGIC,
        version: VERSION.into(),
        level: level.into(),
        count: u32::try_from(entries.len()).unwrap_or(u32::MAX).into(),
        crc: U32::ZERO,
    };
    body.extend_from_slice(header.as_bytes());
    for (key, _) in entries {
        body.extend_from_slice(&key.to_le_bytes());
    }
    let crc = rekindle_base::checksum::crc32c(&body[begin + 8..]);
    body[begin + 4..begin + 8].copy_from_slice(&crc.to_le_bytes());
    body
}

/// Views a node whose bytes were checked when they came in: checks only what keeps every access in
/// bounds.
pub fn view(body: &[u8], children: u32) -> Result<View<'_>, Bad> {
    let split = children as usize * POINTER_BYTES;
    let (pointers, content) = body
        .split_at_checked(split)
        .ok_or_else(|| damaged(WHAT, "it is shorter than its children"))?;
    let (header, keys) =
        RawHeader::ref_from_prefix(content).map_err(|_| damaged(WHAT, "it is too short"))?;
    if header.magic != MAGIC {
        return Err(damaged(WHAT, "the magic number is wrong"));
    }
    if header.version.get() > VERSION {
        return Err(Bad::Newer { what: WHAT, found: header.version.get(), known: VERSION });
    }
    let keys = <[U64]>::ref_from_bytes(keys)
        .map_err(|_| damaged(WHAT, "it is no whole number of keys"))?;
    let pointers = pointer::encoded_slice(pointers)
        .ok_or_else(|| damaged(WHAT, "it is no whole number of children"))?;
    let count = header.count.get() as usize;
    if count != keys.len()
        || count != pointers.len()
        || count > limits::NODE_ENTRIES_MAX
        || count == 0
    {
        return Err(damaged(WHAT, "its lengths contradict one another"));
    }
    if header.level.get() > limits::TREE_LEVEL_MAX {
        return Err(damaged(WHAT, "its level is impossible"));
    }
    Ok(View { level: header.level.get(), keys, children: pointers })
}

/// Decodes a node from outside: everything is checked.
pub fn decode(body: &[u8], children: u32) -> Result<View<'_>, Bad> {
    let view = view(body, children)?;
    let content = &body[children as usize * POINTER_BYTES..];
    if content[4..8] != rekindle_base::checksum::crc32c(&content[8..]).to_le_bytes() {
        return Err(damaged(WHAT, "the checksum is wrong"));
    }
    if !view.keys.is_sorted_by(|a, b| a.get() < b.get()) {
        return Err(damaged(WHAT, "its keys are not in order"));
    }
    Ok(view)
}

impl View<'_> {
    /// 0 for a leaf.
    #[must_use]
    pub fn level(&self) -> u16 {
        self.level
    }

    /// Number of entries; never 0.
    #[must_use]
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// The key of entry `index`.
    #[must_use]
    pub fn key(&self, index: usize) -> u64 {
        self.keys[index].get()
    }

    /// The pointer of entry `index`.
    #[must_use]
    pub fn child(&self, index: usize) -> Pointer {
        (&self.children[index]).into()
    }

    /// The entry with exactly this key.
    #[must_use]
    pub fn find(&self, key: u64) -> Option<Pointer> {
        self.keys
            .binary_search_by(|probe| probe.get().cmp(&key))
            .ok()
            .map(|index| self.child(index))
    }

    /// Index of the first key that is not below `key`.
    #[must_use]
    pub fn lower_bound(&self, key: u64) -> usize {
        self.keys.partition_point(|probe| probe.get() < key)
    }

    /// The entry with the greatest key that is not above `key`.
    #[must_use]
    pub fn floor(&self, key: u64) -> Option<(u64, Pointer)> {
        let index = self.keys.partition_point(|probe| probe.get() <= key).checked_sub(1)?;
        Some((self.key(index), self.child(index)))
    }

    /// Index of the child that covers `key`: the last whose first key is not above it, or the first
    /// child.
    #[must_use]
    pub fn covering(&self, key: u64) -> usize {
        self.keys.partition_point(|probe| probe.get() <= key).saturating_sub(1)
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = (u64, Pointer)> {
        self.keys.iter().zip(self.children).map(|(key, child)| (key.get(), child.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rekindle_base::PackId;

    fn entry(key: u64) -> (u64, Pointer) {
        (
            key,
            Pointer {
                part: crate::Part::WHOLE,
                name: [key as u8; 32],
                pack: PackId([3; 16]),
                offset: 32,
                stored: 60,
                length: 70,
            },
        )
    }

    #[test]
    fn a_node_survives() {
        let entries = [entry(1), entry(5), entry(1 << 40)];
        let body = encode(2, &entries);
        let view = decode(&body, 3).unwrap();
        assert_eq!((view.level(), view.count()), (2, 3));
        assert_eq!(view.entries().collect::<Vec<_>>(), entries);
        assert_eq!(view.find(5), Some(entries[1].1));
        assert_eq!(view.find(4), None);
        assert_eq!([0, 1, 4, 5, 6, u64::MAX].map(|key| view.covering(key)), [0, 0, 0, 1, 1, 2]);
        assert_eq!([0, 1, 2, 5, 6, u64::MAX].map(|key| view.lower_bound(key)), [0, 0, 1, 1, 2, 3]);
        super::super::check_golden("node.bin", &body);
        assert!(decode(&body, 2).is_err());
        assert!(decode(&body, u32::MAX).is_err());
        for at in 3 * POINTER_BYTES..body.len() {
            let mut bad = body.clone();
            bad[at] ^= 1;
            assert!(decode(&bad, 3).is_err(), "{at}");
        }
    }

    #[test]
    fn keys_out_of_order_and_empty_nodes_are_refused() {
        assert!(decode(&encode(0, &[entry(5), entry(1)]), 2).is_err());
        assert!(decode(&encode(0, &[entry(5), entry(5)]), 2).is_err());
        assert!(decode(&encode(0, &[]), 0).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400), children in 0u32..6) {
            let _ = decode(&bytes, children);
        }
    }
}
