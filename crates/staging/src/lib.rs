//! Write acceleration: when a write is acknowledged, and how it reaches its home afterwards.
//!
//! The one crate that joins [`log`] and [`content`]. A [`Staged`] volume gives every change a serial ([`gatekeeper`]),
//! acknowledges it after what its [`Policy`] says, keeps it readable in the overlay, and lets the destager fold
//! changes in serial order into the volume's [`Home`], one atomic vault commit a batch. The [`Vault`] is the one truth
//! about who may write the volume.

mod error;
mod home;
mod policy;
mod vault;

pub use error::Error;
pub use home::{Extent, Fold, Home, Source};
pub use policy::{Ack, Policy};
pub use vault::{Vault, VaultState};

use base::{Serial, VolumeId};
use content::Content;
use datastore::record::{Held, Writer};
use env::{BoxFuture, Env};
use log::Log;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Flash that unfinished changes of all volumes may take, bytes. A volume's fair share is this over the number of
    /// volumes with unfinished changes.
    pub flash_bytes: u64,
    /// RAM for payloads held by `through` and `uncached` writes, bytes.
    pub memory_bytes: u64,
    /// A change is destaged when it is this old, if nothing else triggers earlier.
    pub destage_age: Duration,
    /// ... or when a volume has this many unfinished bytes.
    pub destage_bytes: u64,
    /// Most bytes in one destage batch.
    pub batch_bytes: u64,
    /// Destage batches at once, of different volumes.
    pub destagers: usize,
    /// Past this age of the oldest change, the volume is reported as late.
    pub age_deadline: Duration,
}

/// The staging of one node. Clones mean the same one.
#[derive(Clone)]
pub struct Staging {
    inner: Arc<Inner>,
}
struct Inner {}

/// One volume in service.
pub struct Staged {}

/// The outcome of submitting a change.
pub enum Written {
    /// Acknowledge now.
    Done,
    /// Acknowledge when [`Staged::sync`] of this ticket (or of a later one of the same volume) has returned.
    Staged(Ticket),
    /// Flow control, a stall, or a policy that waits for the datastore: acknowledge when this has ended. The change
    /// is on its way whether or not the future is polled once the first poll has been made.
    Later(BoxFuture<'static, Result<(), Error>>),
}

/// A point of the log that covers a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(pub log::Position);

/// What a volume owes to its home, and why it is slow.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Backlog {
    /// Unfinished changes.
    pub changes: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Age of the oldest, milliseconds.
    pub age_ms: u64,
    /// Estimated time until all present ones are destaged, milliseconds (by the moving average), if known.
    pub eta_ms: Option<u64>,
    /// Older than the deadline.
    pub late: bool,
    /// Present delay of an acknowledgement by flow control, milliseconds.
    pub delay_ms: u64,
    /// Why writes wait altogether, if they do.
    pub stalled: Option<String>,
    /// Last error of the destager, if the last attempt failed.
    pub destage_error: Option<String>,
    pub serial: u64,
    pub checkpoint: u64,
}

impl Staging {
    /// Staging over a log and a content store. Starts the destagers.
    #[must_use]
    pub fn start(env: Env, log: Log, content: Content, writer: Writer, config: Config) -> Self {
        let _ = (env, log, content, writer, config);
        todo!()
    }

    /// Brings a volume into service: re-indexes its unfinished changes (those of the log past the vault's checkpoint
    /// and of no older generation), in memory only; the vault is not written (the caller has made this node its owner).
    pub async fn open(&self, vault: Held<Vault>, home: Arc<dyn Home>) -> Result<Arc<Staged>, Error> {
        let _ = (vault, home);
        todo!()
    }

    /// Volumes in service.
    #[must_use]
    pub fn volumes(&self) -> Vec<Arc<Staged>> {
        todo!()
    }

    /// A volume is gone for good: drop its changes from the log.
    pub fn forget(&self, volume: VolumeId) {
        let _ = volume;
        todo!()
    }

    /// Ends destaging after the batches in hand. Unfinished changes stay in the log.
    pub async fn stop(&self) {
        todo!()
    }
}

impl Staged {
    /// The vault as of the last commit.
    #[must_use]
    pub fn vault(&self) -> Vault {
        todo!()
    }

    /// Submits a write of at most `limits::CHANGE_BYTES_MAX` bytes. A plain call (one copy into the log).
    /// `durable`: FUA, must reach flash (or the datastore) whatever the volume's ack.
    pub fn write(self: &Arc<Self>, position: u64, data: &[u8], durable: bool) -> Written {
        let _ = (position, data, durable);
        todo!()
    }

    /// Submits a write-zeroes (`trim = false`) or a trim of any length.
    pub fn clear(self: &Arc<Self>, position: u64, span: u64, trim: bool, durable: bool) -> Written {
        let _ = (position, span, trim, durable);
        todo!()
    }

    /// Makes staged changes up to `ticket` durable and visible. On the caller's thread: may drive the flash.
    pub async fn sync(&self, ticket: Ticket) -> Result<(), Error> {
        let _ = ticket;
        todo!()
    }

    /// Everything acknowledged so far is on flash or in the datastore when this returns.
    pub async fn flush(&self) -> Result<(), Error> {
        todo!()
    }

    /// Reads from memory only; `false` when some byte is not there. A plain call.
    pub fn read_now(&self, position: u64, out: &mut [u8]) -> Result<bool, Error> {
        let _ = (position, out);
        todo!()
    }

    /// Reads.
    pub async fn read(&self, position: u64, out: &mut [u8]) -> Result<(), Error> {
        let _ = (position, out);
        todo!()
    }

    /// Data and holes of a range, adjacent equals merged, covering it exactly.
    pub async fn extents(&self, position: u64, span: u64) -> Result<Vec<Extent>, Error> {
        let _ = (position, span);
        todo!()
    }

    /// Destages everything written before the call; returns the checkpoint reached.
    pub async fn drain(&self) -> Result<Serial, Error> {
        todo!()
    }

    /// What is owed.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        todo!()
    }

    /// Takes the volume out of service: later calls fail; unfinished changes stay in the log.
    pub async fn close(&self) -> Result<(), Error> {
        todo!()
    }
}
