//! What a test does to a host behind its back, between two lives of its process or during one.

use super::world::Host;
use std::io;
use std::ops::Range;
use std::path::Path;

impl Host {
    /// What is surely on the medium of a file: what the worst of power cuts would leave; `None` when its name is not.
    /// What [`Host::peek`] shows besides is only in the page cache.
    #[must_use]
    pub fn peek_durable(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.shared.lock().hosts[self.index].disk.durable(path.as_ref())
    }

    /// Puts a file there, in place of what has its name, with its folders and durable. Who has the old one open, keeps it.
    pub fn plant(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.shared.lock();
        let number = state.number();
        state.hosts[self.index].disk.plant(path.as_ref(), bytes, number)
    }

    /// Copies a folder, as it looks just now, to a place on a host (this one or another), durable there: a restored
    /// backup, a cloned machine. What is in the place and not in the folder stays.
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

    /// The files of mapped memory there are.
    #[must_use]
    pub fn memory_files(&self) -> Vec<String> {
        self.shared.lock().hosts[self.index].memory.paths()
    }

    /// Turns bits of mapped memory within a range, at random; how many. Nobody may be using it meanwhile.
    pub fn damage_memory(&self, path: impl AsRef<Path>, range: Range<u64>, bits: u32) -> u32 {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        state.hosts[self.index].memory.damage(path.as_ref(), &range, bits, &mut state.rng)
    }

    /// What a file of mapped memory holds, to put it back later with [`Host::put_memory`].
    #[must_use]
    pub fn copy_memory(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.shared.lock().hosts[self.index].memory.copy(path.as_ref())
    }

    /// Puts these bytes in place of a file of mapped memory (an older copy, another's), or removes it when there are
    /// none; `false` while somebody has it mapped: end the life first.
    pub fn put_memory(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<bool> {
        self.shared.lock().hosts[self.index].memory.put(path.as_ref(), bytes)
    }

    /// Cuts a file of mapped memory; `false` while somebody has it mapped, or when it is not longer.
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
