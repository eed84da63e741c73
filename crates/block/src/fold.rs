//! Writing: a batch of changes becomes new chunks and a new tree.
//!
//! Changes are planned block by block and carried out in windows of bounded bytes. While the blocks
//! of one window are named and packed, those of the next are assembled; their old blocks are
//! fetched concurrently.

use crate::extents::Extents;
use crate::limits;
use crate::plan::{Part, Plan, Step};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, future, stream};
use rekindle_content::tree::{self, Root};
use rekindle_content::{Batch, Class, Pointer};
use rekindle_staging::{Error as StagingError, Fold};
use std::collections::HashMap;
use std::ops::Range;

/// A step that is ready to be written.
enum Ready {
    /// The block's new bytes; `None` when all are zero.
    Block(u64, Option<Bytes>),
    Clear(Range<u64>),
}

/// The tree under construction.
struct Growing {
    root: Root,
    /// Changes in ascending order, not in `root` yet.
    changes: Vec<(u64, Option<Pointer>)>,
}

impl Extents {
    pub(crate) async fn write(
        &self,
        batch: &mut Batch,
        root: &Root,
        changes: &[Fold],
    ) -> Result<Root, StagingError> {
        let mut plan = Plan::new(changes, self.size(), self.block_size);
        let mut growing = Growing { root: *root, changes: Vec::new() };
        let mut ready = self.prepare(root, changes, self.window(&mut plan)).await?;
        while !ready.is_empty() {
            let window = self.window(&mut plan);
            let next = self.prepare(root, changes, window);
            let written = self.write_window(batch, &mut growing, ready);
            (ready, _) = future::try_join(next, written).await?;
        }
        self.apply(batch, &mut growing).await?;
        Ok(growing.root)
    }

    /// Takes the steps that fit into one window.
    fn window(&self, plan: &mut Plan<'_>) -> Vec<Step> {
        let (mut steps, mut bytes) = (Vec::new(), 0);
        while bytes < limits::WINDOW_BYTES
            && let Some(step) = plan.next()
        {
            bytes += self.block_size;
            steps.push(step);
        }
        steps
    }

    /// Assembles the blocks of a window, several concurrently, in order.
    async fn prepare(
        &self,
        root: &Root,
        changes: &[Fold],
        steps: Vec<Step>,
    ) -> Result<Vec<Ready>, StagingError> {
        let old = self.old_blocks(root, &steps).await?;
        let old = &old;
        let prepare = async |step| match step {
            Step::Clear(blocks) => Ok(Ready::Clear(blocks)),
            Step::Assemble { block, parts, .. } => {
                Ok(Ready::Block(block, self.assemble(changes, old.get(&block), &parts).await?))
            }
        };
        stream::iter(steps).map(prepare).buffered(limits::ASSEMBLED_MAX).try_collect().await
    }

    /// Reads the old blocks that a step changes only in part, as far as they exist. Blocks that
    /// were written together lie together, so they are fetched together.
    async fn old_blocks(
        &self,
        root: &Root,
        steps: &[Step],
    ) -> Result<HashMap<u64, (Pointer, Bytes)>, StagingError> {
        let mut partial = Vec::new();
        for step in steps {
            if let Step::Assemble { block, whole: false, .. } = step {
                partial.push(*block);
            }
        }
        let find = async |block| Ok((block, tree::get(&self.content, root, block).await?));
        let found: Vec<(u64, Option<Pointer>)> = stream::iter(partial)
            .map(find)
            .buffered(limits::ASSEMBLED_MAX)
            .try_collect::<Vec<_>>()
            .await
            .map_err(|error: rekindle_content::Error| StagingError::from(error))?;
        let present: Vec<(u64, Pointer)> =
            found.into_iter().filter_map(|(block, pointer)| Some((block, pointer?))).collect();
        let pointers: Vec<Pointer> = present.iter().map(|(_, pointer)| *pointer).collect();
        let chunks = self.content.read_many(&pointers, Class::Data, false).await?;
        let with_chunk = |((block, pointer), chunk)| (block, (pointer, chunk));
        Ok(present.into_iter().zip(chunks).map(with_chunk).collect())
    }

    async fn assemble(
        &self,
        changes: &[Fold],
        old: Option<&(Pointer, Bytes)>,
        parts: &[Part],
    ) -> Result<Option<Bytes>, StagingError> {
        let mut data = vec![0; usize::try_from(self.block_size).expect("a block is small")];
        if let Some((pointer, old)) = old {
            self.fill(pointer, old, 0, &mut data)?;
        }
        for part in parts {
            changes[part.change]
                .source
                .read(part.start, &mut data[part.at..part.at + part.length])
                .await?;
        }
        Ok((!is_zero(&data)).then(|| data.into()))
    }

    async fn write_window(
        &self,
        batch: &mut Batch,
        growing: &mut Growing,
        ready: Vec<Ready>,
    ) -> Result<(), StagingError> {
        for step in ready {
            match step {
                Ready::Block(block, None) => growing.changes.push((block, None)),
                Ready::Block(block, Some(data)) => {
                    let pointer = batch.write(Class::Data, data, &[]).await?;
                    growing.changes.push((block, Some(pointer)));
                }
                Ready::Clear(blocks) => self.clear(batch, growing, blocks).await?,
            }
            if growing.changes.len() >= limits::CHANGES_MAX {
                self.apply(batch, growing).await?;
                // The next changes read the tree that was just written.
                batch.flush().await?;
            }
        }
        Ok(())
    }

    /// Removes the present blocks of a range. Absent ones cost only a look into ever larger
    /// stretches.
    async fn clear(
        &self,
        batch: &mut Batch,
        growing: &mut Growing,
        blocks: Range<u64>,
    ) -> Result<(), StagingError> {
        if blocks.start == 0 && blocks.end >= self.size().div_ceil(self.block_size) {
            *growing = Growing { root: None, changes: Vec::new() };
            return Ok(());
        }
        let (mut from, mut stretch) = (blocks.start, limits::STRETCH_KEYS_MIN);
        while from < blocks.end {
            let upto = blocks.end.min(from + stretch);
            let present = tree::range(&self.content, &growing.root, from..upto).await?;
            if present.len() as u64 <= stretch / 4 {
                stretch = (stretch * 2).min(limits::STRETCH_KEYS_MAX);
            }
            growing.changes.extend(present.into_iter().map(|(block, _)| (block, None)));
            if growing.changes.len() >= limits::CHANGES_MAX {
                self.apply(batch, growing).await?;
                batch.flush().await?;
            }
            from = upto;
        }
        Ok(())
    }

    async fn apply(&self, batch: &mut Batch, growing: &mut Growing) -> Result<(), StagingError> {
        if !growing.changes.is_empty() {
            growing.root =
                tree::update(&self.content, batch, &growing.root, &growing.changes).await?;
            growing.changes.clear();
        }
        Ok(())
    }
}

/// Whether all bytes are zero.
fn is_zero(data: &[u8]) -> bool {
    let mut pieces = data.chunks_exact(64);
    pieces.all(|piece| piece.iter().fold(0, |all, byte| all | byte) == 0)
        && pieces.remainder().iter().all(|byte| *byte == 0)
}
