//! The node's log: changes acknowledged before they reach the datastore. Segments on flash, open ones in warm memory.
//!
//! **Append** copies a change once, into the open segment, and returns where it lies; it is then safe against the death
//! of the process (when the arena outlives it). **Commit** makes everything before a position durable on flash; whoever
//! arrives first drives, others find their bytes covered (group commit). **Release** says that a volume's changes up to
//! a serial are in the datastore: segments without live entries are freed and reused.
//! It does *not* order changes of one volume (append order is the order), nor know what they mean.
//!
//! Where to begin: [`machine`] decides (what the log is after a start, which segments may go), `head` says how bytes
//! lie, `heads` how one follows another, `driver` carries out commits and rollovers, `start` opens, `inventory` lists what outlived a restart.

mod admit;
mod depot;
mod descriptors;
mod driver;
mod error;
mod format;
mod head;
mod heads;
mod inner;
pub mod inspect;
mod inventory;
pub mod limits;
mod machine;
mod outline;
mod scan;
mod segment;
mod start;
#[cfg(test)]
mod tests;
mod view;
mod walk;

pub use error::Error;
pub use outline::Outline;
pub use segment::{Place, read_ahead};
pub use start::Discovery;
pub use view::{HeadView, SegmentView, View};

/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 1] = [("log segment", format::VERSION)];

use base::checksum::crc32c;
use base::{Generation, Incarnation, NodeId, SegmentId, Serial, VolumeId};
use env::Env;
use inner::Inner;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a change does to its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Puts the payload there.
    Write,
    /// Makes it read as zeros.
    Zero,
    /// Gives it up; reads as zeros.
    Trim,
}

/// A change to be appended.
#[derive(Debug, Clone, Copy)]
pub struct Append<'a> {
    pub volume: VolumeId,
    pub generation: Generation,
    pub serial: Serial,
    pub change: Change,
    /// First byte of the range in the volume.
    pub position: u64,
    /// Bytes of the range (for a write: the payload's length, at most `limits::CHANGE_BYTES_MAX`).
    pub span: u64,
    /// Empty unless a write.
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
    pub position: u64,
    pub span: u64,
    pub place: Place,
}

/// Changes of a volume that were acknowledged and may be gone: those with serials after `after` and before `before`.
/// Harmless when the datastore has all of them, which the log does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The segment that is lost, or damaged.
    pub segment: SegmentId,
    pub after: Serial,
    /// `None` when nobody knows how many there were.
    pub before: Option<Serial>,
    pub reason: String,
}

/// Settings.
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

/// What is known of a log from outside its folder, so that its absence is not taken for a new log: the newest head when it
/// was looked at last. Segment numbers grow within a life, and each life opens a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// That head, or an older one.
    pub newest: SegmentId,
    /// The life that opened it.
    pub incarnation: Incarnation,
    /// From this life on another log stood in for it, which nothing was acknowledged from.
    pub stand_in: Option<Incarnation>,
}

/// How full.
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

/// What start found.
#[derive(Debug, Clone, Default)]
pub struct Opened {
    /// Live segments found.
    pub segments: u64,
    /// Of these, read from warm memory.
    pub segments_warm: u64,
    /// Segments or entries given up, with reasons: damage, never a normal crash.
    pub damage: Vec<String>,
    /// The log that was known is not in the folder, or not all of it. The one that begins now stands in for it.
    pub is_absent: bool,
}

/// The log. Clones mean the same log.
#[derive(Clone)]
pub struct Log {
    inner: Arc<Inner>,
}

/// Why an append did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The head segment has no room: call [`Log::roll`], then try again. Also said when the log takes nothing any
    /// more; `roll` gives the reason then.
    HeadFull,
}

impl Log {
    /// Finds the log and decides what it is from the newest head's digest. Does not read entries of sealed segments.
    /// Takes the folder's lock; the only thing written is what an earlier life should have written.
    ///
    /// `trust`: `arena` is the one that the node used last. If not, what lies there is of an older life of the log, and
    /// is forgotten, slots and frames; whatever the log needs is on flash.
    ///
    /// `known`: what was written down of it elsewhere. When the folder has no such log, or one that ends before that, every
    /// volume may have lost changes.
    pub async fn find(
        env: &Env,
        arena: warm::Arena,
        config: Config,
        trust: bool,
        known: Option<Known>,
    ) -> Result<Discovery, Error> {
        start::find(env, &arena, config, trust, known).await
    }

    /// [`Log::find`] with an arena that is trusted, then [`Discovery::open`].
    pub async fn open(
        env: &Env,
        arena: warm::Arena,
        config: Config,
        incarnation: Incarnation,
    ) -> Result<(Log, Opened), Error> {
        Self::find(env, arena, config, true, None).await?.open(incarnation).await
    }

    /// Begins with what goes on unasked.
    fn begin(env: &Env, inner: Inner, flush_interval: Duration) -> Log {
        let inner = Arc::new(inner);
        let flusher = driver::flush_unasked(Arc::downgrade(&inner), flush_interval);
        let opener = driver::open_unasked(Arc::downgrade(&inner));
        *inner.unasked.lock() =
            vec![env.spawn("log-flush", flusher), env.spawn("log-open", opener)];
        inner.make_ahead();
        Log { inner }
    }

    /// Appends changes, all or (`Refused`) none. A plain call: copies, no I/O. Returns the position after them and
    /// one place each. At most [`limits::APPEND_BYTES_MAX`] together.
    pub fn append(&self, changes: &[Append<'_>]) -> Result<(Position, Vec<Place>), Refused> {
        let inner = &*self.inner;
        if inner.takes_nothing() {
            return Err(Refused::HeadFull);
        }
        // The checksums are the dear part, and need no lock.
        let payload_crcs: Vec<u32> = changes.iter().map(|change| crc32c(change.payload)).collect();
        let bytes: usize = changes.iter().map(append_bytes).sum();
        assert!(
            bytes <= inner.depot.capacity as usize / 2,
            "{bytes} bytes are more than one append may have"
        );
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

    /// Opens a new head if the present one cannot take `bytes` more of payload. Waits while flash is full
    /// ([`Error`] only when the disk fails).
    pub async fn roll(&self, bytes: usize) -> Result<(), Error> {
        self.inner.roll(bytes).await
    }

    /// Everything before `position` is durable on flash when this returns. An error is final for the log: it has
    /// latched, and every later append and commit fails.
    pub async fn commit(&self, position: Position) -> Result<(), Error> {
        self.inner.commit(position).await
    }

    /// Takes nothing until [`Log::go_on`]: what is known of it ([`Log::known`]) has to be written down elsewhere first.
    pub fn hold(&self) {
        self.inner.held.store(true, Ordering::Release);
    }

    /// What [`Log::hold`] waited for is done.
    pub fn go_on(&self) {
        self.inner.held.store(false, Ordering::Release);
        self.inner.space.notify_waiters();
    }

    /// Makes the segment files that are kept for a full disk: for the next starts, and for heads that free others. `false`
    /// when they cannot be made now; then [`Log::look`] tries it again.
    pub async fn reserve(&self) -> bool {
        self.inner.depot.reserve().await
    }

    /// Waits until somebody wants to append while it is held.
    pub async fn wanted(&self) {
        self.inner.wanted.notified().await;
    }

    /// What is to be known of it elsewhere.
    #[must_use]
    pub fn known(&self) -> Known {
        let newest = self.inner.heads.lock().open.segment.id();
        Known { newest, incarnation: self.inner.incarnation, stand_in: None }
    }

    /// Whether a start would find nothing in it that anybody needs.
    #[must_use]
    pub fn holds_nothing(&self) -> bool {
        self.inner.holds_nothing()
    }

    /// Looks whether the open segment's file is still the one of its name. If not, the log ends: what is written to a file
    /// without a name is gone with this process. Warm memory has all of that segment.
    pub async fn look(&self) -> Result<(), Error> {
        self.inner.look().await
    }

    /// Where this life begins: when this is committed, all that was recovered is durable on flash.
    #[must_use]
    pub fn begins(&self) -> Position {
        self.inner.begins
    }

    /// Up to where the log is durable on flash.
    #[must_use]
    pub fn committed(&self) -> Position {
        self.inner.durable()
    }

    /// Changes of `volume` up to `serial` are in the datastore; their segments may go. Once the position given is
    /// committed no restart hands them out again. (While the log is full, and the head with it, only the next head writes
    /// it down.)
    pub fn release(&self, volume: VolumeId, serial: Serial) -> Position {
        self.inner.release(volume, serial)
    }

    /// Nothing of `volume` is needed any more: it was deleted, or has another owner. What is appended for it later
    /// counts again. The position as of [`Log::release`].
    pub fn forget(&self, volume: VolumeId) -> Position {
        self.inner.release(volume, Serial(u64::MAX))
    }

    /// Up to where changes of `volume` were released, in this life or an earlier one, as far as the log still knows: the
    /// datastore has had them.
    #[must_use]
    pub fn released(&self, volume: VolumeId) -> Serial {
        self.inner.table.lock().marked(volume)
    }

    /// Whether changes may be lost, and nobody has accepted that yet.
    #[must_use]
    pub fn has_losses(&self) -> bool {
        self.inner.recovery.has_losses()
    }

    /// What outlived the restart of one volume, in serial order. Payloads are verified when they are read. Reads the
    /// descriptor tables of the recovered segments once, for all volumes. What was released in an earlier life, and durably, is
    /// not among them; of what was released just before a crash some may be, with gaps. [`Error::Lost`] when acknowledged changes of
    /// it may be missing: then see [`Log::salvage`].
    pub async fn unfinished(&self, volume: VolumeId) -> Result<Vec<Recovered>, Error> {
        let (recovered, losses) = self.salvage(volume).await?;
        if losses.is_empty() { Ok(recovered) } else { Err(Error::Lost { volume, losses }) }
    }

    /// As [`Log::unfinished`], but gives what there is, and says what may be missing. A loss whose `before` is at most
    /// the volume's checkpoint + 1 is harmless. What it gives is on flash, also what only memory had at the start.
    pub async fn salvage(&self, volume: VolumeId) -> Result<(Vec<Recovered>, Vec<Loss>), Error> {
        self.inner.salvage(volume).await
    }

    /// What outlived the restart of one volume, in short: sooner than the list, and perhaps before all of it is on flash.
    /// `None` when nothing did, or something may be missing: then only [`Log::salvage`] can tell.
    pub async fn outline(&self, volume: VolumeId) -> Result<Option<Outline>, Error> {
        self.inner.outline(volume).await
    }

    /// Which lives of the node appended what is recovered of a volume: each with a lowest and a highest serial, in the order
    /// of the log, perhaps several of one life.
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

    /// Somebody has decided to go on without what is lost: [`Log::unfinished`] does not refuse any more, the space of
    /// lost segments is free, and the next start does not speak of them again.
    pub async fn accept_losses(&self) -> Result<(), Error> {
        self.inner.accept_losses().await
    }

    /// Why the log takes nothing any more, if that is so.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.inner.check().err()
    }

    /// Why [`Log::roll`] waits though the log is not full, if it does: no segment file can be made now.
    #[must_use]
    pub fn why_it_waits(&self) -> Option<String> {
        self.inner.depot.why_it_waits()
    }

    /// How full.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.inner.usage()
    }

    /// The log as people see it: segments and head.
    #[must_use]
    pub fn view(&self) -> View {
        self.inner.view()
    }

    /// Seals and syncs what there is. The log takes nothing afterwards.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.close().await
    }
}

/// What a change takes of a segment, bytes: payload, header, descriptor.
fn append_bytes(change: &Append<'_>) -> usize {
    change.payload.len().next_multiple_of(limits::GRAIN_BYTES as usize)
        + 2 * limits::GRAIN_BYTES as usize
}
