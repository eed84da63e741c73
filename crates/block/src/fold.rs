//! Writing: a batch of changes becomes chunks and a new tree.
//!
//! A fold goes in windows: while one is cut into chunks and written, the pages of the next are
//! assembled; what remains of their old bytes is fetched concurrently.

use crate::cut::{Cut, Cutting, Piece};
use crate::extents::Extents;
use crate::layout::{Layout, Run};
use crate::limits;
use crate::plan::{Part, Plan, Step};
use crate::widen::{REACH_PAGES, widen};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, future, stream};
use rekindle_content::tree::{self, Root};
use rekindle_content::{Batch, Class, Error, Pointer};
use rekindle_staging::{Error as StagingError, Fold};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// A step that is ready to be written.
enum Ready {
    /// New bytes of whole pages, from this one on.
    Pages(u64, Vec<u8>),
    Clear(Range<u64>),
}

/// Old bytes that remain in the pages of a step.
type Old = Vec<(Run, Pointer)>;

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
        let mut plan = Plan::new(changes, self.size(), self.page_bytes, wide);
        let mut growing = Growing::new(*root);
        let mut cutting = Cutting::new(self.cutter, self.page_bytes);
        let mut ready = self.prepare(root, changes, self.window(&mut plan)).await?;
        while !ready.is_empty() {
            for step in ready {
                match step {
                    Ready::Pages(first, data) => cutting.pages(first, &data),
                    Ready::Clear(pages) => cutting.clear(pages),
                }
            }
            let window = self.window(&mut plan);
            let written = self.write_cut(batch, &mut growing, cutting.take());
            let next = self.prepare(root, changes, window);
            (_, ready) = future::try_join(written, next).await?;
        }
        cutting.end_chunk();
        self.write_cut(batch, &mut growing, cutting.take()).await?;
        self.apply(batch, &mut growing).await?;
        Ok(growing.root)
    }

    /// Returns the stretches of pages that are written anew together with the changes.
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
            Ok::<_, Error>((wide != touched).then_some(wide))
        };
        let touched = tree::joined(touched.filter(|pages| !pages.is_empty()));
        let wide = stream::iter(touched).map(look).buffered(limits::ASSEMBLED_MAX);
        let wide: Vec<_> = wide.try_filter_map(future::ok).try_collect().await?;
        Ok(tree::joined(wide))
    }

    /// Takes the steps that fit into one window.
    fn window(&self, plan: &mut Plan<'_>) -> Vec<Step> {
        let (mut steps, mut bytes) = (Vec::new(), 0);
        while bytes < limits::WINDOW_BYTES
            && let Some(step) = plan.next()
        {
            bytes += match &step {
                Step::Clear(_) => self.page_bytes,
                // A chunk is read whole, however few of its pages remain.
                Step::Assemble { pages, old, .. } => {
                    let chunks = old.len() as u64 * self.layout.chunk_pages_max().div_ceil(4);
                    (pages.end - pages.start + chunks) * self.page_bytes
                }
            };
            steps.push(step);
        }
        steps
    }

    /// Assembles the pages of a window, several steps concurrently, in order.
    async fn prepare(
        &self,
        root: &Root,
        changes: &[Fold],
        steps: Vec<Step>,
    ) -> Result<Vec<Ready>, StagingError> {
        let find = async |step: &Step| {
            let Step::Assemble { old: pages, .. } = step else { return Ok(Vec::new()) };
            let mut old = Old::new();
            for pages in pages {
                old.extend(self.runs(root, pages.clone()).await?);
            }
            Ok::<_, Error>(old)
        };
        let old = stream::iter(&steps).map(find).buffered(limits::ASSEMBLED_MAX);
        let old: Vec<Old> = old.try_collect().await?;
        // Pages that were written together lie together, so they are fetched together.
        let mut pointers: Vec<Pointer> =
            old.iter().flatten().map(|(_, pointer)| *pointer).collect();
        pointers.dedup();
        let chunks = self.content.read_many(&pointers, Class::Data, false).await?;
        let chunks: HashMap<Pointer, Bytes> = pointers.into_iter().zip(chunks).collect();
        let chunks = &chunks;
        let prepare = async |(step, old): (Step, Old)| match step {
            Step::Clear(pages) => Ok(Ready::Clear(pages)),
            Step::Assemble { pages, parts, .. } => {
                let bytes = self.assemble(changes, &pages, old, chunks, &parts).await?;
                Ok(Ready::Pages(pages.start, bytes))
            }
        };
        let ready = stream::iter(steps.into_iter().zip(old)).map(prepare);
        ready.buffered(limits::ASSEMBLED_MAX).try_collect().await
    }

    async fn assemble(
        &self,
        changes: &[Fold],
        pages: &Range<u64>,
        old: Old,
        chunks: &HashMap<Pointer, Bytes>,
        parts: &[Part],
    ) -> Result<Vec<u8>, StagingError> {
        let bytes = |pages: u64| pages * self.page_bytes;
        let narrow = |pages| usize::try_from(bytes(pages)).expect("a step is small");
        let mut data = vec![0; narrow(pages.end - pages.start)];
        for (run, pointer) in old {
            let at = narrow(run.page - pages.start);
            let out = &mut data[at..at + narrow(run.count)];
            self.fill(&pointer, &chunks[&pointer], bytes(run.from), out)?;
        }
        for part in parts {
            let out = &mut data[part.at..part.at + part.length];
            changes[part.change].source.read(part.start, out).await?;
        }
        Ok(data)
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
