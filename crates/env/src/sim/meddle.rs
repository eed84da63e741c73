//! Changes that a test makes to a host behind its back, between two lives of its process or during
//! one.

use super::world::Host;
use std::io;
use std::ops::Range;
use std::path::Path;

impl Host {
    /// Bytes of a file that are surely on the medium, as the worst of power cuts would leave them;
    /// `None` when the file's name is not. Further bytes of [`Host::peek`] are only in the page
    /// cache.
    #[must_use]
    pub fn peek_durable(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.shared.lock().hosts[self.index].disk.durable(path.as_ref())
    }

    /// Puts a file at `path`, in place of a file of that name, with its folders and durable. A
    /// handle to the old file keeps it.
    pub fn plant(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.shared.lock();
        let number = state.number();
        state.hosts[self.index].disk.plant(path.as_ref(), bytes, number)
    }

    /// Copies a folder, as it looks just now, to a place on a host (this one or another), durably:
    /// a restored backup, a cloned machine. Files in the place that the folder lacks stay.
    pub fn copy_folder(
        &self,
        from: impl AsRef<Path>,
        to: &Host,
        place: impl AsRef<Path>,
    ) -> io::Result<()> {
        let tree = self.shared.lock().hosts[self.index].disk.tree(from.as_ref())?;
        let mut state = to.shared.lock();
        state.hosts[to.index].disk.plant_folder(place.as_ref())?;
        for (path, bytes) in tree {
            let number = state.number();
            let disk = &mut state.hosts[to.index].disk;
            let path = place.as_ref().join(path);
            match bytes {
                Some(bytes) => disk.plant(&path, &bytes, number)?,
                None => disk.plant_folder(&path)?,
            }
        }
        Ok(())
    }

    /// Paths of the files of mapped memory.
    #[must_use]
    pub fn memory_files(&self) -> Vec<String> {
        self.shared.lock().hosts[self.index].memory.paths()
    }

    /// Flips random bits of mapped memory within a range, and returns how many. The caller
    /// guarantees that no task uses the memory during the call.
    pub fn damage_memory(&self, path: impl AsRef<Path>, range: Range<u64>, bits: u32) -> u32 {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        state.hosts[self.index].memory.damage(path.as_ref(), &range, bits, &mut state.rng)
    }

    /// Bytes of a file of mapped memory, to put back later with [`Host::put_memory`].
    #[must_use]
    pub fn copy_memory(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.shared.lock().hosts[self.index].memory.copy(path.as_ref())
    }

    /// Puts these bytes in place of a file of mapped memory (an older copy, another's), or removes
    /// the file when there are none. `false` while the file is mapped: end the life first.
    pub fn put_memory(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<bool> {
        self.shared.lock().hosts[self.index].memory.put(path.as_ref(), bytes)
    }

    /// Cuts a file of mapped memory; `false` while the file is mapped, or when it is not longer.
    pub fn truncate_memory(&self, path: impl AsRef<Path>, length: usize) -> io::Result<bool> {
        let mut state = self.shared.lock();
        let memory = &mut state.hosts[self.index].memory;
        match memory.copy(path.as_ref()) {
            Some(bytes) if bytes.len() > length => memory.put(path.as_ref(), &bytes[..length]),
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests;
