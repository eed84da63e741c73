//! A version of a tree without what is lost.
//!
//! [`update`](super::update) has to read every node on the way to a change; this one goes around nodes that cannot be read. What
//! is left of a level stays on that level, so that no sound node is read that has no damage below it.

use super::Root;
use super::read::checked;
use crate::format::node;
use crate::name::NameMap;
use crate::pack::reader::Body;
use crate::{Batch, Class, Error, Pointer, limits, pack};
use std::ops::Range;

/// What becomes of chunks that cannot be read.
pub(crate) struct Fates {
    /// By name: the chunk's new place, or `None` when it is lost.
    pub(crate) chunks: NameMap<Option<Pointer>>,
    /// The keys of the tree at hand below which there is damage.
    pub(crate) hurt: Vec<Range<u64>>,
}

/// The tree without what `fates` gives up, written bottom-up into `batch`; and the keys that are gone with that.
pub(crate) async fn prune(
    batch: &mut Batch,
    root: &Root,
    fates: &Fates,
) -> Result<(Root, Vec<Range<u64>>), Error> {
    let Some(pointer) = *root else { return Ok((None, Vec::new())) };
    let mut pruning = Pruning { batch, fates, gone: Vec::new() };
    let left = pruning.visit(pointer, 0..u64::MAX, None).await?;
    let gone = pruning.gone;
    Ok((collapsed(batch, left, fates).await?, gone))
}

/// The root without inner nodes that have one child only.
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
        if fates.chunks.contains_key(&child.name)
            || batch.read(&child, Class::Metadata).await.is_err()
        {
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
}

impl Pruning<'_> {
    /// What is left of the node that answers for `keys`.
    fn visit(
        &mut self,
        pointer: Pointer,
        keys: Range<u64>,
        above: Option<u16>,
    ) -> env::BoxFuture<'_, Result<Option<Pointer>, Error>> {
        Box::pin(async move {
            if let Some(fate) = self.fates.chunks.get(&pointer.name) {
                if fate.is_none() {
                    self.gone.push(keys);
                }
                return Ok(*fate);
            }
            if !self.is_hurt(&keys) || pack::class(pointer.pack) == Class::Data {
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

    /// What is left of the value of a key.
    fn value(&mut self, chunk: Pointer, key: Range<u64>) -> Option<Pointer> {
        // A tree within the tree that is not whole is given up as one.
        let left = match self.fates.chunks.get(&chunk.name) {
            Some(fate) => *fate,
            None if pack::class(chunk.pack) == Class::Data || !self.is_hurt(&key) => Some(chunk),
            None => None,
        };
        if left.is_none() {
            self.gone.push(key);
        }
        left
    }

    fn is_hurt(&self, keys: &Range<u64>) -> bool {
        self.fates.hurt.iter().any(|hurt| hurt.start < keys.end && keys.start < hurt.end)
    }
}
