//! Reading: runs of pages in a tree, and holes between them. Writing is in `fold`.
//!
//! A page whose bytes are all zero is a hole. The last page of a volume whose size is no multiple
//! of a page is stored whole, with zeros beyond the size, so that a volume may grow without
//! touching it. A reader pads a chunk that ends early with zeros, and treats a longer one than its
//! layout allows as damage.

use crate::ahead::{Ahead, Fetch, Noted};
use crate::cut::Cutter;
use crate::layout::{Layout, Run};
use crate::limits;
use futures_util::future;
use rekindle_content::tree::{self, Lookup, Root};
use rekindle_content::{Batch, Class, Content, Pointer};
use rekindle_env::BoxFuture;
use rekindle_staging::{Error as StagingError, Extent, Fold, RangeHome};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs of pages in a tree: [`Layout`] says what its keys mean. What no run shows is a hole.
pub struct Extents {
    pub(crate) content: Content,
    /// The volume's size, bytes; it only grows.
    size: AtomicU64,
    pub(crate) layout: Layout,
    pub(crate) page_bytes: u64,
    /// The binary logarithm of `page_bytes`.
    shift: u32,
    pub(crate) cutter: Cutter,
    ahead: Ahead,
}

impl Extents {
    /// Makes the home of a block volume. The bytes of a page are a power of two (the kind checks
    /// that).
    #[must_use]
    pub fn new(content: Content, size: u64, layout: Layout) -> Self {
        let page_bytes = layout.page_bytes().max(1).next_power_of_two();
        Self {
            size: AtomicU64::new(size),
            layout,
            page_bytes,
            shift: page_bytes.trailing_zeros(),
            cutter: Cutter::new(layout, content.cut_key()),
            ahead: Ahead::new(
                limits::AHEAD_BYTES_MAX.min(content.cache_bytes_max() / limits::AHEAD_CACHE_SHARE),
            ),
            content,
        }
    }

    /// Returns the bytes of a page: a smaller write keeps bytes of it, which are read.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Returns the volume's size, bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Returns the pages that a range touches.
    fn pages(&self, position: u64, span: u64) -> Range<u64> {
        position >> self.shift..position.saturating_add(span).div_ceil(self.page_bytes)
    }

    /// Returns the first byte of a page; of a page beyond all, the greatest number.
    fn byte(&self, page: u64) -> u64 {
        page.saturating_mul(self.page_bytes)
    }

    /// Returns the run that shows a page, as far as cached tree nodes tell.
    fn run_now(&self, root: &Root, page: u64) -> Lookup {
        let last = self.layout.keys(&(page..page + 1)).end - 1;
        match tree::floor_now(&self.content, root, last) {
            Lookup::Present(key, _) if !self.layout.run(key).pages().contains(&page) => {
                Lookup::Absent
            }
            found => found,
        }
    }

    /// Returns the runs that show pages of a range, ascending. The first and the last one may reach
    /// beyond it.
    pub(crate) async fn whole_runs(
        &self,
        root: &Root,
        pages: &Range<u64>,
    ) -> Result<Vec<(Run, Pointer)>, rekindle_content::Error> {
        let keys = self.layout.keys(pages);
        let mut entries = Vec::new();
        if let (Layout::ByContent { .. }, Some(before)) = (self.layout, keys.start.checked_sub(1)) {
            entries.extend(tree::floor(&self.content, root, before).await?);
        }
        entries.extend(tree::range(&self.content, root, keys).await?);
        let runs = entries.into_iter().map(|(key, pointer)| (self.layout.run(key), pointer));
        Ok(runs.filter(|(run, _)| run.within(pages).is_some()).collect())
    }

    /// Returns the first page of the first run that begins at a page or behind it. A large range of
    /// nothing is passed over so, and not stretch by stretch: files have holes of petabytes.
    pub(crate) async fn next_run(
        &self,
        root: &Root,
        page: u64,
    ) -> Result<Option<u64>, rekindle_content::Error> {
        let first = self.layout.keys(&(page..page)).start;
        let entry = match first.checked_sub(1) {
            Some(before) => tree::above(&self.content, root, before).await?,
            None => return Ok(Some(page)),
        };
        Ok(entry.map(|(key, _)| self.layout.run(key).page))
    }

    /// Returns what runs show of a range, ascending.
    pub(crate) async fn runs(
        &self,
        root: &Root,
        pages: Range<u64>,
    ) -> Result<Vec<(Run, Pointer)>, rekindle_content::Error> {
        let runs = self.whole_runs(root, &pages).await?.into_iter();
        Ok(runs.filter_map(|(run, pointer)| Some((run.within(&pages)?, pointer))).collect())
    }

    /// Fills `out` from a chunk, from its byte `at`.
    pub(crate) fn fill(
        &self,
        pointer: &Pointer,
        chunk: &[u8],
        at: u64,
        out: &mut [u8],
    ) -> Result<(), StagingError> {
        if chunk.len() as u64 > self.layout.chunk_pages_max() * self.page_bytes {
            return Err(self.too_long(pointer, chunk.len()));
        }
        let bytes = chunk.get(usize::try_from(at).unwrap_or(usize::MAX)..).unwrap_or_default();
        let (data, zeros) = out.split_at_mut(bytes.len().min(out.len()));
        data.copy_from_slice(&bytes[..data.len()]);
        zeros.fill(0);
        Ok(())
    }

    #[cold]
    fn too_long(&self, pointer: &Pointer, length: usize) -> StagingError {
        let name: String = pointer.name[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let most = self.layout.chunk_pages_max() * self.page_bytes;
        let reason = format!("it has {length} bytes, but a chunk has {most} at most");
        rekindle_content::Error::Damaged {
            name,
            pack: pointer.pack,
            offset: pointer.offset,
            reason,
        }
        .into()
    }

    /// Takes from `rest`, which begins at byte `position` of the volume, the part that a run shows.
    /// Also returns the first byte of that part within the chunk.
    fn split<'a>(&self, rest: &mut &'a mut [u8], position: u64, run: &Run) -> (u64, &'a mut [u8]) {
        let at = self.byte(run.from) + (position - self.byte(run.page));
        (at, take(rest, self.byte(run.page + run.count) - position))
    }

    /// Reads from the cache, run by run; `false` when something is not cached.
    fn copy_now(&self, root: &Root, position: u64, out: &mut [u8]) -> Result<bool, StagingError> {
        let (mut position, mut rest) = (position, out);
        while !rest.is_empty() {
            let before = rest.len();
            let page = position >> self.shift;
            match self.run_now(root, page) {
                Lookup::Unknown => return Ok(false),
                Lookup::Absent => take(&mut rest, self.byte(page + 1) - position).fill(0),
                Lookup::Present(key, pointer) => {
                    let Some(chunk) = self.content.read_now(&pointer) else { return Ok(false) };
                    let (at, out) = self.split(&mut rest, position, &self.layout.run(key));
                    self.fill(&pointer, &chunk, at, out)?;
                }
            }
            position += (before - rest.len()) as u64;
        }
        Ok(true)
    }

    /// Reads a range that is not entirely in the cache: one look into the tree, then chunks
    /// together.
    async fn copy(
        &self,
        root: &Root,
        position: u64,
        out: &mut [u8],
        keep: bool,
    ) -> Result<(), StagingError> {
        let runs = self.runs(root, self.pages(position, out.len() as u64)).await?;
        let (mut position, mut rest) = (position, out);
        let mut missing = Vec::new();
        for (run, pointer) in runs {
            let begin = position.max(self.byte(run.page));
            take(&mut rest, begin - position).fill(0);
            let (at, out) = self.split(&mut rest, begin, &run);
            position = begin + out.len() as u64;
            match self.content.read_now(&pointer) {
                Some(chunk) => self.fill(&pointer, &chunk, at, out)?,
                None => missing.push((pointer, at, out)),
            }
        }
        rest.fill(0);
        let pointers: Vec<Pointer> = missing.iter().map(|(pointer, ..)| *pointer).collect();
        let chunks = self.content.read_many(&pointers, Class::Data, keep).await?;
        for ((pointer, at, out), chunk) in missing.into_iter().zip(chunks) {
            self.fill(&pointer, &chunk, at, out)?;
        }
        Ok(())
    }

    /// Fetches what a sequential reader needs next: metadata, then chunks in the background.
    async fn fetch_ahead(&self, root: &Root, fetch: Fetch) {
        let size = self.size();
        let end = fetch.data.end.min(size);
        let within = |bytes: &Range<u64>| {
            self.pages(bytes.start, bytes.end.min(size).saturating_sub(bytes.start))
        };
        // Only a hint: a read of that range returns the error, if there is one.
        if let Ok(runs) = self.runs(root, within(&fetch.data)).await {
            let wanted = runs.into_iter().take_while(|(run, _)| self.byte(run.page) < end);
            let pointers: Vec<Pointer> = wanted.map(|(_, pointer)| pointer).collect();
            self.content.prefetch(&pointers, Class::Data);
        }
        if let Some(metadata) = fetch.metadata {
            let keys = self.layout.keys(&within(&metadata));
            tree::prefetch(&self.content, root, keys);
        }
    }

    /// Fetches ahead after a hit, as far as the cached tree nodes tell. A plain call.
    #[cold]
    fn fetch_ahead_now(&self, root: &Root, position: u64, length: u64) {
        let Some(fetch) = self.ahead.note(position, length, Noted::Hit) else { return };
        let bytes = fetch.data;
        let end = bytes.end.min(self.size());
        let pages = self.pages(bytes.start, end.saturating_sub(bytes.start));
        let (mut pointers, mut page) = (Vec::new(), pages.start);
        while page < pages.end {
            page = match self.run_now(root, page) {
                Lookup::Present(key, pointer) => {
                    pointers.push(pointer);
                    self.layout.run(key).pages().end
                }
                Lookup::Absent => page + 1,
                Lookup::Unknown => {
                    self.ahead.fell_short(&bytes, self.byte(page));
                    break;
                }
            };
        }
        self.content.prefetch(&pointers, Class::Data);
    }

    /// Lists data and holes. It reads the tree in stretches, so that a large range does not become
    /// a large list of entries.
    async fn list(
        &self,
        root: &Root,
        position: u64,
        span: u64,
    ) -> Result<Vec<Extent>, StagingError> {
        let end = position.saturating_add(span);
        let mut found: Vec<Extent> = Vec::new();
        let mut add = |upto: u64, data: bool| match found.last_mut() {
            Some(last) if last.data == data => last.span = upto - last.position,
            last => {
                let from = last.map_or(position, |last| last.position + last.span);
                if upto > from {
                    found.push(Extent { position: from, span: upto - from, data });
                }
            }
        };
        let pages = self.pages(position, span);
        let mut from = pages.start;
        while from < pages.end {
            let stretch = from..pages.end.min(from + limits::STRETCH_PAGES_MAX);
            from = stretch.end;
            let runs = self.runs(root, stretch).await?;
            if runs.is_empty() {
                from = self.next_run(root, from).await?.map_or(pages.end, |page| page.max(from));
            }
            for (run, _) in runs {
                if self.byte(run.page) > position {
                    add(self.byte(run.page), false);
                }
                add(self.byte(run.page + run.count).min(end), true);
            }
        }
        add(end, false);
        Ok(found)
    }
}

/// Takes the first `length` bytes of `rest`, or all of it.
fn take<'a>(rest: &mut &'a mut [u8], length: u64) -> &'a mut [u8] {
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(rest.len());
    let (taken, after) = std::mem::take(rest).split_at_mut(length);
    *rest = after;
    taken
}

impl RangeHome for Extents {
    fn read_now(&self, root: &Root, position: u64, out: &mut [u8]) -> Result<bool, StagingError> {
        let found = self.copy_now(root, position, out)?;
        let length = out.len() as u64;
        if found && self.ahead.is_marked(position, length) {
            self.fetch_ahead_now(root, position, length);
        }
        Ok(found)
    }

    fn read<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        out: &'a mut [u8],
        keep: bool,
    ) -> BoxFuture<'a, Result<(), StagingError>> {
        Box::pin(async move {
            let length = out.len() as u64;
            let ahead = if keep { self.ahead.note(position, length, Noted::Miss) } else { None };
            match ahead {
                // The client's own read is polled first.
                Some(fetch) => {
                    let (read, ()) = future::join(
                        self.copy(root, position, out, keep),
                        self.fetch_ahead(root, fetch),
                    )
                    .await;
                    read
                }
                None => self.copy(root, position, out, keep).await,
            }
        })
    }

    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        changes: &'a [Fold],
    ) -> BoxFuture<'a, Result<Root, StagingError>> {
        Box::pin(self.write(batch, root, changes))
    }

    fn grow(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    fn bytes_of(&self, keys: Range<u64>) -> Range<u64> {
        self.layout.bytes_of(&keys, self.size())
    }

    fn extents<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        span: u64,
    ) -> BoxFuture<'a, Result<Vec<Extent>, StagingError>> {
        Box::pin(self.list(root, position, span))
    }
}

#[cfg(test)]
mod tests;
