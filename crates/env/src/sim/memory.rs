//! Simulated memory that outlives the process, but not the power.

use super::names::key;
use super::state::{Event, Machine};
use crate::{Memory, Region};
use memmap2::{MmapMut, MmapRaw};
use rekindle_base::random::Random;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folder of the mapped files.
const FOLDER: &str = "/memory";

pub(super) struct MemoryState {
    capacity_bytes: u64,
    files: BTreeMap<String, Arc<SimRegion>>,
}

/// Anonymous memory: zeroed by the kernel at the first touch, so that a world with large mappings
/// costs little.
struct SimRegion {
    map: MmapRaw,
}

impl Region for SimRegion {
    fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.map.len()
    }
}

/// The first bytes of a file that is longer.
struct RegionPrefix {
    whole: Arc<SimRegion>,
    length: usize,
}

impl Region for RegionPrefix {
    fn base(&self) -> *mut u8 {
        self.whole.base()
    }

    fn length(&self) -> usize {
        self.length
    }
}

impl MemoryState {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, files: BTreeMap::new() }
    }

    pub(super) fn clear(&mut self) {
        self.files.clear();
    }

    pub(super) fn flip(&mut self, path: &Path, offset: u64, mask: u8) -> bool {
        let Some(region) = key(path).ok().and_then(|key| self.files.get(&key)) else {
            return false;
        };
        let Some(offset) = usize::try_from(offset).ok().filter(|&offset| offset < region.length())
        else {
            return false;
        };
        // SAFETY: the byte is inside the mapping, which lives as long as `region`. A world runs on
        // one thread, and the caller promises that no reference to the byte exists during the call.
        unsafe { *region.base().add(offset) ^= mask };
        true
    }

    /// Flips `count` random bits within a range, and returns how many were flipped.
    pub(super) fn damage(
        &mut self,
        path: &Path,
        range: &Range<u64>,
        count: u32,
        rng: &mut Random,
    ) -> u32 {
        let length =
            key(path).ok().and_then(|key| self.files.get(&key)).map_or(0, |file| file.length());
        let end = range.end.min(length as u64);
        if range.start >= end {
            return 0;
        }
        (0..count)
            .map(|_| {
                let offset = range.start + rng.below(end - range.start);
                u32::from(self.flip(path, offset, 1 << rng.below(8)))
            })
            .sum()
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.files.keys().cloned().collect()
    }

    pub(super) fn copy(&self, path: &Path) -> Option<Vec<u8>> {
        let region = self.files.get(&key(path).ok()?)?;
        // SAFETY: the bytes are inside the mapping, which lives as long as `region`. A world runs
        // on one thread, and no code writes to them meanwhile.
        Some(unsafe { std::slice::from_raw_parts(region.base(), region.length()) }.to_vec())
    }

    /// Puts these bytes in place of a file, or removes the file when there are none; `false` while
    /// the file is mapped.
    pub(super) fn put(&mut self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        let key = key(path)?;
        if self.files.get(&key).is_some_and(|region| Arc::strong_count(region) > 1) {
            return Ok(false);
        }
        self.files.remove(&key);
        if bytes.is_empty() {
            return Ok(true);
        }
        let region = self.map(key, bytes.len())?;
        // SAFETY: the mapping is as long as `bytes`, and known here only.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.base(), bytes.len()) };
        Ok(true)
    }

    fn head(&self, path: &Path, bytes: usize) -> io::Result<Option<Vec<u8>>> {
        let Some(region) = self.files.get(&key(path)?) else { return Ok(None) };
        // SAFETY: as in `copy`.
        let found = unsafe { std::slice::from_raw_parts(region.base(), region.length()) };
        let blank = found.iter().all(|&byte| byte == 0);
        Ok((!blank).then(|| found[..bytes.min(found.len())].to_vec()))
    }

    fn free_bytes(&self) -> u64 {
        let used: u64 = self.files.values().map(|region| region.length() as u64).sum();
        self.capacity_bytes.saturating_sub(used)
    }

    fn map(&mut self, key: String, bytes: usize) -> io::Result<Arc<SimRegion>> {
        let before = self.files.get(&key);
        let length_before = before.map_or(0, |region| region.length());
        if let Some(region) = before
            && length_before >= bytes
        {
            return Ok(region.clone());
        }
        if (bytes - length_before) as u64 > self.free_bytes() {
            return Err(Errno::NOSPC.into());
        }
        let grown = Arc::new(SimRegion { map: MmapRaw::from(MmapMut::map_anon(bytes)?) });
        if let Some(region) = before {
            if Arc::strong_count(region) > 1 {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "the simulated memory extends a file only while it is not mapped",
                ));
            }
            // SAFETY: both mappings are at least `length_before` bytes long and apart; the old one
            // has no other owner, and the new one is known here only.
            unsafe { std::ptr::copy_nonoverlapping(region.base(), grown.base(), length_before) };
        }
        self.files.insert(key, grown.clone());
        Ok(grown)
    }
}

impl Memory for Machine {
    fn map(&self, path: &Path, length: u64) -> io::Result<Arc<dyn Region>> {
        let bytes = usize::try_from(length)
            .ok()
            .filter(|&bytes| bytes > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut state = self.shared.lock();
        self.check_alive(&state)?;
        state.record(Event::Map, self.host as u64, length);
        let region = state.hosts[self.host].memory.map(key(path)?, bytes)?;
        if region.length() == bytes {
            Ok(region)
        } else {
            Ok(Arc::new(RegionPrefix { whole: region, length: bytes }))
        }
    }

    fn head(&self, path: &Path, bytes: usize) -> io::Result<Option<Vec<u8>>> {
        let state = self.shared.lock();
        self.check_alive(&state)?;
        state.hosts[self.host].memory.head(path, bytes)
    }

    fn unmap(&self, path: &Path) -> io::Result<()> {
        let mut state = self.shared.lock();
        self.check_alive(&state)?;
        state.hosts[self.host].memory.files.remove(&key(path)?);
        Ok(())
    }

    fn default_folder(&self) -> Option<PathBuf> {
        Some(PathBuf::from(FOLDER))
    }

    fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
        let state = self.shared.lock();
        Ok(state.hosts[self.host].memory.free_bytes())
    }
}
