//! The bytes of what is held of a file. Little-endian.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | magic `RKH4` |
//! | 4 | 2 | version: 1, or 2 if mounts have locks |
//! | 6 | 2 | zero |
//! | 8 | 16 | the volume's id |
//! | 24 | 4 | number of opens |
//! | 28 | 4 | number of owners with locks |
//!
//! For each open follow its number (8), the client (8), the machine (8), the sequence (4), access
//! (1), denied to others (1), bytes of the owner's name (2), the name. Then, for each owner of
//! locks: its number (8), the client (8), the number of its open (8), the sequence (4), ranges (4),
//! bytes of the owner's name (2), zero (2), the name, and for each range its first byte (8), the
//! byte behind it (8), whether it is a write lock (1), zero (7).
//!
//! In version 2 the number of owners at mounts follows (4), zero (4), and for each of them: the
//! mount (8), the owner (8), the process (4), whether it is `flock` (1), zero (3), ranges (4), zero
//! (4), and the ranges as above.
//!
//! The record of the log and the chunk of the table that have it carry a checksum. A volume that is
//! a clone has what is held of the original, under the original's id: it is nothing there.
//!
//! See also `docs/format/nfs.md`.

use super::ranges::Span;
use super::{BOTH, Held, Holder, Locks, MountLocks, Open, limits};
use rekindle_base::VolumeId;

const MAGIC: [u8; 4] = *b"RKH4";
/// The version, without locks of mounts: an older binary reads that.
const VERSION: u16 = 1;
const VERSION_MOUNTS: u16 = 2;

/// Bytes that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("what clients hold of a file cannot be read: {0}")]
pub struct Bad(&'static str);

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Bad("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        self.take(N)?.try_into().map_err(|_| Bad("it ends too early"))
    }

    fn u16(&mut self) -> Result<u16, Bad> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Bad> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Bad> {
        self.array().map(u64::from_le_bytes)
    }

    fn count(&mut self) -> Result<u32, Bad> {
        let count = self.u32()?;
        let most = limits::HELD_MAX.max(limits::SPANS_MAX) as u32 + 1;
        if count > most { Err(Bad("it has more than any client may hold")) } else { Ok(count) }
    }
}

impl Held {
    /// Encodes it; `None`: nothing is held.
    pub fn encode(&self, volume: VolumeId) -> Option<Vec<u8>> {
        if self.is_empty() {
            return None;
        }
        let count = |length: usize| u32::try_from(length).expect("it is bounded").to_le_bytes();
        let name = |length: usize| u16::try_from(length).expect("names are short").to_le_bytes();
        let mut bytes = MAGIC.to_vec();
        let version = if self.mounts.is_empty() { VERSION } else { VERSION_MOUNTS };
        bytes.extend(version.to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(volume.0);
        bytes.extend(count(self.opens.len()));
        bytes.extend(count(self.locks.len()));
        for Open { id, seqid, holder, owner, access, deny } in &self.opens {
            [*id, holder.client, holder.machine].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
            bytes.extend(seqid.to_le_bytes());
            bytes.extend([*access, *deny]);
            bytes.extend(name(owner.len()));
            bytes.extend(owner);
        }
        for Locks { id, seqid, client, owner, open, spans } in &self.locks {
            [*id, *client, *open].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
            bytes.extend(seqid.to_le_bytes());
            bytes.extend(count(spans.len()));
            bytes.extend(name(owner.len()));
            bytes.extend([0; 2]);
            bytes.extend(owner);
            put_spans(&mut bytes, spans);
        }
        if version == VERSION_MOUNTS {
            bytes.extend(count(self.mounts.len()));
            bytes.extend([0; 4]);
        }
        for MountLocks { mount, owner, process, is_whole, spans } in &self.mounts {
            [*mount, *owner].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
            bytes.extend(process.to_le_bytes());
            bytes.extend([u8::from(*is_whole), 0, 0, 0]);
            bytes.extend(count(spans.len()));
            bytes.extend([0; 4]);
            put_spans(&mut bytes, spans);
        }
        Some(bytes)
    }

    /// Decodes what is held of a file of this volume.
    pub fn decode(bytes: Option<&[u8]>, volume: VolumeId) -> Result<Self, Bad> {
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        let mut reader = Reader(bytes);
        if reader.array()? != MAGIC {
            return Err(Bad("it begins with other bytes"));
        }
        let version = reader.u16()?;
        if version > VERSION_MOUNTS {
            return Err(Bad("it is of a newer version: upgrade rekindle"));
        }
        reader.take(2)?;
        if reader.array()? != volume.0 {
            return Ok(Self::default());
        }
        let (opens, locks) = (reader.count()?, reader.count()?);
        let opens = (0..opens).map(|_| open(&mut reader)).collect::<Result<Vec<_>, _>>()?;
        let locks = (0..locks).map(|_| locks_of(&mut reader)).collect::<Result<Vec<_>, _>>()?;
        let mut mounts = Vec::new();
        if version == VERSION_MOUNTS {
            let count = reader.count()?;
            reader.take(4)?;
            for _ in 0..count {
                mounts.push(mount_locks(&mut reader)?);
            }
        }
        match reader.0 {
            [] => Ok(Self { opens, locks, mounts }),
            _ => Err(Bad("it goes on behind its end")),
        }
    }
}

fn open(reader: &mut Reader<'_>) -> Result<Open, Bad> {
    let (id, client, machine) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let (seqid, [access, deny]) = (reader.u32()?, reader.array()?);
    if access == 0 || access > BOTH || deny > BOTH {
        return Err(Bad("an open has no access that there is"));
    }
    let length = reader.u16()?;
    let owner = reader.take(length.into())?.to_vec();
    Ok(Open { id, seqid, holder: Holder { client, machine }, owner, access, deny })
}

fn locks_of(reader: &mut Reader<'_>) -> Result<Locks, Bad> {
    let (id, client, open) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let (seqid, count, length) = (reader.u32()?, reader.count()?, reader.u16()?);
    reader.take(2)?;
    let owner = reader.take(length.into())?.to_vec();
    let spans = spans_of(reader, count)?;
    Ok(Locks { id, seqid, client, owner, open, spans })
}

fn mount_locks(reader: &mut Reader<'_>) -> Result<MountLocks, Bad> {
    let (mount, owner, process) = (reader.u64()?, reader.u64()?, reader.u32()?);
    let ([is_whole, ..], count) = (reader.array::<4>()?, reader.count()?);
    reader.take(4)?;
    if is_whole > 1 {
        return Err(Bad("a mount has a lock of no kind"));
    }
    let spans = spans_of(reader, count)?;
    Ok(MountLocks { mount, owner, process, is_whole: is_whole == 1, spans })
}

fn put_spans(bytes: &mut Vec<u8>, spans: &[Span]) {
    for Span { start, end, exclusive } in spans {
        bytes.extend(start.to_le_bytes());
        bytes.extend(end.to_le_bytes());
        bytes.extend([u8::from(*exclusive), 0, 0, 0, 0, 0, 0, 0]);
    }
}

fn spans_of(reader: &mut Reader<'_>, count: u32) -> Result<Vec<Span>, Bad> {
    let mut spans: Vec<Span> = Vec::new();
    for _ in 0..count {
        let (start, end, [exclusive, ..]) = (reader.u64()?, reader.u64()?, reader.array::<8>()?);
        let is_behind = spans.last().is_none_or(|last| last.end <= start);
        if start >= end || !is_behind || exclusive > 1 {
            return Err(Bad("a lock has no range"));
        }
        spans.push(Span { start, end, exclusive: exclusive == 1 });
    }
    Ok(spans)
}
