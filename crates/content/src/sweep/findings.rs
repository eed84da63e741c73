//! The findings of a sweep: the work that there is, and its cost. Pure.

use super::books::Counted;
use super::plan::Plan;
use super::progress::SweepProgress;
use crate::limits;
use serde::Serialize;

/// The findings of a sweep before it changes anything.
#[derive(Debug, Default)]
pub(super) struct SweepFindings {
    /// Packs in the store.
    pub(super) packs: u64,
    /// Length of these, bytes.
    pub(super) bytes: u64,
    /// Packs that roots reach.
    pub(super) live: u64,
    /// Packs that are left alone as long as they are young, and their length, bytes.
    pub(super) young: (u64, u64),
    pub(super) is_unchanged: bool,
    /// Metadata chunks that were read.
    pub(super) nodes: u64,
    pub(super) anew: Option<String>,
    pub(super) miscounted: Option<String>,
    pub(super) plan: Plan,
    /// Bytes of the live chunks of mostly dead packs.
    pub(super) copied: u64,
    /// Requests that read these.
    pub(super) reads: u64,
}

/// The estimate of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SweepPlan {
    /// Packs in the store.
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
    /// Packs in which nothing is reached.
    pub packs_dead: u64,
    /// Mostly dead packs, whose live chunks would be written anew.
    pub packs_sparse: u64,
    /// Notes of moves that no pointer needs.
    pub notes: u64,
    /// Bytes that the store would have less, about.
    pub bytes_freed: u64,
    /// Bytes that would be read from packs and written into others.
    pub bytes_copied: u64,
    /// Requests that read, about: the plan has made those that count.
    pub reads: u64,
    /// Requests that write or list, about.
    pub writes: u64,
    /// Requests that delete.
    pub deletes: u64,
    /// Metadata chunks that the plan has read to bring the counts up to date.
    pub nodes_read: u64,
    /// The reason why the plan has counted everything anew, if it has.
    pub counted_anew: Option<String>,
}

impl SweepFindings {
    pub(super) fn add(&mut self, counted: Counted) {
        self.nodes += counted.cost.nodes;
        self.anew = counted.anew.or(self.anew.take());
    }

    pub(super) fn tell(&self, progress: &mut SweepProgress) {
        (progress.packs_total, progress.bytes_total) = (self.packs, self.bytes);
        (progress.packs_live, progress.is_unchanged) = (self.live, self.is_unchanged);
        (progress.packs_young, progress.bytes_young) = self.young;
        progress.nodes_read = self.nodes;
        progress.counted_anew.clone_from(&self.anew);
        progress.miscounted.clone_from(&self.miscounted);
    }

    /// Returns what a sweep would do, into packs of so many bytes.
    pub(super) fn estimate(self, pack_bytes: u64) -> SweepPlan {
        let length = |packs: &[(_, u32)]| packs.iter().map(|(_, length)| u64::from(*length)).sum();
        let Plan { dead, sparse, notes } = &self.plan;
        let count = |many: usize| many as u64;
        let (bytes_dead, bytes_sparse): (u64, u64) = (length(dead), length(sparse));
        let deletes = count(dead.len() + sparse.len() + notes.len());
        let mut plan = SweepPlan {
            packs_total: self.packs,
            bytes_total: self.bytes,
            packs_live: self.live,
            packs_young: self.young.0,
            bytes_young: self.young.1,
            packs_dead: count(dead.len()),
            packs_sparse: count(sparse.len()),
            notes: count(notes.len()),
            bytes_freed: bytes_dead + bytes_sparse.saturating_sub(self.copied),
            bytes_copied: self.copied,
            reads: self.reads,
            writes: count(sparse.len()) + self.copied.div_ceil(pack_bytes.max(1)),
            deletes,
            nodes_read: self.nodes,
            counted_anew: self.anew,
        };
        if deletes > 0 {
            // The lists; the record of what is condemned, and the lease before each deletion.
            plan.writes +=
                self.packs.div_ceil(1000) + 4 + deletes.div_ceil(count(limits::FETCH_WINDOW));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_base::PackId;

    #[test]
    fn a_plan_says_what_is_freed_and_what_that_takes() {
        let packs = |from: u8, many: u8, length| {
            (from..from + many).map(|id| (PackId([id; 16]), length)).collect()
        };
        let plan = Plan {
            dead: packs(0, 40, 1000),
            sparse: packs(100, 3, 1000),
            notes: vec![PackId([200; 16])],
        };
        let found =
            SweepFindings { packs: 2500, copied: 900, reads: 7, plan, ..SweepFindings::default() };
        let plan = found.estimate(500);
        assert_eq!((plan.packs_dead, plan.packs_sparse, plan.notes), (40, 3, 1));
        assert_eq!((plan.bytes_freed, plan.bytes_copied), (42_100, 900));
        // Three notes and two packs; three pages of a list, four writes of records, two proofs.
        assert_eq!((plan.reads, plan.writes, plan.deletes), (7, 5 + 3 + 4 + 2, 44));
        let nothing = SweepFindings { packs: 2500, ..SweepFindings::default() }.estimate(500);
        assert_eq!((nothing.reads, nothing.writes, nothing.deletes), (0, 0, 0));
    }
}
