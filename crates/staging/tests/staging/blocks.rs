//! The plainest home: blocks of fixed size in a tree. The tests of staging and of volumes use it.

use bytes::Bytes;
use rekindle_content::tree::{self, Lookup, Root};
use rekindle_content::{Batch, Class, Content};
use rekindle_env::BoxFuture;
use rekindle_staging::{Error, Extent, Fold, RangeHome};

pub struct Blocks {
    pub content: Content,
    /// Bytes of a block.
    pub block: u64,
}

/// The blocks that a range meets: key, first byte within the block, bytes.
fn parts(block: u64, position: u64, span: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = position + span;
    (position / block..end.div_ceil(block)).map(move |key| {
        let start = position.max(key * block);
        let stop = end.min((key + 1) * block);
        (key, (start - key * block) as usize, (stop - start) as usize)
    })
}

impl RangeHome for Blocks {
    fn read_now(&self, root: &Root, position: u64, out: &mut [u8]) -> Result<bool, Error> {
        let mut done = 0;
        for (key, at, length) in parts(self.block, position, out.len() as u64) {
            let target = &mut out[done..done + length];
            done += length;
            match tree::floor_now(&self.content, root, key) {
                Lookup::Unknown => return Ok(false),
                Lookup::Present(found, pointer) if found == key => {
                    match self.content.read_now(&pointer) {
                        Some(block) => target.copy_from_slice(&block[at..at + length]),
                        None => return Ok(false),
                    }
                }
                Lookup::Absent | Lookup::Present(..) => target.fill(0),
            }
        }
        Ok(true)
    }

    fn read<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        out: &'a mut [u8],
        keep: bool,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let mut done = 0;
            for (key, at, length) in parts(self.block, position, out.len() as u64) {
                let target = &mut out[done..done + length];
                done += length;
                match tree::get(&self.content, root, key).await? {
                    None => target.fill(0),
                    Some(pointer) => {
                        let block = if keep {
                            self.content.read(&pointer, Class::Data).await?
                        } else {
                            self.content.read_uncached(&pointer, Class::Data).await?
                        };
                        target.copy_from_slice(&block[at..at + length]);
                    }
                }
            }
            Ok(())
        })
    }

    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        changes: &'a [Fold],
    ) -> BoxFuture<'a, Result<Root, Error>> {
        Box::pin(async move {
            let mut blocks: std::collections::BTreeMap<u64, Vec<u8>> = Default::default();
            let mut last = 0;
            for fold in changes {
                assert!(fold.span > 0 && fold.position >= last, "folds ascend and do not overlap");
                last = fold.position + fold.span;
                let mut done = 0;
                for (key, at, length) in parts(self.block, fold.position, fold.span) {
                    if let std::collections::btree_map::Entry::Vacant(entry) = blocks.entry(key) {
                        let block = entry.insert(vec![0; self.block as usize]);
                        if let (true, Some(pointer)) = (
                            length < self.block as usize,
                            tree::get(&self.content, root, key).await?,
                        ) {
                            block.copy_from_slice(&self.content.read(&pointer, Class::Data).await?);
                        }
                    }
                    let block = blocks.get_mut(&key).unwrap();
                    fold.source.read(done, &mut block[at..at + length]).await?;
                    done += length as u64;
                }
            }
            let mut entries = Vec::new();
            for (key, block) in blocks {
                let empty = block.iter().all(|&byte| byte == 0);
                let pointer = match empty {
                    true => None,
                    false => Some(batch.write(Class::Data, Bytes::from(block), &[]).await?),
                };
                entries.push((key, pointer));
            }
            Ok(tree::update(&self.content, batch, root, &entries).await?)
        })
    }

    fn bytes_of(&self, keys: std::ops::Range<u64>) -> std::ops::Range<u64> {
        keys.start.saturating_mul(self.block)..keys.end.saturating_mul(self.block)
    }

    fn extents<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        span: u64,
    ) -> BoxFuture<'a, Result<Vec<Extent>, Error>> {
        Box::pin(async move {
            let mut extents = Vec::new();
            for (key, at, length) in parts(self.block, position, span) {
                let data = tree::get(&self.content, root, key).await?.is_some();
                extents.push(Extent {
                    position: key * self.block + at as u64,
                    span: length as u64,
                    data,
                });
            }
            Ok(extents)
        })
    }
}
