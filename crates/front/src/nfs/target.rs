//! The interface of the NFS server to the node: file volumes as exports.

use super::forward::Way;
use crate::target::Target;
use rekindle_base::VolumeId;
use rekindle_env::{BoxFuture, Moment};
use rekindle_file::Seal;
use rekindle_volume::Error;
use std::sync::Arc;

/// A file volume in service.
#[derive(Clone)]
pub struct Export<T> {
    pub id: VolumeId,
    pub name: String,
    pub files: T,
    /// The write verifier: as long as it stays, what was acknowledged without a sync is kept. A
    /// client whose WRITE and COMMIT have two of them sends its data again.
    pub verifier: [u8; 8],
}

/// The file volumes of a node.
pub trait Exports: Send + Sync + 'static {
    type Files: Target;

    /// Returns the seal of the store's handles.
    fn seal(&self) -> BoxFuture<'_, Result<Seal, Error>>;
    /// Returns the number that tells hosts apart; it stays over restarts.
    fn host(&self) -> BoxFuture<'_, Result<[u8; 16], Error>>;
    /// Returns the names of all file volumes.
    fn names(&self) -> BoxFuture<'_, Result<Arc<[String]>, Error>>;
    /// Brings a volume into service.
    fn attach<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Export<Self::Files>, Error>>;
    /// The same, by the volume's id: it may have another name than when a client mounted it.
    fn find(&self, id: VolumeId) -> BoxFuture<'_, Result<Export<Self::Files>, Error>>;
    /// Returns the way of a machine's calls to the host that serves a volume, after
    /// [`Error::Elsewhere`].
    fn way(&self, machine: &str, volume: &str) -> Arc<dyn Way>;
    /// Keeps which clients are in which volumes, in place of what was kept before.
    fn remember(&self, bytes: Vec<u8>) -> BoxFuture<'_, ()>;
    /// Returns what was kept last, also by an earlier process. The error says why it is not known
    /// yet.
    fn remembered(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>>;
    /// Whether a mount of a volume has gone, which is in service since then.
    fn has_mount_gone(&self, volume: VolumeId, mount: u64, since: Moment) -> bool;
    /// Whether the node stops: then no call waits for an owner.
    fn is_stopping(&self) -> bool;
}
