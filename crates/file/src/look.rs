//! Lookups by plain calls, under a lock: what is not in RAM is a [`Miss`]. The caller fetches it
//! without the lock, and looks again; what was fetched stays with the [`Look`], so that this ends.

use crate::format::Bad;
use crate::types::{Errno, Error};
use futures_util::FutureExt;
use parking_lot::Mutex;
use rekindle_content::tree::{self, Lookup, Root};
use rekindle_content::{Content, Parent, Pointer};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

type Entry = Option<(u64, Pointer)>;

/// Something that is not in RAM.
#[derive(Debug)]
pub(crate) enum Miss {
    /// The entry of a tree at or before a key.
    Floor(Pointer, u64),
    /// The entry of a tree behind a key.
    Above(Pointer, u64),
    Page(Pointer),
}

/// Why a call cannot go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// POSIX refuses it.
    Posix(Errno),
    Miss(Miss),
    /// The volume lacks so many bytes for it, as far as is known.
    Full(u64),
    /// No number is noted that a new inode could have.
    Numbers,
    /// The volume cannot be understood.
    Failed(Error),
}

impl Stop {
    /// The error of a call that ends here.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Stop::Posix(errno) => errno.into(),
            Stop::Failed(error) => error,
            Stop::Full(_) => Errno::NOSPC.into(),
            // A call that fetches what it lacks looks again, and never comes here.
            Stop::Miss(_) | Stop::Numbers => Errno::AGAIN.into(),
        }
    }
}

impl From<Miss> for Stop {
    fn from(miss: Miss) -> Self {
        Stop::Miss(miss)
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::Posix(errno)
    }
}

impl From<Bad> for Stop {
    fn from(bad: Bad) -> Self {
        Stop::Failed(unreadable(&bad))
    }
}

/// The error of something that makes no sense.
pub(crate) fn unreadable(bad: &Bad) -> Error {
    rekindle_volume::Error::Invalid(format!("the file volume cannot be read: {bad}")).into()
}

/// What one call has looked up.
pub(crate) struct Look<'a> {
    content: &'a Content,
    found: Mutex<Found>,
    /// Whether what is counted must be exact, or may be found by what is in RAM.
    exact: AtomicBool,
}

#[derive(Default)]
struct Found {
    floors: HashMap<(Pointer, u64), Entry>,
    above: HashMap<(Pointer, u64), Entry>,
    pages: HashMap<Pointer, Parent>,
}

impl<'a> Look<'a> {
    pub(crate) fn new(content: &'a Content) -> Self {
        Self { content, found: Mutex::default(), exact: AtomicBool::new(false) }
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.exact.load(Ordering::Relaxed)
    }

    /// From now on what is counted must be exact. Whether it did not have to be before.
    pub(crate) fn be_exact(&self) -> bool {
        !self.exact.swap(true, Ordering::Relaxed)
    }

    /// The entry of a tree with the greatest key that is not above `key`.
    pub(crate) fn floor(&self, root: &Root, key: u64) -> Result<Entry, Miss> {
        let Some(pointer) = *root else { return Ok(None) };
        if let Some(found) = self.found.lock().floors.get(&(pointer, key)) {
            return Ok(*found);
        }
        match tree::floor_now(self.content, root, key) {
            Lookup::Present(key, pointer) => Ok(Some((key, pointer))),
            Lookup::Absent => Ok(None),
            Lookup::Unknown => Err(Miss::Floor(pointer, key)),
        }
    }

    /// The entry of a tree with the least key that is above `key`.
    pub(crate) fn above(&self, root: &Root, key: u64) -> Result<Entry, Miss> {
        let Some(pointer) = *root else { return Ok(None) };
        if let Some(found) = self.found.lock().above.get(&(pointer, key)) {
            return Ok(*found);
        }
        // It is ready at once when the nodes are in RAM.
        match tree::above(self.content, root, key).now_or_never() {
            Some(Ok(entry)) => Ok(entry),
            Some(Err(_)) | None => Err(Miss::Above(pointer, key)),
        }
    }

    pub(crate) fn page(&self, pointer: &Pointer) -> Result<Parent, Miss> {
        let fetched = self.found.lock().pages.get(pointer).cloned();
        let found = fetched.or_else(|| self.content.parent_now(pointer));
        found.ok_or(Miss::Page(*pointer))
    }

    /// Fetches what was missed.
    pub(crate) async fn fetch(&self, miss: Miss) -> Result<(), rekindle_content::Error> {
        match miss {
            Miss::Floor(root, key) => {
                let entry = tree::floor(self.content, &Some(root), key).await?;
                self.found.lock().floors.insert((root, key), entry);
            }
            Miss::Above(root, key) => {
                let entry = tree::above(self.content, &Some(root), key).await?;
                self.found.lock().above.insert((root, key), entry);
            }
            Miss::Page(pointer) => {
                let page = self.content.parent(&pointer).await?;
                self.found.lock().pages.insert(pointer, page);
            }
        }
        Ok(())
    }
}
