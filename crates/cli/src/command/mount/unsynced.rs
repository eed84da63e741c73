//! What a mount was told and has not synced, once the memory that had it is lost: the next sync of
//! it is an error, as after a disk's failed write.
//!
//! The daemon names the memory at the beginning of each connection. A killed daemon leaves it to
//! the next one, so nothing is lost as a rule; but its file may have been removed meanwhile.

use rekindle_front::fuse::wire::{InHeader, Memory, opcode};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time for which programs may come to sync folders whose names are lost.
const FOLDERS_DOUBTED: Duration = Duration::from_secs(60);

/// The memory, and what was lost with it.
#[derive(Default)]
pub struct Unsynced {
    memory: Option<Memory>,
    /// Inodes that were open when the memory was lost, and were not synced since.
    files: BTreeSet<u64>,
    lost: Option<Loss>,
}

/// A loss of the memory.
struct Loss {
    at: Instant,
    /// Folders whose sync has said so.
    folders: BTreeSet<u64>,
    /// Whether a sync of all has.
    is_told: bool,
}

impl Unsynced {
    /// Takes the memory of a new connection; `opens`: the inodes that are open. At another node the
    /// volume came there in good order, or with copies: changes were durable before their replies.
    pub fn told(&mut self, memory: Option<Memory>, opens: impl Iterator<Item = u64>, now: Instant) {
        let Some(memory) = memory else { return };
        let before = self.memory.replace(memory);
        if before.is_some_and(|one| one.node == memory.node && one.since != memory.since) {
            self.files.extend(opens);
            self.lost = Some(Loss { at: now, folders: BTreeSet::new(), is_told: false });
        }
    }

    /// Whether a sync that the daemon has done must fail, since what it was to make durable may be
    /// lost. Each file, folder and mount once.
    pub fn is_lost(&mut self, header: &InHeader, now: Instant) -> bool {
        match (header.opcode, &mut self.lost) {
            (opcode::FSYNC, _) => self.files.remove(&header.ino),
            (opcode::FSYNCDIR, Some(loss)) if now < loss.at + FOLDERS_DOUBTED => {
                loss.folders.insert(header.ino)
            }
            (opcode::SYNCFS, Some(loss)) => !std::mem::replace(&mut loss.is_told, true),
            _ => false,
        }
    }
}
