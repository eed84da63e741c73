//! The plan of a sweep: the listed packs joined with the rows of the tally, both in the order of
//! their ids.

use super::Options;
use super::listing::{Listed, Listing};
use super::tally::{Notes, Tally, Trouble};
use crate::format::counts::Row;
use crate::limits;
use rekindle_base::PackId;
use std::collections::BinaryHeap;

/// Packs and notes to reclaim.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Packs in which nothing is alive.
    pub(super) dead: Vec<Listed>,
    /// Packs in which little is alive.
    pub(super) sparse: Vec<Listed>,
    /// Packs whose notes no pointer needs.
    pub(super) notes: Vec<PackId>,
}

/// The judgement of all packs.
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) plan: Plan,
    /// Packs in which something is alive.
    pub(super) live: u64,
    /// Packs of which a sweep would free something once they are older, and their length, bytes.
    pub(super) young: (u64, u64),
    /// Packs that are named and not listed, and of which no counted note says where their chunks
    /// are: not all of them, if there are many.
    pub(super) unlisted: Vec<PackId>,
    /// Whether something is left out that a later sweep may reclaim though nothing changes: packs
    /// that are young, and more than one sweep considers.
    pub(super) waits: bool,
}

/// A mostly dead pack: those are greatest of which least would be gained.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Live bytes of a thousand.
    live_share: u64,
    /// Ids begin with the time of their making.
    pack: Listed,
}

impl Judged {
    fn miss(&mut self, tally: &Tally, pack: PackId) {
        if !tally.is_noted(&pack) && self.unlisted.len() < limits::UNLISTED_MAX {
            self.unlisted.push(pack);
        }
    }
}

/// Judges all listed packs. `is_settled` tells whether no commit that leads to a pack may be on its
/// way.
pub(super) async fn judge(
    tally: &mut Tally,
    (listing, notes): (&Listing, &Notes),
    options: &Options,
    is_settled: impl Fn(&PackId) -> bool,
) -> Result<Judged, Trouble> {
    let mut judged = Judged::default();
    let mut sparse = BinaryHeap::new();
    let may_compact = options.compacts && notes.len() < limits::NOTES_MAX;
    let mut rows = tally.rows().await?;
    let (mut row, mut edges) = (rows.next().await?, 0);
    let mut packs = listing.all().await?;
    while let Some(listed) = packs.next().await? {
        while let Some(before) = row.filter(|row| row.pack < listed.0) {
            edges += before.edges;
            judged.miss(tally, before.pack);
            row = rows.next().await?;
        }
        let its = row.filter(|row| row.pack == listed.0);
        if let Some(its) = its {
            edges += its.edges;
            row = rows.next().await?;
        }
        judged.live += u64::from(its.is_some());
        let share = its.map_or(Some(0), |row| live_share(&row, listed.1, options));
        let Some(live_share) = share.filter(|_| its.is_none() || may_compact) else { continue };
        if !is_settled(&listed.0) {
            judged.waits = true;
            judged.young.0 += 1;
            judged.young.1 += u64::from(listed.1);
        } else if its.is_none() {
            judged.waits |= judged.plan.dead.len() >= limits::DEAD_FOUND_MAX;
            if judged.plan.dead.len() < limits::DEAD_FOUND_MAX {
                judged.plan.dead.push(listed);
            }
        } else {
            sparse.push(Candidate { live_share, pack: listed });
            if sparse.len() > limits::SPARSE_FOUND_MAX {
                sparse.pop();
                judged.waits = true;
            }
        }
    }
    while let Some(after) = row {
        edges += after.edges;
        judged.miss(tally, after.pack);
        row = rows.next().await?;
    }
    if edges != tally.edges() {
        return Err(Trouble::Doubt("the rows of the tally are not all there".into()));
    }
    let sparse = sparse.into_sorted_vec();
    judged.plan.sparse = sparse.into_iter().map(|candidate| candidate.pack).collect();
    for pack in notes.keys() {
        // The note may be void, and then it is not counted.
        if !tally.is_named(pack).await? {
            judged.plan.notes.push(*pack);
        }
    }
    Ok(judged)
}

/// Returns the share of a mostly dead pack that is alive, of a thousand; `None` for any other pack.
/// A chain of notes must not become too long, so a pack at the end of a long one counts as alive.
fn live_share(row: &Row, length: u32, options: &Options) -> Option<u64> {
    // Parity (and in small packs header and footer) weighs much, and a copy would have it as well:
    // what the footer said of the blobs alone counts.
    let blobs = u64::from(if row.blobs > 0 { row.blobs } else { length });
    let is_sparse = row.bytes * 100 < blobs * u64::from(options.compact_below);
    let is_near = usize::from(row.hops) < limits::MOVED_HOPS_COMPACTION_MAX;
    (is_sparse && is_near).then(|| row.bytes * 1000 / blobs.max(1))
}

impl Plan {
    /// Parts the plan into groups of at most `most` packs and notes each, what is dead first.
    pub(super) fn into_groups(mut self, most: usize) -> Vec<Plan> {
        let mut groups = Vec::new();
        while !self.is_empty() {
            let dead = take(&mut self.dead, most);
            let sparse = take(&mut self.sparse, most - dead.len());
            let notes = take(&mut self.notes, most);
            groups.push(Plan { dead, sparse, notes });
        }
        groups
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dead.is_empty() && self.sparse.is_empty() && self.notes.is_empty()
    }
}

/// Takes the first elements out, at most so many.
fn take<T>(from: &mut Vec<T>, most: usize) -> Vec<T> {
    let rest = from.split_off(most.min(from.len()));
    std::mem::replace(from, rest)
}
