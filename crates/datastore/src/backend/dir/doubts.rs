//! Names in a folder that can be seen and may not be durable.
//!
//! A new name can be seen at once, and is durable when its folder is. If the sync of the folder
//! fails, the next one may succeed although the name was lost. So the object is doubtful until it
//! has been written anew.
//!
//! A process that gave a name may also have died before it synced the folder. So a version of a
//! record is believed when this process has made it durable.

use crate::limits::BELIEVED_MAX;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Default)]
pub(super) struct Doubts {
    state: Mutex<Beliefs>,
}

#[derive(Default)]
struct Beliefs {
    /// Keys whose last change may be undone by a power cut.
    doubtful: HashSet<String>,
    /// The file that was durable under a key; a change makes another file.
    believed: HashMap<String, Which>,
    folders: HashSet<PathBuf>,
}

/// Inode and time of the last change of the content, which survive a change of name.
type Which = (u64, i64, i64);

fn which(meta: &Metadata) -> Which {
    (meta.ino(), meta.mtime(), meta.mtime_nsec())
}

/// Whether both are of one file with one content.
pub(super) fn is_same(one: &Metadata, other: &Metadata) -> bool {
    which(one) == which(other)
}

impl Doubts {
    pub(super) fn is_doubtful(&self, key: &str) -> bool {
        self.state.lock().doubtful.contains(key)
    }

    /// Notes that a change of this key can be seen from now on, and is not durable yet.
    pub(super) fn doubt(&self, key: &str) {
        self.state.lock().doubtful.insert(key.to_owned());
    }

    pub(super) fn settle(&self, key: &str) {
        self.state.lock().doubtful.remove(key);
    }

    /// Whether this process does not know that this file is durable under its key.
    pub(super) fn is_new(&self, key: &str, meta: &Metadata) -> bool {
        self.state.lock().believed.get(key) != Some(&which(meta))
    }

    pub(super) fn believe(&self, key: &str, meta: &Metadata) {
        let mut state = self.state.lock();
        if state.believed.len() >= BELIEVED_MAX {
            state.believed.clear();
        }
        state.believed.insert(key.to_owned(), which(meta));
    }

    pub(super) fn is_believed(&self, folder: &Path) -> bool {
        self.state.lock().folders.contains(folder)
    }

    pub(super) fn believe_folder(&self, folder: &Path) {
        let mut state = self.state.lock();
        if state.folders.len() >= BELIEVED_MAX {
            state.folders.clear();
        }
        state.folders.insert(folder.to_owned());
    }
}
