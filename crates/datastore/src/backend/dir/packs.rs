//! Pack files kept open: packs never change, and a read of one chunk should not pay for finding the
//! file.

#![expect(
    clippy::disallowed_methods,
    reason = "the folder is a store for all nodes, not this machine's own disk"
)]

use crate::limits::OPEN_PACKS_MAX;
use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// A few open packs; the least recently read one leaves first.
#[derive(Default)]
pub(super) struct OpenPacks {
    state: Mutex<PackFiles>,
}

#[derive(Default)]
struct PackFiles {
    clock: u64,
    open: HashMap<String, (Arc<File>, u64)>,
}

impl OpenPacks {
    /// Reads a range of a pack.
    pub(super) fn read(&self, key: &str, path: &Path, range: &Range<u64>) -> io::Result<Vec<u8>> {
        if let Some(file) = self.find(key) {
            // A pack that another process deleted has no name left; on NFS the read fails instead.
            // In both cases a new look at the path tells the truth.
            if file.metadata().is_ok_and(|meta| meta.nlink() > 0)
                && let Ok(data) = read_range(&file, range)
            {
                return Ok(data);
            }
            self.forget(key);
        }
        let file = Arc::new(File::open(path)?);
        let data = read_range(&file, range)?;
        self.keep(key, file);
        Ok(data)
    }

    /// Closes a pack.
    pub(super) fn forget(&self, key: &str) {
        let closed = self.state.lock().open.remove(key);
        drop(closed);
    }

    fn find(&self, key: &str) -> Option<Arc<File>> {
        let mut state = self.state.lock();
        state.clock += 1;
        let clock = state.clock;
        let (file, used) = state.open.get_mut(key)?;
        *used = clock;
        Some(file.clone())
    }

    fn keep(&self, key: &str, file: Arc<File>) {
        let mut state = self.state.lock();
        state.clock += 1;
        let clock = state.clock;
        let mut closed = state.open.insert(key.to_owned(), (file, clock));
        if state.open.len() > OPEN_PACKS_MAX
            && let Some(oldest) =
                state.open.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone())
        {
            closed = state.open.remove(&oldest);
        }
        // Closing is a file call: not under the lock.
        drop(state);
        drop(closed);
    }
}

/// Reads the part of a range that the file has, into a buffer that is no larger.
pub(super) fn read_range(file: &File, range: &Range<u64>) -> io::Result<Vec<u8>> {
    let end = range.end.min(file.metadata()?.len());
    let length = usize::try_from(end.saturating_sub(range.start)).unwrap_or(usize::MAX);
    let mut data = Vec::with_capacity(length);
    while data.len() < length {
        let at = range.start + data.len() as u64;
        // The kernel fills the buffer, so that it need not be zeroed before.
        match rustix::io::pread(file, spare_capacity(&mut data), at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    data.truncate(length);
    Ok(data)
}
