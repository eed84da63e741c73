//! The interfaces of the NBD server: the node's exports, and the device of an export.

use super::meters::VolumeMeters;
use rekindle_base::Kind;
use rekindle_block::{Gathered, KIND};
use rekindle_env::BoxFuture;
use rekindle_staging::{Extent, Quantum, Ticket, Written};
use rekindle_volume::Error;
use std::future::Future;
use std::sync::Arc;

/// The reason why an export does not exist, or cannot be attached now. The client's user reads the
/// message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExportError {
    pub kind: Kind,
    pub message: String,
}

impl ExportError {
    /// The work on an export has ended without a result.
    pub(super) fn interrupted() -> Self {
        Self { kind: Kind::Unavailable, message: "the daemon is stopping".to_owned() }
    }
}

impl From<Error> for ExportError {
    fn from(error: Error) -> Self {
        let message = match &error {
            Error::OtherKind { name, kind, .. } => {
                format!("volume '{name}' is a '{kind}' volume; NBD serves {KIND} volumes")
            }
            error => error.to_string(),
        };
        Self { kind: error.kind(), message }
    }
}

/// The volumes of a node, as NBD shows them. The node implements it.
pub trait Exports: Send + Sync + 'static {
    /// The device of an attached volume: [`rekindle_block::Device`], or one of a test.
    type Device: Target;
    /// Returns the names of all exports. A client that is told of one may still be refused it.
    fn names(&self) -> BoxFuture<'_, Result<Arc<[String]>, ExportError>>;
    /// Returns the counters of the requests of this device's clients.
    fn meters(&self, _device: &Self::Device) -> Arc<VolumeMeters> {
        Arc::default()
    }
    /// Attaches a volume, and keeps it in service for as long as the device lives.
    fn attach<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Self::Device, ExportError>>;
}

/// A device, as a session uses it. [`rekindle_block::Device`] documents each call.
pub trait Target: Clone + Send + Sync + 'static {
    fn size(&self) -> u64;
    fn block_size(&self) -> u64;
    /// Whether every change is refused.
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<bool, Error>;
    fn read(&self, offset: u64, out: &mut [u8]) -> impl Future<Output = Result<(), Error>> + Send;
    fn admits(&self, under_way: u64, bytes: u64) -> bool;
    fn quantum(&self) -> impl Future<Output = Quantum> + Send;
    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<Written, Error>;
    fn all(&self, gathered: Gathered) -> Written;
    fn clear(&self, offset: u64, length: u64, trim: bool, durable: bool) -> Result<Written, Error>;
    fn sync(&self, ticket: Ticket) -> impl Future<Output = Result<(), Error>> + Send;
    fn flush(&self) -> impl Future<Output = Result<(), Error>> + Send;
    fn extents(
        &self,
        offset: u64,
        length: u64,
    ) -> impl Future<Output = Result<Vec<Extent>, Error>> + Send;
}

impl Target for rekindle_block::Device {
    fn size(&self) -> u64 {
        self.size()
    }
    fn block_size(&self) -> u64 {
        self.block_size()
    }
    fn is_read_only(&self) -> bool {
        self.is_read_only()
    }
    fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<bool, Error> {
        self.read_now(offset, out)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> impl Future<Output = Result<(), Error>> + Send {
        self.read(offset, out)
    }
    fn admits(&self, under_way: u64, bytes: u64) -> bool {
        self.admits(under_way, bytes)
    }
    fn quantum(&self) -> impl Future<Output = Quantum> + Send {
        self.quantum()
    }
    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<Written, Error> {
        self.write(offset, data, durable)
    }
    fn all(&self, gathered: Gathered) -> Written {
        self.all(gathered)
    }
    fn clear(&self, offset: u64, length: u64, trim: bool, durable: bool) -> Result<Written, Error> {
        self.clear(offset, length, trim, durable)
    }
    fn sync(&self, ticket: Ticket) -> impl Future<Output = Result<(), Error>> + Send {
        self.sync(ticket)
    }
    fn flush(&self) -> impl Future<Output = Result<(), Error>> + Send {
        self.flush()
    }
    fn extents(
        &self,
        offset: u64,
        length: u64,
    ) -> impl Future<Output = Result<Vec<Extent>, Error>> + Send {
        self.extents(offset, length)
    }
}
