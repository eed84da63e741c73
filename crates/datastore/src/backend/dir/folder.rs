//! The file calls of the folder backend; each blocks.

#![expect(
    clippy::disallowed_methods,
    reason = "the folder is a store for all nodes, not this machine's own disk"
)]

use super::direct;
use super::doubts::{self, Doubts};
use super::listing::{Listings, Walk};
use super::packs::{OpenPacks, read_range};
use super::reserve;
use crate::backend::mem::version_of;
use crate::limits::{
    DURABLE_FOLDERS_MAX, LIST_OBJECTS_MAX, LOCK_FILES, TAG_AGE_MIN, TEMPORARY_AGE_MAX,
    TOGETHER_BYTES_MAX,
};
use crate::{Error, Got, Listed, Room, Tag, Version, key};
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_env::Timestamp;
use rustix::fs::Stat;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The folder of files that are being written; any process removes old ones.
const TEMPORARY: &str = ".tmp";
/// Files that are locked, never written.
const LOCKS: &str = ".locks";
/// How often a write makes its folder again while other tasks delete it.
const FOLDER_ATTEMPTS: usize = 16;

/// A folder that is a store.
pub(super) struct Folder {
    root: PathBuf,
    /// Device and inode of `root` at open. Another folder there means that the mount is gone, not
    /// that the objects are.
    identity: (u64, u64),
    packs: OpenPacks,
    listings: Listings,
    /// Folders whose own names this process has made durable.
    durable: Mutex<HashSet<PathBuf>>,
    /// Changes that can be seen and may not be durable.
    doubts: Doubts,
    /// Makes a folder durable; a test replaces it.
    sync_folder: fn(&Path) -> io::Result<()>,
}

/// A file that vanishes unless it is given a name.
struct Temporary {
    path: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename it is no longer there; after a crash `sweep_temporary` finds it.
        let _ = fs::remove_file(&self.path);
    }
}

impl Folder {
    /// Opens the folder; with `make`, makes an absent one. Without `make`, the folder belongs to a
    /// store that exists. A folder that lies in its place while the store is away (an empty mount
    /// point) is left as it is.
    pub(super) fn open(path: &Path, now: Timestamp, make: bool) -> Result<Self, Error> {
        let root = std::path::absolute(path).map_err(|error| failed("name", path, &error))?;
        let is_store = make || root.join(key::IDENTITY).exists();
        let open = || -> io::Result<Self> {
            if is_store {
                fs::create_dir_all(root.join(TEMPORARY))?;
                fs::create_dir_all(root.join(LOCKS))?;
            }
            let meta = fs::metadata(&root)?;
            let identity = (meta.dev(), meta.ino());
            Ok(Self {
                root: root.clone(),
                identity,
                packs: OpenPacks::default(),
                listings: Listings::default(),
                durable: Mutex::default(),
                doubts: Doubts::default(),
                sync_folder,
            })
        };
        let folder = open().map_err(|error| match error.kind() {
            ErrorKind::NotFound if !make => Error::Unavailable(format!(
                "the folder {} is not there: is it mounted, and is it the store of earlier starts?",
                path.display()
            )),
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => Error::Refused(format!(
                "{} is not a folder ({error}): name a folder for the store",
                path.display()
            )),
            _ => failed("open the folder", path, &error),
        })?;
        if is_store {
            folder.sweep_temporary(now);
            reserve::keep(&folder.root);
        }
        Ok(folder)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn listings(&self) -> &Listings {
        &self.listings
    }

    /// Returns what an ordinary user may still write there, less what the reserve lacks.
    pub(super) fn room(&self) -> Result<Room, Error> {
        let found = rustix::fs::statvfs(&self.root)
            .map_err(|error| Error::Unavailable(format!("{}: {error}", self.root.display())))?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        Ok(Room::Bytes(free.saturating_sub(reserve::lacks(&self.root))))
    }

    pub(super) fn put(&self, key: &str, data: &[u8], tag: [u8; 16]) -> Result<(), Error> {
        if key.starts_with(key::PACKS)
            && reserve::is_given_up(&self.root)
            && !reserve::keep(&self.root)
        {
            let why = "what room is left is for removals: remove volumes and sweep, or give it more space";
            return Err(Error::Full(format!("{}: {why}", self.root.display())));
        }
        let temporary = self.write_temporary(key, data, tag)?;
        let _lock = self.lock(key)?;
        self.place(key, |target| fs::rename(&temporary.path, target))
    }

    pub(super) fn create(&self, key: &str, data: &[u8], tag: [u8; 16]) -> Result<Version, Error> {
        let target = self.path(key);
        // Spares a loser the writing; the link decides.
        if fs::symlink_metadata(&target).is_ok_and(|meta| meta.is_file()) {
            return Err(Error::Exists(key.to_owned()));
        }
        let temporary = self.write_temporary(key, data, tag)?;
        self.place(key, |target| fs::hard_link(&temporary.path, target))?;
        Ok(version_of(data))
    }

    pub(super) fn replace(
        &self,
        key: &str,
        data: &[u8],
        version: &Version,
        tag: [u8; 16],
    ) -> Result<Version, Error> {
        let _lock = self.lock(key)?;
        match self.get_locked(key, tag) {
            Ok((_, found)) if found == *version => {}
            Ok(_) | Err(Error::NotFound(_)) => return Err(Error::Conflict(key.to_owned())),
            Err(other) => return Err(other),
        }
        let temporary = self.write_temporary(key, data, tag)?;
        self.place(key, |target| fs::rename(&temporary.path, target))?;
        Ok(version_of(data))
    }

    pub(super) fn get(&self, key: &str, tag: [u8; 16]) -> Result<(Bytes, Version), Error> {
        if self.doubts.is_doubtful(key) {
            let _lock = self.lock(key)?;
            return self.get_locked(key, tag);
        }
        self.read_durable(key)
    }

    /// Reads an object. The caller has the lock.
    fn get_locked(&self, key: &str, tag: [u8; 16]) -> Result<(Bytes, Version), Error> {
        if self.doubts.is_doubtful(key) {
            self.write_again(key, tag)?;
        }
        self.read_durable(key)
    }

    /// Writes a doubtful object anew, under another name first.
    ///
    /// Other processes can see a write whose folder could not be made durable, and a power cut may
    /// undo it. A later sync of the folder may succeed although the failed one lost the name, so a
    /// sync is not enough.
    fn write_again(&self, key: &str, tag: [u8; 16]) -> Result<(), Error> {
        match fs::read(self.path(key)) {
            Ok(data) => {
                // A tag of its own: that of the caller's own file is taken, or will be.
                let tag = std::array::from_fn(|index| !tag[index]);
                let temporary = self.write_temporary(key, &data, tag)?;
                self.place(key, |target| fs::rename(&temporary.path, target))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.check_root()?;
                self.sync_nearest(self.path(key).parent().unwrap_or(&self.root))?;
                self.doubts.settle(key);
                Ok(())
            }
            Err(error) => Err(failed("read", &self.path(key), &error)),
        }
    }

    /// Reads an object and believes it once its name is durable: the process that gave the name may
    /// have died before it made the name durable.
    fn read_durable(&self, key: &str) -> Result<(Bytes, Version), Error> {
        let path = self.path(key);
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(&path)?;
            let meta = file.metadata()?;
            if self.doubts.is_new(key, &meta) {
                file.sync_all()?;
                (self.sync_folder)(path.parent().unwrap_or(&self.root))?;
                self.doubts.believe(key, &meta);
            }
            let mut data = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
            file.read_to_end(&mut data)?;
            Ok(data)
        };
        let data = read().map_err(|error| self.not_read(key, &error))?;
        let version = version_of(&data);
        Ok((Bytes::from(data), version))
    }

    /// Reads the objects of the first keys, and stops behind [`TOGETHER_BYTES_MAX`]. Where `get`
    /// makes each file and its name durable, this makes the names in a folder durable by one sync:
    /// their content was durable before they had their names.
    pub(super) fn get_together(&self, keys: &[String], tag: [u8; 16]) -> Vec<Got> {
        let mut seen = Vec::new();
        let mut bytes = 0;
        for key in keys {
            if bytes >= TOGETHER_BYTES_MAX as u64 {
                break;
            }
            let path = self.path(key);
            let meta = fs::metadata(&path).ok().filter(|_| key::check(key).is_ok());
            bytes += meta.as_ref().map_or(0, Metadata::len);
            seen.push((key, path, meta));
        }
        let mut synced: HashMap<&Path, io::Result<()>> = HashMap::new();
        for (key, path, meta) in &seen {
            if meta.as_ref().is_some_and(|meta| self.doubts.is_new(key, meta)) {
                let folder = path.parent().unwrap_or(&self.root);
                synced.entry(folder).or_insert_with(|| (self.sync_folder)(folder));
            }
        }
        let read = |(key, path, meta): &(&String, PathBuf, Option<Metadata>)| {
            key::check(key)?;
            if let Some(Err(error)) = path.parent().and_then(|folder| synced.get(folder)) {
                return Err(self.not_read(key, error));
            }
            let meta = meta.as_ref().filter(|_| !self.doubts.is_doubtful(key));
            match meta.map(|seen| read_seen(path, seen)) {
                Some(Ok(Some(data))) => {
                    let version = version_of(&data);
                    Ok((Bytes::from(data), version))
                }
                _ => self.get(key, tag),
            }
        };
        seen.iter().map(read).collect()
    }

    pub(super) fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, Error> {
        let path = self.path(key);
        self.believe_folder(path.parent().unwrap_or(&self.root))
            .map_err(|error| self.not_read(key, &error))?;
        let read = if key.starts_with(key::PACKS) {
            self.packs.read(key, &path, &range)
        } else {
            File::open(&path).and_then(|file| read_range(&file, &range))
        };
        read.map(Bytes::from).map_err(|error| self.not_read(key, &error))
    }

    pub(super) fn delete(&self, key: &str) -> Result<(), Error> {
        let _lock = self.lock(key)?;
        self.remove(key)
    }

    pub(super) fn delete_if(
        &self,
        key: &str,
        version: &Version,
        tag: [u8; 16],
    ) -> Result<(), Error> {
        let _lock = self.lock(key)?;
        match self.get_locked(key, tag) {
            Ok((_, found)) if found == *version => self.remove(key),
            Ok(_) => Err(Error::Conflict(key.to_owned())),
            Err(Error::NotFound(_)) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Removes an object. The caller has the lock.
    fn remove(&self, key: &str) -> Result<(), Error> {
        self.packs.forget(key);
        let path = self.path(key);
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) => match self.not_read(key, &error) {
                // Gone, but a power cut may bring the object back.
                Error::NotFound(_) if self.doubts.is_doubtful(key) => {}
                Error::NotFound(_) => return Ok(()),
                other => return Err(other),
            },
        }
        let above = path.parent().unwrap_or(&self.root);
        self.doubts.doubt(key);
        self.sync_nearest(above)?;
        self.doubts.settle(key);
        self.prune(above);
        // The removal may have made room for the reserve.
        reserve::keep(&self.root);
        Ok(())
    }

    /// Makes the names in a folder durable, once in the life of this process. This is for packs of
    /// a process that died before it made their names durable; a pack that is written later is made
    /// durable by its writer.
    fn believe_folder(&self, folder: &Path) -> io::Result<()> {
        if self.doubts.is_believed(folder) {
            return Ok(());
        }
        (self.sync_folder)(folder)?;
        self.doubts.believe_folder(folder);
        Ok(())
    }

    pub(super) fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        now: Timestamp,
    ) -> Result<Vec<Listed>, Error> {
        let not_listed = |error: io::Error| failed("list", &self.root.join(prefix), &error);
        let mut open = after.and_then(|after| self.listings.take(prefix, after));
        let mut found: Vec<Listed> = Vec::new();
        loop {
            let was_open = open.is_some();
            let mut walk = match open.take() {
                Some(walk) => walk,
                None => Walk::begin(&self.root, prefix, after.unwrap_or("")).map_err(not_listed)?,
            };
            while let Some(key) = walk.next(&self.root).map_err(not_listed)? {
                let found_there = walk
                    .look(&self.root, &key)
                    .map_err(|error| failed("look at", &self.path(&key), &error))?;
                if let Some(stat) = found_there {
                    let length = u64::try_from(stat.st_size).unwrap_or(0);
                    found.push(Listed { key, length, tag: tag_of(&stat, now) });
                }
                if found.len() >= LIST_OBJECTS_MAX {
                    break;
                }
            }
            walk.pause();
            match found.last() {
                // What is gone may be away for a moment: then the next page looks for it again.
                Some(_) if walk.has_gaps => break,
                Some(last) => break self.listings.keep(prefix, &last.key, walk),
                None if walk.has_gaps && was_open => {}
                None => break self.check_root()?,
            }
        }
        Ok(found)
    }

    fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    /// Takes the lock that a key shares with some others. It excludes all threads and processes
    /// that use the folder.
    ///
    /// `File::lock` (flock) belongs to the open file, as an OFD lock does, so that threads exclude
    /// each other too; on NFS the kernel turns it into a byte-range lock at the server.
    fn lock(&self, key: &str) -> Result<File, Error> {
        let number = blake3::hash(key.as_bytes()).as_bytes()[0] % LOCK_FILES;
        let path = self.root.join(LOCKS).join(format!("{number:02x}"));
        let open = || OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = open().or_else(|error| self.after_mending(LOCKS, error, open));
        let file = file.map_err(|error| failed("open the lock", &path, &error))?;
        file.lock().map_err(|error| failed("lock", &path, &error))?;
        Ok(file)
    }

    /// Writes data durably under a name of its own. Where there is no room, small objects get that
    /// of the reserve: without small writes nothing could be removed.
    fn write_temporary(&self, key: &str, data: &[u8], tag: [u8; 16]) -> Result<Temporary, Error> {
        match self.write_once(data, tag) {
            Err(Error::Full(_)) if !key.starts_with(key::PACKS) && reserve::give_up(&self.root) => {
                self.write_once(data, tag)
            }
            done => done,
        }
    }

    fn write_once(&self, data: &[u8], tag: [u8; 16]) -> Result<Temporary, Error> {
        let name = format!("{:032x}", u128::from_le_bytes(tag));
        let path = self.root.join(TEMPORARY).join(name);
        let create = || OpenOptions::new().create_new(true).write(true).open(&path);
        let file = create().or_else(|error| self.after_mending(TEMPORARY, error, create));
        let file = file.map_err(|error| failed("make a file", &path, &error))?;
        let temporary = Temporary { path };
        direct::write(&file, data).map_err(|error| failed("write", &temporary.path, &error))?;
        Ok(temporary)
    }

    /// Makes one of our own folders again and retries, if the root is still ours: the user may have
    /// tidied them up.
    fn after_mending<T>(
        &self,
        name: &str,
        error: io::Error,
        retry: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if error.kind() != ErrorKind::NotFound || self.check_root().is_err() {
            return Err(error);
        }
        let _ = fs::create_dir(self.root.join(name));
        retry()
    }

    /// Gives a written file its name by `name`, and makes the name durable.
    fn place(&self, key: &str, name: impl Fn(&Path) -> io::Result<()>) -> Result<(), Error> {
        let target = self.path(key);
        let above = target.parent().unwrap_or(&self.root);
        for _ in 0..FOLDER_ATTEMPTS {
            let named = self.ensure_folder(above).and_then(|()| {
                name(&target)?;
                self.doubts.doubt(key);
                (self.sync_folder)(above)
            });
            match named {
                Ok(()) => {
                    self.doubts.settle(key);
                    if let Ok(meta) = fs::metadata(&target) {
                        self.doubts.believe(key, &meta);
                    }
                    return Ok(());
                }
                // A concurrent delete pruned the folder.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.durable.lock().clear();
                    self.check_root()?;
                }
                Err(error) => return Err(self.not_placed(key, &target, &error)),
            }
        }
        Err(Error::Unavailable(format!("{} is removed as often as it is made", above.display())))
    }

    fn not_placed(&self, key: &str, target: &Path, error: &io::Error) -> Error {
        match error.kind() {
            ErrorKind::AlreadyExists if target.is_file() => Error::Exists(key.to_owned()),
            ErrorKind::AlreadyExists
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::DirectoryNotEmpty => Error::Invalid(format!(
                "{key} cannot be written: no object can lie below another ({error})"
            )),
            ErrorKind::Unsupported => Error::Refused(format!(
                "the file system of {} lacks hard links or renaming ({error}): use another one for the store",
                self.root.display()
            )),
            _ => failed("name the file", target, error),
        }
    }

    /// Makes a folder and those above it, and makes their names durable, once in the life of this
    /// process.
    fn ensure_folder(&self, folder: &Path) -> io::Result<()> {
        if folder == self.root || self.durable.lock().contains(folder) {
            return Ok(());
        }
        let above = folder.parent().unwrap_or(&self.root);
        self.ensure_folder(above)?;
        match fs::create_dir(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists || !folder.is_dir() => {
                return Err(error);
            }
            // Also when another process made the folder: that process may have died before the
            // sync.
            _ => (self.sync_folder)(above)?,
        }
        let mut durable = self.durable.lock();
        if durable.len() >= DURABLE_FOLDERS_MAX {
            durable.clear();
        }
        durable.insert(folder.to_owned());
        Ok(())
    }

    /// Makes a removal durable: in its folder, or, when that folder was pruned meanwhile, in the
    /// one that lost it.
    fn sync_nearest(&self, folder: &Path) -> Result<(), Error> {
        for folder in folder.ancestors().take_while(|folder| folder.starts_with(&self.root)) {
            match (self.sync_folder)(folder) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                synced => {
                    return synced
                        .map_err(|error| failed("make a removal durable in", folder, &error));
                }
            }
        }
        self.check_root()
    }

    /// Removes folders that have become empty.
    fn prune(&self, folder: &Path) {
        let mut folder = folder;
        while folder != self.root && fs::remove_dir(folder).is_ok() {
            self.durable.lock().remove(folder);
            let Some(above) = folder.parent() else { return };
            folder = above;
        }
    }

    /// Translates a failed read. A file that is absent because the mount is absent is not an absent
    /// object.
    fn not_read(&self, key: &str, error: &io::Error) -> Error {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
                self.check_root().err().unwrap_or_else(|| Error::NotFound(key.to_owned()))
            }
            _ => failed("read", &self.path(key), error),
        }
    }

    fn check_root(&self) -> Result<(), Error> {
        match fs::metadata(&self.root) {
            Ok(meta) if (meta.dev(), meta.ino()) == self.identity => Ok(()),
            Ok(_) => Err(Error::Unavailable(format!(
                "{} is another folder than at the start: is it still mounted?",
                self.root.display()
            ))),
            Err(error) => Err(Error::Unavailable(format!(
                "the folder {} of the store is gone: is it still mounted? ({error})",
                self.root.display()
            ))),
        }
    }

    /// Removes temporary files that are too old to have a living writer. Errors are ignored:
    /// nothing depends on it.
    fn sweep_temporary(&self, now: Timestamp) {
        let Ok(entries) = fs::read_dir(self.root.join(TEMPORARY)) else { return };
        for entry in entries.flatten() {
            let modified = entry.metadata().and_then(|meta| meta.modified());
            let Ok(Ok(written)) = modified.map(|time| time.duration_since(UNIX_EPOCH)) else {
                continue;
            };
            if std::time::Duration::from_micros(now.0).saturating_sub(written) > TEMPORARY_AGE_MAX {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Reads a file, if it is the one that was seen before: one that came later may not be durable.
fn read_seen(path: &Path, seen: &Metadata) -> io::Result<Option<Vec<u8>>> {
    let mut file = File::open(path)?;
    let meta = file.metadata()?;
    if !doubts::is_same(&meta, seen) {
        return Ok(None);
    }
    let mut data = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
    file.read_to_end(&mut data)?;
    Ok(Some(data))
}

/// Returns the tag of a file as it is at `now`; `None` while a replacement might have the same one.
fn tag_of(stat: &Stat, now: Timestamp) -> Option<Tag> {
    let written = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
    let age = i128::from(now.0) * 1000 - written;
    if age < i128::try_from(TAG_AGE_MIN.as_nanos()).unwrap_or(i128::MAX) {
        return None;
    }
    let parts = [written, i128::from(stat.st_ino), i128::from(stat.st_size)];
    Some(Tag::of(parts.map(i128::to_le_bytes).as_flattened()))
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Translates an error of the machine into one of the store.
fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    let text = format!("cannot {what} {}: {error}", path.display());
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Error::Full(format!("{text}; free space there or enlarge it"))
        }
        ErrorKind::PermissionDenied => Error::Refused(format!(
            "{text}; give the user that runs rekindle the right to write there"
        )),
        ErrorKind::ReadOnlyFilesystem => Error::Refused(format!("{text}; mount it writable")),
        _ => Error::Unavailable(text),
    }
}

#[cfg(test)]
mod tests;
