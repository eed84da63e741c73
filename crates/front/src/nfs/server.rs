//! What the sessions of a node share: the volumes that are in use, and who may use them.

use super::handle::Handle;
use super::limits;
use super::replies::{Failed, volume_number};
use super::settings::Settings;
use super::target::{Export, Exports};
use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
use parking_lot::Mutex;
use rekindle_base::{Kind, VolumeId};
use rekindle_env::{Env, Moment};
use rekindle_file::{Ino, Seal};
use rekindle_volume::Error;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::OnceCell;

pub struct Server<E: Exports> {
    pub env: Env,
    pub exports: Arc<E>,
    pub settings: Settings,
    seal: OnceCell<Seal>,
    in_use: Mutex<HashMap<VolumeId, InUse<E::Files>>>,
}

struct InUse<T> {
    export: Arc<Export<T>>,
    last: Moment,
}

/// An inode of a volume in service.
pub struct Place<T> {
    pub export: Arc<Export<T>>,
    pub ino: Ino,
    pub seal: Seal,
}

impl<T> Place<T> {
    pub fn volume(&self) -> u64 {
        volume_number(self.export.id)
    }

    /// Returns the handle of another inode of the volume.
    pub fn handle(&self, ino: Ino) -> nfs_fh3 {
        Handle { volume: self.export.id, ino }.encode(&self.seal)
    }
}

impl<E: Exports> Server<E> {
    pub fn new(env: Env, exports: Arc<E>, settings: Settings) -> Self {
        let (seal, in_use) = (OnceCell::new(), Mutex::default());
        Self { env, exports, settings, seal, in_use }
    }

    pub async fn seal(&self) -> Result<Seal, Failed> {
        let seal = self.seal.get_or_try_init(|| self.exports.seal()).await;
        Ok(seal.map_err(|error| unserved(&error))?.clone())
    }

    /// Returns what a handle leads to; the volume comes into service.
    pub async fn place(&self, handle: &[u8]) -> Result<Place<E::Files>, Failed> {
        let seal = self.seal().await?;
        // One that this store has not given costs no look into it.
        let Handle { volume, ino } =
            Handle::decode(handle, &seal).ok_or(nfsstat3::NFS3ERR_BADHANDLE)?;
        if let Some(export) = self.used(volume) {
            return Ok(Place { export, ino, seal });
        }
        let found = self.exports.find(volume).await;
        let export = self.keep(found.map_err(|error| unserved(&error))?);
        Ok(Place { export, ino, seal })
    }

    fn used(&self, volume: VolumeId) -> Option<Arc<Export<E::Files>>> {
        let now = self.env.now();
        let mut in_use = self.in_use.lock();
        let found = in_use.get_mut(&volume)?;
        found.last = now;
        Some(found.export.clone())
    }

    /// Keeps a volume in service for as long as it has calls.
    pub fn keep(&self, export: Export<E::Files>) -> Arc<Export<E::Files>> {
        let export = Arc::new(export);
        let used = InUse { export: export.clone(), last: self.env.now() };
        self.in_use.lock().insert(export.id, used);
        export
    }

    /// Forgets a volume that is not served here any more.
    pub fn forget(&self, handle: &[u8]) {
        let Some(seal) = self.seal.get() else { return };
        if let Some(Handle { volume, .. }) = Handle::decode(handle, seal) {
            self.in_use.lock().remove(&volume);
        }
    }

    /// Lets go of volumes that have had no call for a while, for as long as the server lives.
    pub async fn tend(&self) {
        loop {
            self.env.sleep(limits::IDLE_LOOK).await;
            let now = self.env.now();
            let is_idle = |used: &InUse<E::Files>| now - used.last >= limits::IDLE;
            let idle: Vec<_> = self
                .in_use
                .lock()
                .extract_if(|_, used| is_idle(used))
                .map(|(_, used)| used)
                .collect();
            // Not under the lock: a volume ends with its last user.
            drop(idle);
        }
    }

    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.in_use.lock().len()
    }
}

/// Returns what a client is told when a volume cannot be served.
fn unserved(error: &Error) -> Failed {
    match error.kind() {
        Kind::NotFound | Kind::Unsupported => nfsstat3::NFS3ERR_STALE.into(),
        // The client waits, and asks again.
        Kind::Unavailable | Kind::Fenced | Kind::Conflict => Failed::Gone,
        Kind::Full => nfsstat3::NFS3ERR_NOSPC.into(),
        _ => {
            tracing::warn!(%error, "a volume that an NFS client uses cannot be served");
            nfsstat3::NFS3ERR_IO.into()
        }
    }
}
