//! The node's log: changes acknowledged before they reach the datastore. Segments on flash, open ones in warm memory.
//!
//! **Append** copies a change once, into the open segment, and returns where it lies; it is then safe against the death
//! of the process (when the arena outlives it). **Commit** makes everything before a position durable on flash; whoever
//! arrives first drives, others find their bytes covered (group commit). **Release** says that a volume's changes up to
//! a serial are in the datastore: segments without live entries are freed and reused.
//! It does *not* order changes of one volume (append order is the order), nor know what they mean.

mod error;

pub use error::Error;

use base::{Generation, Incarnation, NodeId, SegmentId, Serial, VolumeId};
use env::Env;
use std::path::PathBuf;
use std::sync::Arc;

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

/// Where a change's payload lies. Holding it keeps the segment's bytes from being reused.
#[derive(Clone)]
pub struct Place {
    segment: Arc<Segment>,
    /// Where the entry begins in the segment.
    offset: u32,
    /// Payload bytes.
    length: u32,
}

struct Segment {}

/// A change that outlived a restart and is not known to be in the datastore.
#[derive(Clone)]
pub struct Recovered {
    pub generation: Generation,
    pub serial: Serial,
    pub change: Change,
    pub position: u64,
    pub span: u64,
    pub place: Place,
}

/// Settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Folder of segment files.
    pub folder: PathBuf,
    pub node: NodeId,
    pub incarnation: Incarnation,
    /// Flash that segments may take, bytes; two segments are kept in reserve beyond it.
    pub flash_bytes: u64,
    /// Commit what is only in memory at least this often.
    pub flush_interval: std::time::Duration,
}

/// How full.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub flash_bytes: u64,
    pub flash_bytes_max: u64,
    pub segments: u64,
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
}

/// The log. Clones mean the same log.
#[derive(Clone)]
pub struct Log {
    inner: Arc<Inner>,
}
struct Inner {}

/// Why an append did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The head segment has no room: call [`Log::roll`], then try again.
    HeadFull,
}

impl Log {
    /// Opens the log: decides what it is from the newest head's digest, opens a new head, makes it durable, then
    /// seals the old one. Does not read entries of sealed segments.
    pub async fn open(env: &Env, arena: warm::Arena, config: Config) -> Result<(Log, Opened), Error> {
        let _ = (env, arena, config);
        todo!()
    }

    /// Appends changes, all or (`Refused`) none. A plain call: copies, no I/O. Returns the position after them and
    /// one place each.
    pub fn append(&self, changes: &[Append<'_>]) -> Result<(Position, Vec<Place>), Refused> {
        let _ = changes;
        todo!()
    }

    /// Opens a new head if the present one cannot take `bytes` more of payload. Waits while flash is full
    /// ([`Error`] only when the disk fails).
    pub async fn roll(&self, bytes: usize) -> Result<(), Error> {
        let _ = bytes;
        todo!()
    }

    /// Everything before `position` is durable on flash when this returns. An error is final for the log: it has
    /// latched, and every later append and commit fails.
    pub async fn commit(&self, position: Position) -> Result<(), Error> {
        let _ = position;
        todo!()
    }

    /// Up to where the log is durable on flash.
    #[must_use]
    pub fn committed(&self) -> Position {
        todo!()
    }

    /// Changes of `volume` up to `serial` are in the datastore; their segments may go.
    pub fn release(&self, volume: VolumeId, serial: Serial) {
        let _ = (volume, serial);
        todo!()
    }

    /// What outlived the restart of one volume, in serial order. Payloads are verified at first use. Reads the
    /// descriptor tables of the recovered segments once, for all volumes.
    pub async fn unfinished(&self, volume: VolumeId) -> Result<Vec<Recovered>, Error> {
        let _ = volume;
        todo!()
    }

    /// All volumes that have recovered changes, with the highest serial of each.
    pub async fn unfinished_volumes(&self) -> Result<Vec<(VolumeId, Serial)>, Error> {
        todo!()
    }

    /// How full.
    #[must_use]
    pub fn usage(&self) -> Usage {
        todo!()
    }

    /// Seals and syncs what there is. The log takes nothing afterwards.
    pub async fn close(&self) -> Result<(), Error> {
        todo!()
    }
}

impl Place {
    /// Payload bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// The segment, for messages.
    #[must_use]
    pub fn segment_id(&self) -> SegmentId {
        let _ = (&self.segment, self.offset);
        todo!()
    }

    /// Copies payload bytes from `start` if they are in memory (and verified, or verified now); `false` when they are
    /// only on flash. A plain call.
    pub fn read_now(&self, start: u32, out: &mut [u8]) -> Result<bool, Error> {
        let _ = (start, out);
        todo!()
    }

    /// Copies payload bytes from `start`, from memory or flash; verifies the whole payload at first use.
    pub async fn read(&self, start: u32, out: &mut [u8]) -> Result<(), Error> {
        let _ = (start, out);
        todo!()
    }
}
