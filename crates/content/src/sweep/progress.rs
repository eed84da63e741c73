//! The progress of a sweep.

use super::machine::Phase;
use serde::Serialize;

/// The progress of a sweep, and the result of the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SweepProgress {
    /// The present phase.
    pub phase: Phase,
    /// Sweeps that came to their end since start.
    pub sweeps: u64,
    /// Packs in the store when the sweep began.
    pub packs_total: u64,
    /// Length of these packs, bytes.
    pub bytes_total: u64,
    /// Of these, packs that roots reach.
    pub packs_live: u64,
    /// Packs in which little or nothing is reached, and which are left alone as long as they are
    /// young: a commit that reaches them may still be on its way.
    pub packs_young: u64,
    /// Length of these, bytes.
    pub bytes_young: u64,
    /// Whether the sweep read no content: nothing had changed since one that found nothing to do.
    pub is_unchanged: bool,
    /// Metadata chunks that were read to bring the counts up to date.
    pub nodes_read: u64,
    /// The reason why everything was counted anew, if it was.
    pub counted_anew: Option<String>,
    /// The first pack whose counts had been wrong, if a count of everything found any.
    pub miscounted: Option<String>,
    /// Packs condemned by the sweep.
    pub packs_condemned: u64,
    /// Of these, packs that were found to be alive again by the second mark.
    pub packs_rescued: u64,
    /// Packs whose live chunks were moved elsewhere.
    pub packs_compacted: u64,
    /// Packs deleted, compacted ones included.
    pub packs_deleted: u64,
    /// `moved/` notes deleted.
    pub notes_deleted: u64,
    /// Length of the deleted packs, bytes.
    pub bytes_freed: u64,
    /// Length of the blobs that compaction copied, bytes.
    pub bytes_copied: u64,
    /// Begin of the sweep at hand (or of the last one), microseconds since 1970.
    pub started_microseconds: Option<u64>,
    /// End of the last sweep, microseconds since 1970.
    pub ended_microseconds: Option<u64>,
    /// What the sweep waits for: nodes that have not agreed yet, or what this node itself had begun
    /// before.
    pub waits_for: Option<String>,
    /// The step that the sweep left out, if any: compaction, when the store is full.
    pub left_out: Option<String>,
    /// The reason why the last sweep failed, if it did.
    pub failure: Option<String>,
}
