//! The state of a volume in service: all that changes with each write, under one mutex that is held
//! for plain calls only.
//!
//! Each part keeps its own order: [`basis`] (the vault, and the lives behind it), [`changes`] (the
//! queue, and what of it is visible), [`room`] (flash, and the writes that wait for it),
//! [`waiters`] (callers that wait for the datastore), [`destaging`] (the destager's ring, and its
//! errors), [`previous`] (the content before the last commit). A commit moves all parts on together
//! ([`VolumeState::finish`]).

pub(crate) mod basis;
pub(crate) mod changes;
pub(crate) mod destaging;
pub(crate) mod previous;
pub(crate) mod room;
pub(crate) mod waiters;

use crate::ack::paused::Paused;
use crate::queue::{Change, Queue};
use crate::recover::lives::{Fit, Runs};
use crate::shape::Shown;
use crate::vault::snapshot;
use crate::{Error, Vault};
use basis::Basis;
use changes::Changes;
use destaging::Destaging;
use previous::{Before, Previous};
use rekindle_base::{Incarnation, Serial};
use rekindle_datastore::record::Held;
use rekindle_log::Position;
use room::Room;
use waiters::{Waiter, Waiters};

/// State of a volume in service.
pub(crate) struct VolumeState {
    pub(crate) basis: Basis,
    pub(crate) changes: Changes,
    pub(crate) room: Room,
    pub(crate) waiters: Waiters,
    pub(crate) destaging: Destaging,
    pub(crate) previous: Previous,
    /// The requests that wait for the end of a hand-over.
    pub(crate) paused: Paused,
    /// The reason why the volume is out of service.
    pub(crate) ended: Option<Error>,
}

/// The changes of a volume that comes into service and are not in the datastore.
pub(crate) struct Unfinished {
    pub(crate) queue: Queue,
    /// Point of the log that covers the queue.
    pub(crate) end: Position,
    /// The serial behind which this life of the node began to log changes of the volume.
    pub(crate) begins: Serial,
    /// The lives that logged the changes before that.
    pub(crate) runs: Runs,
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
        shown: (Shown, usize),
    ) -> Self {
        let Unfinished { queue, end, begins, runs } = unfinished;
        debug_assert_eq!(queue.checkpoint(), held.value.checkpoint);
        Self {
            basis: Basis { held, seen, begins, runs },
            room: Room::new(queue.bytes()),
            changes: Changes::new(queue, end, shown),
            waiters: Waiters::default(),
            destaging: Destaging::default(),
            previous: Previous::default(),
            paused: Paused::default(),
            ended: None,
        }
    }

    /// Returns the error for every call, if the volume is out of service.
    pub(crate) fn in_service(&self) -> Result<(), Error> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// The vault as of the last commit.
    pub(crate) fn vault(&self) -> &Vault {
        &self.basis.held.value
    }

    /// The serial up to which the home has the changes.
    pub(crate) fn checkpoint(&self) -> Serial {
        self.vault().checkpoint
    }

    /// Count of the changes that one batch may take: those that are ready, up to the serial of a
    /// snapshot that waits for its content. A volume that has lost changes goes on without it.
    pub(crate) fn foldable(&self) -> usize {
        let ready = self.changes.ready();
        match snapshot::cut(&self.vault().snapshots) {
            Some(cut) if self.destaging.lost.is_none() => {
                ready.min(usize::try_from(cut.0 - self.checkpoint().0).unwrap_or(usize::MAX))
            }
            _ => ready,
        }
    }

    /// Registers a waiter for the moment when the datastore has every change submitted so far;
    /// `None` when it has.
    pub(crate) fn await_all(&mut self) -> Option<waiters::Told> {
        let serial = self.changes.queue.last();
        (serial > self.checkpoint()).then(|| self.waiters.add(serial))
    }

    /// Notes that the datastore has the vault `held`. Root and checkpoint change together, and the
    /// prefix leaves the queue, so reads take it from the root. An overlay's pieces of it are
    /// cleared afterwards.
    pub(crate) fn finish(&mut self, held: Held<Vault>) -> Finished {
        let before = self.basis.commit(held);
        let count = usize::try_from(self.checkpoint().0 - before.checkpoint.0)
            .expect("a queue fits into memory");
        assert!(
            count <= self.changes.ready(),
            "the checkpoint is a prefix of what may be destaged"
        );
        Finished { before: (count > 0).then_some(before), ..self.leave(count) }
    }

    /// Adopts an earlier attempt that has landed late, of an earlier life or of this one. Its root
    /// holds changes up to its checkpoint that the log had then. Beyond these, it holds changes
    /// that were in RAM only and were not acknowledged. Our own changes in RAM, not acknowledged
    /// either, come after them. Refuses an attempt that was made from other changes than ours.
    /// `is_older`: the attempt is of a life before the first that made copies of vaults, so the
    /// copy that we began with is of a time before it landed.
    pub(crate) fn adopt(&mut self, held: Held<Vault>, life: Incarnation, is_older: bool) -> Landed {
        let logged = self.changes.logged();
        match self.basis.fit(&held.value, life, logged) {
            Fit::Fits => {}
            Fit::Deposed if self.basis.seen || is_older => return Landed::Deposed,
            // We began with a copy of the vault: the store may have had this one all the time.
            Fit::Deposed | Fit::Absurd => return Landed::Absurd,
        }
        let claimed = held.value.checkpoint.0 - self.checkpoint().0;
        let claimed = usize::try_from(claimed).unwrap_or(usize::MAX);
        if claimed > logged && matches!(self.changes.shown, Shown::Record(_)) {
            return Landed::Strange;
        }
        self.basis.adopt(held, life);
        Landed::Adopted(self.leave(logged.min(claimed)))
    }

    /// Takes the first `count` changes out, which the vault has, and all that goes with them.
    fn leave(&mut self, count: usize) -> Finished {
        let through = Serial(self.changes.queue.checkpoint().0 + count as u64);
        let changes = self.changes.finish(count, &self.basis.held.value);
        let logged = changes.iter().filter(|change| change.is_logged());
        let flash_bytes = logged.map(Change::cost).sum();
        self.room.leave(flash_bytes);
        let waiters = self.waiters.reached(through, self.checkpoint());
        Finished { changes, waiters, flash_bytes, before: None }
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
    use rekindle_env::sim::{Faults, World};
    use rekindle_env::{BoxFuture, Moment};
    use std::collections::VecDeque;
    use std::sync::Arc;

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
                    Landed::Deposed => assert!(seen || is_older, "a copy of the vault cannot tell"),
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
            assert_eq!((gate.checkpoint(), gate.changes.queue.len()), (Serial(10), 1));
        });
    }
}
