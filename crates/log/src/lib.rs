//! The node's log: changes acknowledged before they reach the datastore. Segments on flash, open
//! ones in warm memory.
//!
//! **Append** copies a change once, into the open segment, and returns its place; the change is
//! then safe against the death of the process (when the arena outlives it). **Commit** makes
//! everything before a position durable on flash. The first task to arrive becomes the flush leader
//! and writes; the others find their bytes covered (group commit). **Release** says that a volume's
//! changes up to a serial are in the datastore: segments without live entries are freed and reused.
//! The log does *not* order changes of one volume (append order is the order), nor know what they
//! mean.
//!
//! Calls between the modules ([`Log`] calls `start`, `heads`, `driver`, and `recovered` for lists):
//!
//! | module | its part | calls |
//! | --- | --- | --- |
//! | `start` | opens the log | `scan`, `decide`, `admit`, `inventory`, `driver` |
//! | `decide` | reads heads, newest first, and has `machine` judge them | `scan`, `machine` |
//! | `scan` | finds segments and heads at a start | `walk`, `segment_pool` |
//! | `machine` | decides what the log is, and which segments may go | none |
//! | `known_end` | records how far the open segment was durable | `segment_pool` |
//! | `admit` | makes segments of what was found | `scan`, `descriptors`, `walk`, `head`, `driver` |
//! | `walk` | reads bytes up to the last valid certificate | none |
//! | `recovered` | lists what outlived a restart | `descriptors`, `inventory`, `driver` |
//! | `inventory` | knows what outlived it, and what is lost | `recovered_index`, `summary` |
//! | `summary` | sums up the changes of a volume | none |
//! | `door` | bounds what streams have between memory and flash | `driver` |
//! | `driver` | commits and rollovers | `heads`, `machine`, `recovered`, `segment_pool` |
//! | `group` | checks an append before anything is copied | none |
//! | `heads` | how one head follows another | `head` (how its bytes lie) |
//! | `segment` | serves reads of places, from memory or flash | `segment_pool` |
//! | `along` | serves reads of many places in a known order | `segment` |
//! | `replica` | copies segments to holders elsewhere, which come and go | `segment` |
//! | `segment_pool` | keeps free files and slots, and opens files | none |

mod admit;
mod along;
mod decide;
mod descriptors;
mod door;
mod driver;
mod error;
mod format;
mod group;
mod head;
mod heads;
mod inner;
pub mod inspect;
mod inventory;
mod known_end;
pub mod limits;
mod machine;
mod progress;
mod recovered;
mod recovered_index;
mod replica;
mod scan;
mod segment;
mod segment_pool;
mod start;
mod summary;
#[cfg(test)]
mod tests;
mod view;
mod walk;

pub use along::{Along, along};
pub use door::Quantum;
pub use error::Error;
pub use progress::{Copied, Media, Progress};
pub use replica::{Follower, NewSegment, Replica};
pub use segment::{Place, read_ahead};
pub use start::Discovery;
pub use summary::LogSummary;
pub use view::{HeadView, SegmentView, View};

/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 1] = [("log segment", format::VERSION)];

use inner::Inner;
use rekindle_base::checksum::crc32c;
use rekindle_base::{Generation, Incarnation, NodeId, SegmentId, Serial, VolumeId};
use rekindle_env::Env;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The kind of a change: its effect on its range, or a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Puts the payload into the range.
    Write,
    /// Makes the range read as zeros.
    Zero,
    /// Gives the range up; it reads as zeros.
    Trim,
    /// A record of the volume's kind, with a payload of its own: it has no range.
    Record,
}

/// A change to be appended.
#[derive(Debug, Clone, Copy)]
pub struct Append<'a> {
    pub volume: VolumeId,
    pub generation: Generation,
    pub serial: Serial,
    pub change: Change,
    /// Whether the next change of this append belongs to the same group. A group counts as a whole
    /// or not at all, also after a crash.
    pub joined: bool,
    /// First byte of the range in the volume; of a record: the record's own kind.
    pub position: u64,
    /// Bytes of the range (for a write: the payload's length, at most `limits::CHANGE_BYTES_MAX`);
    /// of a record: the payload's length.
    pub span: u64,
    /// Empty unless a write or a record.
    pub payload: &'a [u8],
}

/// A point of the log: everything appended before it. Ordered; survives rollover, not restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position(pub u64);

/// A change that outlived a restart and is not known to be in the datastore.
#[derive(Clone)]
pub struct Recovered {
    /// The life of the node that appended it.
    pub life: Incarnation,
    pub generation: Generation,
    pub serial: Serial,
    pub change: Change,
    /// Whether the next change of the volume belongs to the same group.
    pub joined: bool,
    pub position: u64,
    pub span: u64,
    pub place: Place,
}

/// Changes of a volume that were acknowledged and may be gone: those with serials after `after` and
/// before `before`. Harmless when the datastore has all of them, which the log does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The segment that is lost, or damaged.
    pub segment: SegmentId,
    pub after: Serial,
    /// `None` when the number of lost changes is not known.
    pub before: Option<Serial>,
    pub reason: String,
}

/// Settings of a log.
#[derive(Debug, Clone)]
pub struct Config {
    /// Folder of segment files.
    pub folder: PathBuf,
    pub node: NodeId,
    /// Flash that segments may take, bytes; [`limits::RESERVE_FILES`] segments are kept beyond it.
    pub flash_bytes: u64,
    /// Commit what is only in memory at least this often.
    pub flush_interval: Duration,
}

/// The record of a log that is kept outside the log's folder, so that an absent log is not taken
/// for a new one: the newest head when the log was looked at last. Segment numbers grow within a
/// life, and each life opens a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The newest head, or an older one.
    pub newest: SegmentId,
    /// The life that opened that head.
    pub incarnation: Incarnation,
    /// The life from which on another log stands in for this one. Nothing was acknowledged from the
    /// other.
    pub stand_in: Option<Incarnation>,
}

/// The fill of a log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub flash_bytes: u64,
    pub flash_bytes_max: u64,
    pub segments: u64,
    /// Slots of warm memory that no segment takes.
    pub slots_free: u64,
    /// Appended and not yet durable on flash, bytes.
    pub uncommitted_bytes: u64,
    pub commits: u64,
    pub appended_bytes: u64,
}

/// The findings of a start.
#[derive(Debug, Clone, Default)]
pub struct Opened {
    /// Live segments found.
    pub segments: u64,
    /// Of these, read from warm memory.
    pub segments_warm: u64,
    /// Segments or entries given up, with reasons: damage, never a normal crash.
    pub damage: Vec<String>,
    /// Whether the log that was known is not in the folder, or not all of it. The log that begins
    /// now stands in for it.
    pub is_absent: bool,
}

/// The log. All clones are the same log.
#[derive(Clone)]
pub struct Log {
    inner: Arc<Inner>,
}

/// The reason why an append did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The head segment has no room: call [`Log::roll`], then try again. Also returned while the
    /// log takes no appends at all: then `roll` waits, or returns the error that has ended the log.
    HeadFull,
    /// The append is none that the log takes, whatever room there is: the reason. Nothing was
    /// appended.
    Malformed(&'static str),
}

impl Log {
    /// Finds the log and decides what it is from the newest head's digest. Does not read entries of
    /// sealed segments. Takes the folder's lock. Into segments it writes only what an earlier life
    /// should have written.
    ///
    /// `trust`: whether `arena` is the one that the node used last. If not, its slots and frames
    /// are of an older life of the log, and are forgotten; everything that the log needs is on
    /// flash.
    ///
    /// `known`: the record of the log that is kept elsewhere. When the folder has no such log, or
    /// one that ends before that, every volume may have lost changes.
    pub async fn find(
        env: &Env,
        arena: rekindle_warm::Arena,
        config: Config,
        trust: bool,
        known: Option<Known>,
    ) -> Result<Discovery, Error> {
        start::find(env, &arena, config, trust, known).await
    }

    /// [`Log::find`] with an arena that is trusted, then [`Discovery::open`].
    pub async fn open(
        env: &Env,
        arena: rekindle_warm::Arena,
        config: Config,
        incarnation: Incarnation,
    ) -> Result<(Log, Opened), Error> {
        Self::find(env, arena, config, true, None).await?.open(incarnation).await
    }

    /// Starts the tasks in the background: commits without a request, and the opening of heads.
    fn begin(env: &Env, inner: Inner, flush_interval: Duration) -> Log {
        let inner = Arc::new(inner);
        let flusher = driver::flush_unasked(Arc::downgrade(&inner), flush_interval);
        let opener = driver::open_unasked(Arc::downgrade(&inner));
        // On threads of their own: what the destager keeps the background threads busy with would
        // hold up every write, once a head is full or a commit is due.
        *inner.unasked.lock() =
            vec![env.spawn_session("log-flush", flusher), env.spawn_session("log-open", opener)];
        inner.make_ahead();
        Log { inner }
    }

    /// Appends changes, all or (`Refused`) none. A plain call: copies, no I/O. Returns the position
    /// after the changes and one place each. At most [`limits::APPEND_BYTES_MAX`] together.
    ///
    /// Joined changes make groups, each of one volume and generation, with serials one after the
    /// other, and of at most [`limits::GROUP_ENTRIES_MAX`] changes. Nothing separates the changes
    /// of a group: they are in one segment, and a certificate covers all of them or none.
    pub fn append(&self, changes: &[Append<'_>]) -> Result<(Position, Vec<Place>), Refused> {
        let inner = &*self.inner;
        if inner.takes_nothing() {
            return Err(Refused::HeadFull);
        }
        let bytes = group::check(changes, inner.pool.capacity).map_err(Refused::Malformed)?;
        // The checksums are the dear part, and need no lock.
        let payload_crcs: Vec<u32> = changes.iter().map(|change| crc32c(change.payload)).collect();
        let mut places = Vec::with_capacity(changes.len());
        let mut heads = inner.heads.lock();
        let fits = heads.open.append(changes, &payload_crcs, &mut places)
            || (inner.roll_over(&mut heads)
                && heads.open.append(changes, &payload_crcs, &mut places));
        let position = heads.open.position();
        inner.appended.store(position, Ordering::Release);
        let asks = heads.asks_for_next();
        drop(heads);
        if asks {
            inner.next_wanted.notify_one();
        }
        if !fits {
            return Err(Refused::HeadFull);
        }
        inner.counters.appended_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        inner.note_growth(bytes as u64);
        Ok((Position(position), places))
    }

    /// Opens a new head if the present one cannot take `bytes` more of payload. Waits while flash
    /// is full or the log is held ([`Error`] only when the disk fails or the log has ended).
    pub async fn roll(&self, bytes: usize) -> Result<(), Error> {
        self.inner.roll(bytes).await
    }

    /// Makes everything before `position` durable on flash. An error is final for the log: the log
    /// has latched, and every later append and commit fails.
    pub async fn commit(&self, position: Position) -> Result<(), Error> {
        self.inner.commit(position).await
    }

    /// Makes everything before `position` reach `media`: flash, and the required replicas. Waits
    /// for replicas as long as they need, and for more of them if there are fewer than asked for.
    /// Errors as of [`Log::commit`].
    pub async fn reach(&self, media: Media, position: Position) -> Result<(), Error> {
        if media.copies == 0 {
            return if media.flash { self.inner.commit(position).await } else { Ok(()) };
        }
        self.reach_required(media.copies, position).await
    }

    /// Makes everything before `position` reach flash and the required replicas, which may be
    /// none. Errors as of [`Log::commit`].
    pub async fn reach_all(&self, position: Position) -> Result<(), Error> {
        self.reach_required(0, position).await
    }

    async fn reach_required(&self, least: u8, position: Position) -> Result<(), Error> {
        let inner = &*self.inner;
        // A replica gets what is certified, and a commit certifies.
        inner.commit(position).await?;
        let position = position.min(inner.appended());
        let is_enough = |copied: Copied| copied.required >= least && copied.position >= position;
        inner.copies.until(is_enough, || inner.check()).await
    }

    /// Waits until fewer than `count` replicas are required. Errors when the log has ended.
    pub async fn until_fewer(&self, count: u8) -> Result<(), Error> {
        let is_less = |copied: Copied| copied.required < count;
        self.inner.copies.until(is_less, || self.inner.check()).await
    }

    /// Adds a replica to the running log. It begins to follow, and no write waits for it before
    /// [`Follower::require`].
    #[must_use]
    pub fn follow(&self, replica: Arc<dyn Replica>) -> Follower {
        self.inner.copies.add(replica, false)
    }

    /// The replicas of the log, in the order in which they came.
    #[must_use]
    pub fn followers(&self) -> Vec<Follower> {
        self.inner.copies.followers()
    }

    /// The replicas that lack something that was committed, each with its last error, if it gave
    /// one.
    #[must_use]
    pub fn replicas_behind(&self) -> Vec<(String, Option<String>)> {
        let committed = self.inner.durable();
        let lacks = |one: &Follower| !one.is_following() || one.position() < committed;
        let behind = self.followers().into_iter().filter(lacks);
        behind.map(|one| (one.name(), one.problem())).collect()
    }

    /// Refuses appends until [`Log::go_on`]: the node's folder has to record [`Log::known`] first.
    pub fn hold(&self) {
        self.inner.held.store(true, Ordering::Release);
    }

    /// Ends [`Log::hold`]: the record is written.
    pub fn go_on(&self) {
        self.inner.held.store(false, Ordering::Release);
        self.inner.space.notify_waiters();
    }

    /// Makes the segment files that are kept for a full disk: for the next starts, and for heads
    /// that free others. Returns `false` when they cannot be made now; then [`Log::look`] tries it
    /// again.
    pub async fn reserve(&self) -> bool {
        self.inner.pool.reserve().await
    }

    /// Waits until an append waits for the end of [`Log::hold`].
    pub async fn wanted(&self) {
        self.inner.wanted.notified().await;
    }

    /// The record of the log for the node's folder to keep.
    #[must_use]
    pub fn known(&self) -> Known {
        let newest = self.inner.heads.lock().open.segment.id();
        Known { newest, incarnation: self.inner.incarnation, stand_in: None }
    }

    /// Whether a start would find nothing in the log that is still needed.
    #[must_use]
    pub fn holds_nothing(&self) -> bool {
        self.inner.holds_nothing()
    }

    /// Checks that the open segment's file is still the one of its name. If not, the log ends:
    /// bytes written to a file without a name are gone with this process. Warm memory has all of
    /// that segment.
    pub async fn look(&self) -> Result<(), Error> {
        self.inner.look().await
    }

    /// The position at which this life begins. When it is committed, all recovered changes are
    /// durable on flash.
    #[must_use]
    pub fn begins(&self) -> Position {
        self.inner.begins
    }

    /// The progress of the log, on which acknowledgements rest.
    #[must_use]
    pub fn progress(&self) -> Progress {
        // Flash first: it is never ahead of what was appended.
        let (flash, copies) = (self.inner.durable(), self.inner.copies.copied());
        Progress { appended: self.inner.appended(), flash, copies }
    }

    /// The position up to which the log is durable on flash.
    #[must_use]
    pub fn committed(&self) -> Position {
        self.inner.durable()
    }

    /// Notes that changes of `volume` up to `serial` are in the datastore; their segments may go.
    /// Once the returned position is committed, no restart hands the changes out again. (While the
    /// log is full, and the head with it, only the next head writes the release down.)
    pub fn release(&self, volume: VolumeId, serial: Serial) -> Position {
        self.inner.release(volume, serial)
    }

    /// Notes that no change of `volume` is needed any more: the volume was deleted, or has another
    /// owner. Changes appended for it later count again. Returns a position as [`Log::release`]
    /// does.
    pub fn forget(&self, volume: VolumeId) -> Position {
        self.inner.release(volume, Serial(u64::MAX))
    }

    /// The serial up to which changes of `volume` were released, in this life or an earlier one, as
    /// far as the log still knows. The datastore has had these changes.
    #[must_use]
    pub fn released(&self, volume: VolumeId) -> Serial {
        self.inner.table.lock().marked(volume)
    }

    /// Whether changes may be lost, and the user has not accepted that yet.
    #[must_use]
    pub fn has_losses(&self) -> bool {
        self.inner.recovery.has_losses()
    }

    /// The changes of one volume that outlived the restart, in serial order. Payloads are verified
    /// when they are read. Reads the descriptor tables of the recovered segments once, for all
    /// volumes. Changes that were released in an earlier life, and durably, are not among them; of
    /// those released just before a crash some may be, with gaps. Returns [`Error::Lost`] when
    /// acknowledged changes of the volume may be missing: then see [`Log::salvage`].
    pub async fn unfinished(&self, volume: VolumeId) -> Result<Vec<Recovered>, Error> {
        let (recovered, losses) = self.salvage(volume).await?;
        if losses.is_empty() { Ok(recovered) } else { Err(Error::Lost { volume, losses }) }
    }

    /// Like [`Log::unfinished`], but returns the changes that are there, and the possible losses. A
    /// loss whose `before` is at most the volume's checkpoint + 1 is harmless. All returned changes
    /// are on flash, also those that only memory had at the start.
    pub async fn salvage(&self, volume: VolumeId) -> Result<(Vec<Recovered>, Vec<Loss>), Error> {
        self.inner.salvage(volume).await
    }

    /// Sums up the changes of one volume that outlived the restart: sooner than the list, and
    /// perhaps before all of them are on flash. `None` when there are none, or some may be missing:
    /// then only [`Log::salvage`] can tell.
    pub async fn summary(&self, volume: VolumeId) -> Result<Option<LogSummary>, Error> {
        self.inner.summary(volume).await
    }

    /// The lives of the node that appended the recovered changes of a volume: each with a lowest
    /// and a highest serial, in the order of the log, perhaps several of one life.
    pub async fn lives(
        &self,
        volume: VolumeId,
    ) -> Result<Vec<(Incarnation, Serial, Serial)>, Error> {
        self.inner.lives(volume).await
    }

    /// All volumes that have recovered changes, with the highest serial of each.
    pub async fn unfinished_volumes(&self) -> Result<Vec<(VolumeId, Serial)>, Error> {
        self.inner.unfinished_volumes().await
    }

    /// Accepts the losses, since the user goes on without them: [`Log::unfinished`] does not refuse
    /// any more, the space of lost segments is free, and the next start does not report them again.
    pub async fn accept_losses(&self) -> Result<(), Error> {
        self.inner.accept_losses().await
    }

    /// The error that has ended the log, if one has.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.inner.check().err()
    }

    /// The reason why [`Log::roll`] waits though the log is not full, if it does: no segment file
    /// can be made now.
    #[must_use]
    pub fn why_it_waits(&self) -> Option<String> {
        self.inner.pool.why_it_waits()
    }

    /// The fill of the log.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.inner.usage()
    }

    /// The log as an observer sees it: segments and head.
    #[must_use]
    pub fn view(&self) -> View {
        self.inner.view()
    }

    /// Commits everything and seals the open head. The log takes no appends afterwards.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.close().await
    }
}
