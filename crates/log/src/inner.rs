//! The state that all clones of a log share.

use crate::door::Door;
use crate::format::{KnownEnd, Mark, SegmentHeader};
use crate::head::Head;
use crate::heads::Heads;
use crate::inventory::Recovery;
use crate::limits::{FILES_RESERVED, FLUSH_AHEAD_BYTES};
use crate::machine::table::Table;
use crate::replica::Copiers;
use crate::segment::Segment;
use crate::segment_pool::SegmentPool;
use crate::{Error, Position, Usage};
use parking_lot::Mutex;
use rekindle_base::{Incarnation, SegmentId, Serial, VolumeId};
use rekindle_env::{File, TaskHandle};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

pub(crate) struct Inner {
    pub(crate) pool: Arc<SegmentPool>,
    pub(crate) incarnation: Incarnation,
    /// Count of the segments in the flash budget.
    pub(crate) segments_max: usize,
    /// Locked for an append, or for a look; never with `table` locked already.
    pub(crate) heads: Mutex<Heads>,
    /// A lost segment has a row without a segment.
    pub(crate) table: Mutex<Table<Option<Arc<Segment>>>>,
    /// The lead: its holder writes to flash what heads hold.
    pub(crate) leader: tokio::sync::Mutex<()>,
    /// The id of the next head. The task that opens that head holds the lock, and takes it before
    /// the lead; never the other way round.
    pub(crate) next_id: tokio::sync::Mutex<SegmentId>,
    pub(crate) door: Door,
    /// Rung when the lead has been given up, or the log has ended.
    pub(crate) leader_left: Notify,
    /// Rung when a task that waits for room should look again: a segment has died or left, or a
    /// hold or the log has ended.
    pub(crate) space: Notify,
    /// Position at which this life begins: everything before was appended in earlier lives.
    pub(crate) begins: Position,
    pub(crate) appended: AtomicU64,
    pub(crate) durable: AtomicU64,
    /// Whether more segments are live than the budget allows (repeated crashes, a smaller budget).
    /// If so, appends are refused.
    pub(crate) over_budget: AtomicBool,
    /// Whether appends wait until the node's folder records the new head.
    pub(crate) held: AtomicBool,
    /// Rung when an append waits for the hold to end.
    pub(crate) wanted: Notify,
    latched: OnceLock<Error>,
    pub(crate) recovery: Recovery,
    pub(crate) copies: Arc<Copiers>,
    pub(crate) folder_lock: Mutex<Option<Arc<dyn File>>>,
    /// The tasks in the background: commits without a request, and the opening of heads.
    pub(crate) unasked: Mutex<Vec<TaskHandle>>,
    /// Rung when [`FLUSH_AHEAD_BYTES`] are uncommitted, or a head is to be sealed.
    pub(crate) much_uncommitted: Arc<Notify>,
    /// Rung when the next head is to be opened: the open head is half full, the log is littered, or
    /// losses were accepted.
    pub(crate) next_wanted: Arc<Notify>,
    pub(crate) counters: Counters,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) appended_bytes: AtomicU64,
}

/// The parts of a log that [`crate::start`] has made ready.
pub(crate) struct Parts {
    pub(crate) pool: Arc<SegmentPool>,
    pub(crate) incarnation: Incarnation,
    pub(crate) segments_max: usize,
    pub(crate) head: Head,
    /// The old head, to be sealed, and the segments that leave the log then.
    pub(crate) old: Option<(Head, Vec<SegmentId>)>,
    pub(crate) table: Table<Option<Arc<Segment>>>,
    pub(crate) recovery: Recovery,
    pub(crate) folder_lock: Arc<dyn File>,
    pub(crate) copies: Arc<Copiers>,
}

impl Inner {
    pub(crate) fn new(parts: Parts) -> Inner {
        assert_eq!(parts.head.durable(), parts.head.front(), "a new head is durably open");
        let next_id = parts.head.segment.id().next();
        let old = parts.old.as_ref().map(|(head, _)| (Arc::clone(&head.segment), head.durable()));
        let heads = Heads::new(parts.head, parts.old);
        let begins = heads.open.position();
        let much_uncommitted = Arc::<Notify>::default();
        if heads.is_sealing() {
            much_uncommitted.notify_one();
        }
        let unsealed = old.as_ref().map(|(segment, _)| segment.id());
        let first = heads.open.segment.id();
        let found = parts.table.rows().filter_map(|(id, .., held)| Some((id, held.clone()?)));
        let found = found.filter(|(id, _)| *id != first && Some(*id) != unsealed);
        found.for_each(|(_, segment)| parts.copies.found(&segment));
        if let Some((segment, durable)) = &old {
            parts.copies.track(segment, 0, *durable);
        }
        parts.copies.track(&heads.open.segment, heads.open.base, heads.open.durable());
        let over_budget = parts.table.live() > parts.segments_max;
        Inner {
            pool: parts.pool,
            incarnation: parts.incarnation,
            segments_max: parts.segments_max,
            leader: tokio::sync::Mutex::new(()),
            next_id: tokio::sync::Mutex::new(next_id),
            begins: Position(begins),
            appended: AtomicU64::new(begins),
            durable: AtomicU64::new(heads.durable()),
            heads: Mutex::new(heads),
            table: Mutex::new(parts.table),
            door: Door::default(),
            leader_left: Notify::new(),
            space: Notify::new(),
            over_budget: AtomicBool::new(over_budget),
            held: AtomicBool::new(false),
            wanted: Notify::new(),
            latched: OnceLock::new(),
            recovery: parts.recovery,
            copies: parts.copies,
            folder_lock: Mutex::new(Some(parts.folder_lock)),
            unasked: Mutex::default(),
            much_uncommitted,
            next_wanted: Arc::default(),
            counters: Counters::default(),
        }
    }

    /// How far the open segment is durable; `None` while it has no durable changes: the record of
    /// the one before still counts.
    pub(crate) fn known_end(&self) -> Option<KnownEnd> {
        let heads = self.heads.lock();
        let (durable, changes) = heads.open.known_end();
        assert!(changes == 0 || !heads.is_sealing(), "the head before is sealed first");
        let SegmentHeader { node, segment, birth, .. } = heads.open.segment.header;
        (changes > 0).then_some(KnownEnd { node, segment, birth, durable, changes })
    }

    /// The error that has ended the log, if one has.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.latched.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    pub(crate) fn is_latched(&self) -> bool {
        self.latched.get().is_some()
    }

    /// Whether appends are refused, whatever room there is. While the log is held, this also wakes
    /// the task that waits in [`crate::Log::wanted`].
    pub(crate) fn takes_nothing(&self) -> bool {
        let is_held = self.held.load(Ordering::Acquire);
        if is_held {
            self.wanted.notify_one();
        }
        is_held || self.is_latched() || self.over_budget.load(Ordering::Acquire)
    }

    /// Whether no segment but an empty head is needed. A lost segment is needed as the proof of the
    /// loss, until a user accepts it.
    pub(crate) fn holds_nothing(&self) -> bool {
        if self.recovery.has_losses() {
            return false;
        }
        let heads = self.heads.lock();
        let table = self.table.lock();
        heads.open.volumes.is_empty() && table.live() == 1 && table.unread() == 0
    }

    /// See [`crate::Log::look`].
    pub(crate) async fn look(&self) -> Result<(), Error> {
        self.check()?;
        self.pool.make_files(FILES_RESERVED, u32::MAX);
        let segment = Arc::clone(&self.heads.lock().open.segment);
        let why = match segment.is_at_its_place().await {
            Ok(true) => return Ok(()),
            Ok(false) => "it is another file now",
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "there is no such file",
            // An error of another kind: the next write to the file meets it, too.
            Err(_) => return Ok(()),
        };
        if self.heads.lock().open.segment.id() != segment.id() {
            // Another head has taken over meanwhile.
            return Ok(());
        }
        let path = segment.file.map(|file| self.pool.path(file)).unwrap_or_default();
        Err(self.latch(Error::TakenAway(format!("{}: {why}", path.display()))))
    }

    /// Ends the log, and wakes every waiting task to see that. The first error stays and is
    /// returned.
    pub(crate) fn latch(&self, error: Error) -> Error {
        if !matches!(error, Error::Closed) && !self.is_latched() {
            tracing::error!(%error, "the log takes nothing any more");
        }
        let error = self.latched.get_or_init(|| error).clone();
        self.leader_left.notify_waiters();
        self.space.notify_waiters();
        self.copies.look_again();
        error
    }

    pub(crate) fn durable(&self) -> Position {
        Position(self.durable.load(Ordering::Acquire))
    }

    pub(crate) fn appended(&self) -> Position {
        Position(self.appended.load(Ordering::Acquire))
    }

    pub(crate) fn uncommitted_bytes(&self) -> u64 {
        self.appended().0.saturating_sub(self.durable().0)
    }

    /// Notes that the log has grown by `bytes`: it may be time to commit without a request.
    pub(crate) fn note_growth(&self, bytes: u64) {
        let uncommitted = self.uncommitted_bytes();
        if uncommitted >= FLUSH_AHEAD_BYTES && uncommitted.saturating_sub(bytes) < FLUSH_AHEAD_BYTES
        {
            self.much_uncommitted.notify_one();
        }
    }

    /// Writes down that changes of `volume` up to `serial` are not needed. Returns the position
    /// behind that mark.
    fn mark(&self, volume: VolumeId, serial: Serial) -> Position {
        let mut heads = self.heads.lock();
        let head = &mut heads.open;
        let in_head = head.volumes.get(&volume).copied();
        if in_head.is_some_and(|highest| highest <= serial) {
            head.volumes.remove(&volume);
        }
        let mut table = self.table.lock();
        if (in_head.is_some() || table.may_have(volume)) && !self.is_latched() {
            let written = head.push_release(volume, serial);
            let offset = written.unwrap_or_else(|| head.front());
            table.mark(volume, Mark { serial, segment: head.segment.id(), offset });
            drop(table);
            if written.is_none() {
                // The next head takes the mark over with the others. While there can be no next
                // head, only memory knows of the mark.
                self.roll_over(&mut heads);
            }
        }
        let position = heads.open.position();
        self.appended.store(position, Ordering::Release);
        Position(position)
    }

    pub(crate) fn release(&self, volume: VolumeId, serial: Serial) -> Position {
        let position = self.mark(volume, serial);
        self.recovery.release(volume, serial);
        let mut table = self.table.lock();
        let has_freed = table.release(volume, serial);
        self.note_live(table.live());
        drop(table);
        // The open head may have no needed change left: then the next head may take one more file.
        self.pool.look_again();
        if has_freed {
            self.space.notify_waiters();
            self.note_litter();
        }
        position
    }

    /// Asks for the next head if the log is littered: the dead segments leave with that head.
    pub(crate) fn note_litter(&self) {
        if self.is_littered() {
            self.next_wanted.notify_one();
        }
    }

    /// Whether dead segments should leave before the open head is full: they are most of the log,
    /// or their files are needed for the files that are kept for a full disk. A single dead segment
    /// does not count, since the next head leaves one behind, too.
    pub(crate) fn is_littered(&self) -> bool {
        let table = self.table.lock();
        table.is_littered() || (table.dead() > 1 && self.pool.free_files() < FILES_RESERVED)
    }

    /// Lets appends in again once the log is within its budget.
    pub(crate) fn note_live(&self, live: usize) {
        if live <= self.segments_max {
            self.over_budget.store(false, Ordering::Release);
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let segment = u64::from(self.pool.capacity);
        let (live, held) = {
            let table = self.table.lock();
            (table.live() as u64, table.held() as u64)
        };
        Usage {
            flash_bytes: live * segment,
            flash_bytes_max: self.segments_max as u64 * segment,
            segments: held,
            slots_free: self.pool.arena.free_slots() as u64,
            uncommitted_bytes: self.uncommitted_bytes(),
            commits: self.counters.commits.load(Ordering::Relaxed),
            appended_bytes: self.counters.appended_bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.unasked.get_mut().drain(..).for_each(|task| task.abort());
        self.copies.end();
        self.table.get_mut().segments().filter_map(|(_, held)| held.as_ref()).for_each(|segment| {
            segment.keep_file();
        });
    }
}
