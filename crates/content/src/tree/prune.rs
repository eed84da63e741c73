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
use rekindle_env::BoxFuture;
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
#[derive(Debug, Default)]
pub struct Fates {
    /// Fates by name and place.
    pub(crate) chunks: PlaceMap<Fate>,
    /// The keys of the outermost tree below which there is damage.
    pub(crate) hurt: Vec<Range<u64>>,
    /// Of these, those below which something is lost.
    pub(crate) torn: Vec<Range<u64>>,
}

impl Fates {
    /// Whether a chunk leaves the tree.
    #[must_use]
    pub fn gives_up(&self) -> bool {
        !self.torn.is_empty()
    }
}

/// What is left of a tree.
#[derive(Debug)]
pub struct Pruned {
    pub root: Root,
    /// The keys that are gone.
    pub gone: Vec<Range<u64>>,
    /// The keys that are still in the tree and cannot be had.
    pub kept: Vec<(Range<u64>, Missing)>,
}

/// The values of a tree whose owner knows what they are, and what of them may be left.
pub trait Values: Send {
    /// Returns what is left of a sound value, which answers for `keys`: up to the next entry.
    fn left<'a>(
        &'a mut self,
        batch: &'a mut Batch,
        keys: Range<u64>,
        value: Pointer,
    ) -> BoxFuture<'a, Result<Pointer, Error>>;
}

/// Writes the tree without what `fates` gives up, bottom-up into `batch`.
pub async fn prune(batch: &mut Batch, root: &Root, fates: &Fates) -> Result<Pruned, Error> {
    prune_as(batch, root, fates, &fates.hurt, None).await
}

/// Writes the outermost tree without what `fates` gives up. `values` says what is left of sound
/// values below which there is damage. A value without a place answers for all keys up to the next
/// entry.
pub async fn prune_outer(
    batch: &mut Batch,
    root: &Root,
    fates: &Fates,
    values: &mut dyn Values,
) -> Result<Pruned, Error> {
    prune_as(batch, root, fates, &fates.hurt, Some(values)).await
}

/// Writes a tree below a value without what `fates` gives up. Its values have no children, or are
/// data; of a table (`is_table`) each answers for all keys up to the next entry.
pub async fn prune_inner(
    batch: &mut Batch,
    root: &Root,
    fates: &Fates,
    is_table: bool,
) -> Result<Pruned, Error> {
    let all = Range { start: 0, end: u64::MAX };
    let mut whole = Whole;
    let values: Option<&mut dyn Values> = if is_table { Some(&mut whole) } else { None };
    prune_as(batch, root, fates, &[all], values).await
}

/// Values that stay as they are.
struct Whole;

impl Values for Whole {
    fn left<'a>(
        &'a mut self,
        _batch: &'a mut Batch,
        _keys: Range<u64>,
        value: Pointer,
    ) -> BoxFuture<'a, Result<Pointer, Error>> {
        Box::pin(std::future::ready(Ok(value)))
    }
}

async fn prune_as(
    batch: &mut Batch,
    root: &Root,
    fates: &Fates,
    hurt: &[Range<u64>],
    values: Option<&mut dyn Values>,
) -> Result<Pruned, Error> {
    let mut pruned = Pruned { root: None, gone: Vec::new(), kept: Vec::new() };
    let Some(pointer) = *root else { return Ok(pruned) };
    let mut pruning = Pruning { batch, fates, hurt, values, gone: Vec::new(), kept: Vec::new() };
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

struct Pruning<'a, 'v> {
    batch: &'a mut Batch,
    fates: &'a Fates,
    /// The keys of the tree at hand below which there is damage.
    hurt: &'a [Range<u64>],
    values: Option<&'v mut (dyn Values + 'v)>,
    gone: Vec<Range<u64>>,
    kept: Vec<(Range<u64>, Missing)>,
}

impl Pruning<'_, '_> {
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
            if !meets(self.hurt, &keys) || pack::class(pointer.pack) == Class::Data {
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
                } else if let Some(values) = self.values.take() {
                    let left = self.left(values, child, key..ends).await;
                    self.values = Some(values);
                    left?
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

    /// Has the owner of the values prune one.
    async fn left(
        &mut self,
        values: &mut dyn Values,
        chunk: Pointer,
        keys: Range<u64>,
    ) -> Result<Option<Pointer>, Error> {
        match self.fated(chunk, keys.clone()) {
            Some(left) => Ok(left),
            None if !meets(self.hurt, &keys) => Ok(Some(chunk)),
            None => Ok(Some(values.left(self.batch, keys, chunk).await?)),
        }
    }

    /// Prunes the value of a key; returns what is left of it.
    fn value(&mut self, chunk: Pointer, key: Range<u64>) -> Option<Pointer> {
        if let Some(left) = self.fated(chunk, key.clone()) {
            return left;
        }
        if pack::class(chunk.pack) == Class::Data || !meets(self.hurt, &key) {
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
