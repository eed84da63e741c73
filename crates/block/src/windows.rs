//! The windows of a fold: pages are assembled out of changes and old bytes, then cut into chunks.

use crate::cut::{Cut, Cutting};
use crate::extents::Extents;
use crate::layout::Run;
use crate::limits;
use crate::out::Copied;
use crate::plan::{ChangePart, Plan, Step};
use crate::spare::Spare;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use rekindle_content::tree::Root;
use rekindle_content::{Class, Error, Pointer};
use rekindle_env::give_way;
use rekindle_staging::{Error as StagingError, Fold};
use std::collections::HashMap;
use std::ops::Range;

/// The windows of one fold, in order.
pub(crate) struct Windows<'a> {
    extents: &'a Extents,
    root: Root,
    changes: &'a [Fold],
    plan: Plan<'a>,
    cutting: Cutting,
    spare: Spare,
    is_over: bool,
}

/// A step that is ready to be cut.
enum Ready {
    /// New bytes of whole pages, from this one on.
    Pages(u64, Vec<u8>),
    Clear(Range<u64>),
}

/// Old bytes that remain in the pages of a step.
type Old = Vec<(Run, Pointer)>;

impl<'a> Windows<'a> {
    /// Plans the windows. `wide`: pages that are written anew as a whole.
    pub(crate) fn new(
        extents: &'a Extents,
        root: Root,
        changes: &'a [Fold],
        wide: Vec<Range<u64>>,
    ) -> Self {
        let spare = Spare::default();
        Self {
            extents,
            root,
            changes,
            plan: Plan::new(changes, extents.size(), extents.page_bytes, wide),
            cutting: Cutting::new(extents.cutter, extents.page_bytes, spare.clone()),
            spare,
            is_over: false,
        }
    }

    /// Makes the next window; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<Cut>, StagingError> {
        if self.is_over {
            return Ok(None);
        }
        let steps = self.steps();
        self.is_over = steps.is_empty();
        for step in self.prepare(steps).await? {
            match step {
                Ready::Pages(first, data) => {
                    self.cutting.pages(first, &data);
                    self.spare.give(data);
                }
                Ready::Clear(pages) => self.cutting.clear(pages),
            }
        }
        if self.is_over {
            self.cutting.end_chunk();
        }
        Ok(Some(self.cutting.take()))
    }

    /// Takes the steps that fit into one window.
    fn steps(&mut self) -> Vec<Step> {
        let Extents { layout, page_bytes, .. } = *self.extents;
        let (mut steps, mut bytes) = (Vec::new(), 0);
        while bytes < limits::WINDOW_BYTES
            && let Some(step) = self.plan.next()
        {
            bytes += match &step {
                Step::Clear(_) => page_bytes,
                // A chunk is read whole, however few of its pages remain.
                Step::Assemble { pages, old, .. } => {
                    let chunks = old.len() as u64 * layout.chunk_pages_max().div_ceil(4);
                    (pages.end - pages.start + chunks) * page_bytes
                }
            };
            steps.push(step);
        }
        steps
    }

    /// Assembles the pages of a window, several steps concurrently, in order.
    async fn prepare(&self, steps: Vec<Step>) -> Result<Vec<Ready>, StagingError> {
        let find = async |step: &Step| {
            let Step::Assemble { old: pages, .. } = step else { return Ok(Vec::new()) };
            let mut old = Old::new();
            for pages in pages {
                old.extend(self.extents.runs(&self.root, pages.clone()).await?);
            }
            Ok::<_, Error>(old)
        };
        let old = stream::iter(&steps).map(find).buffered(limits::ASSEMBLED_MAX);
        let old: Vec<Old> = old.try_collect().await?;
        // Pages that were written together lie together, so they are fetched together.
        let mut pointers: Vec<Pointer> =
            old.iter().flatten().map(|(_, pointer)| *pointer).collect();
        pointers.dedup();
        let chunks = self.extents.content.read_many(&pointers, Class::Data, false).await?;
        let chunks: HashMap<Pointer, Bytes> = pointers.into_iter().zip(chunks).collect();
        let chunks = &chunks;
        let prepare = async |(step, old): (Step, Old)| match step {
            Step::Clear(pages) => Ok(Ready::Clear(pages)),
            Step::Assemble { pages, parts, .. } => {
                let bytes = self.assemble(&pages, old, chunks, &parts).await?;
                Ok(Ready::Pages(pages.start, bytes))
            }
        };
        let ready = stream::iter(steps.into_iter().zip(old)).map(prepare);
        ready.buffered(limits::ASSEMBLED_MAX).try_collect().await
    }

    async fn assemble(
        &self,
        pages: &Range<u64>,
        old: Old,
        chunks: &HashMap<Pointer, Bytes>,
        parts: &[ChangePart],
    ) -> Result<Vec<u8>, StagingError> {
        let bytes = |pages: u64| pages * self.extents.page_bytes;
        let narrow = |pages| usize::try_from(bytes(pages)).expect("a step is small");
        let length = narrow(pages.end - pages.start);
        let mut data = self.spare.take();
        // Parts do not overlap. Pages that they do not cover whole have old bytes, or zeros.
        if parts.iter().map(|part| part.length).sum::<usize>() < length {
            data.clear();
        }
        data.resize(length, 0);
        for (run, pointer) in old {
            let at = narrow(run.page - pages.start);
            let out = &mut data[at..at + narrow(run.count)];
            let part = (bytes(run.from), bytes(run.count));
            self.extents.put(&pointer, &chunks[&pointer], part, &mut Copied(out))?;
        }
        for part in parts {
            give_way();
            let out = &mut data[part.at..part.at + part.length];
            self.changes[part.change].source.read(part.start, out).await?;
        }
        Ok(data)
    }
}
