//! The gatekeeper of a volume: gives serials, and lets changes become visible in serial order.
//!
//! All state of a volume that changes with each write is here, under one mutex that is held for plain calls only.
//! Serial order is append order is queue order: writes that are in flight together go to flash together, and become
//! visible one after the other when the log has them, so an overlapping pair ends as its serials say.

use crate::earlier::{Before, Earlier};
use crate::listing::Unfinished;
use crate::lives::{Fit, Runs};
use crate::overlay::Overlay;
use crate::queue::{Change, Queue};
use crate::{Error, Vault};
use base::{Incarnation, Serial};
use datastore::record::Held;
use env::Moment;
use log::Position;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Whom to tell how a wait ended.
pub(crate) type Teller = oneshot::Sender<Result<(), Error>>;

/// A write that waits for room on flash.
pub(crate) struct Waiting {
    pub(crate) cost: u64,
    pub(crate) teller: oneshot::Sender<()>,
}

/// The destager's pause after an error.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pause {
    pub(crate) until: Moment,
    pub(crate) length: Duration,
}

/// State of a volume in service.
pub(crate) struct Gatekeeper {
    /// The vault as last read or written; its root and checkpoint are what the home has.
    pub(crate) held: Held<Vault>,
    pub(crate) queue: Queue,
    /// How many changes at the front of the queue are visible.
    visible: usize,
    pub(crate) overlay: Overlay,
    /// Point of the log that covers all changes of the volume.
    pub(crate) end: Position,
    /// The serial behind which this life of the node began to log changes of the volume.
    pub(crate) begins: Serial,
    /// Which lives logged those before.
    pub(crate) runs: Runs,
    /// The vault was read from the store in this life; else a copy of it was believed.
    pub(crate) seen: bool,
    /// Flash that unfinished changes take, with what was promised to writes that waited.
    pub(crate) flash_bytes: u64,
    /// Writes that wait for room, first come first served.
    pub(crate) waiting: VecDeque<Waiting>,
    /// Who waits until the datastore has everything up to a serial; serials ascend.
    awaiting: VecDeque<(Serial, Teller)>,
    /// Destage at once up to here.
    pub(crate) drain_to: Serial,
    /// The root before the last commit, for a salvage.
    pub(crate) earlier: Option<Arc<Earlier>>,
    /// Salvages that may want it.
    pub(crate) salvages: usize,
    /// In the destager's ring, or being destaged.
    pub(crate) ringed: bool,
    /// The destager was told that there is work.
    pub(crate) told: bool,
    pub(crate) drain: crate::flow::Drain,
    pub(crate) pause: Pause,
    pub(crate) destage_error: Option<String>,
    /// Acknowledged changes that cannot be read back.
    pub(crate) lost: Option<Error>,
    /// Why the volume is out of service.
    pub(crate) ended: Option<Error>,
}

/// What becomes of a commit of an earlier attempt, ours or another life's, that has landed.
pub(crate) enum Landed {
    /// It is what the home has now.
    Adopted(Finished),
    /// An older life made it after this one had begun: ours goes over it.
    Deposed,
    /// Nobody knows which of the two is right.
    Absurd,
}

/// What a commit leaves to be done outside the lock.
pub(crate) struct Finished {
    pub(crate) changes: Vec<Change>,
    pub(crate) tellers: Vec<Teller>,
    /// Flash that they took.
    pub(crate) flash_bytes: u64,
    /// What they were folded into, if they alone lead from there to the present root.
    pub(crate) before: Option<Before>,
}

impl Gatekeeper {
    /// State of a volume that comes into service with `unfinished` in the log behind the vault's checkpoint.
    pub(crate) fn new(held: Held<Vault>, unfinished: Unfinished, seen: bool) -> Self {
        let Unfinished { queue, end, begins, runs } = unfinished;
        debug_assert_eq!(queue.checkpoint(), held.value.checkpoint);
        Self {
            begins,
            runs,
            seen,
            flash_bytes: queue.bytes(),
            held,
            queue,
            visible: 0,
            overlay: Overlay::default(),
            end,
            waiting: VecDeque::new(),
            awaiting: VecDeque::new(),
            drain_to: Serial(0),
            earlier: None,
            salvages: 0,
            ringed: false,
            told: false,
            drain: crate::flow::Drain::default(),
            pause: Pause::default(),
            destage_error: None,
            lost: None,
            ended: None,
        }
    }

    /// Makes the changes visible that are on flash already, all at once. For a volume that comes into service.
    pub(crate) fn index(&mut self, committed: Position) {
        let queue = &self.queue;
        let count = queue.iter().take_while(|change| change.is_committed(committed)).count();
        let change = |index: usize| queue.get(index).expect("the count is within the queue");
        let range = |index: usize| (change(index).position, change(index).span);
        self.overlay = Overlay::build(queue.serial(0), count, range);
        self.visible = count;
    }

    /// Lists the changes that were counted only; `overlay` is theirs. Those that came since are to be applied.
    pub(crate) fn list(&mut self, changes: VecDeque<Change>, overlay: Overlay) {
        debug_assert!(self.visible == 0 && self.overlay.length() == 0, "nothing is visible before");
        self.visible = changes.len();
        self.queue.list(changes);
        self.overlay = overlay;
    }

    /// What is newer than the home in `start..end`: from, to, and the change it is part of. Ascending.
    pub(crate) fn meeting(
        &self,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = (u64, u64, &Change)> {
        self.overlay.meeting(start, end).filter_map(|piece| {
            // What the queue has no more, the home has.
            Some((piece.position, piece.end, self.queue.at(piece.serial)?))
        })
    }

    /// The error that every call shall get, if the volume is out of service.
    pub(crate) fn in_service(&self) -> Result<(), Error> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// What the home has.
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

    /// Changes in the log that are not visible yet. Those kept in RAM become visible with their commit.
    pub(crate) fn pending(&self) -> usize {
        if !self.queue.is_listed() {
            return self.queue.len();
        }
        match self.queue.get(self.visible) {
            Some(change) if change.is_logged() => self.queue.len() - self.visible,
            _ => 0,
        }
    }

    /// Makes changes visible, in serial order, up to what the log has on flash.
    pub(crate) fn apply(&mut self, committed: Position) {
        while let Some(change) = self.queue.get(self.visible) {
            if !change.is_committed(committed) {
                break;
            }
            let serial = self.queue.serial(self.visible);
            self.overlay.insert(change.position, change.span, serial);
            self.visible += 1;
        }
    }

    /// Makes all changes in the log visible: memory that outlives the process is as good as flash.
    pub(crate) fn apply_all(&mut self) {
        self.apply(self.end);
    }

    /// Changes that may go to the datastore now. Those in the log only when they are visible (hence acknowledged or
    /// about to be); those in RAM always.
    pub(crate) fn ready(&self) -> usize {
        match self.pending() {
            0 => self.queue.len(),
            _ => self.visible,
        }
    }

    /// A teller for the moment when the datastore has everything submitted so far; `None` when it has.
    pub(crate) fn await_all(&mut self) -> Option<oneshot::Receiver<Result<(), Error>>> {
        let serial = self.queue.last();
        (serial > self.checkpoint()).then(|| {
            let (teller, told) = oneshot::channel();
            self.awaiting.push_back((serial, teller));
            told
        })
    }

    /// How many wait for the datastore.
    pub(crate) fn awaiting(&self) -> usize {
        self.awaiting.len()
    }

    /// The datastore has the vault `held`: root and checkpoint change together, the prefix leaves the queue, and with it
    /// what the overlay shows. The overlay's own pieces of it are cleared afterwards.
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

    /// An earlier attempt has landed late, of an earlier life or of this one: its root holds changes up to its checkpoint
    /// that the log had then and, beyond these, changes that were in RAM only and that nobody was told of. Ours in RAM,
    /// of which nobody was told either, come after them. Not when it was made from other changes than ours. `is_older`: it
    /// is of a life before the first that made copies of vaults, so the copy that we began with is of a time before it landed.
    pub(crate) fn adopt(&mut self, held: Held<Vault>, life: Incarnation, is_older: bool) -> Landed {
        let before = self.checkpoint();
        let checkpoint = held.value.checkpoint;
        assert!(checkpoint >= before, "checkpoints only grow");
        let logged = self.queue.iter().take_while(|change| change.is_logged()).count();
        let last = Serial(before.0 + logged as u64);
        match self.runs.fit((life, self.begins), (before, last), &held.value) {
            Fit::Fits => {}
            Fit::Deposed if self.seen || is_older => return Landed::Deposed,
            // By a copy: the store may have had this vault all the time.
            Fit::Deposed | Fit::Absurd => return Landed::Absurd,
        }
        let claimed = usize::try_from(checkpoint.0 - before.0).unwrap_or(usize::MAX);
        let count = logged.min(claimed);
        if held.value.incarnation != life {
            // What is behind it is all of this life.
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
        let changes = self.queue.finish(count);
        self.visible = self.visible.saturating_sub(count);
        let flash_bytes =
            changes.iter().filter(|change| change.is_logged()).map(Change::cost).sum();
        self.flash_bytes -= flash_bytes;
        let checkpoint = self.queue.checkpoint();
        let done = self.awaiting.partition_point(|(serial, _)| *serial <= checkpoint);
        let tellers = self.awaiting.drain(..done).map(|(_, teller)| teller).collect();
        Finished { changes, tellers, flash_bytes, before: None }
    }

    /// Everybody who waits for the datastore: they shall be told of an error.
    pub(crate) fn give_up(&mut self) -> Vec<Teller> {
        self.drain_to = Serial(0);
        self.awaiting.drain(..).map(|(_, teller)| teller).collect()
    }
}
