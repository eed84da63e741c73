//! The names of files: the present ones, those on the medium, and the changes of each folder since
//! its last sync.

use super::content::Inode;
use super::faults::Cut;
use crate::FileKind;
use rekindle_base::random::Random;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

#[derive(Clone)]
pub(super) enum Entry {
    File(Arc<Inode>),
    Folder,
}

/// A change of a folder.
enum FolderChange {
    Set(String, Entry),
    Remove(String),
    /// Done whole or not at all; belongs to the folder of the new name.
    Rename {
        from: String,
        to: String,
        inode: Arc<Inode>,
    },
}

#[derive(Default)]
pub(super) struct Names {
    /// Entries by path from the root, without a leading slash. The root itself is the empty path
    /// and always there.
    present: BTreeMap<String, Entry>,
    durable: BTreeMap<String, Entry>,
    /// Changes by folder, in order.
    pending: BTreeMap<String, Vec<FolderChange>>,
}

/// Turns a path into the key of an entry: its parts from the root, joined by slashes.
pub(super) fn key(path: &Path) -> io::Result<String> {
    let mut key = String::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => {
                if !key.is_empty() {
                    key.push('/');
                }
                key.push_str(name.to_str().ok_or(Errno::INVAL)?);
            }
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(Errno::INVAL.into()),
        }
    }
    Ok(key)
}

fn parent(key: &str) -> &str {
    key.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Names {
    fn is_folder(&self, key: &str) -> bool {
        key.is_empty() || matches!(self.present.get(key), Some(Entry::Folder))
    }

    fn check_parent(&self, key: &str) -> io::Result<()> {
        let parent = parent(key);
        if self.is_folder(parent) {
            Ok(())
        } else if self.present.contains_key(parent) {
            Err(Errno::NOTDIR.into())
        } else {
            Err(Errno::NOENT.into())
        }
    }

    pub(super) fn file(&self, key: &str) -> io::Result<Arc<Inode>> {
        match self.present.get(key) {
            Some(Entry::File(inode)) => Ok(inode.clone()),
            Some(Entry::Folder) => Err(Errno::ISDIR.into()),
            None if key.is_empty() => Err(Errno::ISDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    pub(super) fn create(&mut self, key: String, inode: Arc<Inode>) -> io::Result<()> {
        self.check_parent(&key)?;
        self.set(key, Entry::File(inode));
        Ok(())
    }

    fn set(&mut self, key: String, entry: Entry) {
        self.present.insert(key.clone(), entry.clone());
        self.pending
            .entry(parent(&key).to_owned())
            .or_default()
            .push(FolderChange::Set(key, entry));
    }

    pub(super) fn create_folder(&mut self, key: &str) -> io::Result<()> {
        let ends = key.match_indices('/').map(|(index, _)| index).chain([key.len()]);
        for end in ends.filter(|&end| end > 0) {
            match self.present.get(&key[..end]) {
                Some(Entry::Folder) => {}
                Some(Entry::File(_)) => return Err(Errno::EXIST.into()),
                None => self.set(key[..end].to_owned(), Entry::Folder),
            }
        }
        Ok(())
    }

    pub(super) fn list(&self, key: &str) -> io::Result<Vec<(String, FileKind)>> {
        if !self.is_folder(key) {
            return Err(
                if self.present.contains_key(key) { Errno::NOTDIR } else { Errno::NOENT }.into()
            );
        }
        let prefix = if key.is_empty() { String::new() } else { format!("{key}/") };
        Ok(self
            .present
            .range(prefix.clone()..)
            .take_while(|(path, _)| path.starts_with(&prefix))
            .filter_map(|(path, entry)| {
                let kind = match entry {
                    Entry::File(_) => FileKind::File,
                    Entry::Folder => FileKind::Folder,
                };
                let name = &path[prefix.len()..];
                (!name.contains('/')).then(|| (name.to_owned(), kind))
            })
            .collect())
    }

    /// Renames a file; this disk renames no folders.
    pub(super) fn rename(&mut self, from: &str, to: String) -> io::Result<()> {
        let inode = match self.file(from) {
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "the simulated disk renames files only",
                ));
            }
            other => other?,
        };
        self.check_parent(&to)?;
        if self.is_folder(&to) {
            return Err(Errno::ISDIR.into());
        }
        if from == to {
            return Ok(());
        }
        self.present.remove(from);
        self.present.insert(to.clone(), Entry::File(inode.clone()));
        let changes = self.pending.entry(parent(&to).to_owned()).or_default();
        changes.push(FolderChange::Rename { from: from.to_owned(), to, inode });
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &str) -> io::Result<()> {
        self.file(key)?;
        self.present.remove(key);
        self.pending
            .entry(parent(key).to_owned())
            .or_default()
            .push(FolderChange::Remove(key.to_owned()));
        Ok(())
    }

    pub(super) fn sync_folder(&mut self, key: &str) -> io::Result<()> {
        if !self.is_folder(key) {
            return Err(Errno::NOENT.into());
        }
        for change in self.pending.remove(key).unwrap_or_default() {
            self.save(change);
        }
        Ok(())
    }

    fn save(&mut self, change: FolderChange) {
        match change {
            FolderChange::Set(key, entry) => _ = self.durable.insert(key, entry),
            FolderChange::Remove(key) => _ = self.durable.remove(&key),
            FolderChange::Rename { from, to, inode } => {
                // The old name may be another file's by now.
                if matches!(self.durable.get(&from), Some(Entry::File(found)) if Arc::ptr_eq(found, &inode))
                {
                    self.durable.remove(&from);
                }
                self.durable.insert(to, Entry::File(inode));
            }
        }
    }

    /// Applies a power cut: of each folder's changes, the first few survive.
    pub(super) fn cut_power(&mut self, cut: Cut, rng: &mut Random) {
        let drawn = rng.below(4);
        let mode = match cut {
            Cut::Any => drawn,
            Cut::Lost => 0,
            Cut::Kept => 1,
            Cut::Pages | Cut::Sectors => 2,
        };
        for (_, changes) in std::mem::take(&mut self.pending) {
            let survivors = match mode {
                0 => 0,
                1 => changes.len(),
                _ => rng.index(changes.len() + 1),
            };
            changes.into_iter().take(survivors).for_each(|change| self.save(change));
        }
        // A folder that is lost takes its entries along. Parents come before children in this
        // order.
        let mut present = BTreeMap::new();
        for (key, entry) in std::mem::take(&mut self.durable) {
            let parent = parent(&key);
            if parent.is_empty() || matches!(present.get(parent), Some(Entry::Folder)) {
                present.insert(key, entry);
            }
        }
        self.durable.clone_from(&present);
        self.present = present;
    }

    /// The file of a name, if the name and those of its folders are on the medium.
    pub(super) fn durable_file(&self, key: &str) -> Option<Arc<Inode>> {
        let mut folder = parent(key);
        while !folder.is_empty() {
            matches!(self.durable.get(folder), Some(Entry::Folder)).then_some(())?;
            folder = parent(folder);
        }
        match self.durable.get(key)? {
            Entry::File(inode) => Some(inode.clone()),
            Entry::Folder => None,
        }
    }

    /// Entries below a folder, by path from there, parents first; `None` for a folder.
    pub(super) fn below<T>(
        &self,
        key: &str,
        read: impl Fn(&Inode) -> T,
    ) -> io::Result<Vec<(String, Option<T>)>> {
        if !self.is_folder(key) {
            return Err(Errno::NOENT.into());
        }
        let prefix = if key.is_empty() { String::new() } else { format!("{key}/") };
        let found = self.present.range(prefix.clone()..);
        Ok(found
            .take_while(|(path, _)| path.starts_with(&prefix))
            .map(|(path, entry)| match entry {
                Entry::File(inode) => (path[prefix.len()..].to_owned(), Some(read(inode))),
                Entry::Folder => (path[prefix.len()..].to_owned(), None),
            })
            .collect())
    }

    /// Puts a file (or a folder) at `key` with its folders, durable at once; other pending changes
    /// stay pending.
    pub(super) fn plant(&mut self, key: &str, inode: Option<Arc<Inode>>) -> io::Result<()> {
        let folder = if inode.is_some() { parent(key) } else { key };
        let ends = folder.match_indices('/').map(|(index, _)| index).chain([folder.len()]);
        for end in ends.filter(|&end| end > 0) {
            if matches!(self.present.get(&folder[..end]), Some(Entry::File(_))) {
                return Err(Errno::EXIST.into());
            }
            self.present.insert(folder[..end].to_owned(), Entry::Folder);
            self.durable.insert(folder[..end].to_owned(), Entry::Folder);
        }
        if let Some(inode) = inode {
            if self.is_folder(key) {
                return Err(Errno::ISDIR.into());
            }
            self.present.insert(key.to_owned(), Entry::File(inode.clone()));
            self.durable.insert(key.to_owned(), Entry::File(inode));
        }
        Ok(())
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &Arc<Inode>> {
        self.present.values().filter_map(|entry| match entry {
            Entry::File(inode) => Some(inode),
            Entry::Folder => None,
        })
    }
}
