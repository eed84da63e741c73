//! An inode, in 96 bytes and the target of a symlink behind them. Little-endian:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 1 | type: 1 regular, 2 directory, 3 symlink, 4 FIFO, 5 socket, 6 and 7 devices |
//! | 1 | 1 | in a row: its children, see [`crate::state::Stored`] |
//! | 2 | 2 | mode: 12 bits |
//! | 4 | 4 | names |
//! | 8 | 4 | uid |
//! | 12 | 4 | gid |
//! | 16 | 4 | device number |
//! | 20 | 4 | of a regular file: pages that it takes beyond its size, at most |
//! | 24 | 8 | size: bytes; of a directory, its entries |
//! | 32 | 8 | bytes that the content takes |
//! | 40 | 8 | of a directory: the one that holds it |
//! | 48 | 12 each | accessed, modified, changed, created: seconds (8), nanoseconds (4) |
//!
//! See also `docs/format/files.md`.

use super::Bad;
use crate::types::{Attr, FileType, Ino, Time};
use bytes::Bytes;
use rekindle_block::PAGE_BYTES;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an inode without a target.
pub(crate) const INODE_BYTES: usize = 96;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawTime {
    seconds: I64,
    nanoseconds: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    kind: u8,
    flags: u8,
    mode: U16,
    links: U32,
    uid: U32,
    gid: U32,
    device: U32,
    beyond: U32,
    size: U64,
    allocated: U64,
    parent: U64,
    times: [RawTime; 4],
}
const _: () = assert!(size_of::<Raw>() == INODE_BYTES);

/// An inode without what its number leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) kind: FileType,
    pub(crate) mode: u16,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: u32,
    /// Bytes; of a directory, its entries.
    pub(crate) size: u64,
    pub(crate) allocated: u64,
    /// Of a regular file: no more pages than these are taken beyond its size; `u32::MAX`: any
    /// number may be.
    pub(crate) beyond: u32,
    /// Of a directory: the one that holds it.
    pub(crate) parent: Ino,
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    pub(crate) created: Time,
    /// Of a symlink.
    pub(crate) target: Bytes,
}

impl Inode {
    /// Encodes the inode; `flags` say which children its row has.
    pub(crate) fn encode(&self, flags: u8) -> Vec<u8> {
        let times = [self.accessed, self.modified, self.changed, self.created];
        let raw = Raw {
            kind: self.kind as u8,
            flags,
            mode: self.mode.into(),
            links: self.links.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            device: self.device.into(),
            beyond: self.beyond.into(),
            size: self.size.into(),
            allocated: self.allocated.into(),
            parent: self.parent.into(),
            times: times.map(|time| RawTime {
                seconds: time.seconds.into(),
                nanoseconds: time.nanoseconds.into(),
            }),
        };
        [raw.as_bytes(), &self.target].concat()
    }

    /// Decodes an inode and its flags.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, u8), Bad> {
        let (raw, target) = Raw::ref_from_prefix(bytes).map_err(|_| Bad("an inode is cut off"))?;
        let kind = FileType::ALL.into_iter().find(|kind| *kind as u8 == raw.kind);
        let kind = kind.ok_or(Bad("an inode has no known type"))?;
        let [accessed, modified, changed, created] = raw.times.map(|time| Time {
            seconds: time.seconds.get(),
            nanoseconds: time.nanoseconds.get().min(999_999_999),
        });
        let inode = Self {
            kind,
            mode: raw.mode.get() & 0o7777,
            links: raw.links.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            device: raw.device.get(),
            size: raw.size.get(),
            allocated: raw.allocated.get(),
            beyond: raw.beyond.get(),
            parent: raw.parent.get(),
            accessed,
            modified,
            changed,
            created,
            target: Bytes::copy_from_slice(target),
        };
        Ok((inode, raw.flags))
    }

    /// Has a file have no fewer bytes than these.
    pub(crate) fn grow(&mut self, size: u64) {
        let pages = |bytes: u64| bytes.div_ceil(PAGE_BYTES);
        let more = pages(size).saturating_sub(pages(self.size));
        self.size = self.size.max(size);
        if self.beyond != u32::MAX {
            self.beyond = self.beyond.saturating_sub(u32::try_from(more).unwrap_or(u32::MAX));
        }
    }

    /// Has a file take pages up to this one, beyond its size.
    pub(crate) fn reach(&mut self, end: u64) {
        let beyond = end.saturating_sub(self.size.div_ceil(PAGE_BYTES));
        self.beyond = self.beyond.max(u32::try_from(beyond).unwrap_or(u32::MAX));
    }

    /// Counts that a file takes so many pages more, or fewer: it may have had some of them. Returns
    /// how many bytes it takes more.
    pub(crate) fn take(&mut self, pages: u64) -> i64 {
        let after = self.allocated.saturating_add(pages * PAGE_BYTES);
        self.settle(after.min(self.allocated.max(self.most())))
    }

    /// Counts that a file takes so many pages less, or more of them.
    pub(crate) fn give_back(&mut self, pages: u64) -> i64 {
        self.settle(self.allocated.saturating_sub(pages * PAGE_BYTES).min(self.most()))
    }

    /// Most bytes that the file may take.
    fn most(&self) -> u64 {
        match self.beyond {
            u32::MAX => u64::MAX,
            beyond => (self.size.div_ceil(PAGE_BYTES) + u64::from(beyond)) * PAGE_BYTES,
        }
    }

    fn settle(&mut self, allocated: u64) -> i64 {
        let before = std::mem::replace(&mut self.allocated, allocated);
        allocated.cast_signed() - before.cast_signed()
    }

    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        Attr {
            ino,
            kind: self.kind,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            device: self.device,
            size: self.size,
            allocated: self.allocated,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            created: self.created,
        }
    }
}
