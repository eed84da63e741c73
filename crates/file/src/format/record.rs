//! The records of a file volume in the log. Little-endian.
//!
//! A record of kind 1 has the effects of one call, all of them or none: version 1 (1), and for each
//! effect a tag (1) and its fields, bytes behind their count (4):
//!
//! | tag | what | fields |
//! | --- | --- | --- |
//! | 1 | an inode is this | number (8), inode as in `inode.rs`, counted |
//! | 2 | an inode is gone | number (8) |
//! | 3 | a directory has a name | directory (8), position (8), inode (8), type (1), name |
//! | 4 | a directory has a name no more | directory (8), position (8) |
//! | 5 | an inode has an extended attribute | number (8), position (8), name, value |
//! | 6 | an inode has an extended attribute no more | number (8), position (8) |
//! | 7 | a range of a file reads as zeros | number (8), offset (8), length (8) |
//! | 8 | the volume has so many more | bytes (8), inodes (8), both signed |
//! | 9 | a request was carried out | client (8), request (8), oldest one (8) |
//! | 10 | a call of NFS was carried out | client (8), seconds since 1970 (8), hash (8) |
//! | 11 | a front keeps this of an inode | number (8), inodes more (8), bytes, counted |
//! | 12 | a front keeps nothing of an inode any more | number (8) |
//! | 13 | a range of a file is that of another | five numbers (8 each): see [`Effect::Copy`] |
//! | 14 | a file takes all pages of a range | number (8), offset (8), length (8) |
//!
//! Directory 0 has the files that have no name and are in use; their positions are their numbers.
//!
//! A record of kind 2 has bytes of a file: version 1 (1), zero (7), inode number (8), offset (8),
//! bytes that the volume has more (8), the inode afterwards (96), then the bytes, to its end.
//!
//! See also `docs/format/files.md`.

use super::Bad;
use super::inode::{INODE_BYTES, Inode};
use super::rows::{Named, Xattr, file_type};
use super::scribe::{Reader, Scribe};
use crate::types::{Call, FILE_BYTES_MAX, Ino, Origin};
use bytes::Bytes;
use rekindle_block::PAGE_BYTES;

/// The kind of a record with the effects of one call.
pub(crate) const EFFECTS: u64 = 1;
/// The kind of a record with bytes of a file.
pub(crate) const WRITE: u64 = 2;
/// Bytes of a record of kind [`WRITE`] before those of the file.
pub(crate) const WRITE_HEAD_BYTES: usize = 32 + INODE_BYTES;
pub(crate) const VERSION: u8 = 1;

/// One effect of a call: what is, and not what has changed. So it may be applied twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    Inode {
        ino: Ino,
        inode: Option<Inode>,
    },
    Name {
        dir: Ino,
        position: u64,
        named: Option<Named>,
    },
    Xattr {
        ino: Ino,
        position: u64,
        xattr: Option<Xattr>,
    },
    Zero {
        ino: Ino,
        offset: u64,
        length: u64,
    },
    /// All numbers are multiples of [`PAGE_BYTES`]. No record that the root lacks has changed the
    /// range of the other file, so the root may become newer before the copy is in it.
    Copy {
        ino: Ino,
        offset: u64,
        length: u64,
        from: Ino,
        at: u64,
    },
    /// The file takes all pages of the range, whatever they hold.
    Reserve {
        ino: Ino,
        offset: u64,
        length: u64,
    },
    More {
        bytes: i64,
        inodes: i64,
    },
    Done(Origin),
    Called(Call),
    /// What a front keeps of an inode: its clients' opens and locks.
    Kept {
        ino: Ino,
        is_new: bool,
        kept: Option<Bytes>,
    },
}

impl Effect {
    /// The inode that is gone with it.
    pub(crate) fn removed(&self) -> Option<Ino> {
        match self {
            Effect::Inode { ino, inode: None } => Some(*ino),
            _ => None,
        }
    }
}

/// Encodes the effects of a call.
pub(crate) fn encode(effects: &[Effect]) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    for effect in effects {
        let mut put = |tag: u8, numbers: &[u64]| {
            bytes.push(tag);
            numbers.iter().for_each(|number| bytes.put_u64(*number));
        };
        match effect {
            Effect::Inode { ino, inode: Some(inode) } => {
                put(1, &[*ino]);
                bytes.put_counted(&inode.encode(0));
            }
            Effect::Inode { ino, inode: None } => put(2, &[*ino]),
            Effect::Name { dir, position, named: Some(named) } => {
                put(3, &[*dir, *position, named.ino]);
                bytes.push(named.kind as u8);
                bytes.put_counted(&named.name);
            }
            Effect::Name { dir, position, named: None } => put(4, &[*dir, *position]),
            Effect::Xattr { ino, position, xattr: Some(xattr) } => {
                put(5, &[*ino, *position]);
                bytes.put_counted(&xattr.name);
                bytes.put_counted(&xattr.value);
            }
            Effect::Xattr { ino, position, xattr: None } => put(6, &[*ino, *position]),
            Effect::Zero { ino, offset, length } => put(7, &[*ino, *offset, *length]),
            Effect::More { bytes, inodes } => {
                put(8, &[bytes.cast_unsigned(), inodes.cast_unsigned()]);
            }
            Effect::Done(Origin { client, request, oldest }) => {
                put(9, &[*client, *request, *oldest]);
            }
            Effect::Called(Call { client, at, key }) => put(10, &[*client, *at, *key]),
            Effect::Kept { ino, is_new, kept: Some(kept) } => {
                put(11, &[*ino, u64::from(*is_new)]);
                bytes.put_counted(kept);
            }
            Effect::Kept { ino, is_new: _, kept: None } => put(12, &[*ino]),
            Effect::Copy { ino, offset, length, from, at } => {
                put(13, &[*ino, *offset, *length, *from, *at]);
            }
            Effect::Reserve { ino, offset, length } => put(14, &[*ino, *offset, *length]),
        }
    }
    bytes
}

/// Decodes the effects of a call.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Effect>, Bad> {
    let mut reader = Reader(bytes);
    check(reader.u8()?)?;
    let mut effects = Vec::new();
    while !reader.is_empty() {
        effects.push(effect(&mut reader)?);
    }
    Ok(effects)
}

fn check(version: u8) -> Result<(), Bad> {
    match version {
        VERSION => Ok(()),
        _ => Err(Bad("the record is of a newer version: upgrade rekindle")),
    }
}

fn effect(reader: &mut Reader<'_>) -> Result<Effect, Bad> {
    let counted = |reader: &mut Reader<'_>| reader.counted().map(Bytes::copy_from_slice);
    let tag = reader.u8()?;
    if tag == 8 {
        return Ok(Effect::More { bytes: reader.i64()?, inodes: reader.i64()? });
    }
    let ino = reader.u64()?;
    Ok(match tag {
        1 => Effect::Inode { ino, inode: Some(Inode::decode(reader.counted()?)?.0) },
        2 => Effect::Inode { ino, inode: None },
        3 => {
            let (position, to, kind) = (reader.u64()?, reader.u64()?, file_type(reader.u8()?)?);
            let named = Named { name: counted(reader)?, ino: to, kind };
            Effect::Name { dir: ino, position, named: Some(named) }
        }
        4 => Effect::Name { dir: ino, position: reader.u64()?, named: None },
        5 => {
            let position = reader.u64()?;
            let xattr = Xattr { name: counted(reader)?, value: counted(reader)? };
            Effect::Xattr { ino, position, xattr: Some(xattr) }
        }
        6 => Effect::Xattr { ino, position: reader.u64()?, xattr: None },
        7 => Effect::Zero { ino, offset: reader.u64()?, length: reader.u64()? },
        9 => {
            let (request, oldest) = (reader.u64()?, reader.u64()?);
            Effect::Done(Origin { client: ino, request, oldest })
        }
        10 => Effect::Called(Call { client: ino, at: reader.u64()?, key: reader.u64()? }),
        11 => {
            let is_new = reader.u64()? != 0;
            Effect::Kept { ino, is_new, kept: Some(counted(reader)?) }
        }
        12 => Effect::Kept { ino, is_new: false, kept: None },
        13 => copy(ino, reader)?,
        14 => Effect::Reserve { ino, offset: reader.u64()?, length: reader.u64()? },
        _ => return Err(Bad("the record has an unknown effect: upgrade rekindle")),
    })
}

fn copy(ino: Ino, reader: &mut Reader<'_>) -> Result<Effect, Bad> {
    let [offset, length, from, at] = [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
    let ends = [offset, at].map(|begin| begin.checked_add(length));
    let fits = ends.iter().all(|end| end.is_some_and(|end| end <= FILE_BYTES_MAX));
    if !fits || [offset, length, at].iter().any(|bytes| !bytes.is_multiple_of(PAGE_BYTES)) {
        return Err(Bad("the record copies a range that no file has"));
    }
    Ok(Effect::Copy { ino, offset, length, from, at })
}

/// The head of a record with bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WriteHead {
    pub(crate) ino: Ino,
    pub(crate) offset: u64,
    /// Bytes that the volume has more.
    pub(crate) more: i64,
    /// The inode afterwards; it has no target.
    pub(crate) inode: Inode,
}

impl WriteHead {
    /// Begins a record; the file's bytes follow.
    pub(crate) fn encode(&self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(WRITE_HEAD_BYTES + length);
        bytes.extend_from_slice(&[VERSION, 0, 0, 0, 0, 0, 0, 0]);
        [self.ino, self.offset, self.more.cast_unsigned()]
            .iter()
            .for_each(|number| bytes.put_u64(*number));
        bytes.extend_from_slice(&self.inode.encode(0));
        debug_assert_eq!(bytes.len(), WRITE_HEAD_BYTES);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Bad> {
        let mut reader = Reader(bytes);
        check(reader.u8()?)?;
        reader.take(7)?;
        let (ino, offset, more) = (reader.u64()?, reader.u64()?, reader.i64()?);
        let inode = Inode::decode(reader.take(INODE_BYTES)?)?.0;
        Ok(Self { ino, offset, more, inode })
    }
}

#[cfg(test)]
mod tests;
