//! Reclaiming space beside traffic: no lock over the store, and until the deletion a rescue is always possible.
//!
//! 1. **Marking**: list the packs, then walk everything that roots reach. A pack that was listed, that no live batch wrote
//!    and in which nothing is alive is a candidate; so is one that is mostly dead (for compaction).
//! 2. **Condemned**: from now on this node finds no duplicates in the candidates; the record `sweep/condemned` tells the
//!    other nodes.
//! 3. **Settling**: wait until every batch (and every [`crate::Hold`]) begun before has ended, and the other nodes say
//!    the same of theirs. What such a batch took from a condemned pack is now either reached by a root, or by nothing.
//! 4. **Re-marking**: read the roots again and walk what is new. Chunks are immutable, so what was walked need not be walked
//!    again. A pack in which something is alive now is rescued. What is dead now stays dead: nobody can find it.
//! 5. **Compacting**: copy live chunks out of mostly dead packs, write `moved/<pack>` notes.
//! 6. **Deleting**: the record says which packs die (a conditional write: of two sweepers one stops here at the latest), then
//!    they are deleted, then the record is cleared.
//!
//! After a crash: *condemned* is dropped, *deleting* is finished. See [`condemned`] for why.

mod compact;
pub mod condemned;
mod machine;
mod mark;
pub(crate) mod pace;
mod status;

pub use machine::Phase;
pub use pace::Budget;
pub use status::SweepStatus;

use crate::name::{PackMap, PackSet};
use crate::tree::{Root, walk_at};
use crate::{Content, Error, Pointer, limits, moved, pack};
use base::PackId;
use condemned::{Condemned, State};
use datastore::record::{Held, Writer};
use env::BoxFuture;
use machine::Event;
use mark::{Marks, Verdict, list_notes, list_packs};
use pace::Pace;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Who knows all roots.
pub trait Roots: Send + Sync {
    /// The roots of everything that must stay. An error ends the sweep: a root that cannot be read is never an empty one.
    ///
    /// A root that exists during the whole call must be in the answer, even when it goes from one record to another
    /// meanwhile. Whoever moves roots keeps a [`crate::Hold`] while doing so, and whoever lists records looks again
    /// when one that was listed has vanished.
    fn roots(&self) -> BoxFuture<'_, Result<Vec<Root>, Error>>;
}

/// The other nodes.
pub trait Nodes: Send + Sync {
    /// Returns when every other node has read the record of this sweep, finds no duplicates in its packs any more, and all
    /// its batches begun before that have ended (each does so with [`acknowledge`]).
    fn acknowledged(&self, sweep: u64) -> BoxFuture<'_, Result<(), Error>>;
}

/// There are no other nodes.
pub struct Alone;

impl Nodes for Alone {
    fn acknowledged(&self, _sweep: u64) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Another node's part: reads the record, finds no duplicates in its packs from now on, and waits until the batches
/// begun before have ended. The number of the sweep that is acknowledged thereby.
pub async fn acknowledge(content: &Content) -> Result<u64, Error> {
    let condemned = condemned::read(&content.inner.store).await?;
    content.inner.index.condemn(condemned.packs.iter().copied());
    content.inner.live.settle().await;
    if condemned.state == State::Deleting {
        content.inner.index.forget(&condemned.packs);
    }
    Ok(condemned.sweep)
}

/// How a sweep goes about it.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// What it may take of the machine.
    pub budget: Budget,
    /// Whether mostly dead packs are compacted.
    pub compacts: bool,
    /// How long condemned packs are left alone at least, for readers that hold an old root.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { budget: Budget::Percent(30), compacts: true, grace: Duration::from_secs(30) }
    }
}

/// Sweeps one store.
pub struct Sweeper {
    content: Content,
    writer: Writer,
    roots: Arc<dyn Roots>,
    nodes: Arc<dyn Nodes>,
    options: Options,
    status: Mutex<SweepStatus>,
    stop: Arc<AtomicBool>,
    /// Bytes of blobs in packs of which more is alive than their lengths let expect, as their footers say: parity, and in
    /// small packs header and footer, would make them candidates of each sweep.
    blob_bytes: Mutex<PackMap<u64>>,
    /// One sweep at a time.
    turn: tokio::sync::Mutex<()>,
}

/// What a mark proposes.
#[derive(Debug, Default)]
struct Plan {
    /// Nothing in them is alive.
    dead: Vec<PackId>,
    /// Little in them is alive; with their lengths.
    sparse: Vec<(PackId, u64)>,
    /// Notes into which no pointer leads.
    notes: Vec<PackId>,
}

impl Sweeper {
    /// A sweeper of `content`'s store. `roots` must know every root there is.
    #[must_use]
    pub fn new(content: Content, writer: Writer, roots: Arc<dyn Roots>) -> Self {
        Self {
            content,
            writer,
            roots,
            nodes: Arc::new(Alone),
            options: Options::default(),
            status: Mutex::default(),
            stop: Arc::default(),
            blob_bytes: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// With other nodes.
    #[must_use]
    pub fn with_nodes(mut self, nodes: Arc<dyn Nodes>) -> Self {
        self.nodes = nodes;
        self
    }

    /// With other options.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// How far it is.
    #[must_use]
    pub fn status(&self) -> SweepStatus {
        self.status.lock().clone()
    }

    /// Ends the sweep at hand soon, unless it is deleting already.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// One sweep, from begin to end. After an error everything is as safe as before; the next one begins anew.
    pub async fn run(&self) -> Result<SweepStatus, Error> {
        let _turn = self.turn.lock().await;
        self.stop.store(false, Ordering::Relaxed);
        let wall_clock = || Some(self.writer.env.wall_clock().0);
        {
            let mut status = self.status.lock();
            let (sweeps, ended_microseconds) = (status.sweeps, status.ended_microseconds);
            let started_microseconds = wall_clock();
            *status = SweepStatus {
                sweeps,
                ended_microseconds,
                started_microseconds,
                ..SweepStatus::default()
            };
        }
        let result = self.sweep().await;
        if let Err(error) = &result {
            tracing::warn!(%error, "a sweep has failed");
            self.step(Event::Failed);
        }
        let mut status = self.status.lock();
        status.ended_microseconds = wall_clock();
        match result {
            Ok(()) => status.sweeps += 1,
            Err(error) => {
                status.failure = Some(error.to_string());
                return Err(error);
            }
        }
        Ok(status.clone())
    }

    fn step(&self, event: Event) {
        let mut status = self.status.lock();
        match machine::next(status.phase, event) {
            Some(next) => {
                tracing::debug!(from = ?status.phase, to = ?next, "sweep");
                status.phase = next;
            }
            None => debug_assert!(false, "{event:?} cannot happen while {:?}", status.phase),
        }
    }

    fn count(&self, change: impl FnOnce(&mut SweepStatus)) {
        change(&mut self.status.lock());
    }

    async fn sweep(&self) -> Result<(), Error> {
        let content = &self.content;
        let held = self.resume().await?;
        self.step(Event::Begin);
        let pace = Pace::new(&self.writer.env, self.options.budget, self.stop.clone());
        // Packs before roots: what is written from now on is not on the list. Then the batches that wrote what is.
        let packs = list_packs(content).await?;
        let unfinished: PackSet = content.inner.live.packs().into_iter().collect();
        let notes = list_notes(content).await?;
        let mut marks = Marks::new(&notes, &packs);
        self.mark(&mut marks, &pace).await?;
        let mut candidates = packs.clone();
        candidates.retain(|pack, _| !unfinished.contains(pack));
        let verdict = marks.judge(content, &notes, &packs).await?;
        let mut plan = self.plan(&candidates, &verdict);
        let mut blob_bytes = std::mem::take(&mut *self.blob_bytes.lock());
        blob_bytes.retain(|pack, _| packs.contains_key(pack));
        plan.sparse = compact::worthwhile(content, plan.sparse, &verdict, &mut blob_bytes).await?;
        *self.blob_bytes.lock() = blob_bytes;
        let live = packs.keys().filter(|pack| verdict.is_alive(pack)).count() as u64;
        self.count(|status| (status.packs_total, status.packs_live) = (packs.len() as u64, live));
        if plan.is_empty() {
            self.step(Event::Nothing);
            return Ok(());
        }
        self.step(Event::Candidates);
        let held = self.condemn(held, &plan).await?;
        self.settle(held.value.sweep).await?;

        // Both again, because both have changed meanwhile.
        let packs_now = list_packs(content).await?;
        let notes_now = list_notes(content).await?;
        if !marks.knows_leftovers(&notes_now, &packs_now) {
            return Err(Error::Stopped("another sweeper compacts at the same time".into()));
        }
        self.mark(&mut marks, &pace).await?;
        let verdict = marks.judge(content, &notes_now, &packs_now).await?;
        let plan = self.confirm(plan, &packs, &verdict);
        if plan.is_empty() {
            self.clear(held).await?;
            self.step(Event::Nothing);
            return Ok(());
        }
        self.step(Event::Confirmed);
        let compacted = compact::compact(content, &plan.sparse, &verdict, &pace).await?;
        self.count(|status| {
            status.packs_compacted = compacted.packs.len() as u64;
            status.bytes_copied = compacted.bytes_copied;
        });
        let dying = [plan.dead, compacted.packs].concat();
        let decision =
            Condemned { state: State::Deleting, packs: dying, notes: plan.notes, ..held.value };
        let held = self.writer.replace(&held, decision).await?;
        self.step(Event::Compacted);
        self.delete(held, &packs).await?;
        self.step(Event::Deleted);
        Ok(())
    }

    /// Ends what a crash cut off, and gives the record.
    async fn resume(&self) -> Result<Held<Condemned>, Error> {
        let held = condemned::hold(&self.writer).await?;
        match held.value.state {
            State::Clear => Ok(held),
            State::Condemned => self.clear(held).await,
            State::Deleting => {
                self.step(Event::Resume);
                let held = self.delete(held, &PackMap::default()).await?;
                self.step(Event::Deleted);
                Ok(held)
            }
        }
    }

    async fn mark(&self, marks: &mut Marks, pace: &Pace) -> Result<(), Error> {
        let roots: Vec<Pointer> = self.roots.roots().await?.into_iter().flatten().collect();
        walk_at(&self.content, &roots, marks, Some(pace)).await
    }

    fn plan(&self, candidates: &PackMap<u64>, verdict: &Verdict<'_>) -> Plan {
        let mut plan = Plan { notes: verdict.idle_notes.clone(), ..Plan::default() };
        let blob_bytes = self.blob_bytes.lock();
        for (pack, length) in candidates {
            let bytes = blob_bytes.get(pack).unwrap_or(length);
            let is_sparse = verdict.bytes(pack) * 100 < bytes * limits::COMPACTION_LIVE_PERCENT;
            if !verdict.is_alive(pack) {
                plan.dead.push(*pack);
            } else if self.options.compacts
                && is_sparse
                && verdict.hops(pack) < limits::MOVED_HOPS_COMPACTION_MAX
            {
                plan.sparse.push((*pack, *length));
            }
        }
        // Maps have no order; the simulation wants one.
        plan.dead.sort_unstable();
        plan.sparse.sort_unstable();
        plan.notes.sort_unstable();
        plan.dead.truncate(limits::CONDEMNED_MAX);
        plan.sparse.truncate(limits::CONDEMNED_MAX - plan.dead.len());
        plan.notes.truncate(limits::CONDEMNED_MAX);
        plan
    }

    async fn condemn(&self, held: Held<Condemned>, plan: &Plan) -> Result<Held<Condemned>, Error> {
        let packs: Vec<PackId> =
            plan.dead.iter().copied().chain(plan.sparse.iter().map(|sparse| sparse.0)).collect();
        self.content.inner.index.condemn(packs.iter().copied());
        self.count(|status| status.packs_condemned = packs.len() as u64);
        let sweep = held.value.sweep + 1;
        let condemned =
            Condemned { sweep, state: State::Condemned, packs, notes: plan.notes.clone() };
        let held = self.writer.replace(&held, condemned).await?;
        self.step(Event::Recorded);
        Ok(held)
    }

    async fn settle(&self, sweep: u64) -> Result<(), Error> {
        self.content.inner.live.settle().await;
        self.nodes.acknowledged(sweep).await?;
        self.writer.env.sleep(self.options.grace).await;
        self.step(Event::Settled);
        Ok(())
    }

    /// What is still so.
    fn confirm(&self, plan: Plan, packs: &PackMap<u64>, verdict: &Verdict<'_>) -> Plan {
        let (dead, rescued): (Vec<_>, Vec<_>) =
            plan.dead.into_iter().partition(|pack| !verdict.is_alive(pack));
        self.count(|status| status.packs_rescued = rescued.len() as u64);
        let idle: PackSet = verdict.idle_notes.iter().copied().collect();
        let mut confirmed = Plan { dead, ..Plan::default() };
        confirmed.notes.extend(plan.notes.into_iter().filter(|pack| idle.contains(pack)));
        for (pack, length) in plan.sparse {
            match verdict.is_alive(&pack) {
                true => confirmed.sparse.push((pack, length)),
                false => confirmed.dead.push(pack),
            }
        }
        debug_assert!(confirmed.dead.iter().all(|pack| packs.contains_key(pack)));
        confirmed
    }

    /// Deletes what the record says, and clears it.
    async fn delete(
        &self,
        held: Held<Condemned>,
        lengths: &PackMap<u64>,
    ) -> Result<Held<Condemned>, Error> {
        let store = &self.content.inner.store;
        let index = &self.content.inner.index;
        // Also after a crash: the record decides, not what this process knows.
        index.condemn(held.value.packs.iter().copied());
        for window in held.value.packs.chunks(limits::FETCH_WINDOW) {
            let keys: Vec<String> = window.iter().map(|pack| pack::key(*pack)).collect();
            futures_util::future::try_join_all(keys.iter().map(|key| store.delete(key))).await?;
            let bytes: u64 = window.iter().filter_map(|pack| lengths.get(pack)).sum();
            self.count(|status| {
                status.packs_deleted += window.len() as u64;
                status.bytes_freed += bytes;
            });
        }
        for pack in &held.value.notes {
            store.delete(&moved::key(*pack)).await?;
            self.content.inner.moved.forget(*pack);
            self.count(|status| status.notes_deleted += 1);
        }
        index.forget(&held.value.packs);
        self.clear(held).await
    }

    async fn clear(&self, held: Held<Condemned>) -> Result<Held<Condemned>, Error> {
        let cleared = held.value.clear();
        let held = self.writer.replace(&held, cleared).await?;
        self.content.inner.index.condemn([]);
        Ok(held)
    }
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.dead.is_empty() && self.sparse.is_empty() && self.notes.is_empty()
    }
}

#[cfg(test)]
mod tests;
