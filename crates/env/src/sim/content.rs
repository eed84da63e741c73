//! The content of a file: the present bytes, and the older versions of each page that was written
//! since the last sync.
//!
//! The first of a page's older versions is the one on the medium. A power cut composes each sector
//! from any of them.

use super::faults::Cut;
use parking_lot::Mutex;
use rekindle_base::random::Random;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Unit into which the model cuts reads and writes, bytes.
pub(super) const PAGE_BYTES: u64 = 4096;
const PAGE: usize = 4096;
/// Unit that a medium writes whole or not at all, bytes.
const SECTOR: usize = 512;
/// Most versions of a page that are kept beside the present one.
const VERSIONS_MAX: usize = 4;

type Bytes = [u8; PAGE];
/// A version of a page; none means zeros.
type Version = Option<Arc<Bytes>>;

static ZEROS: Bytes = [0; PAGE];

/// A file without its names. Lives while a name or a handle refers to it.
pub(super) struct Inode {
    pub(super) number: u64,
    pub(super) content: Mutex<FileContent>,
}

pub(super) struct FileContent {
    pub(super) length: u64,
    /// Length on the medium.
    durable_length: u64,
    pages: BTreeMap<u64, Page>,
    /// Pages that have, or had, older versions.
    changed: Vec<u64>,
    /// Number of pages from the start that are allocated, whether or not they are in `pages`.
    reserved_pages: u64,
    space: Space,
    /// Life and handle that hold the lock.
    pub(super) lock: Option<(u64, u64)>,
}

#[derive(Default)]
struct Page {
    present: Version,
    older: Vec<Version>,
    /// Whether a sync failed here: the kernel believes the page clean, and later syncs leave it
    /// out.
    is_lost: bool,
}

/// The extent to which an operation is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Whole,
    /// A part, as after an interruption.
    Torn,
    /// A part, and the device has reported an error.
    Failed,
}

/// The part of a torn write that is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tear {
    /// Some sectors from its beginning.
    Prefix,
    /// Any of its sectors.
    Sectors,
    /// All of it, in the page cache.
    Whole,
}

/// The pages in use on a disk, and those of one file.
struct Space {
    disk_pages: Arc<AtomicU64>,
    file_pages: u64,
}

impl Space {
    fn take(&mut self, pages: u64, capacity_bytes: u64) -> io::Result<()> {
        let used = self.disk_pages.load(Ordering::Relaxed) + pages;
        if pages > 0 && used.saturating_mul(PAGE_BYTES) > capacity_bytes {
            return Err(Errno::NOSPC.into());
        }
        self.disk_pages.store(used, Ordering::Relaxed);
        self.file_pages += pages;
        Ok(())
    }

    fn give(&mut self, pages: u64) {
        self.disk_pages.fetch_sub(pages, Ordering::Relaxed);
        self.file_pages -= pages;
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.give(self.file_pages);
    }
}

impl Inode {
    pub(super) fn new(number: u64, disk_pages: &Arc<AtomicU64>) -> Arc<Self> {
        let content = FileContent {
            length: 0,
            durable_length: 0,
            pages: BTreeMap::new(),
            changed: Vec::new(),
            reserved_pages: 0,
            space: Space { disk_pages: disk_pages.clone(), file_pages: 0 },
            lock: None,
        };
        Arc::new(Self { number, content: Mutex::new(content) })
    }
}

/// Splits a range of bytes at the pages: page, range within the page, range within the data.
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset + done as u64;
        let start = usize::try_from(at % PAGE_BYTES).expect("within a page");
        let count = (PAGE - start).min(length - done);
        let piece = (at / PAGE_BYTES, start..start + count, done..done + count);
        done += count;
        Some(piece)
    })
}

fn bytes(version: &Version) -> &Bytes {
    version.as_deref().unwrap_or(&ZEROS)
}

fn bytes_mut(version: &mut Version) -> &mut Bytes {
    Arc::make_mut(version.get_or_insert_with(|| Arc::new(ZEROS)))
}

impl Page {
    /// Keeps the present version as an older one; `true` when it is the first.
    fn keep(&mut self) -> bool {
        if self.older.len() == VERSIONS_MAX {
            // Never the first: that one is on the medium.
            self.older.remove(1);
        }
        self.older.push(self.present.clone());
        self.is_lost = false;
        self.older.len() == 1
    }

    fn settle(&mut self) {
        self.older.clear();
        self.is_lost = false;
    }

    /// Composes what a power cut leaves. `choose` gets the number of the present version, and
    /// returns that of the version which a sector takes; 0 is the one on the medium.
    fn cut_power(&mut self, mut choose: impl FnMut(usize) -> usize) {
        let mut left = self.older[0].clone();
        for start in (0..PAGE).step_by(SECTOR) {
            let sector = start..start + SECTOR;
            let version = self.older.get(choose(self.older.len())).unwrap_or(&self.present);
            if bytes(version)[sector.clone()] != bytes(&left)[sector.clone()] {
                bytes_mut(&mut left)[sector.clone()].copy_from_slice(&bytes(version)[sector]);
            }
        }
        self.present = left;
        self.settle();
    }
}

impl FileContent {
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (number, inside, outside) in pieces(offset, buffer.len()) {
            match self.pages.get(&number) {
                Some(page) => buffer[outside].copy_from_slice(&bytes(&page.present)[inside]),
                None => buffer[outside].fill(0),
            }
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        data: &[u8],
        offset: u64,
        capacity_bytes: u64,
    ) -> io::Result<()> {
        offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        for (number, inside, outside) in pieces(offset, data.len()) {
            // Bytes written before the disk was full stay written, as with the real call.
            self.patch(number, inside, &data[outside.clone()], capacity_bytes)?;
            self.length = self.length.max(offset + outside.end as u64);
        }
        Ok(())
    }

    /// Does a part of a write.
    pub(super) fn write_torn(
        &mut self,
        data: &[u8],
        offset: u64,
        capacity_bytes: u64,
        tear: Tear,
        rng: &mut Random,
    ) {
        let into_sector = usize::try_from(offset % SECTOR as u64).expect("within a sector");
        let sectors = (into_sector + data.len()).div_ceil(SECTOR);
        let end = |sectors: usize| (sectors * SECTOR).saturating_sub(into_sector).min(data.len());
        // The caller reports a failure anyway, so that a failure here is ignored.
        match tear {
            Tear::Prefix => {
                let count = end(rng.index(sectors + 1));
                let _ = self.write(&data[..count], offset, capacity_bytes);
            }
            Tear::Whole => _ = self.write(data, offset, capacity_bytes),
            Tear::Sectors => {
                // With even coins alone, a single sector that is missing or there would hardly ever
                // occur.
                let probability = [0.1, 0.5, 0.9][rng.index(3)];
                for sector in 0..sectors {
                    let range = end(sector)..end(sector + 1);
                    if rng.chance(probability) {
                        let at = offset + range.start as u64;
                        let _ = self.write(&data[range], at, capacity_bytes);
                    }
                }
            }
        }
    }

    fn patch(
        &mut self,
        number: u64,
        inside: Range<usize>,
        data: &[u8],
        capacity_bytes: u64,
    ) -> io::Result<()> {
        if number >= self.reserved_pages && !self.pages.contains_key(&number) {
            self.space.take(1, capacity_bytes)?;
        }
        let page = self.pages.entry(number).or_default();
        if page.keep() {
            self.changed.push(number);
        }
        match <&Bytes>::try_from(data) {
            Ok(whole) => page.present = Some(Arc::new(*whole)),
            Err(_) => bytes_mut(&mut page.present)[inside].copy_from_slice(data),
        }
        Ok(())
    }

    /// Saves the sectors of a range, and the length up to its end.
    pub(super) fn settle_range(&mut self, offset: u64, length: usize) {
        for (number, inside, _) in pieces(offset, length) {
            let Some(page) = self.pages.get_mut(&number) else { continue };
            if inside.len() == PAGE {
                page.settle();
                continue;
            }
            let sectors = inside.start / SECTOR * SECTOR..inside.end.next_multiple_of(SECTOR);
            let present = page.present.clone();
            for older in &mut page.older {
                bytes_mut(older)[sectors.clone()]
                    .copy_from_slice(&bytes(&present)[sectors.clone()]);
            }
        }
        let end = (offset + length as u64).min(self.length);
        self.durable_length = self.durable_length.max(end);
    }

    /// Applies a durable write that failed: its pages in the page cache count as clean, whether or
    /// not they were written.
    pub(super) fn forget_range(&mut self, offset: u64, length: usize) {
        for (number, ..) in pieces(offset, length) {
            if let Some(page) = self.pages.get_mut(&number) {
                page.is_lost = !page.older.is_empty();
            }
        }
    }

    pub(super) fn sync(&mut self) {
        for number in std::mem::take(&mut self.changed) {
            let Some(page) = self.pages.get_mut(&number) else { continue };
            if page.is_lost {
                self.changed.push(number);
            } else {
                page.settle();
            }
        }
        self.durable_length = self.length;
    }

    /// Applies a sync that fails: the kernel forgets that pages are to be written, whether or not
    /// they were.
    pub(super) fn sync_torn(&mut self, rng: &mut Random) {
        for &number in &self.changed {
            let Some(page) = self.pages.get_mut(&number) else { continue };
            if rng.coin() {
                page.settle();
            } else {
                page.is_lost = !page.older.is_empty();
            }
        }
        if rng.coin() {
            self.durable_length = self.length;
        }
    }

    /// Extends the file. The present bytes stay as they are; the new part is zeros already.
    pub(super) fn preallocate(&mut self, length: u64, capacity_bytes: u64) -> io::Result<()> {
        if length > self.length {
            self.reserve(length.div_ceil(PAGE_BYTES), capacity_bytes)?;
            self.length = length;
        }
        self.sync();
        Ok(())
    }

    fn reserve(&mut self, pages: u64, capacity_bytes: u64) -> io::Result<()> {
        if pages > self.reserved_pages {
            let present = self.pages.range(self.reserved_pages..pages).count() as u64;
            self.space.take(pages - self.reserved_pages - present, capacity_bytes)?;
            self.reserved_pages = pages;
        }
        Ok(())
    }

    pub(super) fn set_length(&mut self, length: u64) -> io::Result<()> {
        let first_gone = length.div_ceil(PAGE_BYTES);
        if length < self.length {
            let tail = usize::try_from(length % PAGE_BYTES).expect("within a page");
            if tail > 0 && self.pages.contains_key(&(length / PAGE_BYTES)) {
                self.patch(length / PAGE_BYTES, tail..PAGE, &ZEROS[tail..], u64::MAX)?;
            }
            for (&number, page) in self.pages.range_mut(first_gone..) {
                if page.present.is_some() {
                    if page.keep() {
                        self.changed.push(number);
                    }
                    page.present = None;
                }
            }
            if self.reserved_pages > first_gone {
                let present = self.pages.range(first_gone..self.reserved_pages).count() as u64;
                self.space.give(self.reserved_pages - first_gone - present);
                self.reserved_pages = first_gone;
            }
        }
        self.length = length;
        Ok(())
    }

    /// Gives back the pages that a cut file no longer has, once the cut is on the medium.
    pub(super) fn release_tail(&mut self) {
        let end =
            self.durable_length.max(self.length).div_ceil(PAGE_BYTES).max(self.reserved_pages);
        while let Some(last) = self.pages.last_entry() {
            if *last.key() < end || !last.get().older.is_empty() {
                break;
            }
            last.remove();
            self.space.give(1);
        }
    }

    /// Bytes that are surely on the medium: the file after the worst of power cuts.
    pub(super) fn durable(&self) -> Vec<u8> {
        let length = self.length.min(self.durable_length);
        let mut durable = vec![0; usize::try_from(length).expect("a file of a test")];
        for (number, inside, outside) in pieces(0, durable.len()) {
            if let Some(page) = self.pages.get(&number) {
                let version = page.older.first().unwrap_or(&page.present);
                durable[outside].copy_from_slice(&bytes(version)[inside]);
            }
        }
        durable
    }

    pub(super) fn cut_power(&mut self, cut: Cut, rng: &mut Random) {
        // Sector by sector alone, a file that is lost or kept as a whole would hardly ever occur;
        // crash tests need both.
        let drawn = rng.below(4);
        let mode = match cut {
            Cut::Any => drawn,
            Cut::Lost => 0,
            Cut::Kept => 1,
            Cut::Pages => 2,
            Cut::Sectors => 3,
        };
        for number in std::mem::take(&mut self.changed) {
            let Some(page) = self.pages.get_mut(&number) else { continue };
            if page.older.is_empty() {
                continue;
            }
            let (page_survives, is_lost) = (rng.coin(), page.is_lost);
            page.cut_power(|present| match mode {
                _ if is_lost => 0,
                0 => 0,
                1 => present,
                2 => present * usize::from(page_survives),
                _ => rng.index(present + 1),
            });
        }
        let (low, high) =
            (self.length.min(self.durable_length), self.length.max(self.durable_length));
        if low < high {
            self.length = match mode {
                0 => self.durable_length,
                1 => self.length,
                _ => low + rng.below(high - low + 1),
            };
        }
        self.durable_length = self.length;
        // Bytes beyond the end read as zeros when the file grows again.
        let length = self.length;
        let tail = usize::try_from(length % PAGE_BYTES).expect("within a page");
        if tail > 0
            && let Some(page) = self.pages.get_mut(&(length / PAGE_BYTES))
            && page.present.is_some()
        {
            bytes_mut(&mut page.present)[tail..].fill(0);
        }
        for (_, page) in self.pages.range_mut(length.div_ceil(PAGE_BYTES)..) {
            page.present = None;
        }
        self.release_tail();
    }

    /// Flips bits on the medium and in the page cache alike; `false` when there is no such byte.
    pub(super) fn flip(&mut self, offset: u64, mask: u8) -> bool {
        if offset >= self.length {
            return false;
        }
        let index = usize::try_from(offset % PAGE_BYTES).expect("within a page");
        let page = self.pages.entry(offset / PAGE_BYTES).or_insert_with(|| {
            // A page that was never written, in a preallocated or sparse file: charged as if it had
            // been.
            self.space.file_pages += u64::from(offset / PAGE_BYTES >= self.reserved_pages);
            self.space.disk_pages.fetch_add(
                u64::from(offset / PAGE_BYTES >= self.reserved_pages),
                Ordering::Relaxed,
            );
            Page::default()
        });
        bytes_mut(&mut page.present)[index] ^= mask;
        page.older.iter_mut().for_each(|older| bytes_mut(older)[index] ^= mask);
        true
    }
}

#[cfg(test)]
mod tests;
