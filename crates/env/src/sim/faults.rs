//! Faults and delays of a simulated world.

use crate::Descriptors;
use rustix::io::Errno;
use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The error of a call that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// `EIO`: the device.
    Io,
    /// `ENOSPC`: the disk is full.
    NoSpace,
    /// `EMFILE`: the process has no file descriptor left.
    NoDescriptors,
    /// `ENFILE`: the machine has no file descriptor left.
    NoFiles,
    /// `ENOMEM`: the kernel has no memory left.
    NoMemory,
}

impl Failure {
    pub(super) fn error(self) -> io::Error {
        match self {
            Failure::Io => Errno::IO,
            Failure::NoSpace => Errno::NOSPC,
            Failure::NoDescriptors => Errno::MFILE,
            Failure::NoFiles => Errno::NFILE,
            Failure::NoMemory => Errno::NOMEM,
        }
        .into()
    }
}

/// The effect of a power cut on bytes that were written and not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Any of these, drawn for each file.
    Any,
    /// All of it is lost.
    Lost,
    /// All of it is kept.
    Kept,
    /// Each page is kept or lost.
    Pages,
    /// Each sector holds any of the versions that were written since the last sync, or the one
    /// before.
    Sectors,
}

/// Faults and delays. Probabilities are per operation, from 0.0 (never) to 1.0 (always).
#[derive(Debug, Clone)]
pub struct Faults {
    /// A read of a file fails.
    pub read_error: f64,
    /// A write of a file, or a change of a folder, fails; of a write a part may have been done.
    pub write_error: f64,
    /// A sync fails; each page it should have saved is then saved, or lost although later syncs
    /// succeed.
    pub sync_error: f64,
    /// A read succeeds with one wrong bit, while the medium is right.
    pub read_flip: f64,
    /// A write of a file, or a change of a folder, finds the disk full; of a write a part may have
    /// been done.
    pub no_space: f64,
    /// A call that needs a file descriptor (open, list, sync of a folder, listen, connect, accept)
    /// finds none left.
    pub no_descriptors: f64,
    /// A disk call that needs a file descriptor (open, list, sync of a folder) finds none left on
    /// the machine.
    pub no_files: f64,
    /// Limit and number of file descriptors, as the process is told.
    pub descriptors: Descriptors,
    /// A call finds no memory in the kernel; of a write a part may have been done.
    pub no_memory: f64,
    /// The disk operation of this number fails ([`super::World::disk_operations`] counts them, from
    /// 1).
    pub fail_operation: Option<u64>,
    /// The error of that operation.
    pub fail_with: Failure,
    /// Only disk operations on paths that contain this text fail or flip. The path of a file is the
    /// one by which it was opened, also after a rename.
    pub only: Option<String>,
    /// Of a torn write (it failed, or a crash found it under way) any of the sectors are done, not
    /// the first few.
    pub torn_sectors: f64,
    /// A torn write is whole in the page cache, and not on the medium.
    pub torn_whole: f64,
    /// The effect of power cuts.
    pub cut: Cut,
    /// Bytes that the medium writes as one unit, as [`crate::Disk::sector_bytes`] tells them.
    pub sector_bytes: u32,
    /// Size of each host's disk, bytes; [`super::Host::set_disk_bytes`] changes it later.
    pub disk_bytes: u64,
    /// Size of each host's memory that may be mapped, bytes.
    pub memory_bytes: u64,
    /// Time that a disk operation takes.
    pub disk_latency: RangeInclusive<Duration>,
    /// Time that a message is under way.
    pub network_latency: RangeInclusive<Duration>,
    /// A read or write of a stream moves fewer bytes than it could.
    pub short_transfer: f64,
}

impl Faults {
    /// Delays only; streams still deliver in pieces, as streams may.
    #[must_use]
    pub fn none() -> Self {
        Self {
            read_error: 0.0,
            write_error: 0.0,
            sync_error: 0.0,
            read_flip: 0.0,
            no_space: 0.0,
            no_descriptors: 0.0,
            no_files: 0.0,
            descriptors: Descriptors { limit: u64::MAX, open: 0 },
            no_memory: 0.0,
            fail_operation: None,
            fail_with: Failure::Io,
            only: None,
            torn_sectors: 0.0,
            torn_whole: 0.0,
            cut: Cut::Any,
            sector_bytes: 512,
            disk_bytes: 1 << 40,
            memory_bytes: 1 << 34,
            disk_latency: Duration::from_micros(10)..=Duration::from_micros(500),
            network_latency: Duration::from_micros(20)..=Duration::from_millis(1),
            short_transfer: 0.25,
        }
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::none()
    }
}

/// Counts of the faults that happened on the disks of a world, so that a test can tell whether its
/// faults happened at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mishaps {
    /// Calls that failed, by their error.
    pub io: u64,
    pub no_space: u64,
    pub no_descriptors: u64,
    pub no_files: u64,
    pub no_memory: u64,
    /// Torn writes, by the part that was done.
    pub torn_prefix: u64,
    pub torn_sectors: u64,
    pub torn_whole: u64,
    /// Reads that gave one wrong bit.
    pub read_flips: u64,
}

impl Mishaps {
    pub(super) fn failed(&mut self, failure: Failure) {
        let counter = match failure {
            Failure::Io => &mut self.io,
            Failure::NoSpace => &mut self.no_space,
            Failure::NoDescriptors => &mut self.no_descriptors,
            Failure::NoFiles => &mut self.no_files,
            Failure::NoMemory => &mut self.no_memory,
        };
        *counter += 1;
    }
}
