//! Reclaiming space beside traffic: no lock over the store, and until the deletion a rescue is
//! always possible.
//!
//! 1. **Marking**: list the packs, then bring the [`tally`] to the present roots. The tally counts
//!    how often each place is named, so only what has changed since the last sweep is read. A pack
//!    that was listed, that no live batch wrote and in which nothing is named is a candidate; so is
//!    one that is mostly dead (for compaction).
//! 2. **Condemned**: from now on this node finds no duplicates in the candidates; the record
//!    `sweep/condemned` tells the other nodes.
//! 3. **Settling**: wait until every batch (and every [`crate::Hold`]) begun before has ended, and
//!    the other nodes say the same of theirs. A chunk that such a batch took from a condemned pack
//!    is now either reached by a root, or by nothing.
//! 4. **Re-marking**: bring the tally to the roots once more. Until here a source of roots was read
//!    only when its tag in a list said so; now each source is read that a node says it has written
//!    ([`told`]). A pack in which something is named now is rescued. A pack that is dead now stays
//!    dead: no batch can find it.
//! 5. **Deleting**: the record says which packs die, then they are deleted. The record is written
//!    conditionally: of two sweepers one stops here at the latest. Deletion comes first, so that a
//!    full store has room again.
//! 6. **Compacting**: copy live chunks out of mostly dead packs, write `moved/<pack>` notes, delete
//!    those packs; a few at a time. Then the record is cleared.
//!
//! Of several nodes one sweeps ([`lease`]), and it waits for all the others ([`acks`]).
//!
//! After a crash: *condemned* is dropped, *deleting* is finished. [`condemned`] says why.

mod acks;
mod alive;
mod books;
mod compact;
pub mod condemned;
mod course;
mod findings;
mod lease;
mod listing;
mod machine;
pub(crate) mod pace;
mod plan;
mod progress;
mod settle;
pub(crate) mod sources;
mod tally;
mod told;

pub use acks::{Ack, is_dismissed, replaced_by};
pub use findings::SweepPlan;
pub use lease::{EXPIRY, Lease};
pub use machine::Phase;
pub use pace::Budget;
pub use progress::SweepProgress;
pub use sources::{KeptRoot, Look, Roots, Source, SourceId, Sources, Written};

use crate::{Content, Error, limits};
use books::Books;
use futures_util::future::{Either, select};
use lease::Seen;
use machine::Event;
use parking_lot::Mutex;
use rekindle_base::{Incarnation, NodeId};
use rekindle_datastore::record::Writer;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The options of a sweep.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The share of the machine that a sweep may take.
    pub budget: Budget,
    /// Whether packs are compacted.
    pub compacts: bool,
    /// A pack is compacted when less than this share (percent) of its bytes is live. A greater
    /// share leaves less waste in the store, and copies more: of each freed byte, `share / (100 -
    /// share)` bytes at most.
    pub compact_below: u8,
    /// Most packs that are condemned at once: the record names them.
    pub condemned_max: usize,
    /// Least time for which condemned packs are left alone, for readers that hold an old root.
    pub grace: Duration,
    /// Packs younger than this, by their ids, are left alone, unless this start wrote them and
    /// knows the outcome of their batches. Longer than any write takes, with all its retries.
    pub young: Duration,
    /// Time after which everything is counted anew, to compare.
    pub recount: Duration,
    /// Longest wait for what this node had begun before, and then for other nodes to agree. After
    /// it the sweep ends, and nothing is deleted.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            budget: Budget::Percent(30),
            compacts: true,
            compact_below: limits::COMPACT_BELOW_PERCENT,
            condemned_max: limits::CONDEMNED_MAX,
            grace: Duration::from_secs(30),
            young: Duration::from_secs(600),
            recount: limits::RECOUNT_AFTER,
            patience: Duration::from_secs(300),
        }
    }
}

/// A sweeper of one store.
pub struct Sweeper {
    content: Content,
    writer: Writer,
    roots: Arc<dyn Roots>,
    options: Options,
    progress: Mutex<SweepProgress>,
    stop: Arc<AtomicBool>,
    /// The tally; a sweep holds it.
    books: tokio::sync::Mutex<Books>,
    /// The [`listing::Listing::fingerprint`] with which the last sweep found nothing to do for the
    /// roots and notes that are counted.
    at_rest: Mutex<Option<[u8; 32]>>,
    /// Another node's lease, as it was seen last.
    seen: Seen,
    /// The lease as it was when this node looked for the last sweep.
    last_sweep: Seen,
    /// One sweep at a time.
    turn: tokio::sync::Mutex<()>,
    left: acks::Left,
}

impl Sweeper {
    /// Creates a sweeper of `content`'s store. `roots` must know every root there is. `folder` is
    /// for what the sweeper remembers: it may be lost.
    #[must_use]
    pub fn new(content: Content, writer: Writer, roots: Arc<dyn Roots>, folder: &Path) -> Self {
        Self {
            content,
            writer,
            roots,
            options: Options::default(),
            progress: Mutex::default(),
            stop: Arc::default(),
            books: tokio::sync::Mutex::new(Books::new(folder)),
            at_rest: Mutex::default(),
            seen: Seen::default(),
            last_sweep: Seen::default(),
            turn: tokio::sync::Mutex::default(),
            left: acks::Left::default(),
        }
    }

    /// Sets the options.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The progress of the sweep at hand, or of the last one.
    #[must_use]
    pub fn progress(&self) -> SweepProgress {
        self.progress.lock().clone()
    }

    /// Ends the sweep at hand soon, unless it is deleting already.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Does this node's part in the sweeps of others; to be called every few seconds. Reads one
    /// record. When that condemns packs, refuses duplicates in them, waits until the batches begun
    /// before have ended, and acknowledges. Without these calls no other node ever deletes
    /// anything. Does nothing while this node sweeps itself. Returns whether another node sweeps,
    /// and this node should look again soon.
    pub async fn acknowledge(&self) -> Result<bool, Error> {
        match self.turn.try_lock() {
            Ok(_turn) => self.say().await,
            Err(_) => Ok(false),
        }
    }

    async fn say(&self) -> Result<bool, Error> {
        acks::acknowledge(&self.content, &self.writer, &self.left, &*self.roots).await
    }

    /// Says that this start of the node is over, and that no sweep need wait for it: the last call
    /// before a stop in good order, when nothing writes any more.
    pub async fn leave(&self) -> Result<(), Error> {
        let life = self.writer.life();
        // An acknowledgement that is on its way ends first, and none comes after.
        let mut left = self.left.lock().await;
        *left = true;
        acks::leave(&self.writer, life.node, life.incarnation).await
    }

    /// Takes the user's word that the last start of another node is over for good, and that no
    /// write of it is still to come. Returns which start that was. Refuses when that start has
    /// answered the sweep at hand.
    pub async fn dismiss(&self, node: NodeId) -> Result<Incarnation, Error> {
        let incarnation = acks::dismissed(&self.writer, node).await?;
        acks::prove_silent(&self.writer, node, incarnation).await?;
        acks::leave(&self.writer, node, incarnation).await?;
        Ok(incarnation)
    }

    /// Returns the node to which this one should leave the next sweep, if no user asks for one:
    /// another node that swept last, and whose counts are up to date. `None` when no node has swept
    /// for `silence`.
    pub async fn left_to(&self, silence: Duration) -> Result<Option<NodeId>, Error> {
        lease::left_to(&self.writer, (&self.last_sweep, silence)).await
    }

    /// Runs one sweep, from begin to end. After an error everything is as safe as before; the next
    /// sweep begins anew.
    pub async fn run(&self) -> Result<SweepProgress, Error> {
        let _turn = self.turn.lock().await;
        self.stop.store(false, Ordering::Relaxed);
        let wall_clock = || Some(self.writer.env.wall_clock().0);
        {
            let mut progress = self.progress.lock();
            let (sweeps, ended_microseconds) = (progress.sweeps, progress.ended_microseconds);
            let started_microseconds = wall_clock();
            *progress = SweepProgress {
                sweeps,
                ended_microseconds,
                started_microseconds,
                ..SweepProgress::default()
            };
        }
        let result = self.leased().await;
        if let Err(error) = &result {
            tracing::warn!(%error, "a sweep has failed");
            self.step(Event::Failed);
        }
        let mut progress = self.progress.lock();
        progress.ended_microseconds = wall_clock();
        match result {
            Ok(()) => progress.sweeps += 1,
            Err(error) => {
                progress.failure = Some(error.to_string());
                return Err(error);
            }
        }
        Ok(progress.clone())
    }

    fn step(&self, event: Event) {
        let mut progress = self.progress.lock();
        match machine::next(progress.phase, event) {
            Some(next) => {
                tracing::debug!(from = ?progress.phase, to = ?next, "sweep");
                progress.phase = next;
            }
            None => debug_assert!(false, "{event:?} cannot happen while {:?}", progress.phase),
        }
    }

    fn count(&self, change: impl FnOnce(&mut SweepProgress)) {
        change(&mut self.progress.lock());
    }

    /// Sweeps with the lease in hand.
    async fn leased(&self) -> Result<(), Error> {
        let tenure = match lease::take(&self.writer, &self.seen).await {
            Ok(tenure) => tenure,
            Err(error) => {
                // The node that sweeps waits for this node.
                self.say().await?;
                return Err(error);
            }
        };
        let result = {
            let work = std::pin::pin!(self.sweep(&tenure));
            let beat = std::pin::pin!(tenure.keep());
            match select(work, beat).await {
                Either::Left((result, _)) => result,
                Either::Right((error, _)) => Err(error),
            }
        };
        tenure.release().await;
        result
    }
}

#[cfg(test)]
mod tests;
