//! Copiers of the log on other machines. The log copies each of its segments to all holders
//! ([`Replica`]), beside its own writes to flash.
//!
//! A holder's copies alone are a log, after each call: they are written in the order of flash. The
//! next head is open at the holder before the one before is sealed there, and a segment that
//! has left the log goes only when a head is open there that does not name it.
//!
//! ```text
//!  syncing (what is copied does not count yet) -- keep --> following (each batch counts)
//!      ^                                                        |
//!      '-- a call has failed, or a segment has left the log ----'
//!          before the holder had all of it
//! ```
//! So a holder that comes back, or begins, gets what it lacks beside what it has, and one call lets
//! all of it count.
//!
//! A replica is behind by what it has not said yes to. Replicas come and go while the log runs
//! ([`Follower`]): one that has come follows, and is waited for from the moment at which it is
//! *required*, by the writes whose class asks for copies ([`crate::Log::reach`]). So a slow holder
//! costs other writes nothing, and one that is gone is asked again and again until it is dismissed.
//!
//! After RAMCloud's replicated segments. Unlike there, local flash has a copy, too, so a copier
//! follows what the flush leader has certified, and keeps no queue of its own.

use crate::format::{EntryHeader, FOOT_BYTES, Foot, Kind, SegmentHeader};
use crate::limits::{
    BATCHES_KEPT, COPY_BYTES_MAX, COPY_REFUSALS_MAX, COPY_RETRY_MAX, COPY_RETRY_MIN, COPY_TIME_MAX,
    FREED_MAX,
};
use crate::progress::Copied;
use crate::segment::Segment;
use crate::{Error, Position};
use futures_util::future::{Either, select};
use parking_lot::{Mutex, RwLock};
use rekindle_base::{Incarnation, NodeId, SegmentId};
use rekindle_env::{BoxFuture, Env, TaskHandle};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// A holder of copies of this log's segments. Each call may be repeated with the same arguments:
/// the reply to the first may have been lost, or have come too late. After a call that has failed,
/// the log begins anew with [`Replica::begin`].
pub trait Replica: Send + Sync + 'static {
    /// The holder's name, for messages.
    fn name(&self) -> String;
    /// Begins a sync: what comes now does not count before [`Replica::keep`], and does not change
    /// the copies that count. A segment that is not sealed yet gets a second copy.
    fn begin(&self) -> BoxFuture<'_, Result<(), String>>;
    /// Takes a segment, and returns the count of its bytes that the holder has, from the first on;
    /// all of them if it is sealed there. Only here may a holder refuse for want of room. Amid a
    /// sync, it may then forget what the sync has brought of earlier segments that were not opened
    /// since the last [`Replica::begin`].
    fn open<'a>(&'a self, new: &'a NewSegment) -> BoxFuture<'a, Result<u32, String>>;
    /// Takes bytes of an open segment, and forgets those that it has behind them. There is no gap
    /// before `offset`. The holder has the bytes when the future ends without an error, and keeps
    /// them for as long as its class promises.
    fn copy<'a>(
        &'a self,
        segment: SegmentId,
        offset: u32,
        bytes: &'a [u8],
    ) -> BoxFuture<'a, Result<(), String>>;
    /// Notes that the segment gets no more bytes. `tail`: its last bytes, which end with it. A
    /// damaged segment has no tail.
    fn seal<'a>(&'a self, segment: SegmentId, tail: &'a [u8]) -> BoxFuture<'a, Result<(), String>>;
    /// Ends a sync: from now on the copies that count are these segments, and `head` with all that
    /// comes behind it. The holder refuses if it lacks one of them.
    fn keep<'a>(
        &'a self,
        head: SegmentId,
        kept: &'a [SegmentId],
    ) -> BoxFuture<'a, Result<(), String>>;
    /// Gives a segment up, if the holder has it: the log does not need it any more.
    fn free(&self, segment: SegmentId) -> BoxFuture<'_, Result<(), String>>;
    /// Waits until the holder is lost between two calls, and returns the reason. Without that, a
    /// log with nothing to copy would go on saying that its copies are whole.
    fn lost(&self) -> BoxFuture<'_, String> {
        Box::pin(std::future::pending())
    }
}

/// A segment, as a holder of copies sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewSegment {
    pub segment: SegmentId,
    /// The life of the node that writes the segment.
    pub incarnation: Incarnation,
    /// Random: tells the segment from any other of its number.
    pub birth: u64,
    /// The replication epoch: a copy of an older one is stale.
    pub epoch: u64,
    /// Bytes of the whole segment.
    pub capacity: u32,
}

impl NewSegment {
    /// First bytes of a segment that say which it is.
    pub const HEADER_BYTES: usize = crate::format::HEADER_BYTES as usize;
    /// Last bytes of a segment that say whether it is sealed.
    pub const FOOT_BYTES: usize = FOOT_BYTES as usize;

    /// The segment that begins with these bytes; `None` if they begin none.
    #[must_use]
    pub fn read(header: &[u8]) -> Option<NewSegment> {
        SegmentHeader::decode(header).ok().as_ref().map(NewSegment::of)
    }

    /// The node whose segment begins with these bytes; `None` if they begin none.
    #[must_use]
    pub fn node(header: &[u8]) -> Option<NodeId> {
        SegmentHeader::decode(header).ok().map(|header| header.node)
    }

    /// The ends of the batches in `bytes`, which lie at `offset` of the segment with this header.
    /// As on flash, a batch of a copy that counts is durable before the next one is written: only
    /// the last one may be torn.
    #[must_use]
    pub fn batches(header: &[u8], offset: u32, bytes: &[u8]) -> Vec<u32> {
        let Ok(header) = SegmentHeader::decode(header) else { return Vec::new() };
        let (mut at, mut ends) = (offset.max(crate::format::HEADER_BYTES), Vec::new());
        while let Some(rest) = bytes.get((at - offset) as usize..)
            && let Ok(entry) = EntryHeader::decode(rest, header.key())
        {
            at = entry.end();
            if entry.kind == Kind::Certificate {
                at = at.next_multiple_of(header.sector);
                ends.push(at);
            }
        }
        ends
    }

    /// Whether the segment is sealed when its last bytes are these.
    #[must_use]
    pub fn is_sealed(&self, foot: &[u8]) -> bool {
        Foot::decode(foot, self.segment, self.birth, self.capacity).is_some()
    }

    fn of(header: &SegmentHeader) -> NewSegment {
        NewSegment {
            segment: header.segment,
            incarnation: header.incarnation,
            birth: header.birth,
            epoch: header.epoch,
            capacity: header.capacity,
        }
    }
}

/// The copies of a log.
pub(crate) struct Copiers {
    env: Env,
    /// Most bytes of one call to a replica.
    bytes_at_once: u32,
    copiers: RwLock<Vec<Arc<Copier>>>,
    /// Count of the copiers, so that a log without any takes no lock.
    count: AtomicUsize,
    /// The segments of the log.
    trail: Mutex<BTreeMap<SegmentId, Tracked>>,
    /// Rung when a replica has more than before, and when replicas come, go or change.
    advanced: Notify,
}

/// A segment to be copied.
#[derive(Clone)]
struct Tracked {
    segment: Weak<Segment>,
    /// Position of the segment's first byte; `None`: an earlier life has finished the segment.
    base: Option<u64>,
    /// A new head has these first bytes before the head before it is sealed.
    opening: u32,
    /// The bytes up to here are certified.
    end: u32,
    /// The ends of batches up to there, ascending: the last ones, and none once it is sealed.
    batches: Vec<u32>,
    sealed: bool,
}

impl Tracked {
    /// Notes that a batch which ends there is certified.
    fn extend(&mut self, end: u32) {
        if end > self.end {
            self.end = end;
            if self.batches.len() >= BATCHES_KEPT {
                self.batches.drain(..BATCHES_KEPT / 2);
            }
            self.batches.push(end);
        }
    }

    /// The end of the last batch, or of the opening, within the first `bytes`. A taker reads whole
    /// batches: of one whose end it lacks, nothing counts.
    fn whole(&self, bytes: u32) -> u32 {
        if bytes >= self.end {
            return self.end;
        }
        let within = self.batches.partition_point(|end| *end <= bytes);
        within.checked_sub(1).map_or(self.opening, |last| self.batches[last])
    }
}

struct Copier {
    replica: Arc<dyn Replica>,
    /// The replica has everything before this position.
    position: AtomicU64,
    /// Whether writes with copies wait for the replica. Changes under the lock of the copiers.
    is_required: AtomicBool,
    state: Mutex<CopierState>,
    /// Rung when there may be work.
    work: Notify,
    task: Mutex<Option<TaskHandle>>,
}

impl Copier {
    fn position(&self) -> Position {
        Position(self.position.load(Ordering::Acquire))
    }

    fn is_following(&self) -> bool {
        self.state.lock().phase == Phase::Following
    }

    /// Notes a problem. The same one again is no news: a holder may be away for weeks.
    fn fell_behind(&self, problem: String, note: impl FnOnce(&mut CopierState)) {
        let mut state = self.state.lock();
        note(&mut state);
        if state.problem.as_ref() != Some(&problem) {
            tracing::warn!(replica = self.replica.name(), problem, "a copy of the log is behind");
            state.problem = Some(problem);
        }
    }
}

/// A replica of a running log. Its clones mean the same one.
#[derive(Clone)]
pub struct Follower {
    copies: Arc<Copiers>,
    copier: Arc<Copier>,
}

impl Follower {
    /// The replica's name.
    #[must_use]
    pub fn name(&self) -> String {
        self.copier.replica.name()
    }

    /// Whether the copies are a log, and each batch is added to them.
    #[must_use]
    pub fn is_following(&self) -> bool {
        self.copier.is_following()
    }

    /// The replica has everything before this position.
    #[must_use]
    pub fn position(&self) -> Position {
        self.copier.position()
    }

    /// The last error, until there is progress.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.copier.state.lock().problem.clone()
    }

    /// Whether writes with copies wait for the replica.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.copier.is_required.load(Ordering::Acquire)
    }

    /// Lets writes with copies wait for the replica from now on.
    pub fn require(&self) {
        let alone = self.copies.copiers.write();
        self.copier.is_required.store(true, Ordering::Release);
        drop(alone);
        self.copies.advanced.notify_waiters();
    }

    /// Lets writes wait for the replica no more; it follows on.
    pub fn excuse(&self) {
        let alone = self.copies.copiers.write();
        self.copier.is_required.store(false, Ordering::Release);
        drop(alone);
        self.copies.advanced.notify_waiters();
    }

    /// Takes the replica out of the log: it gets nothing more, and no write waits for it.
    pub fn dismiss(&self) {
        {
            let mut copiers = self.copies.copiers.write();
            self.copier.is_required.store(false, Ordering::Release);
            copiers.retain(|one| !Arc::ptr_eq(one, &self.copier));
            self.copies.count.store(copiers.len(), Ordering::Release);
        }
        if let Some(task) = self.copier.task.lock().take() {
            task.abort();
        }
        self.copies.advanced.notify_waiters();
    }
}

#[derive(Default)]
struct CopierState {
    phase: Phase,
    /// The segment that is being copied, and the count of its bytes that the replica has; `None`
    /// before the segment is open there.
    segment: SegmentId,
    copied: Option<u32>,
    /// Segments that the replica has and the log does not need, each with the head that must be
    /// open there before.
    freed: VecDeque<(SegmentId, SegmentId)>,
    /// The first head that names no segment that the replica has missed.
    jump: SegmentId,
    /// Count of the failed calls to open one segment.
    refused: u32,
    /// The last error, until there is progress.
    problem: Option<String>,
}

impl CopierState {
    /// Lets the next sync look at all segments.
    fn fall_behind(&mut self) {
        (self.phase, self.segment, self.copied) = (Phase::Behind, SegmentId(0), None);
        self.refused = 0;
        self.freed.clear();
    }

    /// Notes what a call that has succeeded means for the problem before it. Returns whether it was
    /// progress: a replica without room begins a sync again and again.
    fn notice(&mut self, work: &Work) -> bool {
        let is_progress = !matches!(work, Work::Begin);
        if is_progress {
            (self.problem, self.refused) = (None, 0);
        }
        is_progress
    }

    fn lost(&mut self) {
        if self.phase == Phase::Following {
            self.fall_behind();
        }
    }

    fn failed(&mut self, work: &Work) {
        self.refused += u32::from(matches!(work, Work::Open(_)));
        match (self.phase, work) {
            // The sync goes on where it was: its end says what the holder must have. One that lacks
            // room for a segment again and again sees from the first one on which it may forget.
            (
                Phase::Behind | Phase::Syncing,
                Work::Begin | Work::Open(_) | Work::Copy { .. } | Work::Seal { .. },
            ) if self.refused < COPY_REFUSALS_MAX => {
                (self.phase, self.copied) = (Phase::Behind, None);
            }
            _ => self.fall_behind(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// A sync is to begin.
    #[default]
    Behind,
    Syncing,
    Following,
}

/// The next call to a replica.
enum Work {
    Begin,
    Open(Arc<Segment>),
    Copy {
        segment: Arc<Segment>,
        start: u32,
        end: u32,
        position: Option<u64>,
    },
    /// The next head gets its opening before.
    Seal {
        segment: Arc<Segment>,
        next: Option<(Arc<Segment>, u32)>,
    },
    Keep {
        head: SegmentId,
        kept: Vec<SegmentId>,
        position: u64,
    },
    Free(SegmentId),
}

impl Copiers {
    pub(crate) fn new(env: &Env, bytes_at_once: u32) -> Copiers {
        Copiers {
            env: env.clone(),
            bytes_at_once: bytes_at_once.clamp(1, COPY_BYTES_MAX),
            copiers: RwLock::default(),
            count: AtomicUsize::new(0),
            trail: Mutex::default(),
            advanced: Notify::new(),
        }
    }

    /// Adds a replica, which begins to follow.
    pub(crate) fn add(self: &Arc<Self>, replica: Arc<dyn Replica>, is_required: bool) -> Follower {
        let copier = Arc::new(Copier {
            replica,
            position: AtomicU64::new(0),
            is_required: AtomicBool::new(is_required),
            state: Mutex::default(),
            work: Notify::new(),
            task: Mutex::default(),
        });
        {
            let mut copiers = self.copiers.write();
            copiers.push(Arc::clone(&copier));
            self.count.store(copiers.len(), Ordering::Release);
        }
        let task = follow(self.env.clone(), Arc::clone(self), Arc::clone(&copier));
        *copier.task.lock() = Some(self.env.spawn_foreground("log-copy", task));
        Follower { copies: Arc::clone(self), copier }
    }

    /// Ends all copying.
    pub(crate) fn end(&self) {
        let tasks = self.copiers.read();
        tasks.iter().filter_map(|copier| copier.task.lock().take()).for_each(|task| task.abort());
    }

    /// The replicas, in the order in which they came.
    pub(crate) fn followers(self: &Arc<Self>) -> Vec<Follower> {
        let of = |copier: &Arc<Copier>| Follower {
            copies: Arc::clone(self),
            copier: Arc::clone(copier),
        };
        self.copiers.read().iter().map(of).collect()
    }

    /// The class that segment headers name: the count of the replicas.
    pub(crate) fn class(&self) -> u32 {
        u32::try_from(self.count.load(Ordering::Acquire)).unwrap_or(u32::MAX)
    }

    /// Adds a segment that an earlier life has finished.
    pub(crate) fn found(&self, segment: &Arc<Segment>) {
        let end = segment.header.capacity - FOOT_BYTES;
        self.remember(segment, Tracked { opening: end, end, sealed: true, ..tracked(segment) });
    }

    /// Adds a head that takes over at `base`; its first `end` bytes are its opening.
    pub(crate) fn track(&self, segment: &Arc<Segment>, base: u64, end: u32) {
        let base = Some(base);
        self.remember(segment, Tracked { base, opening: end, end, ..tracked(segment) });
    }

    fn remember(&self, segment: &Arc<Segment>, tracked: Tracked) {
        self.trail.lock().insert(segment.id(), tracked);
        self.wake();
    }

    /// Notes that a segment is certified up to `end`.
    pub(crate) fn extend(&self, segment: SegmentId, end: u32) {
        if let Some(tracked) = self.trail.lock().get_mut(&segment) {
            tracked.extend(end);
        }
        self.wake();
    }

    /// Notes that a segment gets no more bytes.
    pub(crate) fn seal(&self, segment: SegmentId) {
        if let Some(tracked) = self.trail.lock().get_mut(&segment) {
            tracked.sealed = true;
            tracked.batches = Vec::new();
        }
        self.wake();
    }

    /// Notes that segments have left the log; the head `open` does not name them any more.
    pub(crate) fn free(&self, segments: &[SegmentId], open: SegmentId) {
        let mut trail = self.trail.lock();
        for segment in segments {
            trail.remove(segment);
        }
        for copier in &*self.copiers.read() {
            let mut state = copier.state.lock();
            for segment in segments {
                match *segment < state.segment {
                    true => state.freed.push_back((*segment, open)),
                    false => state.jump = open,
                }
            }
            if state.freed.len() > FREED_MAX {
                state.jump = open;
                state.fall_behind();
            }
        }
        drop(trail);
        self.wake();
    }

    fn wake(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.copiers.read().iter().for_each(|copier| copier.work.notify_one());
        }
    }

    /// The position that the required replicas have reached.
    pub(crate) fn copied(&self) -> Copied {
        if self.count.load(Ordering::Acquire) == 0 {
            return Copied::default();
        }
        let copiers = self.copiers.read();
        let required = copiers.iter().filter(|one| one.is_required.load(Ordering::Acquire));
        Copied::of(required.map(|copier| copier.position()))
    }

    /// Waits until `is_enough` of the progress of the required replicas, or `check` fails.
    pub(crate) async fn until(
        &self,
        is_enough: impl Fn(Copied) -> bool,
        check: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            let mut advanced = std::pin::pin!(self.advanced.notified());
            advanced.as_mut().enable();
            if is_enough(self.copied()) {
                return Ok(());
            }
            check()?;
            advanced.await;
        }
    }

    /// Wakes every waiting task to look again.
    pub(crate) fn look_again(&self) {
        self.advanced.notify_waiters();
    }

    /// The next call to a replica.
    fn next(&self, copier: &Copier) -> Option<Work> {
        let trail = self.trail.lock();
        let mut state = copier.state.lock();
        if state.phase == Phase::Following && state.jump > state.segment {
            state.fall_behind();
        }
        if state.phase == Phase::Behind {
            return Some(Work::Begin);
        }
        let is_syncing = state.phase == Phase::Syncing;
        let from = (Bound::Included(state.segment), Bound::Unbounded);
        let mut alive = trail
            .range(from)
            .filter_map(|(id, tracked)| Some((*id, tracked, tracked.segment.upgrade()?)));
        let (id, tracked, segment) = alive.next()?;
        let next = alive.next();
        if id != state.segment {
            (state.segment, state.copied) = (id, None);
        }
        let Some(copied) = state.copied else { return Some(Work::Open(segment)) };
        let is_head = tracked.base.is_some() && copied >= tracked.opening;
        let position =
            Position(tracked.base.unwrap_or_default() + u64::from(tracked.whole(copied)));
        // With the end of a sync goes what the holder had before: the sync has all that counted.
        if is_syncing && is_head && next.is_none() && position >= copier.position() {
            // The newest head names nothing that has left the log.
            let kept = trail.range(..id).map(|(kept, _)| *kept).collect();
            return Some(Work::Keep { head: id, kept, position: position.0 });
        }
        if let Some(&(freed, after)) = state.freed.front().filter(|_| !is_syncing)
            && id >= after
        {
            return Some(Work::Free(freed));
        }
        if copied < tracked.end {
            let end = tracked.end.min(copied.saturating_add(self.bytes_at_once));
            let position = tracked.base.map(|base| base + u64::from(tracked.whole(end)));
            return Some(Work::Copy { segment, start: copied, end, position });
        }
        // The head behind a segment that is sealed is there.
        let (_, next, head) = next.filter(|_| tracked.sealed)?;
        let next = (!is_syncing).then_some((head, next.opening));
        Some(Work::Seal { segment, next })
    }

    /// Notes that a call has succeeded; of an opening, the replica `has` so many bytes already.
    /// Returns whether that was progress.
    fn done(&self, copier: &Copier, work: &Work, has: u32) -> bool {
        let mut state = copier.state.lock();
        let is_progress = state.notice(work);
        if state.phase == Phase::Behind && !matches!(work, Work::Begin) {
            return is_progress;
        }
        let mut reached = None;
        match work {
            Work::Begin => state.phase = Phase::Syncing,
            Work::Open(_) => state.copied = Some(has),
            Work::Copy { end, position, .. } => {
                state.copied = Some(*end);
                // What is copied amid a sync does not count.
                reached = position.filter(|_| state.phase == Phase::Following);
            }
            Work::Seal { next: Some((next, opening)), .. } => {
                (state.segment, state.copied) = (next.id(), Some(*opening));
            }
            Work::Seal { segment, next: None } => {
                (state.segment, state.copied) = (segment.id().next(), None);
            }
            Work::Keep { position, .. } => {
                state.phase = Phase::Following;
                reached = Some(*position);
            }
            Work::Free(segment) => {
                let _ = state.freed.pop_front_if(|(front, _)| front == segment);
            }
        }
        drop(state);
        if let Some(position) = reached {
            copier.position.fetch_max(position, Ordering::AcqRel);
            self.advanced.notify_waiters();
        }
        is_progress
    }
}

/// Brings one replica up with the log, for as long as the log lives.
async fn follow(env: Env, copies: Arc<Copiers>, copier: Arc<Copier>) {
    let copier = &*copier;
    let mut pause = Duration::ZERO;
    loop {
        let Some(work) = copies.next(copier) else {
            if let Either::Right((problem, _)) =
                select(pin!(copier.work.notified()), copier.replica.lost()).await
            {
                copier.fell_behind(problem, CopierState::lost);
            }
            continue;
        };
        let called = env.timeout(COPY_TIME_MAX, call(&*copier.replica, &work)).await;
        let problem = match called {
            Ok(Ok(has)) => {
                if copies.done(copier, &work, has) {
                    pause = Duration::ZERO;
                }
                continue;
            }
            Ok(Err(problem)) => problem,
            Err(_) => format!("no answer within {} s", COPY_TIME_MAX.as_secs()),
        };
        copier.fell_behind(problem, |state| state.failed(&work));
        // The segment's memory and file are not held during the pause.
        drop(work);
        pause = (pause * 2).clamp(COPY_RETRY_MIN, COPY_RETRY_MAX);
        env.sleep(pause).await;
    }
}

fn tracked(segment: &Arc<Segment>) -> Tracked {
    let segment = Arc::downgrade(segment);
    Tracked { segment, base: None, opening: 0, end: 0, batches: Vec::new(), sealed: false }
}

/// Calls the replica; of an opening, returns the count of bytes that it has.
async fn call(replica: &dyn Replica, work: &Work) -> Result<u32, String> {
    match work {
        Work::Begin => replica.begin().await?,
        Work::Open(segment) => return replica.open(&NewSegment::of(&segment.header)).await,
        Work::Copy { segment, start, end, .. } => copy(replica, segment, *start, *end).await?,
        Work::Seal { segment, next } => {
            if let Some((next, opening)) = next
                && replica.open(&NewSegment::of(&next.header)).await? < *opening
            {
                copy(replica, next, 0, *opening).await?;
            }
            let tail = tail(segment).await.map_err(unreadable)?;
            replica.seal(segment.id(), &tail).await?;
        }
        Work::Keep { head, kept, .. } => replica.keep(*head, kept).await?,
        Work::Free(segment) => replica.free(*segment).await?,
    }
    Ok(0)
}

async fn copy(
    replica: &dyn Replica,
    segment: &Segment,
    start: u32,
    end: u32,
) -> Result<(), String> {
    // Memory stays while it is held. Without it, flash has the bytes.
    let memory = segment.with_memory(Clone::clone);
    let held = memory.as_ref().and_then(|memory| memory.front(start, end));
    if let Some(bytes) = held {
        return replica.copy(segment.id(), start, bytes).await;
    }
    let bytes = segment.read_raw(start, end).await.map_err(unreadable)?;
    replica.copy(segment.id(), start, &bytes).await
}

/// Table and foot of a sealed segment; empty if the segment is damaged, and so not sealed.
async fn tail(segment: &Segment) -> std::io::Result<Vec<u8>> {
    let NewSegment { segment: id, birth, capacity, .. } = NewSegment::of(&segment.header);
    let foot = segment.read_raw(capacity - FOOT_BYTES, capacity).await?;
    match Foot::decode(&foot, id, birth, capacity) {
        Some(foot) => segment.read_raw(capacity - FOOT_BYTES - foot.table, capacity).await,
        None => Ok(Vec::new()),
    }
}

fn unreadable(error: std::io::Error) -> String {
    format!("the segment cannot be read here: {error}")
}
