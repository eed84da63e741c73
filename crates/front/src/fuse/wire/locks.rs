//! The words about locks: what the kernel asks of them, and how a mount says that it knows of them.

use super::{
    Body, IN_HEADER_BYTES, InitOut, KNOWS_ACLS, Knows, OUT_HEADER_BYTES, Op, OutHeader, header,
    init, opcode,
};
use crate::held::ranges::Span;
use rekindle_file::Errno;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a mount puts into the last word of INIT, which the kernel leaves free: it passes INTERRUPT
/// on for locks that are waited for, and answers a FLUSH of an owner without locks by itself.
pub const KNOWS_LOCKS: u32 = 0x524b_0002;
/// Bytes of an INIT behind its header, and where its last words are.
const INIT_BYTES: usize = 64;
const INIT_MARK: usize = INIT_BYTES - 4;
const INIT_MARK_OF_ACLS: usize = INIT_BYTES - 8;

const NOTIFY_INVAL_INODE: i32 = 2;
const LOCK_WHOLE: u32 = 1 << 0;
const RELEASE_UNLOCKS: u32 = 1 << 1;
const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;

/// A lock: the type is one of fcntl(2), and both bytes are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LockOut {
    pub start: u64,
    pub end: u64,
    pub kind: u32,
    pub process: u32,
}

/// A notice to the kernel: bytes of an inode are not as it has them; before the first one, only the
/// attributes are not.
#[derive(IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct InvalInode {
    ino: u64,
    offset: i64,
    length: i64,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct LockIn {
    _fh: u64,
    owner: u64,
    lock: LockOut,
    flags: u32,
    _padding: u32,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FlushIn {
    _fh: u64,
    _unused: u64,
    owner: u64,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ReleaseIn {
    _fh: u64,
    _open_flags: u32,
    flags: u32,
    owner: u64,
}

/// A lock that is asked for, given back, or asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockAsk {
    pub owner: u64,
    /// The process that asks.
    pub process: u32,
    /// Whether it is that of `flock`.
    pub is_whole: bool,
    /// The range, and whether the lock is for writing.
    pub span: Span,
    /// Whether it is given back.
    pub unlocks: bool,
}

impl LockOut {
    /// The lock that hinders one; none: it could be had.
    #[must_use]
    pub fn of(found: Option<(Span, u32)>) -> Self {
        let Some((Span { start, end, exclusive }, process)) = found else {
            return Self { start: 0, end: 0, kind: F_UNLCK, process: 0 };
        };
        let kind = if exclusive { F_WRLCK } else { F_RDLCK };
        Self { start, end: (end - 1).min(i64::MAX as u64), kind, process }
    }
}

/// Returns the word at a place.
pub(super) fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::read_from_prefix(bytes.get(at..)?).ok()?.0)
}

/// Marks an INIT as that of a mount that knows of locks and of access control lists. A daemon that
/// does not look for a mark passes over it.
#[must_use]
pub fn marked(init: &[u8]) -> Option<Vec<u8>> {
    let mut header = header(init)?;
    let mut body = init.get(IN_HEADER_BYTES..)?.to_vec();
    body.resize(body.len().max(INIT_BYTES), 0);
    body[INIT_MARK..INIT_BYTES].copy_from_slice(&KNOWS_LOCKS.to_ne_bytes());
    body[INIT_MARK_OF_ACLS..INIT_MARK].copy_from_slice(&KNOWS_ACLS.to_ne_bytes());
    header.length = (IN_HEADER_BYTES + body.len()) as u32;
    Some([header.as_bytes(), &body].concat())
}

/// Tells the kernel that it is to ask for the attributes of an inode anew. Its pages stay until
/// these have changed.
#[must_use]
pub fn attributes_are_old(ino: u64) -> Vec<u8> {
    let error = NOTIFY_INVAL_INODE;
    let body = InvalInode { ino, offset: -1, length: 0 };
    let length = (OUT_HEADER_BYTES + size_of::<InvalInode>()) as u32;
    [OutHeader { length, error, unique: 0 }.as_bytes(), body.as_bytes()].concat()
}

/// Whether the reply to an INIT leaves locks to the server.
#[must_use]
pub fn shares_locks(init_reply: &[u8]) -> bool {
    let flags = word_at(init_reply, OUT_HEADER_BYTES + offset_of!(InitOut, flags));
    flags.is_some_and(|flags| flags & init::POSIX_LOCKS != 0)
}

impl<'a> Body<'a> {
    pub(super) fn lock(&mut self, opcode: u32) -> Result<Op<'a>, Errno> {
        let LockIn { owner, lock, flags, .. } = self.take()?;
        let LockOut { start, end, kind, process } = lock;
        let (unlocks, exclusive) = match kind {
            F_RDLCK => (false, false),
            F_WRLCK => (false, true),
            F_UNLCK => (true, false),
            _ => return Err(Errno::INVAL),
        };
        // To the greatest offset, or further: as far as the file may go.
        let end = if end >= i64::MAX as u64 { u64::MAX } else { end + 1 };
        if start >= end {
            return Err(Errno::INVAL);
        }
        let span = Span { start, end, exclusive };
        let is_whole = flags & LOCK_WHOLE != 0;
        let ask = LockAsk { owner, process, is_whole, span, unlocks };
        Ok(match opcode {
            opcode::GETLK => Op::TestLock(ask),
            _ => Op::SetLock { ask, waits: opcode == opcode::SETLKW },
        })
    }

    pub(super) fn release(&mut self) -> Result<Op<'a>, Errno> {
        let ReleaseIn { flags, owner, .. } = self.take()?;
        Ok(Op::Release { unlocks: (flags & RELEASE_UNLOCKS != 0).then_some(owner) })
    }

    pub(super) fn flush(&mut self) -> Result<Op<'a>, Errno> {
        Ok(Op::Flush { owner: self.take::<FlushIn>()?.owner })
    }

    pub(super) fn init(&mut self) -> Result<Op<'a>, Errno> {
        let locks = word_at(self.0, INIT_MARK) == Some(KNOWS_LOCKS);
        let acls = word_at(self.0, INIT_MARK_OF_ACLS) == Some(KNOWS_ACLS);
        Ok(Op::Init(self.take()?, Knows { locks, acls }))
    }
}
