//! Batches that live: the sweep waits for those that began before a condemnation.
//!
//! A batch that began earlier may have found a duplicate in a pack before the pack was condemned.
//! Once the batch has ended, either its root reaches that chunk and the second mark sees it, or no
//! root does. A batch that begins later is refused duplicates in condemned packs.

use crate::limits;
use crate::name::{PackMap, PackSet};
use parking_lot::Mutex;
use rekindle_base::PackId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Live {
    state: Mutex<HoldTable>,
    ended: Notify,
}

#[derive(Default)]
struct HoldTable {
    /// Number of holds begun so far.
    begun: u64,
    /// Holds that have not ended.
    holds: BTreeMap<u64, Held>,
    /// Packs that these holds wrote.
    writers: PackMap<Writers>,
    /// Packs all of whose batches came to a known end, in that order.
    ended: VecDeque<PackId>,
    is_ended: PackSet,
}

#[derive(Default)]
struct Held {
    packs: Vec<PackId>,
    is_known: bool,
}

/// The holds that wrote a pack: those of all batches that share it.
struct Writers {
    live: usize,
    /// Whether those that have ended came to a known end.
    are_known: bool,
}

/// A hold on sweeps. While it lives, no sweep that was begun after it comes to an end: chunks that
/// its owner can reach from roots that it has read stay. Every [`crate::Batch`] has one. A task
/// that moves a root from one record to another (clone, rename, snapshot) keeps a hold from before
/// reading the first record until after writing the second.
pub struct Hold {
    live: Arc<Live>,
    sequence: u64,
}

impl Live {
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        let mut state = self.state.lock();
        state.begun += 1;
        let sequence = state.begun;
        state.holds.insert(sequence, Held::default());
        Hold { live: self.clone(), sequence }
    }

    /// Waits until every hold begun so far has ended.
    pub(crate) async fn settle(&self) {
        let begun = self.state.lock().begun;
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            let oldest = self.state.lock().holds.keys().next().copied();
            if oldest.is_none_or(|oldest| oldest > begun) {
                return;
            }
            ended.await;
        }
    }

    /// Holds that have not ended.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().holds.len()
    }

    /// Whether this start wrote the pack and knows the outcome of its batches. For any other pack a
    /// commit may still be on its way.
    pub(crate) fn has_ended(&self, pack: &PackId) -> bool {
        self.state.lock().is_ended.contains(pack)
    }

    /// Packs that live batches wrote. No root reaches them yet, which is no reason to condemn them.
    pub(crate) fn packs(&self) -> Vec<PackId> {
        self.state.lock().writers.keys().copied().collect()
    }
}

impl Hold {
    /// Notes that the owner has chunks in a pack. To be called once for each pack, and for a pack
    /// that others share before any of them can upload it.
    pub(crate) fn wrote(&self, pack: PackId) {
        let mut state = self.live.state.lock();
        let HoldTable { holds, writers, is_ended, .. } = &mut *state;
        if let Some(held) = holds.get_mut(&self.sequence) {
            held.packs.push(pack);
        }
        writers.entry(pack).or_insert(Writers { live: 0, are_known: true }).live += 1;
        // The batches that were in it before have ended, and this one has not.
        is_ended.remove(&pack);
    }

    /// Notes that no write that leads to the packs of this hold is still on its way.
    pub(crate) fn end_known(&self) {
        if let Some(held) = self.live.state.lock().holds.get_mut(&self.sequence) {
            held.is_known = true;
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.live.state.lock();
        let HoldTable { holds, writers, ended, is_ended, .. } = &mut *state;
        let held = holds.remove(&self.sequence).unwrap_or_default();
        for pack in held.packs {
            let Some(others) = writers.get_mut(&pack) else { continue };
            others.live -= 1;
            others.are_known &= held.is_known;
            if others.live > 0 {
                continue;
            }
            let are_known = others.are_known;
            writers.remove(&pack);
            if are_known && is_ended.insert(pack) {
                ended.push_back(pack);
            }
        }
        while ended.len() > limits::OWN_PACKS_MAX {
            let Some(oldest) = ended.pop_front() else { break };
            is_ended.remove(&oldest);
        }
        drop(state);
        self.live.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn settling_waits_for_what_began_before_and_for_nothing_else() {
        let live = Arc::new(Live::default());
        assert!(live.settle().now_or_never().is_some());
        let (first, second) = (live.hold(), live.hold());
        let mut settled = Box::pin(live.settle());
        assert!(settled.as_mut().now_or_never().is_none());
        let later = live.hold();
        drop(first);
        assert!(settled.as_mut().now_or_never().is_none());
        drop(second);
        assert!(settled.as_mut().now_or_never().is_some());
        drop(later);
    }

    #[test]
    fn a_shared_pack_has_ended_when_all_its_batches_came_to_a_known_end() {
        let live = Arc::new(Live::default());
        for (second_is_known, first_ends_first) in
            [(true, true), (true, false), (false, true), (false, false)]
        {
            let pack = PackId([u8::from(second_is_known) * 2 + u8::from(first_ends_first); 16]);
            let (first, second) = (live.hold(), live.hold());
            first.wrote(pack);
            second.wrote(pack);
            first.end_known();
            if second_is_known {
                second.end_known();
            }
            let (one, other) = if first_ends_first { (first, second) } else { (second, first) };
            drop(one);
            assert!(!live.has_ended(&pack) && live.packs() == [pack]);
            drop(other);
            assert_eq!((live.has_ended(&pack), live.packs()), (second_is_known, Vec::new()));
        }
    }
}
