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
use crate::map::RangeMap;
use crate::out::{Copied, Out, Pieces};
use bytes::Bytes;
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
    map: RangeMap,
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
            map: RangeMap::default(),
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

    /// Returns the run that shows a page, as far as the map and cached tree nodes tell.
    fn run_now(&self, root: &Root, page: u64) -> Lookup {
        if let Some((run, pointer)) = self.map.find(root, page) {
            return Lookup::Present(self.layout.key(&run), pointer);
        }
        let last = self.layout.keys(&(page..page + 1)).end - 1;
        match tree::floor_now(&self.content, root, last) {
            Lookup::Present(key, _) if !self.layout.run(key).pages().contains(&page) => {
                Lookup::Absent
            }
            found => found,
        }
    }

    /// Returns the runs that show pages of a range, ascending, as far as cached tree nodes tell,
    /// and the first page of which they do not, else the end.
    fn whole_runs_now(&self, root: &Root, pages: &Range<u64>) -> (Vec<(Run, Pointer)>, u64) {
        let keys = self.layout.keys(pages);
        let mut entries = Vec::new();
        if let Some(before) = self.key_before(&keys) {
            match tree::floor_now(&self.content, root, before) {
                Lookup::Present(key, pointer) => entries.push((key, pointer)),
                Lookup::Absent => {}
                Lookup::Unknown => return (Vec::new(), pages.start),
            }
        }
        let known = tree::range_now(&self.content, root, &keys, &mut entries);
        let known = if known < keys.end { self.layout.run(known).page } else { pages.end };
        (self.runs_of(entries, pages), known)
    }

    /// Returns the last key that a run may have which begins before these keys and reaches in among
    /// them.
    fn key_before(&self, keys: &Range<u64>) -> Option<u64> {
        match self.layout {
            Layout::ByContent { .. } => keys.start.checked_sub(1),
            Layout::Fixed { .. } => None,
        }
    }

    /// Returns the runs among some entries that show any of these pages.
    fn runs_of(&self, entries: Vec<(u64, Pointer)>, pages: &Range<u64>) -> Vec<(Run, Pointer)> {
        let runs = entries.into_iter().map(|(key, pointer)| (self.layout.run(key), pointer));
        runs.filter(|(run, _)| run.within(pages).is_some()).collect()
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
        if let Some(before) = self.key_before(&keys) {
            entries.extend(tree::floor(&self.content, root, before).await?);
        }
        entries.extend(tree::range(&self.content, root, keys).await?);
        Ok(self.runs_of(entries, pages))
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

    /// Gives a part of a chunk: bytes from `at` on, and zeros where it ends early.
    pub(crate) fn put(
        &self,
        pointer: &Pointer,
        chunk: &Bytes,
        (at, length): (u64, u64),
        out: &mut impl Out,
    ) -> Result<(), StagingError> {
        if chunk.len() as u64 > self.layout.chunk_pages_max() * self.page_bytes {
            return Err(self.too_long(pointer, chunk.len()));
        }
        let all = chunk.len() as u64;
        let bytes = at.min(all)..at.saturating_add(length).min(all);
        let given = out.bytes(chunk, bytes);
        out.zeros(length - given);
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

    /// Returns which part of its chunk shows what a run has from `position` on, at most `most`
    /// bytes: the first byte, and their number.
    fn part(&self, run: &Run, position: u64, most: u64) -> (u64, u64) {
        let at = self.byte(run.from) + (position - self.byte(run.page));
        (at, (self.byte(run.page + run.count) - position).min(most))
    }

    /// Reads from the cache, run by run; `false` when something is not cached.
    fn show_now(
        &self,
        root: &Root,
        position: u64,
        out: &mut impl Out,
    ) -> Result<bool, StagingError> {
        let end = position.saturating_add(out.left());
        while out.left() > 0 {
            let position = end - out.left();
            let page = position >> self.shift;
            match self.run_now(root, page) {
                Lookup::Unknown => return Ok(false),
                Lookup::Absent => out.zeros(self.byte(page + 1) - position),
                Lookup::Present(key, pointer) => {
                    let Some(chunk) = self.content.read_now(&pointer) else { return Ok(false) };
                    let part = self.part(&self.layout.run(key), position, out.left());
                    self.put(&pointer, &chunk, part, out)?;
                }
            }
        }
        Ok(true)
    }

    /// Reads a range that is not entirely in the cache: one look into the tree, then chunks
    /// together.
    async fn show(
        &self,
        root: &Root,
        position: u64,
        out: &mut impl Out,
        keep: bool,
    ) -> Result<(), StagingError> {
        let runs = self.runs(root, self.pages(position, out.left())).await?;
        let here = |(run, pointer)| (run, pointer, self.content.read_now(&pointer));
        let runs: Vec<(Run, Pointer, Option<Bytes>)> = runs.into_iter().map(here).collect();
        let missing = runs.iter().filter(|(.., chunk)| chunk.is_none());
        let missing: Vec<Pointer> = missing.map(|(_, pointer, _)| *pointer).collect();
        let mut read = self.content.read_many(&missing, Class::Data, keep).await?.into_iter();
        let end = position.saturating_add(out.left());
        for (run, pointer, chunk) in runs {
            let chunk = chunk.or_else(|| read.next()).expect("each missing chunk was read");
            let begin = position.max(self.byte(run.page)).max(end - out.left());
            out.zeros(begin - (end - out.left()));
            self.put(&pointer, &chunk, self.part(&run, begin, out.left()), out)?;
        }
        out.zeros(out.left());
        Ok(())
    }

    /// Fetches what a sequential reader needs next: metadata, then chunks in the background.
    async fn fetch_ahead(&self, root: &Root, fetch: Fetch) {
        let size = self.size();
        let within = |bytes: &Range<u64>| {
            self.pages(bytes.start, bytes.end.min(size).saturating_sub(bytes.start))
        };
        {
            // Also if the reader goes away meanwhile.
            let _asked = Asked { ahead: &self.ahead, fetch: &fetch };
            // Only a hint: a read of that range returns the error, if there is one.
            if let Ok(runs) = self.whole_runs(root, &within(&fetch.data)).await {
                self.prefetch(root, &runs);
            }
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
        let _asked = Asked { ahead: &self.ahead, fetch: &fetch };
        let bytes = fetch.data.clone();
        let end = bytes.end.min(self.size());
        let pages = self.pages(bytes.start, end.saturating_sub(bytes.start));
        let (runs, known) = self.whole_runs_now(root, &pages);
        if known < pages.end {
            self.ahead.fell_short(&bytes, self.byte(known).max(bytes.start));
        }
        self.prefetch(root, &runs);
    }

    /// Fetches the chunks of runs in the background, and notes the runs for the reads that follow.
    fn prefetch(&self, root: &Root, runs: &[(Run, Pointer)]) {
        if !self.content.is_plain() {
            self.map.note(root, runs);
        }
        let pointers: Vec<Pointer> = runs.iter().map(|(_, pointer)| *pointer).collect();
        self.content.prefetch(&pointers, Class::Data);
    }

    /// Reads what is in the cache, for a client; `false` when something is not.
    fn hit(&self, root: &Root, position: u64, out: &mut impl Out) -> Result<bool, StagingError> {
        let length = out.left();
        let found = self.show_now(root, position, out)?;
        if found && self.ahead.is_marked(position, length) {
            self.fetch_ahead_now(root, position, length);
        }
        Ok(found)
    }

    /// Whether what a read misses is on its way. A plain call: of runs whose tree nodes are not in
    /// the cache it says so, too.
    fn missed(&self, root: &Root, position: u64, length: u64) -> Noted {
        let (runs, _) = self.whole_runs_now(root, &self.pages(position, length));
        let absent = runs.iter().find(|(_, pointer)| !self.content.is_there_or_coming(pointer));
        absent.map_or(Noted::Miss, |(run, _)| Noted::Absent(position.max(self.byte(run.page))))
    }

    /// Reads what is not all in the cache, and more for a client that reads on (with `keep`).
    async fn miss(
        &self,
        root: &Root,
        position: u64,
        out: &mut impl Out,
        keep: bool,
    ) -> Result<(), StagingError> {
        let length = out.left();
        let ahead = match keep {
            true => self.ahead.note(position, length, self.missed(root, position, length)),
            false => None,
        };
        let read = self.show(root, position, out, keep);
        match ahead {
            // The client's own read is polled first.
            Some(fetch) => future::join(read, self.fetch_ahead(root, fetch)).await.0,
            None => read.await,
        }
    }

    /// Reads a range for a client, without a copy: chunks lie where the cache has them.
    pub async fn pieces(
        &self,
        root: &Root,
        position: u64,
        length: u64,
    ) -> Result<Vec<Bytes>, StagingError> {
        let mut pieces = Pieces::new(length);
        if !self.hit(root, position, &mut pieces)? {
            pieces = Pieces::new(length);
            self.miss(root, position, &mut pieces, true).await?;
        }
        Ok(pieces.list)
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

/// A fetch that is about to be asked for; its drop says that it was.
struct Asked<'a> {
    ahead: &'a Ahead,
    fetch: &'a Fetch,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.ahead.asked(self.fetch);
    }
}

impl RangeHome for Extents {
    fn read_now(&self, root: &Root, position: u64, out: &mut [u8]) -> Result<bool, StagingError> {
        self.hit(root, position, &mut Copied(out))
    }

    fn read<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        out: &'a mut [u8],
        keep: bool,
    ) -> BoxFuture<'a, Result<(), StagingError>> {
        Box::pin(async move { self.miss(root, position, &mut Copied(out), keep).await })
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
