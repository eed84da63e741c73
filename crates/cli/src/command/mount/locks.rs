//! What a mount knows of the locks of its programs, which the daemon keeps: whether it does, and
//! which programs may have any. A program closes many files, and has locked few: only of these is
//! the daemon told.

use bytes::Bytes;
use rekindle_front::fuse::wire::{self, InHeader, LockAsk, Op, opcode};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};

/// The locks of a mount.
#[derive(Default)]
pub struct Locks {
    /// Whether the daemon keeps them, and not the kernel.
    are_shared: bool,
    /// Files, and owners that may have ranges of them locked.
    owners: HashSet<(u64, u64)>,
    /// Owners that have asked for ranges through an open file, by its handle. The kernel does not
    /// tell of those that are the open file itself (`F_OFD_SETLK`): they go with it.
    by_handle: HashMap<u64, HashSet<u64>>,
    /// The last handle that was given.
    last: u64,
}

fn op<'a>(header: &InHeader, request: &'a [u8]) -> Option<Op<'a>> {
    wire::op(header.opcode, request.get(wire::IN_HEADER_BYTES..)?).ok()
}

/// The handle that a request names: its first word.
fn handle(request: &[u8]) -> u64 {
    let word = request.get(wire::IN_HEADER_BYTES..).and_then(|body| body.first_chunk());
    word.map_or(0, |word| u64::from_ne_bytes(*word))
}

impl Locks {
    /// Whether the daemon keeps them.
    pub fn are_shared(&self) -> bool {
        self.are_shared
    }

    /// Takes note of a request of the kernel, and returns what is to be sent.
    pub fn asked(&mut self, header: &InHeader, request: Bytes) -> Bytes {
        match header.opcode {
            opcode::INIT => return wire::marked(&request).map_or(request, Bytes::from),
            opcode::SETLK | opcode::SETLKW => {
                // Also one whose reply will be lost.
                if let Some(Op::SetLock {
                    ask: LockAsk { owner, is_whole: false, unlocks: false, .. },
                    ..
                }) = op(header, &request)
                {
                    self.owners.insert((header.ino, owner));
                    self.by_handle.entry(handle(&request)).or_default().insert(owner);
                }
            }
            opcode::FLUSH => {
                // A process has closed the file, and may open it again before the handle goes.
                if let Some(Op::Flush { owner }) = op(header, &request) {
                    self.forget(owner);
                }
            }
            _ => {}
        }
        request
    }

    fn forget(&mut self, owner: u64) {
        self.by_handle.retain(|_, owners| {
            owners.remove(&owner);
            !owners.is_empty()
        });
    }

    /// Returns the owners whose locks go with a request: an open file is closed for good.
    pub fn released(&mut self, header: &InHeader, request: &[u8]) -> Vec<u64> {
        if header.opcode != opcode::RELEASE {
            return Vec::new();
        }
        self.by_handle.remove(&handle(request)).into_iter().flatten().collect()
    }

    /// Gives the next handle of an open file.
    pub fn next_handle(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Takes note of a reply.
    pub fn answered(&mut self, header: &InHeader, request: &[u8], error: i32, reply: &[u8]) {
        if !matches!(header.opcode, opcode::INIT | opcode::FLUSH) {
            return;
        }
        match op(header, request) {
            Some(Op::Init(..)) if error == 0 => self.are_shared = wire::shares_locks(reply),
            Some(Op::Flush { owner }) if error == 0 => {
                self.owners.remove(&(header.ino, owner));
            }
            _ => {}
        }
    }

    /// Whether the daemon is to hear of a request: not of a file that is closed without locks.
    pub fn needs(&self, header: &InHeader, request: &[u8]) -> bool {
        if header.opcode != opcode::FLUSH || !self.are_shared {
            return true;
        }
        match op(header, request) {
            Some(Op::Flush { owner }) => self.owners.contains(&(header.ino, owner)),
            _ => true,
        }
    }

    /// Whether a request asks for a lock.
    pub fn takes(header: &InHeader, request: &[u8]) -> bool {
        matches!(header.opcode, opcode::SETLK | opcode::SETLKW)
            && matches!(op(header, request), Some(Op::SetLock { ask, .. }) if !ask.unlocks)
    }

    /// Whether the daemon knows no locks. A program does not expect that of a file system.
    pub fn lacks(header: &InHeader, error: i32) -> bool {
        let is_lock = matches!(header.opcode, opcode::GETLK | opcode::SETLK | opcode::SETLKW);
        is_lock && error == -Errno::NOSYS.raw_os_error()
    }
}
