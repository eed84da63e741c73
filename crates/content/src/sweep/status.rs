//! What people see of the sweep.

use super::machine::Phase;
use serde::Serialize;

/// A sweep, as far as it is, and what became of the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SweepStatus {
    /// What it is doing.
    pub phase: Phase,
    /// Sweeps that came to their end since start.
    pub sweeps: u64,
    /// Packs in the store when it began.
    pub packs_total: u64,
    /// Of these, packs that roots reach.
    pub packs_live: u64,
    /// Packs condemned by it.
    pub packs_condemned: u64,
    /// Of these, packs that were found to be alive again by the second mark.
    pub packs_rescued: u64,
    /// Packs whose live chunks it moved elsewhere.
    pub packs_compacted: u64,
    /// Packs deleted by it, compacted ones included.
    pub packs_deleted: u64,
    /// `moved/` notes deleted by it.
    pub notes_deleted: u64,
    /// Length of what it deleted, bytes.
    pub bytes_freed: u64,
    /// Length of what compaction copied, bytes.
    pub bytes_copied: u64,
    /// When the one at hand (or the last) began, microseconds since 1970.
    pub started_microseconds: Option<u64>,
    /// When the last one came to its end.
    pub ended_microseconds: Option<u64>,
    /// What it waits for: nodes that have not agreed yet.
    pub waits_for: Option<String>,
    /// What it left out, if anything: compaction, when the store is full.
    pub left_out: Option<String>,
    /// Why the last one failed, if it did.
    pub failure: Option<String>,
}
