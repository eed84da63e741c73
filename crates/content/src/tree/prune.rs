//! A version of a tree without lost chunks.
//!
//! [`update`](super::update) has to read every node on the way to a change; `prune` goes around
//! nodes that cannot be read. The rest of a level stays on that level, so that no sound node is
//! read that has no damage below it.

use super::Root;
use super::read::checked;
use crate::format::node;
use crate::name::PlaceMap;
use crate::pack::reader::Body;
use crate::{Batch, Class, Error, Missing, Pointer, limits, pack};
use std::ops::Range;

/// The fate of a chunk that cannot be read at its place. Other copies of the chunk have fates of
/// their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has a new place.
    Moved(Pointer),
    /// It leaves the tree.
    Lost,
    /// It stays in the tree as it is: the repair may not give it up.
    Kept(Missing),
}

/// The fates of chunks that cannot be read.
#[derive(Default)]
pub(crate) struct Fates {
    /// Fates by name and place.
    pub(crate) chunks: PlaceMap<Fate>,
    /// The keys of the tree at hand below which there is damage.
    pub(crate) hurt: Vec<Range<u64>>,
    /// Of these, those below which something is lost.
    pub(crate) torn: Vec<Range<u64>>,
}

/// The result of [`prune`].
pub(crate) struct Pruned {
    pub(crate) root: Root,
    /// The keys that are gone.
    pub(crate) gone: Vec<Range<u64>>,
    /// The keys that are still in the tree and cannot be had.
    pub(crate) kept: Vec<(Range<u64>, Missing)>,
}

/// Writes the tree without what `fates` gives up, bottom-up into `batch`.
pub(crate) async fn prune(batch: &mut Batch, root: &Root, fates: &Fates) -> Result<Pruned, Error> {
    let mut pruned = Pruned { root: None, gone: Vec::new(), kept: Vec::new() };
    let Some(pointer) = *root else { return Ok(pruned) };
    let mut pruning = Pruning { batch, fates, gone: Vec::new(), kept: Vec::new() };
    let left = pruning.visit(pointer, 0..u64::MAX, None).await?;
    (pruned.gone, pruned.kept) = (pruning.gone, pruning.kept);
    pruned.root = if left == *root { left } else { collapsed(batch, left, fates).await? };
    Ok(pruned)
}

/// Returns the root without inner nodes that have one child only.
async fn collapsed(batch: &mut Batch, root: Root, fates: &Fates) -> Result<Root, Error> {
    let Some(mut pointer) = root else { return Ok(None) };
    for _ in 0..limits::TREE_LEVEL_MAX {
        // A chunk that was just replaced may have children that cannot be read; it stays as it is.
        let body = batch.read(&pointer, Class::Metadata).await?;
        let Ok(node) = checked(&body, &pointer, None) else { break };
        if node.level() == 0 || node.count() > 1 {
            break;
        }
        let child = node.child(0);
        if fates.chunks.contains_key(&child) || batch.read(&child, Class::Metadata).await.is_err() {
            break;
        }
        pointer = child;
    }
    Ok(Some(pointer))
}

struct Pruning<'a> {
    batch: &'a mut Batch,
    fates: &'a Fates,
    gone: Vec<Range<u64>>,
    kept: Vec<(Range<u64>, Missing)>,
}

impl Pruning<'_> {
    /// Returns what is left of a chunk with a fate, which answers for `keys`; `None` for one
    /// without.
    fn fated(&mut self, chunk: Pointer, keys: Range<u64>) -> Option<Option<Pointer>> {
        Some(match self.fates.chunks.get(&chunk)? {
            Fate::Moved(place) => Some(*place),
            Fate::Lost => {
                self.gone.push(keys);
                None
            }
            Fate::Kept(missing) => {
                self.kept.push((keys, *missing));
                Some(chunk)
            }
        })
    }

    /// Prunes the node that answers for `keys`; returns what is left of it.
    fn visit(
        &mut self,
        pointer: Pointer,
        keys: Range<u64>,
        above: Option<u16>,
    ) -> rekindle_env::BoxFuture<'_, Result<Option<Pointer>, Error>> {
        Box::pin(async move {
            if let Some(left) = self.fated(pointer, keys.clone()) {
                return Ok(left);
            }
            if !meets(&self.fates.hurt, &keys) || pack::class(pointer.pack) == Class::Data {
                return Ok(Some(pointer));
            }
            let body = self.batch.read(&pointer, Class::Metadata).await?;
            let node = checked(&body, &pointer, above)?;
            let (level, count) = (node.level(), node.count());
            let mut entries = Vec::with_capacity(count);
            for index in 0..count {
                let (key, child) = (node.key(index), node.child(index));
                let ends = if index + 1 < count { node.key(index + 1) } else { keys.end };
                let left = if level > 0 {
                    self.visit(child, key..ends, Some(level)).await?
                } else {
                    self.value(child, key..key.saturating_add(1))
                };
                entries.extend(left.map(|left| (key, left)));
            }
            if entries.len() == count && entries.iter().copied().eq(node.entries()) {
                return Ok(Some(pointer));
            }
            if entries.is_empty() {
                return Ok(None);
            }
            let children = u32::try_from(entries.len()).unwrap_or(u32::MAX);
            let body = Body { bytes: node::encode(level, &entries).into(), children };
            Ok(Some(self.batch.write_body(Class::Metadata, body).await?))
        })
    }

    /// Prunes the value of a key; returns what is left of it.
    fn value(&mut self, chunk: Pointer, key: Range<u64>) -> Option<Pointer> {
        if let Some(left) = self.fated(chunk, key.clone()) {
            return left;
        }
        if pack::class(chunk.pack) == Class::Data || !meets(&self.fates.hurt, &key) {
            return Some(chunk);
        }
        // A tree within the tree that is not whole is given up as one, or kept as one.
        if meets(&self.fates.torn, &key) {
            self.gone.push(key);
            return None;
        }
        self.kept.push((key, Missing::Damaged));
        Some(chunk)
    }
}

/// Whether one of `ranges` (ascending, apart from one another) meets `keys`.
fn meets(ranges: &[Range<u64>], keys: &Range<u64>) -> bool {
    let first = ranges.partition_point(|range| range.end <= keys.start);
    ranges.get(first).is_some_and(|range| range.start < keys.end)
}
