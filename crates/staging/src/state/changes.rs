//! The unfinished changes of a volume in service, and how far reads see them.
//!
//! Serial order is append order is queue order. Writes that are in flight together go to flash
//! together, and become visible one after the other when the log has them; so an overlapping pair
//! ends as its serials say.

use crate::Vault;
use crate::queue::{Change, Queue, Unindexed};
use crate::shape::Shown;
use rekindle_log::Position;
use std::collections::VecDeque;

/// The queue, and the visible changes at its front.
pub(crate) struct Changes {
    pub(crate) queue: Queue,
    /// Count of the visible changes, at the front of the queue.
    visible: usize,
    /// The visible changes, as reads need them.
    pub(crate) shown: Shown,
    /// Point of the log that covers all changes of the volume.
    pub(crate) end: Position,
}

impl Changes {
    /// `shown`: the changes of `queue` that are visible at once, and their count.
    pub(crate) fn new(queue: Queue, end: Position, (shown, visible): (Shown, usize)) -> Self {
        let new = Self { queue, visible, shown, end };
        new.check();
        new
    }

    /// Reads find the bytes of visible changes in the queue.
    fn check(&self) {
        debug_assert!(self.visible <= self.queue.len(), "what is visible is in the queue");
    }

    /// Lists the changes that were counted only; `shown` has just these. The caller applies the
    /// changes since then.
    pub(crate) fn list(&mut self, changes: VecDeque<Change>, shown: Shown) {
        debug_assert!(self.visible == 0, "nothing is visible before");
        self.visible = changes.len();
        self.queue.list(changes);
        self.shown.begin_with(shown);
        self.check();
    }

    /// Takes a change that was appended to the log (or kept in RAM) last.
    fn take(&mut self, change: Change) {
        if let Some(end) = change.end() {
            debug_assert!(end >= self.end, "append order is serial order");
            self.end = end;
        }
        self.queue.push(change);
    }

    /// Takes changes that were appended (or kept) together, with their payloads.
    pub(crate) fn take_all<'a>(
        &mut self,
        changes: impl Iterator<Item = Change>,
        payloads: impl Iterator<Item = &'a [u8]>,
    ) {
        if !self.shown.is_of_records() {
            changes.for_each(|change| self.take(change));
            return;
        }
        let (first, changes) = (self.queue.last().next(), changes.collect::<Vec<_>>());
        changes.iter().for_each(|change| self.take(change.clone()));
        self.shown.enter(first, &changes, &payloads.collect::<Vec<_>>());
    }

    /// Count of the changes in the log that are not visible yet. Changes kept in RAM become visible
    /// with their commit.
    pub(crate) fn pending(&self) -> usize {
        if !self.queue.is_listed() {
            return self.queue.len();
        }
        match self.queue.get(self.visible) {
            Some(change) if change.is_logged() => self.queue.len() - self.visible,
            _ => 0,
        }
    }

    /// Makes changes visible, in serial order, up to those that the log has on flash.
    pub(crate) fn apply(&mut self, committed: Position) {
        while let Some(change) = self.queue.get(self.visible) {
            if !change.is_committed(committed) {
                break;
            }
            self.shown.show(change, self.queue.serial(self.visible));
            self.visible += 1;
        }
    }

    /// Count of the changes that may go to the datastore now. Changes in the log only when they are
    /// visible (hence acknowledged or about to be); changes in RAM always.
    pub(crate) fn ready(&self) -> usize {
        match self.pending() {
            0 => self.queue.len(),
            _ => self.visible,
        }
    }

    /// Count of the changes at the front that the log has. It has all that are counted only.
    pub(crate) fn logged(&self) -> usize {
        let listed = self.queue.iter().take_while(|change| change.is_logged()).count();
        self.queue.unindexed().count + listed
    }

    /// Takes the first `count` changes out: `vault` has them. The others come behind its
    /// checkpoint.
    pub(crate) fn finish(&mut self, count: usize, vault: &Vault) -> Vec<Change> {
        let queue = &self.queue;
        let hidden =
            (self.visible..count).filter_map(|at| Some((queue.get(at)?, queue.serial(at))));
        self.shown.show_stored(hidden);
        self.shown.finish(&vault.root, vault.checkpoint);
        self.visible = self.visible.saturating_sub(count);
        let changes = self.queue.finish(count);
        self.queue.renumber(vault.checkpoint);
        self.check();
        changes
    }

    /// Takes the changes of a volume out of service: those that are counted only, and the others up
    /// to the first one that only RAM has. The rest was not acknowledged.
    pub(crate) fn retire(&mut self) -> (Unindexed, VecDeque<Change>) {
        let logged = self.logged();
        self.visible = 0;
        let (unindexed, mut changes) = self.queue.take();
        changes.truncate(logged - unindexed.count);
        (unindexed, changes)
    }
}
