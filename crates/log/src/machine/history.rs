//! Decides, after a start, what the log is.
//!
//! RAMCloud takes the *lowest* open head that has a digest, because a replica of a newer one may
//! have reached only some backups. Here all copies lie on one device, so this crate takes the
//! **newest** head whose opening is whole. By the order of a rollover (new head durably open, old
//! sealed, then data for the new one) the digest of that head names every segment that can hold an
//! acknowledged change: the one before it included, sealed or not. Openings that earlier lives gave
//! up need no care: they have lower numbers than the head that was opened after them.

use crate::Known;
use crate::format::{Lost, Named};
use crate::walk::Opening;
use rekindle_base::{Incarnation, SegmentId};
use std::collections::BTreeMap;

/// The end of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Open,
    Sealed {
        /// The head after it; `None` when the log was closed.
        successor: Option<SegmentId>,
    },
}

/// A head whose opening could be read.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    pub(crate) segment: SegmentId,
    pub(crate) opening: Opening,
    pub(crate) has_changes: bool,
    /// The head's end **on flash**.
    pub(crate) end: End,
}

/// The state of a segment's number, without a look inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Present {
    /// The segment has bytes with a valid header.
    Yes { file: u32 },
    /// The opening is not whole and the segment has no trace of a change: a head that was never
    /// durably open.
    NeverOpened,
    /// The opening is not whole, but the segment holds changes: damage.
    Broken { file: u32 },
}

/// The log as a start decides it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// Segments to be served, ascending.
    pub(crate) members: Vec<Named>,
    /// Segments that a digest names and the folder lacks.
    pub(crate) missing: Vec<Named>,
    /// From this head on acknowledged changes may be missing, of unknown volumes.
    pub(crate) tail_lost: Option<SegmentId>,
    /// The segment that is to be committed and sealed behind the new head.
    pub(crate) resume: Option<SegmentId>,
    /// The newest head, when it has no changes: it leaves the log when the new head is durable.
    pub(crate) empty: Option<SegmentId>,
    /// The head to be opened now.
    pub(crate) next: SegmentId,
}

/// Decides what the log is. `newest` is the newest head that could be read. `before` is the segment
/// before it in its digest, with its end, if that could be read.
pub(crate) fn what_is_the_log(
    present: &BTreeMap<SegmentId, Present>,
    newest: Option<&Probe>,
    before: Option<(SegmentId, End)>,
) -> History {
    let next = present.keys().next_back().map_or(SegmentId(1), |id| id.next());
    let mut history = History { next, ..History::default() };
    let broken = present.iter().filter_map(|(&segment, state)| match state {
        Present::Broken { file } => {
            Some(Named { segment, file: *file, lost: Lost::Nothing, who: None })
        }
        _ => None,
    });
    let Some(newest) = newest else {
        // No head at all. Every segment that holds changes is served as far as it goes: too much
        // rather than too little, since the caller knows what is in the datastore already.
        let all = present.iter().filter_map(|(&segment, state)| match state {
            Present::Yes { file } | Present::Broken { file } => {
                Some(Named { segment, file: *file, lost: Lost::Nothing, who: None })
            }
            Present::NeverOpened => None,
        });
        history.members = all.collect();
        history.tail_lost = history.members.last().map(|named| named.segment);
        return history;
    };
    let there = |named: &&Named| {
        matches!(present.get(&named.segment), Some(Present::Yes { .. } | Present::Broken { .. }))
    };
    history.members = newest.opening.digest.iter().filter(there).copied().collect();
    history.missing = newest.opening.digest.iter().filter(|named| !there(named)).copied().collect();
    for named in broken.filter(|named| named.segment > newest.segment) {
        history.tail_lost.get_or_insert(named.segment);
        history.members.push(named);
    }
    if let End::Sealed { successor: Some(successor) } = newest.end {
        // The head was sealed only after its successor was durably open: that successor has been
        // lost since.
        history.tail_lost.get_or_insert(successor);
    }
    choose_resumed(&mut history, newest, before);
    assert!(history.members.is_sorted_by(|a, b| a.segment < b.segment), "members ascend");
    assert!(
        history.members.last().is_none_or(|last| last.segment < history.next),
        "the new head is the newest"
    );
    history
}

impl History {
    /// Compares the found log with what the node knows from outside the folder. The log had `known`
    /// open, so its newest head is that one, or a later one, or of a later life. `found` is the
    /// newest head that could be read, with the life that made it. If `found` is older or `None`,
    /// the log that was used last is not here: returns `true`, and notes that its end is lost.
    pub(crate) fn compare(
        &mut self,
        known: Known,
        found: Option<(Incarnation, SegmentId)>,
    ) -> bool {
        let of_stand_in = |first: Incarnation| found.is_some_and(|(life, _)| life >= first);
        if known.stand_in.is_some_and(of_stand_in) {
            // The digest of the stand-in goes on naming the lost segments.
            return true;
        }
        if found >= Some((known.incarnation, known.newest)) {
            return false;
        }
        // No segment has had this number, so the loss of it cannot have been accepted before.
        let lost = known.newest.max(self.next);
        self.tail_lost.get_or_insert(lost);
        true
    }
}

fn choose_resumed(history: &mut History, newest: &Probe, before: Option<(SegmentId, End)>) {
    if newest.end == End::Open && newest.has_changes {
        history.resume = Some(newest.segment);
        return;
    }
    // Data goes into a head only when the one before is sealed: a head with data ends the search.
    if let Some((segment, End::Open)) = before {
        history.resume = Some(segment);
    }
    if newest.end == End::Open {
        history.empty = Some(newest.segment);
        history.members.retain(|named| named.segment != newest.segment);
    }
}

#[cfg(test)]
mod tests;
