//! Snapshots of the volume, seen in the directory `.snapshots` of its root.
//!
//! The directory and what is in it exist in no table: their inode numbers say which snapshot they
//! are of. A snapshot is a root without an overlay, so calls look at it as at the present state.
//! The directory is not listed: a program that walks the tree does not walk into the past.

use super::{Done, Files};
use crate::look::Stop;
use crate::overlay::Overlay;
use crate::state::{State, View};
use crate::types::{Attr, Entry, Errno, FileType, INO_BITS, Ino, ROOT};
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_staging::{SNAPSHOTS_TAKEN_MAX, Snapshot};
use std::collections::HashMap;
use std::sync::Arc;

/// The name of the directory of snapshots.
pub(super) const NAME: &[u8] = b".snapshots";
/// The directory of snapshots.
const DIRECTORY: Ino = 1 << 62;
/// Places of a listing that are never used ([`Entry::position`]).
const FIRST_POSITION: u64 = 16;

const _: () = assert!(DIRECTORY >> INO_BITS > SNAPSHOTS_TAKEN_MAX as u64);

/// Where an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whence {
    Present,
    Directory,
    /// In the snapshot of this number.
    Snapshot(u32),
}

/// Takes an inode number apart: where it is, and its number there.
pub(super) fn whence(ino: Ino) -> (Whence, Ino) {
    match ino >> INO_BITS {
        0 => (Whence::Present, ino),
        _ if ino == DIRECTORY => (Whence::Directory, ino),
        number => match u32::try_from(number) {
            Ok(number) if number <= SNAPSHOTS_TAKEN_MAX => {
                (Whence::Snapshot(number), ino & ((1 << INO_BITS) - 1))
            }
            // Nothing has it.
            _ => (Whence::Present, ino),
        },
    }
}

/// The number of an inode of a snapshot, as seen from outside.
fn outer(whence: Whence, ino: Ino) -> Ino {
    match whence {
        Whence::Snapshot(number) => u64::from(number) << INO_BITS | ino,
        Whence::Present | Whence::Directory => ino,
    }
}

/// Whether an inode is of a snapshot, or holds them: nothing changes it, and nothing is kept of it.
#[must_use]
pub fn is_frozen(ino: Ino) -> bool {
    is_present(ino).is_err()
}

/// Refuses to change what is in a snapshot.
pub(super) fn is_present(ino: Ino) -> Result<(), Errno> {
    match whence(ino).0 {
        Whence::Present => Ok(()),
        Whence::Directory | Whence::Snapshot(_) => Err(Errno::ROFS),
    }
}

/// Refuses to change which entry a name of the root leads to, if that is the directory of
/// snapshots.
pub(super) fn is_free(dir: Ino, name: &[u8], errno: Errno) -> Result<(), Errno> {
    is_present(dir)?;
    if (dir, name) == (ROOT, NAME) { Err(errno) } else { Ok(()) }
}

impl Files {
    /// Looks at an inode, wherever it is. Inode numbers in and out of `look_at` are those there;
    /// the outcome is for [`outer`].
    pub(super) async fn look_into<T>(
        &self,
        ino: Ino,
        look_at: impl Fn(&View<'_>, Ino) -> Result<T, Stop>,
    ) -> Done<T> {
        match whence(ino) {
            (Whence::Present, ino) => self.look(|view| look_at(view, ino)).await,
            (Whence::Directory, _) => Err(Errno::ISDIR.into()),
            (Whence::Snapshot(number), ino) => {
                let (state, names) = (self.frozen(number).await?, &self.home.names);
                self.look_until(|look| look_at(&View { state: &state, look, names }, ino)).await
            }
        }
    }

    /// Looks at the list of snapshots.
    fn snapshots<T>(&self, look: impl FnOnce(&[Snapshot]) -> T) -> Done<T> {
        let found = self.staged().look_at_snapshots(look);
        // Another node may have the volume by now.
        self.staged().check_read()?;
        Ok(found)
    }

    /// Returns the state of a snapshot; `ESTALE` if it is gone. What the store does not have of it
    /// yet is brought there first.
    async fn frozen(&self, number: u32) -> Done<Arc<State>> {
        let is_it = |one: &&Snapshot| one.number == number;
        let root_of = |one: &Snapshot| one.content.as_ref().map(|content| content.root);
        let Some(root) = self.snapshots(|all| all.iter().find(is_it).map(root_of))? else {
            self.home.frozen.lock().remove(&number);
            return Err(Errno::STALE.into());
        };
        // A salvage may have mended it.
        if let Some(known) = self.home.frozen.lock().get(&number)
            && Some(known.root) == root
        {
            return Ok(known.clone());
        }
        let found = self.staged().whole_snapshot(|one| is_it(&one)).await?;
        // Another node may have the volume by now.
        self.staged().check_read()?;
        let snapshot = found.ok_or(Errno::STALE)?;
        let content = snapshot.content.ok_or(Errno::STALE)?;
        let state = State {
            root: content.root,
            applied: snapshot.checkpoint,
            overlay: Overlay::default(),
            totals: None,
            broken: None,
            uses: HashMap::new(),
            first_root: self.home.state.lock().first_root.clone(),
            own: Mutex::default(),
        };
        let state = Arc::new(state);
        self.home.frozen.lock().insert(number, state.clone());
        Ok(state)
    }

    /// Returns the attributes of an inode.
    pub async fn attr(&self, ino: Ino) -> Done<Attr> {
        if whence(ino).0 == Whence::Directory {
            return self.directory().await;
        }
        self.look_into(ino, |view, inner| Ok(view.inode(inner)?.attr(ino))).await
    }

    /// The attributes of the directory of snapshots: the owner of the root may look.
    async fn directory(&self) -> Done<Attr> {
        let root = self.look(|view| Ok(view.inode(ROOT)?.attr(ROOT))).await?;
        let count = self.snapshots(<[Snapshot]>::len)?;
        let links = 2 + u32::try_from(count).unwrap_or(u32::MAX - 2);
        Ok(Attr { ino: DIRECTORY, mode: root.mode & 0o555, links, size: 0, allocated: 0, ..root })
    }

    /// Returns the entry of a name that exists in a directory that is no table; `None`: look in
    /// the table.
    pub(super) async fn lookup_snapshot(&self, dir: Ino, name: &[u8]) -> Done<Option<Attr>> {
        match whence(dir).0 {
            Whence::Present if (dir, name) == (ROOT, NAME) => Ok(Some(self.directory().await?)),
            Whence::Present | Whence::Snapshot(_) => Ok(None),
            Whence::Directory => {
                let is_it = |one: &&Snapshot| one.name.as_bytes() == name;
                let root = self.snapshots(|all| all.iter().find(is_it).map(root_of))?;
                Ok(Some(self.attr(root.ok_or(Errno::NOENT)?).await?))
            }
        }
    }

    /// Returns the directory that holds a directory; the root holds itself.
    pub async fn parent(&self, dir: Ino) -> Done<Ino> {
        match whence(dir) {
            (Whence::Present, ROOT) | (Whence::Directory, _) => Ok(ROOT),
            (Whence::Snapshot(_), ROOT) => Ok(DIRECTORY),
            (whence, _) => {
                let parent = self.look_into(dir, |view, dir| Ok(view.dir(dir)?.parent)).await?;
                Ok(outer(whence, parent))
            }
        }
    }

    /// Lists names of a directory in the order of their positions, those behind `after` (0: all),
    /// at most `count`. `.` and `..` are not among them, nor is the directory of snapshots.
    pub async fn list(&self, dir: Ino, after: u64, count: usize) -> Done<Vec<Entry>> {
        let (place, _) = whence(dir);
        if place == Whence::Directory {
            let entry = |one: &Snapshot| Entry {
                position: FIRST_POSITION + u64::from(one.number),
                ino: root_of(one),
                name: Bytes::copy_from_slice(one.name.as_bytes()),
                kind: FileType::Directory,
            };
            return self.snapshots(|all| {
                let entries = all.iter().map(entry);
                entries.filter(|entry| entry.position > after).take(count).collect()
            });
        }
        let mut entries = self.look_into(dir, |view, dir| view.list(dir, after, count)).await?;
        entries.iter_mut().for_each(|entry| entry.ino = outer(place, entry.ino));
        Ok(entries)
    }
}

/// The root directory of a snapshot.
fn root_of(snapshot: &Snapshot) -> Ino {
    outer(Whence::Snapshot(snapshot.number), ROOT)
}

/// The attributes of an inode that a look at `from` has found there.
pub(super) fn seen_from(from: Ino, attr: Attr) -> Attr {
    Attr { ino: outer(whence(from).0, attr.ino), ..attr }
}
