//! The head of a tally: which roots and notes are counted, and which files hold the counts.
//! Little-endian.
//!
//! Header, 48 bytes:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKTALLY` 0 |
//! | 8 | 4 | CRC-32C of bytes 12 to the end |
//! | 12 | 2 | version: 1 |
//! | 14 | 2 | reserved: 0 |
//! | 16 | 16 | fingerprint of the store |
//! | 32 | 8 | bytes behind the header |
//! | 40 | 8 | reserved: 0 |
//!
//! Behind it, one after another:
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | when everything was counted anew last, microseconds since 1970 |
//! | 8 | the moment of the aging clock by which roots were left out |
//! | 8 | how often places are named, in all |
//! | 8 | number of the next file |
//! | 4 + n * 16 | files, the oldest first: number (8), length (8) |
//! | 4 + n * 33 | nodes: id (16), start (8), 1 if that is over (1), last counted write (8) |
//! | 4 + n * 49 | notes: the pack (16), tag (17), hash of the note (16) |
//! | 4 + n * 64 | roots that were in no record: pointers |
//! | 4 + ... | sources: id (16), tag (17), roots (4 + n * 72) |
//!
//! Before each list is its length (4). A root of a source: until when it is kept, microseconds
//! since 1970 (8; all ones: for ever), and the pointer (64). A tag is a byte, 1 where there is one,
//! and the tag or zeros. See also `docs/format/tally.md`.

use super::counts::VERSION;
use super::{Bad, damaged};
use crate::sweep::sources::{KeptRoot, Source, SourceId, Sources};
use crate::{POINTER_BYTES, Pointer};
use rekindle_base::checksum::crc32c;
use rekindle_base::{Incarnation, NodeId, PackId};
use rekindle_datastore::Tag;
use rekindle_env::Timestamp;
use std::collections::BTreeMap;

const WHAT: &str = "head of the tally";
const MAGIC: [u8; 8] = *b"RKTALLY\0";
const HEADER_BYTES: usize = 48;

/// A file of counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOfCounts {
    /// Its number.
    pub number: u64,
    /// Its length, bytes.
    pub length: u64,
}

/// The writes of a node that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// The start of the node.
    pub incarnation: Incarnation,
    /// The number of its last write that is counted; `None`: the start is over, and all its writes
    /// are.
    pub upto: Option<u64>,
}

/// A note as it was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// The tag that the note had in a list; `None` without one.
    pub tag: Option<Tag>,
    /// The hash of its content.
    pub hash: [u8; 16],
}

/// The head of a tally.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    /// When everything was counted anew last.
    pub counted: Timestamp,
    /// How often places are named, in all.
    pub edges: u64,
    /// The number of the next file.
    pub next: u64,
    /// The files, the oldest first.
    pub files: Vec<FileOfCounts>,
    /// The nodes whose writes are counted.
    pub heard: BTreeMap<NodeId, Heard>,
    /// The packs whose notes are counted.
    pub notes: BTreeMap<PackId, Note>,
    /// The roots that are counted.
    pub sources: Sources,
}

/// Encodes a head.
#[must_use]
pub fn encode(head: &Head, store: [u8; 16]) -> Vec<u8> {
    let mut out = vec![0; HEADER_BYTES];
    let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes();
    let tag_of = |tag: &Option<Tag>| {
        let mut bytes = [0; 17];
        if let Some(tag) = tag {
            bytes[0] = 1;
            bytes[1..].copy_from_slice(&tag.0);
        }
        bytes
    };
    let numbers = [head.counted.0, head.sources.aged.0, head.edges, head.next];
    numbers.iter().for_each(|number| put(&number.to_le_bytes()));
    put(&count(head.files.len()));
    for file in &head.files {
        put(&file.number.to_le_bytes());
        put(&file.length.to_le_bytes());
    }
    put(&count(head.heard.len()));
    for (node, heard) in &head.heard {
        put(&node.0);
        put(&heard.incarnation.0.to_le_bytes());
        put(&[u8::from(heard.upto.is_none())]);
        put(&heard.upto.unwrap_or_default().to_le_bytes());
    }
    put(&count(head.notes.len()));
    for (pack, note) in &head.notes {
        put(&pack.0);
        put(&tag_of(&note.tag));
        put(&note.hash);
    }
    put(&count(head.sources.live.len()));
    head.sources.live.iter().for_each(|root| put(&root.encode()));
    put(&count(head.sources.records.len()));
    for (id, source) in &head.sources.records {
        put(&id.0);
        put(&tag_of(&source.tag));
        put(&count(source.roots.len()));
        for KeptRoot { root, until } in &source.roots {
            put(&until.map_or(u64::MAX, |until| until.0).to_le_bytes());
            put(&root.encode());
        }
    }
    let length = (out.len() - HEADER_BYTES) as u64;
    out[..8].copy_from_slice(&MAGIC);
    out[12..14].copy_from_slice(&VERSION.to_le_bytes());
    out[16..32].copy_from_slice(&store);
    out[32..40].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c(&out[12..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Decodes a head of this store.
pub fn decode(bytes: &[u8], store: [u8; 16]) -> Result<Head, Bad> {
    let header = bytes.get(..HEADER_BYTES).ok_or_else(|| damaged(WHAT, "it is too short"))?;
    if header[..8] != MAGIC || header[8..12] != crc32c(&bytes[12..]).to_le_bytes() {
        return Err(damaged(WHAT, "its checksum is wrong"));
    }
    let version = u16::from_le_bytes([header[12], header[13]]);
    if version > VERSION {
        return Err(Bad::Newer { what: WHAT, found: version, known: VERSION });
    }
    if header[16..32] != store {
        return Err(damaged(WHAT, "it is that of another store"));
    }
    let mut rest = Rest(&bytes[HEADER_BYTES..]);
    let head = rest.head().filter(|_| rest.0.is_empty());
    head.ok_or_else(|| damaged(WHAT, "its lengths contradict one another"))
}

/// The bytes that are left to decode.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn head(&mut self) -> Option<Head> {
        let (counted, aged) = (Timestamp(self.number()?), Timestamp(self.number()?));
        let (edges, next) = (self.number()?, self.number()?);
        let files = self
            .list(|rest| Some(FileOfCounts { number: rest.number()?, length: rest.number()? }))?;
        let heard = self.list(|rest| {
            let (node, incarnation) = (NodeId(rest.take()?), Incarnation(rest.number()?));
            let ([is_over], upto) = (rest.take()?, rest.number()?);
            Some((node, Heard { incarnation, upto: (is_over == 0).then_some(upto) }))
        })?;
        let notes = self.list(|rest| {
            Some((PackId(rest.take()?), Note { tag: rest.tag()?, hash: rest.take()? }))
        })?;
        let live = self.list(Self::pointer)?;
        let records = self.list(|rest| {
            let (id, tag) = (SourceId(rest.take()?), rest.tag()?);
            let roots = rest.list(|rest| {
                let until = Some(rest.number()?).filter(|until| *until < u64::MAX);
                Some(KeptRoot { root: rest.pointer()?, until: until.map(Timestamp) })
            })?;
            Some((id, Source { tag, roots }))
        })?;
        Some(Head {
            counted,
            edges,
            next,
            files,
            heard: heard.into_iter().collect(),
            notes: notes.into_iter().collect(),
            sources: Sources { records: records.into_iter().collect(), live, aged },
        })
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn tag(&mut self) -> Option<Option<Tag>> {
        let ([is_there], tag) = (self.take()?, self.take()?);
        Some((is_there == 1).then_some(Tag(tag)))
    }

    fn pointer(&mut self) -> Option<Pointer> {
        self.take::<POINTER_BYTES>().map(|bytes| Pointer::decode(&bytes))
    }

    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.take().map(u32::from_le_bytes)?;
        // No entry is shorter than 16 bytes: a wrong count takes no memory.
        let mut list = Vec::with_capacity((count as usize).min(self.0.len() / 16));
        for _ in 0..count {
            list.push(one(self)?);
        }
        Some(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;
    use proptest::prelude::*;

    fn some() -> Head {
        let root = |i: u8| Pointer {
            name: [i; 32],
            pack: PackId([9; 16]),
            offset: 32,
            stored: 60,
            length: 70,
            part: Part::WHOLE,
        };
        let kept = |i, until: Option<u64>| KeptRoot { root: root(i), until: until.map(Timestamp) };
        let source =
            Source { tag: Some(Tag([6; 16])), roots: vec![kept(1, None), kept(2, Some(3))] };
        Head {
            counted: Timestamp(6),
            edges: 7,
            next: 8,
            files: vec![FileOfCounts { number: 4, length: 1000 }],
            heard: [
                (NodeId([1; 16]), Heard { incarnation: Incarnation(3), upto: Some(9) }),
                (NodeId([2; 16]), Heard { incarnation: Incarnation(4), upto: None }),
            ]
            .into(),
            notes: [
                (PackId([3; 16]), Note { tag: None, hash: [1; 16] }),
                (PackId([4; 16]), Note { tag: Some(Tag([2; 16])), hash: [2; 16] }),
            ]
            .into(),
            sources: Sources {
                records: [(SourceId([1; 16]), source), (SourceId([2; 16]), Source::default())]
                    .into(),
                live: vec![root(3)],
                aged: Timestamp(10),
            },
        }
    }

    #[test]
    fn a_head_survives() {
        let bytes = encode(&some(), [7; 16]);
        assert_eq!(decode(&bytes, [7; 16]), Ok(some()));
        super::super::check_golden("tally.bin", &bytes);
        assert!(decode(&bytes, [8; 16]).is_err(), "another store");
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(decode(&bad, [7; 16]).is_err(), "{at}");
            assert!(decode(&bytes[..at], [7; 16]).is_err(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes, [0; 16]);
            let mut sealed = encode(&Head::default(), [0; 16]);
            sealed.truncate(HEADER_BYTES);
            sealed.extend(bytes);
            let crc = crc32c(&sealed[12..]);
            sealed[8..12].copy_from_slice(&crc.to_le_bytes());
            let _ = decode(&sealed, [0; 16]);
        }
    }
}
