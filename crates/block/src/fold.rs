//! Writing: a batch of changes becomes chunks and a new tree.
//!
//! A fold goes in windows ([`crate::windows`]): while the chunks of one are written, the next is
//! assembled and cut.

use crate::cut::{Cut, Piece};
use crate::extents::Extents;
use crate::layout::{Layout, Run};
use crate::limits;
use crate::widen::{REACH_PAGES, widen};
use crate::windows::Windows;
use futures_util::{StreamExt, TryStreamExt, future, stream};
use rekindle_content::tree::{self, Root};
use rekindle_content::{Batch, Error, Pointer};
use rekindle_staging::{Error as StagingError, Fold};
use std::collections::BTreeMap;
use std::ops::Range;

/// The tree under construction.
struct Growing {
    root: Root,
    /// Changes of the tree that are not in `root` yet.
    changes: BTreeMap<u64, Option<Pointer>>,
    /// The key of the last run of `root` of which pages were taken, and what it shows behind them.
    cut: Option<u64>,
    rest: Option<(Run, Pointer)>,
}

impl Growing {
    fn new(root: Root) -> Self {
        Self { root, changes: BTreeMap::new(), cut: None, rest: None }
    }
}

impl Extents {
    pub(crate) async fn write(
        &self,
        batch: &mut Batch,
        root: &Root,
        changes: &[Fold],
    ) -> Result<Root, StagingError> {
        let wide = self.widened(root, changes).await?;
        let mut windows = Windows::new(self, *root, changes, wide);
        let mut growing = Growing::new(*root);
        let mut next = windows.next().await?;
        while let Some(cut) = next {
            let written = self.write_cut(batch, &mut growing, cut);
            (_, next) = future::try_join(written, windows.next()).await?;
        }
        self.apply(batch, &mut growing).await?;
        Ok(growing.root)
    }

    /// Has the range from `position` on show what another tree shows in `range`. Both begin and end
    /// with pages. No chunk is read or written.
    pub async fn share(
        &self,
        batch: &mut Batch,
        (root, position): (&Root, u64),
        (other, range): (&Root, Range<u64>),
    ) -> Result<Root, StagingError> {
        let pages = range.start / self.page_bytes..range.end.div_ceil(self.page_bytes);
        let there = |page: u64| position / self.page_bytes + (page - pages.start);
        let (mut growing, mut from) = (Growing::new(*root), pages.start);
        while from < pages.end {
            let stretch = from..pages.end.min(from + limits::STRETCH_PAGES_MAX);
            from = stretch.end;
            self.vacate(&mut growing, there(stretch.start)..there(stretch.end)).await?;
            for (run, pointer) in self.runs(other, stretch).await? {
                let run = Run { page: there(run.page), ..run };
                growing.changes.insert(self.layout.key(&run), Some(pointer));
            }
            if growing.changes.len() >= limits::CHANGES_MAX {
                self.apply(batch, &mut growing).await?;
                batch.flush().await?;
            }
        }
        self.apply(batch, &mut growing).await?;
        Ok(growing.root)
    }

    /// Returns the stretches of pages beside the changes that are written anew together with them.
    /// Pages that a change touches are not among them: it may clear a petabyte.
    async fn widened(&self, root: &Root, changes: &[Fold]) -> Result<Vec<Range<u64>>, Error> {
        if root.is_none() || matches!(self.layout, Layout::Fixed { .. }) {
            return Ok(Vec::new());
        }
        let pages_end = self.size().div_ceil(self.page_bytes);
        let touched = changes.iter().map(|change| {
            let end = change.position.saturating_add(change.span).div_ceil(self.page_bytes);
            change.position / self.page_bytes..end.min(pages_end)
        });
        let look = async |touched: Range<u64>| {
            let before = touched.start.saturating_sub(REACH_PAGES)..touched.start;
            let after = touched.end..pages_end.min(touched.end + REACH_PAGES);
            let mut outside = Vec::new();
            for pages in [before, after] {
                outside.extend(self.runs(root, pages).await?);
            }
            let wide = widen(&touched, &outside, self.page_bytes);
            Ok::<_, Error>([wide.start..touched.start, touched.end..wide.end])
        };
        let touched = tree::joined(touched.filter(|pages| !pages.is_empty()));
        let wide = stream::iter(touched).map(look).buffered(limits::ASSEMBLED_MAX);
        let wide: Vec<_> = wide.try_collect().await?;
        Ok(tree::joined(wide.into_iter().flatten().filter(|pages| !pages.is_empty())))
    }

    /// Writes the chunks that were cut, and notes what the tree is to show.
    async fn write_cut(
        &self,
        batch: &mut Batch,
        growing: &mut Growing,
        Cut { pieces, stretches }: Cut,
    ) -> Result<(), StagingError> {
        let mut chunks = batch.write_many(&stretches).await?.into_iter();
        for piece in pieces {
            match piece {
                Piece::Chunk(run) => self.replace(growing, run, chunks.next()).await?,
                Piece::Zeros(page) => {
                    self.replace(growing, Run { page, from: 0, count: 1 }, None).await?
                }
                Piece::Clear(pages) => self.clear(batch, growing, pages).await?,
            }
            if growing.changes.len() >= limits::CHANGES_MAX {
                self.apply(batch, growing).await?;
                // The next changes read the tree that was just written.
                batch.flush().await?;
            }
        }
        Ok(())
    }

    /// Has the pages of a run show a chunk, or nothing. Calls ascend.
    async fn replace(
        &self,
        growing: &mut Growing,
        run: Run,
        chunk: Option<Pointer>,
    ) -> Result<(), Error> {
        let key = self.layout.key(&run);
        match self.layout {
            // The new entry has the key of the old one.
            Layout::Fixed { .. } => drop(growing.changes.insert(key, chunk)),
            Layout::ByContent { .. } => {
                self.vacate(growing, run.pages()).await?;
                growing.changes.extend(chunk.map(|chunk| (key, Some(chunk))));
            }
        }
        Ok(())
    }

    /// Takes pages out of the runs that show them. Returns how many runs those are. Calls ascend.
    async fn vacate(&self, growing: &mut Growing, pages: Range<u64>) -> Result<usize, Error> {
        // A run that has lost pages already is not what the tree says any more.
        let rest = growing.rest.take();
        let mut found = self.whole_runs(&growing.root, &pages).await?;
        found.retain(|(run, _)| Some(self.layout.key(run)) != growing.cut);
        for (run, _) in &found {
            let key = self.layout.key(run);
            growing.cut = Some(key);
            growing.changes.insert(key, None);
        }
        let count = found.len();
        for (run, pointer) in rest.into_iter().chain(found) {
            if let Some(before) = run.within(&(0..pages.start)) {
                growing.changes.insert(self.layout.key(&before), Some(pointer));
            }
            if let Some(behind) = run.within(&(pages.end..u64::MAX)) {
                growing.rest = Some((behind, pointer));
            }
        }
        Ok(count)
    }

    /// Makes holes of a range. What is a hole already costs only a look into ever larger stretches.
    async fn clear(
        &self,
        batch: &mut Batch,
        growing: &mut Growing,
        pages: Range<u64>,
    ) -> Result<(), StagingError> {
        if pages.start == 0 && pages.end >= self.size().div_ceil(self.page_bytes) {
            *growing = Growing::new(None);
            return Ok(());
        }
        let (mut from, mut stretch) = (pages.start, limits::STRETCH_PAGES_MIN);
        while from < pages.end {
            let upto = pages.end.min(from + stretch);
            let count = self.vacate(growing, from..upto).await?;
            if count as u64 <= stretch / 4 {
                stretch = (stretch * 2).min(limits::STRETCH_PAGES_MAX);
            }
            if growing.changes.len() >= limits::CHANGES_MAX {
                self.apply(batch, growing).await?;
                batch.flush().await?;
            }
            from = upto;
            if count == 0 && growing.rest.is_none() {
                let next = self.next_run(&growing.root, from).await?;
                from = next.map_or(pages.end, |page| page.max(from));
            }
        }
        Ok(())
    }

    async fn apply(&self, batch: &mut Batch, growing: &mut Growing) -> Result<(), StagingError> {
        if let Some((run, pointer)) = growing.rest.take() {
            growing.changes.insert(self.layout.key(&run), Some(pointer));
        }
        growing.cut = None;
        if !growing.changes.is_empty() {
            let changes: Vec<_> = std::mem::take(&mut growing.changes).into_iter().collect();
            growing.root = tree::update(&self.content, batch, &growing.root, &changes).await?;
        }
        Ok(())
    }
}
