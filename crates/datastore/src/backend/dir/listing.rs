//! Listings of a folder: page after page without reading the folder again for each page.
#![expect(
    clippy::disallowed_methods,
    reason = "the folder is a store, not this machine's own disk"
)]

use crate::key;
use crate::limits::LISTINGS_MAX;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Stat, statat};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A walk through a folder and those below it, in key order: a folder sorts as its name with `/`.
pub(super) struct Walk {
    /// The folders on the way down, each with the names in it that are still to come.
    levels: Vec<Level>,
    /// Keys up to this one are passed over.
    after: String,
    /// Number of the walk: one that began later has a greater one.
    number: u64,
    /// Whether a folder or an object was not there any more when its turn came.
    pub(super) has_gaps: bool,
}

struct Level {
    /// The folder's key; empty, or ends in `/`.
    prefix: String,
    /// In descending order: the next name is the last one.
    names: Vec<String>,
    /// The folder, once a page has looked at a file in it. Each page opens it anew: meanwhile
    /// another folder may have come to lie there.
    opened: Option<File>,
}

impl Walk {
    /// Begins a walk through the folder `prefix` of `root`, behind the key `after`.
    pub(super) fn begin(root: &Path, prefix: &str, after: &str) -> io::Result<Self> {
        static BEGUN: AtomicU64 = AtomicU64::new(0);
        let number = BEGUN.fetch_add(1, Ordering::Relaxed);
        let mut walk =
            Self { levels: Vec::new(), after: after.to_owned(), number, has_gaps: false };
        walk.enter(root, prefix.to_owned())?;
        Ok(walk)
    }

    /// Reads the names of a folder. A folder that is gone has none.
    fn enter(&mut self, root: &Path, prefix: String) -> io::Result<()> {
        let mut names = match names_in(&root.join(&prefix)) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                self.has_gaps = true;
                return Ok(());
            }
            names => names?,
        };
        names.sort_unstable_by(|one, other| other.cmp(one));
        self.levels.push(Level { prefix, names, opened: None });
        Ok(())
    }

    /// Looks at the file that [`Walk::next`] has just returned; `None` if the file, or its folder,
    /// is gone. The name is looked up in the folder itself, which costs half of a look by the path.
    pub(super) fn look(&mut self, root: &Path, key: &str) -> io::Result<Option<Stat>> {
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        let mut look = || {
            let folder = match &mut level.opened {
                Some(folder) => folder,
                closed => closed.insert(File::open(root.join(&level.prefix))?),
            };
            let name = key.strip_prefix(&level.prefix).unwrap_or(key);
            statat(folder, name, AtFlags::empty()).map_err(io::Error::from)
        };
        match look() {
            Ok(stat) => Ok(Some(stat)),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                self.has_gaps = true;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends a page: the next one opens its folders anew.
    pub(super) fn pause(&mut self) {
        self.levels.iter_mut().for_each(|level| level.opened = None);
    }

    /// Returns the key of the next file; `None` at the end.
    pub(super) fn next(&mut self, root: &Path) -> io::Result<Option<String>> {
        while let Some(level) = self.levels.last_mut() {
            let Some(name) = level.names.pop() else {
                self.levels.pop();
                continue;
            };
            let key = format!("{}{name}", level.prefix);
            let is_behind = self.after < key;
            if !key.ends_with('/') {
                if is_behind {
                    return Ok(Some(key));
                }
                continue;
            }
            // `mkfs` makes this folder, and only root may look inside.
            let is_foreign = key == "lost+found/" || key.ends_with("/lost+found/");
            if !is_foreign && (is_behind || self.after.starts_with(&key)) {
                self.enter(root, key)?;
            }
        }
        Ok(None)
    }
}

/// Listings that go on: the walk behind each last key that was given. So a page reads only the
/// folders that no earlier page has read.
#[derive(Default)]
pub(super) struct Listings {
    kept: Mutex<KeptWalks>,
}

#[derive(Default)]
struct KeptWalks {
    open: VecDeque<Open>,
    /// Walks that began before this one are kept no more: a listing that began later may stand at
    /// the same key, and its own walk is gone.
    oldest: u64,
    /// Whether a task ages the walks.
    is_aging: bool,
}

struct Open {
    prefix: String,
    last: String,
    walk: Walk,
    /// Whether several listings stand at this key.
    is_shared: bool,
    /// Whether the walk was there at the last [`Listings::age`].
    is_old: bool,
}

impl Listings {
    /// Takes the walk of the listing whose last page ended with the key `last`.
    pub(super) fn take(&self, prefix: &str, last: &str) -> Option<Walk> {
        let mut kept = self.kept.lock();
        let open = kept.remove(prefix, last)?;
        if open.is_shared {
            kept.oldest = kept.oldest.max(open.walk.number);
        }
        Some(open.walk)
    }

    /// Keeps a walk for the next page. Of several listings that stand at one key the walk that
    /// began last stays: no page shall lack an object that was there when its own listing began.
    /// One of the listings takes that walk, and the others read the folder again.
    pub(super) fn keep(&self, prefix: &str, last: &str, walk: Walk) {
        let mut kept = self.kept.lock();
        let other = kept.remove(prefix, last);
        let is_shared = other.is_some();
        let latest = match other {
            Some(open) if open.walk.number > walk.number => open.walk,
            _ => walk,
        };
        if latest.number < kept.oldest {
            return;
        }
        if kept.open.len() >= LISTINGS_MAX
            && let Some(gone) = kept.open.pop_front()
        {
            kept.oldest = kept.oldest.max(gone.walk.number);
        }
        let (prefix, last) = (prefix.to_owned(), last.to_owned());
        kept.open.push_back(Open { prefix, last, walk: latest, is_shared, is_old: false });
    }

    /// Whether the caller must see to it that the walks age: there are some, and no task does.
    pub(super) fn need_aging(&self) -> bool {
        let mut kept = self.kept.lock();
        let need = !kept.open.is_empty() && !kept.is_aging;
        kept.is_aging |= need;
        need
    }

    /// Drops the walks that were there at the call before: listings that were given up. Whether any
    /// are left; if not, aging ends.
    pub(super) fn age(&self) -> bool {
        let mut kept = self.kept.lock();
        let (old, young): (VecDeque<Open>, VecDeque<Open>) =
            std::mem::take(&mut kept.open).into_iter().partition(|open| open.is_old);
        kept.open = young;
        for open in old {
            kept.oldest = kept.oldest.max(open.walk.number);
        }
        kept.open.iter_mut().for_each(|open| open.is_old = true);
        kept.is_aging = !kept.open.is_empty();
        kept.is_aging
    }
}

impl KeptWalks {
    fn remove(&mut self, prefix: &str, last: &str) -> Option<Open> {
        let at = self.open.iter().position(|one| one.prefix == prefix && one.last == last)?;
        self.open.remove(at)
    }
}

/// Returns the names in a folder that can be parts of keys; those of folders end in `/`.
fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(mut name) = entry.file_name().into_string() else { continue };
        let kind = entry.file_type()?;
        if key::check(&name).is_err() || !(kind.is_dir() || kind.is_file()) {
            continue;
        }
        if kind.is_dir() {
            name.push('/');
        }
        names.push(name);
    }
    Ok(names)
}
