//! A page of a table: rows with ascending keys, in the content of a metadata chunk. The chunk's
//! name is its checksum, and its children are those of the rows, in the same order. Little-endian:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | magic `RKTP` |
//! | 4 | 2 | version: 1 |
//! | 6 | 2 | zero |
//! | 8 | 4 | number of rows |
//! | 12 | 4 | zero |
//! | 16 | 16 each | key (8), end of the row's bytes (4), end of its children (4) |
//! | .. | | the rows' bytes |
//!
//! A page is used as it lies in RAM.
//!
//! See also `docs/format/files.md`.

use super::Bad;
use rekindle_content::Pointer;
use std::ops::Range;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 4] = *b"RKTP";
pub(crate) const VERSION: u16 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    version: U16,
    zero: U16,
    count: U32,
    zeros: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    key: U64,
    end: U32,
    children_end: U32,
}

/// Bytes that a page takes for a row besides the row's own.
pub(crate) const ROW_BYTES: usize = size_of::<Head>();

/// A row: what its table says of a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Row {
    pub(crate) bytes: Vec<u8>,
    pub(crate) children: Vec<Pointer>,
}

impl Row {
    /// Bytes that the row takes in a page.
    pub(crate) fn cost(&self) -> usize {
        ROW_BYTES + self.bytes.len() + self.children.len() * rekindle_content::POINTER_BYTES
    }
}

/// Encodes rows: the content of the page, and its children.
pub(crate) fn encode(rows: &[(u64, Row)]) -> (Vec<u8>, Vec<Pointer>) {
    let count = u32::try_from(rows.len()).expect("a page is small");
    let header = Header {
        magic: MAGIC,
        version: VERSION.into(),
        zero: 0.into(),
        count: count.into(),
        zeros: 0.into(),
    };
    // Exactly: the cache keeps the buffer as it is, with all of its room.
    let bytes = rows.iter().map(|(_, row)| ROW_BYTES + row.bytes.len()).sum::<usize>();
    let mut content = Vec::with_capacity(size_of::<Header>() + bytes);
    content.extend_from_slice(header.as_bytes());
    let (mut end, mut children) = (0, Vec::new());
    for (key, row) in rows {
        end += row.bytes.len();
        children.extend_from_slice(&row.children);
        let number = |length: usize| U32::from(u32::try_from(length).expect("a page is small"));
        let (end, children_end) = (number(end), number(children.len()));
        content.extend_from_slice(Head { key: (*key).into(), end, children_end }.as_bytes());
    }
    rows.iter().for_each(|(_, row)| content.extend_from_slice(&row.bytes));
    (content, children)
}

/// A page in its content.
pub(crate) struct View<'a> {
    heads: &'a [Head],
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Looks at the content of a page. What its rows say is checked where they are read.
    pub(crate) fn of(content: &'a [u8]) -> Result<Self, Bad> {
        let (header, rest) =
            Header::ref_from_prefix(content).map_err(|_| Bad("a page is cut off"))?;
        if header.magic != MAGIC {
            return Err(Bad("it is no page of a table"));
        }
        if header.version.get() != VERSION {
            return Err(Bad("the page is of a newer version: upgrade rekindle"));
        }
        let (heads, bytes) =
            <[Head]>::ref_from_prefix_with_elems(rest, header.count.get() as usize)
                .map_err(|_| Bad("a page is cut off"))?;
        Ok(Self { heads, bytes })
    }

    pub(crate) fn count(&self) -> usize {
        self.heads.len()
    }

    pub(crate) fn key(&self, index: usize) -> u64 {
        self.heads[index].key.get()
    }

    /// Index of the first row whose key is not below `key`.
    pub(crate) fn lower_bound(&self, key: u64) -> usize {
        self.heads.partition_point(|head| head.key.get() < key)
    }

    /// The bytes of a row, and which of the page's children are its.
    pub(crate) fn row(&self, index: usize) -> Result<(&'a [u8], Range<usize>), Bad> {
        let begin = |end: fn(&Head) -> &U32| match index.checked_sub(1) {
            Some(before) => end(&self.heads[before]).get() as usize,
            None => 0,
        };
        let bytes = begin(|head| &head.end)..self.heads[index].end.get() as usize;
        let children =
            begin(|head| &head.children_end)..self.heads[index].children_end.get() as usize;
        let bytes = self.bytes.get(bytes).ok_or(Bad("a row is cut off"))?;
        if children.start > children.end {
            return Err(Bad("a row has children of another one"));
        }
        Ok((bytes, children))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_page_stays_as_it_is() {
        let text = format!("{}:32:100:4096:{}", "01".repeat(16), "ab".repeat(32));
        let row = Row { bytes: b"row".to_vec(), children: vec![text.parse().unwrap()] };
        let (content, _) = encode(&[(1, Row::default()), (1 << 60, row)]);
        crate::format::check_golden("page.bin", &content);
    }

    proptest! {
        #[test]
        fn rows_survive(lengths in proptest::collection::btree_map(any::<u64>(), (0usize..300, 0usize..3), 0..40)) {
            let pointer: Pointer = format!("{}:32:100:4096:{}", "01".repeat(16), "ab".repeat(32)).parse().unwrap();
            let row = |(bytes, children): &(usize, usize)| Row { bytes: vec![7; *bytes], children: vec![pointer; *children] };
            let rows: Vec<_> = lengths.iter().map(|(key, lengths)| (*key, row(lengths))).collect();
            let (content, children) = encode(&rows);
            prop_assert_eq!(content.capacity(), content.len());
            let view = View::of(&content).unwrap();
            prop_assert_eq!(view.count(), rows.len());
            for (index, (key, row)) in rows.iter().enumerate() {
                prop_assert_eq!(view.key(index), *key);
                prop_assert_eq!(view.lower_bound(*key), index);
                let (bytes, of) = view.row(index).unwrap();
                prop_assert_eq!(bytes, &row.bytes[..]);
                prop_assert_eq!(&children[of], &row.children[..]);
            }
        }

        #[test]
        fn any_bytes_are_a_page_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0u8..9, magic: bool) {
            if magic && bytes.len() > 12 {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..12].copy_from_slice(&[1, 0, 0, 0, count, 0, 0, 0]);
            }
            if let Ok(view) = View::of(&bytes) {
                (0..view.count()).for_each(|index| drop(view.row(index)));
            }
        }
    }
}
