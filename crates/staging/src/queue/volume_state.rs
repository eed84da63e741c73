//! The state of a volume in service: gives serials, and lets changes become visible in serial
//! order.
//!
//! All state of a volume that changes with each write is here, under one mutex that is held for
//! plain calls only. Serial order is append order is queue order. Writes that are in flight
//! together go to flash together, and become visible one after the other when the log has them; so
//! an overlapping pair ends as its serials say.

use crate::destage::previous_root::{Before, PreviousRoot};
use crate::queue::{Change, Queue};
use crate::recover::deferred_index::Unfinished;
use crate::recover::lives::{Fit, Runs};
use crate::shape::Shown;
use crate::{Error, Vault};
use rekindle_base::{Incarnation, Serial};
use rekindle_datastore::record::Held;
use rekindle_env::Moment;
use rekindle_log::Position;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The sender that tells a waiting caller how its wait ended.
pub(crate) type Waiter = oneshot::Sender<Result<(), Error>>;

/// A write that waits for room on flash.
pub(crate) struct Waiting {
    pub(crate) cost: u64,
    pub(crate) waiter: oneshot::Sender<()>,
}

/// The destager's pause after an error.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pause {
    pub(crate) until: Moment,
    pub(crate) length: Duration,
}

/// State of a volume in service.
pub(crate) struct VolumeState {
    /// The vault as last read or written; its root and checkpoint are what the home has.
    pub(crate) held: Held<Vault>,
    pub(crate) queue: Queue,
    /// Count of the visible changes, at the front of the queue.
    visible: usize,
    /// The visible changes, as reads need them.
    pub(crate) shown: Shown,
    /// Point of the log that covers all changes of the volume.
    pub(crate) end: Position,
    /// The serial behind which this life of the node began to log changes of the volume.
    pub(crate) begins: Serial,
    /// The lives that logged the changes before that.
    pub(crate) runs: Runs,
    /// Whether the vault was read from the store in this life; else a copy of it was believed.
    pub(crate) seen: bool,
    /// Flash that unfinished changes take, with the room promised to writes that waited.
    pub(crate) flash_bytes: u64,
    /// Writes that wait for room, first come first served.
    pub(crate) waiting: VecDeque<Waiting>,
    /// Callers that wait until the datastore has everything up to a serial; serials ascend.
    awaiting: VecDeque<(Serial, Waiter)>,
    /// Serial up to which changes are destaged at once.
    pub(crate) drain_to: Serial,
    /// The root before the last commit, kept for a salvage.
    pub(crate) previous: Option<Arc<PreviousRoot>>,
    /// Count of the running salvages, which may want that root.
    pub(crate) salvages: usize,
    /// Whether the volume is in the destager's ring, or being destaged.
    pub(crate) ringed: bool,
    /// Whether the destager was told that there is work.
    pub(crate) told: bool,
    pub(crate) drain: crate::ack::flow::Drain,
    pub(crate) pause: Pause,
    pub(crate) destage_error: Option<String>,
    /// Acknowledged changes that cannot be read back.
    pub(crate) lost: Option<Error>,
    /// The reason why the volume is out of service.
    pub(crate) ended: Option<Error>,
}

/// The fate of a landed commit of an earlier attempt, ours or another life's.
pub(crate) enum Landed {
    /// The home has this content now.
    Adopted(Finished),
    /// An older life made the commit after this one had begun: ours goes over it.
    Deposed,
    /// It cannot be known which of the two is right.
    Absurd,
    /// The content has records that the home never had: it has to begin again with that content.
    Strange,
}

/// The part of a commit that is left to be done outside the lock.
pub(crate) struct Finished {
    pub(crate) changes: Vec<Change>,
    pub(crate) waiters: Vec<Waiter>,
    /// Flash that the changes took.
    pub(crate) flash_bytes: u64,
    /// The root that they were folded into, if they alone lead from there to the present root.
    pub(crate) before: Option<Before>,
}

impl VolumeState {
    /// State of a volume that comes into service with `unfinished` in the log behind the vault's
    /// checkpoint. `shown`: the changes among these that are visible at once, and their count.
    pub(crate) fn new(
        held: Held<Vault>,
        unfinished: Unfinished,
        seen: bool,
        (shown, visible): (Shown, usize),
    ) -> Self {
        let Unfinished { queue, end, begins, runs } = unfinished;
        debug_assert_eq!(queue.checkpoint(), held.value.checkpoint);
        Self {
            begins,
            runs,
            seen,
            flash_bytes: queue.bytes(),
            held,
            queue,
            visible,
            shown,
            end,
            waiting: VecDeque::new(),
            awaiting: VecDeque::new(),
            drain_to: Serial(0),
            previous: None,
            salvages: 0,
            ringed: false,
            told: false,
            drain: crate::ack::flow::Drain::default(),
            pause: Pause::default(),
            destage_error: None,
            lost: None,
            ended: None,
        }
    }

    /// Lists the changes that were counted only; `shown` has just these. The caller applies the
    /// changes since then.
    pub(crate) fn list(&mut self, changes: VecDeque<Change>, shown: Shown) {
        debug_assert!(self.visible == 0, "nothing is visible before");
        self.visible = changes.len();
        self.queue.list(changes);
        self.shown.begin_with(shown);
    }

    /// Returns the error for every call, if the volume is out of service.
    pub(crate) fn in_service(&self) -> Result<(), Error> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// The serial up to which the home has the changes.
    pub(crate) fn checkpoint(&self) -> Serial {
        self.held.value.checkpoint
    }

    /// Takes a change that was appended to the log (or kept in RAM) last.
    pub(crate) fn take(&mut self, change: Change) -> Serial {
        if let Some(end) = change.end() {
            debug_assert!(end >= self.end, "append order is serial order");
            self.end = end;
        }
        self.queue.push(change)
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

    /// Registers a waiter for the moment when the datastore has every change submitted so far;
    /// `None` when it has.
    pub(crate) fn await_all(&mut self) -> Option<oneshot::Receiver<Result<(), Error>>> {
        let serial = self.queue.last();
        (serial > self.checkpoint()).then(|| {
            let (waiter, told) = oneshot::channel();
            self.awaiting.push_back((serial, waiter));
            told
        })
    }

    /// Count of the callers that wait for the datastore.
    pub(crate) fn awaiting(&self) -> usize {
        self.awaiting.len()
    }

    /// Notes that the datastore has the vault `held`. Root and checkpoint change together, and the
    /// prefix leaves the queue, so reads take it from the root. An overlay's pieces of it are
    /// cleared afterwards.
    pub(crate) fn finish(&mut self, held: Held<Vault>) -> Finished {
        let before = self.checkpoint();
        let checkpoint = held.value.checkpoint;
        assert!(checkpoint >= before, "checkpoints only grow");
        assert!(held.value.generation >= self.held.value.generation, "generations only grow");
        let count = usize::try_from(checkpoint.0 - before.0).expect("a queue fits into memory");
        assert!(count <= self.ready(), "the checkpoint is a prefix of what may be destaged");
        let before = std::mem::replace(&mut self.held, held).value;
        self.seen = true;
        let before = Before { root: before.root, lost: before.lost, checkpoint: before.checkpoint };
        Finished { before: (count > 0).then_some(before), ..self.leave(count) }
    }

    /// Adopts an earlier attempt that has landed late, of an earlier life or of this one. Its root
    /// holds changes up to its checkpoint that the log had then. Beyond these, it holds changes
    /// that were in RAM only and were not acknowledged. Our own changes in RAM, not acknowledged
    /// either, come after them. Refuses an attempt that was made from other changes than ours.
    /// `is_older`: the attempt is of a life before the first that made copies of vaults, so the
    /// copy that we began with is of a time before it landed.
    pub(crate) fn adopt(&mut self, held: Held<Vault>, life: Incarnation, is_older: bool) -> Landed {
        let before = self.checkpoint();
        let checkpoint = held.value.checkpoint;
        assert!(checkpoint >= before, "checkpoints only grow");
        let logged = self.queue.iter().take_while(|change| change.is_logged()).count();
        let last = Serial(before.0 + logged as u64);
        match self.runs.fit((life, self.begins), (before, last), &held.value) {
            Fit::Fits => {}
            Fit::Deposed if self.seen || is_older => return Landed::Deposed,
            // We began with a copy of the vault: the store may have had this one all the time.
            Fit::Deposed | Fit::Absurd => return Landed::Absurd,
        }
        let claimed = usize::try_from(checkpoint.0 - before.0).unwrap_or(usize::MAX);
        let count = logged.min(claimed);
        if claimed > count && matches!(self.shown, Shown::Record(_)) {
            return Landed::Strange;
        }
        if held.value.incarnation != life {
            // All changes behind that commit are of this life.
            self.begins = self.begins.max(checkpoint);
        }
        self.held = held;
        self.seen = true;
        let finished = self.leave(count);
        let shift = checkpoint.0 - self.queue.checkpoint().0;
        self.queue.renumber(checkpoint);
        for (serial, _) in &mut self.awaiting {
            serial.0 += shift;
        }
        Landed::Adopted(finished)
    }

    fn leave(&mut self, count: usize) -> Finished {
        let queue = &self.queue;
        let hidden =
            (self.visible..count).filter_map(|at| Some((queue.get(at)?, queue.serial(at))));
        self.shown.show_stored(hidden);
        self.shown.finish(&self.held.value.root, self.held.value.checkpoint);
        let changes = self.queue.finish(count);
        self.visible = self.visible.saturating_sub(count);
        let flash_bytes =
            changes.iter().filter(|change| change.is_logged()).map(Change::cost).sum();
        self.flash_bytes -= flash_bytes;
        let checkpoint = self.queue.checkpoint();
        let done = self.awaiting.partition_point(|(serial, _)| *serial <= checkpoint);
        let waiters = self.awaiting.drain(..done).map(|(_, waiter)| waiter).collect();
        Finished { changes, waiters, flash_bytes, before: None }
    }

    /// Takes all callers that wait for the datastore: the caller tells them of an error.
    pub(crate) fn give_up(&mut self) -> Vec<Waiter> {
        self.drain_to = Serial(0);
        self.awaiting.drain(..).map(|(_, waiter)| waiter).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destage::commit::tests::vault;
    use crate::queue::Payload;
    use crate::record::{Coming, Record, RecordHome};
    use rekindle_base::NodeId;
    use rekindle_content::{Batch, tree::Root};
    use rekindle_datastore::backend::mem::Mem;
    use rekindle_datastore::record::Writer;
    use rekindle_env::BoxFuture;
    use rekindle_env::sim::{Faults, World};

    #[test]
    fn a_late_commit_that_does_not_fit_is_gone_over_unless_the_store_may_always_have_had_it() {
        let world = World::new(1, Faults::none());
        world.block_on(async {
            let writer = Writer::new(world.env(), Mem::store(), NodeId([2; 16]));
            let key = Vault::key(vault(1, 10).id);
            let held = writer.create(&key, vault(1, 10)).await.expect("free");
            // Start 3 claims serial 21, which start 4 has logged.
            let late = Vault { incarnation: Incarnation(3), begins: Serial(5), ..vault(2, 21) };
            let late = writer.replace(&held, late).await.expect("ours");
            for (seen, is_older) in [(false, false), (false, true), (true, false), (true, true)] {
                let logged = [(Serial(20), Incarnation(3)), (Serial(30), Incarnation(4))];
                let unfinished = Unfinished {
                    queue: Queue::with(Serial(10), VecDeque::new()),
                    end: Position(0),
                    begins: Serial(30),
                    runs: Runs::of(logged.into_iter()),
                };
                let shown = (Shown::Range(Default::default()), 0);
                let mut gate = VolumeState::new(held.clone(), unfinished, seen, shown);
                match gate.adopt(late.clone(), Incarnation(5), is_older) {
                    Landed::Deposed => assert!(seen || is_older, "by a copy, nobody knows"),
                    Landed::Absurd => assert!(!seen && !is_older, "it has landed since"),
                    Landed::Adopted(_) | Landed::Strange => panic!("it does not fit"),
                }
            }
        });
    }

    /// A home that is told of nothing.
    struct Untold;

    impl RecordHome for Untold {
        fn apply(&self, _: &[Record]) {
            panic!("no record becomes visible");
        }

        fn finish(&self, _: &Root, _: Serial) {
            panic!("no root is taken");
        }

        fn fold<'a>(
            &'a self,
            _: &'a mut Batch,
            _: &'a Root,
            _: &'a [Record],
        ) -> BoxFuture<'a, Result<Root, Error>> {
            panic!("nothing is folded");
        }

        fn check_tree<'a>(&'a self, _: &'a Root) -> BoxFuture<'a, Result<(), Error>> {
            panic!("nothing is read");
        }
    }

    #[test]
    fn a_record_home_never_goes_on_with_a_commit_of_records_that_it_never_had() {
        let world = World::new(1, Faults::none());
        world.block_on(async {
            let writer = Writer::new(world.env(), Mem::store(), NodeId([2; 16]));
            let key = Vault::key(vault(1, 10).id);
            let held = writer.create(&key, vault(1, 10)).await.expect("free");
            let late = Vault { incarnation: Incarnation(3), ..vault(2, 11) };
            let late = writer.replace(&held, late).await.expect("ours");
            // A record of this life that only RAM has, and no client was told of.
            let kept = Change::kept(7, 0, Payload::Zero, Moment::default());
            let unfinished = Unfinished {
                queue: Queue::with(Serial(10), VecDeque::from([kept])),
                end: Position(0),
                begins: Serial(10),
                runs: Runs::default(),
            };
            let shown = (Shown::Record(Coming::new(Arc::new(Untold))), 0);
            let mut gate = VolumeState::new(held, unfinished, true, shown);
            assert!(matches!(gate.adopt(late, Incarnation(5), false), Landed::Strange));
            assert_eq!((gate.checkpoint(), gate.queue.len()), (Serial(10), 1));
        });
    }
}
