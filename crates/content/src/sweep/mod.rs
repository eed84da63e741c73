//! Reclaiming space beside traffic: no lock over the store, and until the deletion a rescue is
//! always possible.
//!
//! 1. **Marking**: list the packs, then walk everything that roots reach. A pack that was listed,
//!    that no live batch wrote and in which nothing is alive is a candidate; so is one that is
//!    mostly dead (for compaction).
//! 2. **Condemned**: from now on this node finds no duplicates in the candidates; the record
//!    `sweep/condemned` tells the other nodes.
//! 3. **Settling**: wait until every batch (and every [`crate::Hold`]) begun before has ended, and
//!    the other nodes say the same of theirs. A chunk that such a batch took from a condemned pack
//!    is now either reached by a root, or by nothing.
//! 4. **Re-marking**: read the roots again and walk what is new. Chunks are immutable, so walked
//!    ones need not be walked again. A pack in which something is alive now is rescued. A pack that
//!    is dead now stays dead: no batch can find it.
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
mod compact;
pub mod condemned;
mod lease;
mod machine;
mod mark;
pub(crate) mod pace;
mod status;

pub use acks::{Ack, is_dismissed, replaced_by};
pub use lease::{EXPIRY, Lease};
pub use machine::Phase;
pub use pace::Budget;
pub use status::SweepStatus;

use crate::name::{PackMap, PackSet};
use crate::tree::{Root, walk_at};
use crate::{Class, Content, Error, Pointer, limits, moved, pack};
use condemned::{Condemned, State};
use futures_util::future::{Either, select};
use lease::{Seen, Tenure};
use machine::Event;
use mark::{Marks, Verdict, list_notes, list_packs};
use pace::Pace;
use parking_lot::Mutex;
use rekindle_base::{Incarnation, Kind, NodeId, PackId};
use rekindle_datastore::record::{Held, Writer};
use rekindle_env::{BoxFuture, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The roots of everything that must stay.
#[derive(Debug, Clone, Default)]
pub struct RootSet {
    /// As many of each volume as it has: the present one, earlier versions, those in the trash.
    pub roots: Vec<Root>,
    /// The moment of the aging clock behind which some of them need not stay; `None` without one.
    pub until: Option<Timestamp>,
}

/// The source of all roots.
pub trait Roots: Send + Sync {
    /// Returns the roots of everything that must stay. An error ends the sweep: a root that cannot
    /// be read is never an empty one.
    ///
    /// A root that exists during the whole call must be in the answer, even when it goes from one
    /// record to another meanwhile. So a task that moves roots keeps a [`crate::Hold`] while doing
    /// so, and a task that lists records looks again when a listed record has vanished.
    fn roots(&self) -> BoxFuture<'_, Result<RootSet, Error>>;

    /// Returns a fingerprint of all but the time that decides the roots, from lists and memory;
    /// `None` where records must be read. An equal one spares a sweep. A sweep that marks reads the
    /// records all the same, because a list may be older than they are.
    fn fingerprint(&self) -> BoxFuture<'_, Result<Option<[u8; 32]>, Error>> {
        Box::pin(async { Ok(None) })
    }
}

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
    status: Mutex<SweepStatus>,
    stop: Arc<AtomicBool>,
    /// Bytes of blobs in packs of which more is alive than their lengths let expect, as their
    /// footers say. By their lengths alone, parity (and in small packs header and footer) would
    /// make them candidates of each sweep.
    blob_bytes: Mutex<PackMap<u64>>,
    /// The last sweep's sight of the store, if it found nothing to do.
    at_rest: Mutex<Option<Sight>>,
    /// Another node's lease, as it was seen last.
    seen: Seen,
    /// One sweep at a time.
    turn: tokio::sync::Mutex<()>,
    left: acks::Left,
}

/// All that decides what a sweep finds. Trees and packs are immutable: with the same packs, notes
/// and roots as before, the same is alive.
#[derive(Debug, Clone, Copy)]
struct Sight {
    /// The [`fingerprint`] of the packs and notes.
    stored: [u8; 32],
    /// The fingerprint of [`Roots::fingerprint`], taken before the roots were read.
    listed: Option<[u8; 32]>,
    /// The [`fingerprint_of_roots`].
    roots: [u8; 32],
    /// The moment behind which there may be fewer roots.
    until: Option<Timestamp>,
}

/// The proposal of a mark.
#[derive(Debug, Default)]
struct Plan {
    /// Packs in which nothing is alive.
    dead: Vec<PackId>,
    /// Packs in which little is alive, with their lengths.
    sparse: Vec<(PackId, u64)>,
    /// Notes into which no pointer leads.
    notes: Vec<PackId>,
}

impl Sweeper {
    /// Creates a sweeper of `content`'s store. `roots` must know every root there is.
    #[must_use]
    pub fn new(content: Content, writer: Writer, roots: Arc<dyn Roots>) -> Self {
        Self {
            content,
            writer,
            roots,
            options: Options::default(),
            status: Mutex::default(),
            stop: Arc::default(),
            blob_bytes: Mutex::default(),
            at_rest: Mutex::default(),
            seen: Seen::default(),
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

    /// The status of the sweep at hand, or of the last one.
    #[must_use]
    pub fn status(&self) -> SweepStatus {
        self.status.lock().clone()
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
            Ok(_turn) => acks::acknowledge(&self.content, &self.writer, &self.left).await,
            Err(_) => Ok(false),
        }
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

    /// Runs one sweep, from begin to end. After an error everything is as safe as before; the next
    /// sweep begins anew.
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
        let result = self.leased().await;
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

    /// Sweeps with the lease in hand.
    async fn leased(&self) -> Result<(), Error> {
        let tenure = match lease::take(&self.writer, &self.seen).await {
            Ok(tenure) => tenure,
            Err(error) => {
                // The node that sweeps waits for this node.
                acks::acknowledge(&self.content, &self.writer, &self.left).await?;
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

    async fn sweep(&self, tenure: &Tenure<'_>) -> Result<(), Error> {
        let content = &self.content;
        let held = self.resume(tenure).await?;
        self.step(Event::Begin);
        let pace = Pace::new(&self.writer.env, self.options.budget, self.stop.clone());
        // Packs before roots: a pack that is written from now on is not on the list. Then the
        // batches that wrote the listed packs.
        let packs = list_packs(content).await?;
        let unfinished: PackSet = content.inner.live.packs().into_iter().collect();
        let notes = list_notes(content).await?;
        let bytes_total = packs.values().sum();
        self.count(|status| status.bytes_total = bytes_total);
        let stored = fingerprint(&packs, &notes);
        let listed = self.roots.fingerprint().await?;
        let now = self.writer.env.aging_clock();
        let known = self.at_rest.lock().filter(|known| known.stored == stored);
        if known.is_some_and(|known| known.has_lists(listed, now)) {
            self.rest(&packs);
            return Ok(());
        }
        let (roots, until) = self.read_roots().await?;
        let sight = Sight { stored, listed, roots: fingerprint_of_roots(&roots), until };
        if known.is_some_and(|known| known.roots == sight.roots) {
            *self.at_rest.lock() = Some(sight);
            self.rest(&packs);
            return Ok(());
        }
        let mut marks = Marks::new(&notes, &packs);
        walk_at(content, &roots, &mut marks, Some(&pace)).await?;
        // A commit that leads to a young pack may still be on its way, from another node or from an
        // earlier start of this one.
        let (candidates, excluded): (PackMap<u64>, PackMap<u64>) =
            packs.iter().partition(|(pack, _)| {
                let is_settled = content.inner.live.has_ended(pack) || !self.is_young(pack);
                is_settled && !unfinished.contains(*pack)
            });
        let verdict = marks.judge(content, &notes, &packs).await?;
        let mut plan = self.plan(&candidates, &verdict);
        let mut blob_bytes = std::mem::take(&mut *self.blob_bytes.lock());
        blob_bytes.retain(|pack, _| packs.contains_key(pack));
        let asked = std::mem::take(&mut plan.sparse);
        let limit = self.options.compact_below;
        plan.sparse =
            compact::worthwhile(content, (&asked, limit), &verdict, &mut blob_bytes).await?;
        // Not at rest: a pack whose footer could not be read, and a pack that is left alone for
        // now. Time alone can make both of them candidates.
        let is_read = asked.iter().all(|(pack, _)| blob_bytes.contains_key(pack));
        *self.blob_bytes.lock() = blob_bytes;
        let waits = !self.plan(&excluded, &verdict).is_empty();
        let is_at_rest = plan.is_empty() && is_read && !waits;
        *self.at_rest.lock() = is_at_rest.then_some(sight);
        let live = packs.keys().filter(|pack| verdict.is_alive(pack)).count() as u64;
        self.count(|status| (status.packs_total, status.packs_live) = (packs.len() as u64, live));
        let mut groups = plan.into_groups(self.options.condemned_max).into_iter();
        let Some(first) = groups.next() else {
            self.step(Event::Nothing);
            return Ok(());
        };
        let mut held = self.reclaim(held, first, &packs, &mut marks, &pace, tenure).await?;
        for group in groups {
            // A compaction has filled the store. What is dead came before it.
            if self.status.lock().left_out.is_some() {
                break;
            }
            self.step(Event::Begin);
            held = self.reclaim(held, group, &packs, &mut marks, &pace, tenure).await?;
        }
        Ok(())
    }

    /// Ends a sweep of a store that has not changed. All packs are alive, or there would have been
    /// something to do.
    fn rest(&self, packs: &PackMap<u64>) {
        let live = packs.len() as u64;
        self.count(|status| {
            (status.packs_total, status.packs_live, status.is_unchanged) = (live, live, true);
        });
        self.step(Event::Nothing);
    }

    /// Reclaims one group of a plan: as many packs as the record names at once. All groups add to
    /// the same marks: each group is marked again after it was condemned, which is as sound as a
    /// mark from the beginning, and walks only what is new.
    async fn reclaim(
        &self,
        held: Held<Condemned>,
        plan: Plan,
        packs: &PackMap<u64>,
        marks: &mut Marks,
        pace: &Pace,
        tenure: &Tenure<'_>,
    ) -> Result<Held<Condemned>, Error> {
        let content = &self.content;
        self.step(Event::Candidates);
        let held = self.condemn(held, &plan).await?;
        self.settle(held.value.set).await?;

        // Both are listed again, because both may have changed meanwhile.
        let packs_now = list_packs(content).await?;
        let notes_now = list_notes(content).await?;
        if !marks.knows_leftovers(&notes_now, &packs_now) {
            return Err(Error::Stopped("another sweeper compacts at the same time".into()));
        }
        let (roots, _) = self.read_roots().await?;
        walk_at(content, &roots, marks, Some(pace)).await?;
        let verdict = marks.judge(content, &notes_now, &packs_now).await?;
        let plan = self.confirm(plan, packs, &verdict);
        if plan.is_empty() {
            let held = self.clear(held).await?;
            self.step(Event::Nothing);
            return Ok(held);
        }
        self.step(Event::Confirmed);
        let sparse = plan.sparse.iter().map(|(pack, _)| *pack).collect();
        let decision = Condemned {
            state: State::Deleting,
            packs: plan.dead,
            notes: plan.notes,
            sparse,
            ..held.value
        };
        let held = self.writer.replace(&held, decision).await?;
        self.delete(&held, packs, tenure).await?;
        let held = self.compact(held, plan.sparse, &verdict, pace, tenure).await?;
        let held = self.clear(held).await?;
        self.step(Event::Deleted);
        Ok(held)
    }

    /// Compacts a few packs at a time, so that the store needs little room for it. A full store
    /// ends the compaction, and is no error.
    async fn compact(
        &self,
        mut held: Held<Condemned>,
        mut sparse: Vec<(PackId, u64)>,
        verdict: &Verdict<'_>,
        pace: &Pace,
        tenure: &Tenure<'_>,
    ) -> Result<Held<Condemned>, Error> {
        while !sparse.is_empty() {
            self.step(Event::Sparse);
            let mut bytes = 0;
            let few = sparse.iter().take_while(|(_, length)| {
                let fits = bytes < limits::COMPACTION_ROUND_BYTES;
                bytes += length;
                fits
            });
            let few = few.count().max(1);
            let round: Vec<_> = sparse.drain(..few).collect();
            let compacted = match compact::compact(&self.content, &round, verdict, pace).await {
                Err(error) if error.kind() == Kind::Full => {
                    let left_out = format!("compaction: {error}");
                    self.count(|status| status.left_out = Some(left_out));
                    return Ok(held);
                }
                compacted => compacted?,
            };
            self.count(|status| {
                status.packs_compacted += compacted.packs.len() as u64;
                status.bytes_copied += compacted.bytes_copied;
            });
            let decision = Condemned {
                state: State::Deleting,
                packs: compacted.packs,
                notes: Vec::new(),
                sparse: sparse.iter().map(|(pack, _)| *pack).collect(),
                ..held.value
            };
            held = self.writer.replace(&held, decision).await?;
            self.step(Event::Compacted);
            let lengths = round.into_iter().collect();
            self.delete(&held, &lengths, tenure).await?;
        }
        Ok(held)
    }

    /// Whether a pack was made lately, or will be, by the clock of the node that made it.
    fn is_young(&self, pack: &PackId) -> bool {
        let mut made = [0; 8];
        made[2..].copy_from_slice(&pack.0[..6]);
        let young = u64::try_from(self.options.young.as_millis()).unwrap_or(u64::MAX);
        let now = self.writer.env.wall_clock().0 / 1000;
        u64::from_be_bytes(made).saturating_add(young) > now
    }

    /// Ends what a crash cut off, and returns the record.
    async fn resume(&self, tenure: &Tenure<'_>) -> Result<Held<Condemned>, Error> {
        let held = condemned::hold(&self.writer).await?;
        match held.value.state {
            State::Clear => Ok(held),
            State::Condemned => self.clear(held).await,
            State::Deleting => {
                self.step(Event::Resume);
                condemned::refuse(&self.content, &held.value);
                self.delete(&held, &PackMap::default(), tenure).await?;
                let held = self.clear(held).await?;
                self.step(Event::Deleted);
                Ok(held)
            }
        }
    }

    async fn read_roots(&self) -> Result<(Vec<Pointer>, Option<Timestamp>), Error> {
        let RootSet { roots, until } = self.roots.roots().await?;
        let roots: Vec<Pointer> = roots.into_iter().flatten().collect();
        // A root of the wrong class would be walked as data, which has no children.
        if let Some(root) = roots.iter().find(|root| pack::class(root.pack) != Class::Metadata) {
            return Err(Error::damaged(root, "it is said to be a root, and lies with the data"));
        }
        Ok((roots, until))
    }

    fn plan(&self, candidates: &PackMap<u64>, verdict: &Verdict<'_>) -> Plan {
        let mut plan = Plan { notes: verdict.idle_notes.clone(), ..Plan::default() };
        let blob_bytes = self.blob_bytes.lock();
        for (pack, length) in candidates {
            let bytes = blob_bytes.get(pack).unwrap_or(length);
            let is_sparse =
                verdict.bytes(pack) * 100 < bytes * u64::from(self.options.compact_below);
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
        plan
    }

    async fn condemn(&self, held: Held<Condemned>, plan: &Plan) -> Result<Held<Condemned>, Error> {
        let packs: Vec<PackId> =
            plan.dead.iter().copied().chain(plan.sparse.iter().map(|sparse| sparse.0)).collect();
        self.count(|status| status.packs_condemned += packs.len() as u64);
        let condemned = Condemned {
            sweep: held.value.sweep + 1,
            state: State::Condemned,
            packs,
            notes: plan.notes.clone(),
            sparse: Vec::new(),
            set: self.writer.env.random_u64(),
        };
        condemned::refuse(&self.content, &condemned);
        let held = self.writer.replace(&held, condemned).await?;
        self.step(Event::Recorded);
        Ok(held)
    }

    async fn settle(&self, set: u64) -> Result<(), Error> {
        self.ended().await?;
        self.agreed(set).await?;
        let env = &self.writer.env;
        let until = env.now() + self.options.grace;
        loop {
            // At least once in each group of a sweep.
            self.check_stop()?;
            let left = until.since(env.now());
            if left.is_zero() {
                break;
            }
            env.sleep(left.min(limits::SWEEP_POLL)).await;
        }
        self.step(Event::Settled);
        Ok(())
    }

    fn check_stop(&self) -> Result<(), Error> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::Stopped("a user asked for it".into())),
            false => Ok(()),
        }
    }

    /// Waits until everything that this node had begun before has ended.
    async fn ended(&self) -> Result<(), Error> {
        let env = &self.writer.env;
        let begun = env.now();
        let mut settled = std::pin::pin!(self.content.inner.live.settle());
        loop {
            let poll = env.sleep(limits::SWEEP_POLL);
            match select(settled.as_mut(), poll).await {
                Either::Left(_) => {
                    self.count(|status| status.waits_for = None);
                    return Ok(());
                }
                Either::Right(_) => {}
            }
            self.check_stop()?;
            if env.now().since(begun) >= self.options.patience {
                return Err(Error::Stopped(
                    "what this node had begun before it has not ended, so nothing is deleted: sweep again later".into(),
                ));
            }
            let what = "what this node had begun before: batches, checks, imports".to_owned();
            self.count(|status| status.waits_for = Some(what));
        }
    }

    /// Waits until every other node has acknowledged the set.
    async fn agreed(&self, set: u64) -> Result<(), Error> {
        let env = &self.writer.env;
        // A newer start of this node writes, and is not among the other nodes. A start that comes
        // later finds the set.
        if let Some(newer) = acks::replaced_by(&self.writer).await? {
            return Err(Error::Stopped(format!(
                "start {newer} of this node is in its record: another copy of its folder was started, and has not been asked"
            )));
        }
        let begun = env.now();
        loop {
            let missing = acks::missing(&self.writer, set).await?;
            if missing.is_empty() {
                self.count(|status| status.waits_for = None);
                return Ok(());
            }
            let listed = |nodes: Vec<&acks::Waited>| {
                nodes.iter().map(|one| one.node.to_string()).collect::<Vec<_>>().join(", ")
            };
            let (ending, silent): (Vec<_>, Vec<_>) = missing.iter().partition(|one| one.is_ending);
            if env.now().since(begun) >= self.options.patience {
                if silent.is_empty() {
                    return Err(Error::Stopped(format!(
                        "node {} lives, and has not ended yet what it had begun before, so nothing is deleted: sweep \
                         again later",
                        listed(ending)
                    )));
                }
                let command =
                    |one: &&acks::Waited| format!("`rekindle sweep dismiss {}`", one.node);
                let commands: Vec<String> = silent.iter().map(command).collect();
                let nodes = listed(silent);
                return Err(Error::Stopped(format!(
                    "node {nodes} uses this store too and has not agreed to the deletion, so nothing is deleted: start \
                     it, or, if it is gone for good, say so: {}",
                    commands.join(", ")
                )));
            }
            self.check_stop()?;
            let nodes = listed(missing.iter().collect());
            self.count(|status| status.waits_for = Some(format!("node {nodes}")));
            env.sleep(limits::SWEEP_POLL).await;
        }
    }

    /// Returns the part of the plan that still holds after the second mark.
    fn confirm(&self, plan: Plan, packs: &PackMap<u64>, verdict: &Verdict<'_>) -> Plan {
        let (dead, rescued): (Vec<_>, Vec<_>) =
            plan.dead.into_iter().partition(|pack| !verdict.is_alive(pack));
        self.count(|status| status.packs_rescued += rescued.len() as u64);
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

    /// Deletes what the record says. Each step proves first that no other node sweeps.
    async fn delete(
        &self,
        held: &Held<Condemned>,
        lengths: &PackMap<u64>,
        tenure: &Tenure<'_>,
    ) -> Result<(), Error> {
        let store = &self.content.inner.store;
        for window in held.value.packs.chunks(limits::FETCH_WINDOW) {
            tenure.prove().await?;
            let keys: Vec<String> = window.iter().map(|pack| pack::key(*pack)).collect();
            futures_util::future::try_join_all(keys.iter().map(|key| store.delete(key))).await?;
            let bytes: u64 = window.iter().filter_map(|pack| lengths.get(pack)).sum();
            self.count(|status| {
                status.packs_deleted += window.len() as u64;
                status.bytes_freed += bytes;
            });
        }
        for window in held.value.notes.chunks(limits::FETCH_WINDOW) {
            tenure.prove().await?;
            for pack in window {
                store.delete(&moved::key(*pack)).await?;
                self.content.inner.moved.forget(*pack);
                self.count(|status| status.notes_deleted += 1);
            }
        }
        self.content.inner.index.forget_wholly(&held.value.packs);
        Ok(())
    }

    async fn clear(&self, held: Held<Condemned>) -> Result<Held<Condemned>, Error> {
        let cleared = held.value.clear();
        let held = self.writer.replace(&held, cleared).await?;
        self.content.inner.index.condemn([]);
        Ok(held)
    }
}

impl Plan {
    /// Parts the plan into groups of at most `most` packs and notes each, what is dead first.
    fn into_groups(mut self, most: usize) -> Vec<Plan> {
        let mut groups = Vec::new();
        while !self.is_empty() {
            let dead = take(&mut self.dead, most);
            let sparse = take(&mut self.sparse, most - dead.len());
            let notes = take(&mut self.notes, most);
            groups.push(Plan { dead, sparse, notes });
        }
        groups
    }

    fn is_empty(&self) -> bool {
        self.dead.is_empty() && self.sparse.is_empty() && self.notes.is_empty()
    }
}

impl Sight {
    /// Whether the lists say that the roots are as they were.
    fn has_lists(&self, listed: Option<[u8; 32]>, now: Timestamp) -> bool {
        listed.is_some() && self.listed == listed && self.until.is_none_or(|until| now <= until)
    }
}

/// Returns a number of the packs and notes in the store.
fn fingerprint(packs: &PackMap<u64>, notes: &PackSet) -> [u8; 32] {
    let mut packs: Vec<_> = packs.keys().collect();
    let mut notes: Vec<_> = notes.iter().collect();
    packs.sort_unstable();
    notes.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    for list in [packs, notes] {
        hasher.update(&(list.len() as u64).to_le_bytes());
        for pack in list {
            hasher.update(&pack.0);
        }
    }
    hasher.finalize().into()
}

/// Returns a number of the places of roots.
pub fn fingerprint_of_roots<'a>(roots: impl IntoIterator<Item = &'a Pointer>) -> [u8; 32] {
    let mut roots: Vec<_> = roots.into_iter().map(|root| (root.pack, root.offset)).collect();
    roots.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    for (pack, offset) in roots {
        hasher.update(&pack.0).update(&offset.to_le_bytes());
    }
    hasher.finalize().into()
}

/// Takes the first elements out, at most so many.
fn take<T>(from: &mut Vec<T>, most: usize) -> Vec<T> {
    let rest = from.split_off(most.min(from.len()));
    std::mem::replace(from, rest)
}

#[cfg(test)]
mod tests;
