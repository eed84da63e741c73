//! Batches that live: the sweep waits for those that began before a condemnation.
//!
//! A batch that began earlier may have found a duplicate in a pack before the pack was condemned.
//! Once the batch has ended, either its root reaches that chunk and the second mark sees it, or no
//! root does. A batch that begins later is refused duplicates in condemned packs.

use crate::limits;
use crate::name::PackSet;
use parking_lot::Mutex;
use rekindle_base::PackId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Live {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Default)]
struct State {
    /// Number of holds begun so far.
    begun: u64,
    /// Holds that have not ended, with the packs that they wrote.
    holds: BTreeMap<u64, Vec<PackId>>,
    /// Packs whose batches came to a known end, in that order.
    ended: VecDeque<PackId>,
    is_ended: PackSet,
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
        state.holds.insert(sequence, Vec::new());
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

    /// Whether this start wrote the pack and knows the outcome of its batch. For any other pack a
    /// commit may still be on its way.
    pub(crate) fn has_ended(&self, pack: &PackId) -> bool {
        self.state.lock().is_ended.contains(pack)
    }

    /// Packs that live batches wrote. No root reaches them yet, which is no reason to condemn them.
    pub(crate) fn packs(&self) -> Vec<PackId> {
        self.state.lock().holds.values().flatten().copied().collect()
    }
}

impl Hold {
    pub(crate) fn wrote(&self, pack: PackId) {
        if let Some(packs) = self.live.state.lock().holds.get_mut(&self.sequence) {
            packs.push(pack);
        }
    }
}

impl Hold {
    /// Notes that no write that leads to the packs of this hold is still on its way.
    pub(crate) fn end_known(&self) {
        let mut state = self.live.state.lock();
        let State { holds, ended, is_ended, .. } = &mut *state;
        for pack in holds.get(&self.sequence).into_iter().flatten() {
            if is_ended.insert(*pack) {
                ended.push_back(*pack);
            }
        }
        while ended.len() > limits::OWN_PACKS_MAX {
            let Some(oldest) = ended.pop_front() else { break };
            is_ended.remove(&oldest);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.live.state.lock().holds.remove(&self.sequence);
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
}
