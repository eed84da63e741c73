//! What the sessions of a node share: the volumes that are in use, and who may use them.

use super::forward::{Line, Lines, Visited};
use super::handle::Handle;
use super::limits;
use super::replies::{Failed, volume_number};
use super::settings::Settings;
use super::target::{Export, Exports};
use super::v4::clients::Clients;
use super::v4::haunts::Haunts;
use crate::held::Holder;
use crate::target::Target;
use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
use parking_lot::Mutex;
use rekindle_base::{Kind, VolumeId};
use rekindle_env::{Env, Moment};
use rekindle_file::{Ino, ROOT, Seal};
use rekindle_volume::Error;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Notify, OnceCell};

pub struct Server<E: Exports> {
    pub env: Env,
    pub exports: Arc<E>,
    pub settings: Settings,
    /// The clients of version 4.
    pub clients: Mutex<Clients>,
    seal: OnceCell<Seal>,
    host: OnceCell<[u8; 16]>,
    in_use: Mutex<HashMap<VolumeId, InUse<E::Files>>>,
    /// Names of volumes that other hosts serve, as far as was found out.
    elsewhere: Mutex<HashMap<VolumeId, Arc<str>>>,
    /// The lines of each machine to other hosts.
    lines: Mutex<HashMap<String, Arc<Lines>>>,
    is_tended: AtomicBool,
    /// The volumes that clients of version 4 are in.
    pub haunts: Mutex<Haunts>,
    /// Rung when a client is in a volume that it was not in before.
    pub haunts_noted: Arc<Notify>,
    /// What an earlier process has kept of these, once it was read.
    pub recalled: OnceCell<()>,
}

struct InUse<T> {
    used: Used<T>,
    last: Moment,
}

/// A volume in service.
pub struct Used<T> {
    pub export: Arc<Export<T>>,
    /// From when on its clients are heard here.
    pub since: Moment,
}

impl<T> Clone for Used<T> {
    fn clone(&self) -> Self {
        Self { export: self.export.clone(), since: self.since }
    }
}

impl<T> Used<T> {
    /// Returns an inode of it.
    pub fn at(self, ino: Ino, seal: Seal) -> Place<T> {
        Place { export: self.export, since: self.since, ino, seal }
    }
}

/// An inode of a volume in service.
pub struct Place<T> {
    pub export: Arc<Export<T>>,
    pub since: Moment,
    pub ino: Ino,
    pub seal: Seal,
}

impl<T> Clone for Place<T> {
    fn clone(&self) -> Self {
        let Self { export, since, ino, seal } = self;
        Self { export: export.clone(), since: *since, ino: *ino, seal: seal.clone() }
    }
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
        Self {
            clients: Mutex::new(Clients::new(env.now())),
            env,
            exports,
            settings,
            seal: OnceCell::new(),
            host: OnceCell::new(),
            in_use: Mutex::default(),
            elsewhere: Mutex::default(),
            lines: Mutex::default(),
            is_tended: AtomicBool::new(false),
            haunts: Mutex::default(),
            haunts_noted: Arc::default(),
            recalled: OnceCell::new(),
        }
    }

    pub async fn seal(&self) -> Result<Seal, Failed> {
        let seal = self.seal.get_or_try_init(|| self.exports.seal()).await;
        Ok(seal.map_err(|error| unserved(&error))?.clone())
    }

    /// Returns the number that tells hosts apart; it stays over restarts.
    pub async fn host(&self) -> Result<[u8; 16], Failed> {
        let host = self.host.get_or_try_init(|| self.exports.host()).await;
        Ok(*host.map_err(|error| unserved(&error))?)
    }

    /// Returns what a handle leads to; the volume comes into service.
    pub async fn place(&self, handle: &[u8]) -> Result<Place<E::Files>, Failed> {
        let seal = self.seal().await?;
        // One that this store has not given costs no look into it.
        let Handle { volume, ino } =
            Handle::decode(handle, &seal).ok_or(nfsstat3::NFS3ERR_BADHANDLE)?;
        if let Some(used) = self.used(volume) {
            return Ok(used.at(ino, seal));
        }
        if let Some(name) = self.elsewhere.lock().get(&volume) {
            return Err(Failed::Elsewhere(name.clone()));
        }
        let found = self.exports.find(volume).await.map_err(|error| unserved(&error));
        if let Err(Failed::Elsewhere(name)) = &found {
            self.elsewhere.lock().insert(volume, name.clone());
        }
        Ok(self.keep(found?).at(ino, seal))
    }

    /// Whether a client may change nothing in a volume. The host that it came to judges that.
    pub fn is_read_only(&self, visited: Option<&Visited>, volume: &str) -> bool {
        visited.map_or_else(|| self.settings.is_read_only(volume), |said| said.is_read_only)
    }

    /// Returns the lines of a machine to other hosts.
    pub fn lines_of(&self, machine: &str) -> Arc<Lines> {
        self.lines.lock().entry(machine.to_owned()).or_default().clone()
    }

    /// Returns a machine's line for a volume.
    pub fn line(&self, lines: &Lines, machine: &str, volume: &str) -> Arc<Line> {
        lines.to(&self.env, volume, || self.exports.way(machine, volume))
    }

    /// Forgets where a volume is, after a line was told that it is not there.
    pub fn forget_elsewhere(&self, name: &str) {
        self.elsewhere.lock().retain(|_, other| **other != *name);
    }

    /// Forgets that another host serves a volume.
    pub fn look_anew(&self, volume: VolumeId) {
        self.elsewhere.lock().remove(&volume);
    }

    /// Lets go of lines without sessions.
    fn drop_idle_lines(&self) {
        let now = self.env.now();
        let used = |_: &String, lines: &mut Arc<Lines>| {
            Arc::strong_count(lines) > 1 || !lines.is_idle(now)
        };
        let mut all = self.lines.lock();
        let idle: Vec<_> = all.extract_if(|key, lines| !used(key, lines)).collect();
        drop(all);
        drop(idle);
    }

    /// Returns a volume by its name, which comes into service.
    pub async fn named(&self, name: &str) -> Result<Used<E::Files>, Failed> {
        let (all, now) = (&self.in_use, self.env.now());
        let there =
            all.lock().values_mut().find(|there| there.used.export.name == name).map(|it| {
                it.last = now;
                it.used.clone()
            });
        if let Some(used) = there {
            // It may have moved, or have been let go of.
            if used.export.files.attr(ROOT).await.is_ok() {
                return Ok(used);
            }
            self.in_use.lock().remove(&used.export.id);
        }
        let attached = self.exports.attach(name).await.map_err(|error| unserved(&error))?;
        Ok(self.keep(attached))
    }

    fn used(&self, volume: VolumeId) -> Option<Used<E::Files>> {
        let now = self.env.now();
        let mut in_use = self.in_use.lock();
        let found = in_use.get_mut(&volume)?;
        found.last = now;
        Some(found.used.clone())
    }

    /// Whether a client of version 4 has gone, in the eyes of a mount of a volume that is in
    /// service since then.
    pub fn has_gone(&self, holder: &Holder, since: Moment) -> bool {
        let asks = Holder { client: 0, machine: 0 };
        self.clients.lock().has_gone(holder, &asks, since, self.env.now())
    }

    /// Whether a mount has gone.
    pub fn has_mount_gone(&self, export: &Export<E::Files>, mount: u64) -> bool {
        self.exports.has_mount_gone(export.id, mount, export.files.since())
    }

    /// Returns all volumes that are in use.
    pub fn all_in_use(&self) -> Vec<Used<E::Files>> {
        self.in_use.lock().values().map(|in_use| in_use.used.clone()).collect()
    }

    /// Keeps a volume in service for as long as it has calls.
    pub fn keep(&self, export: Export<E::Files>) -> Used<E::Files> {
        let (id, now) = (export.id, self.env.now());
        let mut in_use = self.in_use.lock();
        let since = in_use.get(&id).map_or(now, |there| there.used.since);
        let used = Used { export: Arc::new(export), since };
        let before = in_use.insert(id, InUse { used: used.clone(), last: now });
        drop(in_use);
        // Not under the lock: a volume ends with its last user.
        drop(before);
        used
    }

    /// Forgets a volume that is not served here any more.
    pub fn forget(&self, handle: &[u8]) {
        let Some(seal) = self.seal.get() else { return };
        if let Some(Handle { volume, .. }) = Handle::decode(handle, seal) {
            self.in_use.lock().remove(&volume);
            self.elsewhere.lock().remove(&volume);
        }
    }

    /// Whether this is the first one who asks: the server is tended once.
    pub fn is_first_to_tend(&self) -> bool {
        !self.is_tended.swap(true, Ordering::Relaxed)
    }

    /// Lets go of volumes that have had no call for a while, and tends the lines.
    pub async fn tend(&self) {
        let now = self.env.now();
        let is_idle = |used: &InUse<E::Files>| now - used.last >= limits::IDLE;
        let idle: Vec<_> =
            self.in_use.lock().extract_if(|_, used| is_idle(used)).map(|(_, used)| used).collect();
        // Not under the lock: a volume ends with its last user.
        drop(idle);
        self.tell_owners().await;
        self.drop_idle_lines();
    }

    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.in_use.lock().len()
    }
}

/// Returns what a client is told when a volume cannot be served.
fn unserved(error: &Error) -> Failed {
    if let Error::Elsewhere(name, _) = error {
        return Failed::Elsewhere(name.as_str().into());
    }
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
