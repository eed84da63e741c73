//! Copies of the log on other machines. The log copies each segment that this life opens to all
//! holders ([`Replica`]), beside its own writes to flash. Only tests plug holders in yet: no node
//! has peers.
//!
//! A replica is behind by what it has not said yes to, and a write waits for it only if the write's
//! class says so ([`crate::Log::reach`]). So a slow holder costs other writes nothing, and one that
//! is gone is asked again and again: only a new view of the cluster may leave it out.
//!
//! After RAMCloud's replicated segments. Unlike there, local flash has a copy, too, so a copier
//! follows what the flush leader has certified, and keeps no queue of its own.

use crate::limits::{COPY_BYTES_MAX, COPY_RETRY_MAX, COPY_RETRY_MIN, COPY_TIME_MAX};
use crate::progress::Copied;
use crate::segment::Segment;
use crate::{Error, Position};
use parking_lot::Mutex;
use rekindle_base::{Incarnation, SegmentId};
use rekindle_env::{BoxFuture, Env};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// A holder of copies of this log's segments. Each call may be repeated with the same arguments:
/// the reply to the first may have been lost, or have come too late.
pub trait Replica: Send + Sync + 'static {
    /// The holder's name, for messages.
    fn name(&self) -> String;
    /// Takes a new segment. Only here may a holder refuse for want of room.
    fn open<'a>(&'a self, new: &'a NewSegment) -> BoxFuture<'a, Result<(), String>>;
    /// Takes bytes of an open segment, which continue what it has. The holder has them when the
    /// future ends without an error, and keeps them for as long as its class promises.
    fn copy<'a>(
        &'a self,
        segment: SegmentId,
        offset: u32,
        bytes: &'a [u8],
    ) -> BoxFuture<'a, Result<(), String>>;
    /// Notes that the segment is whole with its first `length` bytes.
    fn seal(&self, segment: SegmentId, length: u32) -> BoxFuture<'_, Result<(), String>>;
    /// Gives a segment up, if the holder has it: the log does not need it any more.
    fn free(&self, segment: SegmentId) -> BoxFuture<'_, Result<(), String>>;
}

/// A new segment, as a holder of copies sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewSegment {
    pub segment: SegmentId,
    /// The life of the node that writes the segment.
    pub incarnation: Incarnation,
    /// The replication epoch: a copy of an older one is stale.
    pub epoch: u64,
    /// Bytes of the whole segment.
    pub capacity: u32,
}

/// The copies of a log.
pub(crate) struct Copies {
    copiers: Vec<Copier>,
    /// The segments that some replica may lack a part of.
    trail: Mutex<BTreeMap<SegmentId, Tracked>>,
    /// Rung when a replica has more than before.
    advanced: Notify,
}

/// A segment to be copied.
struct Tracked {
    /// A segment that has left the log needs no copy.
    segment: Weak<Segment>,
    new: NewSegment,
    /// Position of the segment's first byte.
    base: u64,
    /// The bytes up to here are certified.
    end: u32,
    sealed: bool,
}

struct Copier {
    replica: Arc<dyn Replica>,
    /// The replica has everything before this position.
    position: AtomicU64,
    state: Mutex<State>,
    /// Rung when there may be work.
    work: Notify,
}

#[derive(Default)]
struct State {
    /// The segment that is being copied, and the count of its bytes that the replica has; `None`
    /// before the segment is open there.
    segment: SegmentId,
    copied: Option<u32>,
    /// Segments that the replica still has and the log does not need.
    freed: VecDeque<SegmentId>,
    /// The last error, until the next success.
    problem: Option<String>,
}

/// The next call to a replica.
enum Work {
    Open(NewSegment),
    Copy { segment: Arc<Segment>, start: u32, end: u32, position: u64 },
    Seal { segment: SegmentId, length: u32 },
    Free(SegmentId),
}

impl Copies {
    pub(crate) fn new(replicas: Vec<Arc<dyn Replica>>) -> Copies {
        let copier = |replica| Copier {
            replica,
            position: AtomicU64::new(0),
            state: Mutex::default(),
            work: Notify::new(),
        };
        Copies {
            copiers: replicas.into_iter().map(copier).collect(),
            trail: Mutex::default(),
            advanced: Notify::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.copiers.len()
    }

    /// The class that segment headers name.
    pub(crate) fn class(&self) -> u32 {
        u32::try_from(self.copiers.len()).expect("at most REPLICAS_MAX")
    }

    /// Adds a head that takes over at `base`; its first `end` bytes are its opening.
    pub(crate) fn track(&self, segment: &Arc<Segment>, base: u64, end: u32) {
        if self.copiers.is_empty() {
            return;
        }
        let header = &segment.header;
        let new = NewSegment {
            segment: header.segment,
            incarnation: header.incarnation,
            epoch: header.epoch,
            capacity: header.capacity,
        };
        let segment = Arc::downgrade(segment);
        let tracked = Tracked { segment, new, base, end, sealed: false };
        self.trail.lock().insert(new.segment, tracked);
        self.wake();
    }

    /// Notes that a segment is certified up to `end`.
    pub(crate) fn extend(&self, segment: SegmentId, end: u32) {
        if self.copiers.is_empty() {
            return;
        }
        if let Some(tracked) = self.trail.lock().get_mut(&segment) {
            tracked.end = tracked.end.max(end);
        }
        self.wake();
    }

    /// Notes that a segment gets no more bytes.
    pub(crate) fn seal(&self, segment: SegmentId) {
        if let Some(tracked) = self.trail.lock().get_mut(&segment) {
            tracked.sealed = true;
        }
        self.wake();
    }

    /// Notes that segments have left the log.
    pub(crate) fn free(&self, segments: &[SegmentId]) {
        if self.copiers.is_empty() {
            return;
        }
        let mut trail = self.trail.lock();
        for segment in segments {
            trail.remove(segment);
            for copier in &self.copiers {
                let mut state = copier.state.lock();
                // The replica may have the last of them though its reply has not come.
                if state.segment >= *segment {
                    state.freed.push_back(*segment);
                }
            }
        }
        drop(trail);
        self.wake();
    }

    fn wake(&self) {
        self.copiers.iter().for_each(|copier| copier.work.notify_one());
    }

    /// The positions that the replicas have reached.
    pub(crate) fn copied(&self) -> Copied {
        Copied::of(
            self.copiers.iter().map(|copier| Position(copier.position.load(Ordering::Acquire))),
        )
    }

    /// Names of the replicas that lack something, each with the last error, if there was one.
    pub(crate) fn behind(&self, position: Position) -> Vec<(String, Option<String>)> {
        let lacks = |copier: &&Copier| copier.position.load(Ordering::Acquire) < position.0;
        let named = |copier: &Copier| (copier.replica.name(), copier.state.lock().problem.clone());
        self.copiers.iter().filter(lacks).map(named).collect()
    }

    /// Waits until `count` replicas have everything before `position`, or `check` fails.
    pub(crate) async fn until(
        &self,
        count: u8,
        position: Position,
        check: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            let mut advanced = std::pin::pin!(self.advanced.notified());
            advanced.as_mut().enable();
            if self.copied().on(count) >= position {
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

    /// The next call to a replica. Passes over segments that have left the log.
    fn next(&self, copier: &Copier) -> Option<Work> {
        let trail = self.trail.lock();
        let mut state = copier.state.lock();
        if let Some(&freed) = state.freed.front() {
            return Some(Work::Free(freed));
        }
        loop {
            let from = (Bound::Included(state.segment), Bound::Unbounded);
            let (&id, tracked) = trail.range(from).next()?;
            let segment = tracked.segment.upgrade();
            if id != state.segment {
                (state.segment, state.copied) = (id, None);
            }
            let Some((segment, copied)) = segment.map(|segment| (segment, state.copied)) else {
                state.segment = id.next();
                state.copied = None;
                continue;
            };
            return match copied {
                None => Some(Work::Open(tracked.new)),
                Some(start) if start < tracked.end => {
                    let end = tracked.end.min(start.saturating_add(COPY_BYTES_MAX));
                    let position = tracked.base + u64::from(end);
                    Some(Work::Copy { segment, start, end, position })
                }
                Some(length) if tracked.sealed => Some(Work::Seal { segment: id, length }),
                Some(_) => None,
            };
        }
    }

    /// Notes that a call has succeeded.
    fn done(&self, copier: &Copier, work: &Work) {
        {
            let mut state = copier.state.lock();
            state.problem = None;
            match work {
                Work::Open(new) if new.segment == state.segment => state.copied = Some(0),
                Work::Copy { segment, end, .. } if segment.id() == state.segment => {
                    state.copied = Some(*end);
                }
                Work::Seal { segment, .. } if *segment == state.segment => {
                    state.segment = segment.next();
                    state.copied = None;
                }
                Work::Free(segment) => drop(state.freed.pop_front_if(|front| front == segment)),
                Work::Open(_) | Work::Copy { .. } | Work::Seal { .. } => {}
            }
        }
        match work {
            Work::Copy { position, .. } => {
                copier.position.fetch_max(*position, Ordering::AcqRel);
                self.advanced.notify_waiters();
            }
            Work::Seal { .. } => self.forget_copied(),
            Work::Open(_) | Work::Free(_) => {}
        }
    }

    /// Forgets the segments that all replicas have.
    fn forget_copied(&self) {
        let mut trail = self.trail.lock();
        let oldest = self.copiers.iter().map(|copier| copier.state.lock().segment).min();
        if let Some(oldest) = oldest {
            *trail = trail.split_off(&oldest);
        }
    }
}

/// Brings one replica up with the log, for as long as the log lives.
pub(crate) async fn follow(env: Env, copies: Arc<Copies>, index: usize) {
    let copier = &copies.copiers[index];
    let mut pause = Duration::ZERO;
    loop {
        let Some(work) = copies.next(copier) else {
            copier.work.notified().await;
            continue;
        };
        let called = env.timeout(COPY_TIME_MAX, call(&*copier.replica, &work)).await;
        let problem = match called {
            Ok(Ok(())) => {
                pause = Duration::ZERO;
                copies.done(copier, &work);
                continue;
            }
            Ok(Err(problem)) => problem,
            Err(_) => format!("no answer within {} s", COPY_TIME_MAX.as_secs()),
        };
        // The segment's memory and file are not held during the pause.
        drop(work);
        tracing::warn!(replica = copier.replica.name(), problem, "a copy of the log is behind");
        copier.state.lock().problem = Some(problem);
        pause = (pause * 2).clamp(COPY_RETRY_MIN, COPY_RETRY_MAX);
        env.sleep(pause).await;
    }
}

async fn call(replica: &dyn Replica, work: &Work) -> Result<(), String> {
    match work {
        Work::Open(new) => replica.open(new).await,
        Work::Copy { segment, start, end, .. } => {
            // Memory stays while it is held. Without it, flash has the bytes.
            let memory = segment.with_memory(Clone::clone);
            let held = memory.as_ref().and_then(|memory| memory.front(*start, *end));
            if let Some(bytes) = held {
                return replica.copy(segment.id(), *start, bytes).await;
            }
            let read = segment.read_raw(*start, *end).await;
            let bytes =
                read.map_err(|error| format!("the segment cannot be read here: {error}"))?;
            replica.copy(segment.id(), *start, &bytes).await
        }
        Work::Seal { segment, length } => replica.seal(*segment, *length).await,
        Work::Free(segment) => replica.free(*segment).await,
    }
}
