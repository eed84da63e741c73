//! A new version of a tree from the old one and a batch of changes.
//!
//! One pass down, one up. Each call of [`Update::change`] turns a node and its share of the changes
//! into *pieces*: nodes that exist and stay, and lists of entries that are to become nodes. The
//! level above joins pieces that are too small with their neighbours (reading those if need be),
//! cuts those that are too large evenly, and writes them. So a node is written once, when its size
//! is settled, and the tree stays logarithmic under any removals.

use super::Root;
use super::read::checked;
use crate::format::node;
use crate::pack::reader::Body;
use crate::{Batch, Class, Content, Error, Pointer, limits};
use futures_util::future::try_join_all;

type Entries = Vec<(u64, Pointer)>;
type KeyChange = (u64, Option<Pointer>);

/// A part of a level.
enum Piece {
    /// A node that stays as it is.
    Kept(u64, Pointer),
    /// Entries of one or several nodes that are to be written; not empty.
    New(Entries),
}

/// Writes a new version with `changes` (ascending keys, each once; `None` removes) bottom-up into
/// `batch`. Untouched nodes are shared. The result is not durable before `batch.flush()`.
pub async fn update(
    content: &Content,
    batch: &mut Batch,
    root: &Root,
    changes: &[(u64, Option<Pointer>)],
) -> Result<Root, Error> {
    let _ = content;
    if !changes.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(Error::Invalid(
            "changes of a tree must be in ascending order of keys, each key once".into(),
        ));
    }
    if changes.is_empty() {
        return Ok(*root);
    }
    let mut update = Update { batch };
    let (mut level, mut pieces) = match root {
        None => (0, new_piece(merge(std::iter::empty(), changes))),
        Some(pointer) => {
            let body = update.batch.read(pointer, Class::Metadata).await?;
            let node = checked(&body, pointer, None)?;
            let first = node.key(0);
            (node.level(), update.change(first, pointer, &body, changes).await?)
        }
    };
    loop {
        if let [Piece::Kept(_, pointer)] = pieces[..] {
            return update.collapse(pointer).await;
        }
        let entries = update.settle(level, pieces).await?;
        match entries[..] {
            [] => return Ok(None),
            [(_, pointer)] => return update.collapse(pointer).await,
            _ => {}
        }
        level += 1;
        if level > limits::TREE_LEVEL_MAX {
            return Err(Error::Invalid("the tree is too high".into()));
        }
        pieces = new_piece(entries);
    }
}

fn new_piece(entries: Entries) -> Vec<Piece> {
    if entries.is_empty() { Vec::new() } else { vec![Piece::New(entries)] }
}

struct Update<'a> {
    batch: &'a mut Batch,
}

impl Update<'_> {
    /// Applies changes to a node whose first key is (or is entered above as) `first`.
    fn change<'a>(
        &'a mut self,
        first: u64,
        pointer: &'a Pointer,
        body: &'a Body,
        changes: &'a [KeyChange],
    ) -> rekindle_env::BoxFuture<'a, Result<Vec<Piece>, Error>> {
        Box::pin(async move {
            let node = checked(body, pointer, None)?;
            if node.level() == 0 {
                let merged = merge(node.entries(), changes);
                let is_same =
                    merged.len() == node.count() && merged.iter().copied().eq(node.entries());
                return Ok(if is_same {
                    vec![Piece::Kept(first, *pointer)]
                } else {
                    new_piece(merged)
                });
            }
            let pieces = self.change_children(&node, changes).await?;
            let is_same = pieces.len() == node.count()
                && pieces.iter().all(|piece| matches!(piece, Piece::Kept(..)));
            if is_same {
                return Ok(vec![Piece::Kept(first, *pointer)]);
            }
            let entries = self.settle(node.level() - 1, pieces).await?;
            Ok(new_piece(entries))
        })
    }

    async fn change_children(
        &mut self,
        node: &node::View<'_>,
        changes: &[KeyChange],
    ) -> Result<Vec<Piece>, Error> {
        let mut pieces = Vec::with_capacity(node.count() + 1);
        let mut shares = Vec::new();
        let mut rest = changes;
        for index in 0..node.count() {
            // A child covers the keys up to the first key of the next child; the last one has no
            // end.
            let end = if index + 1 == node.count() {
                rest.len()
            } else {
                rest.partition_point(|change| change.0 < node.key(index + 1))
            };
            let (share, after) = rest.split_at(end);
            shares.push(share);
            rest = after;
        }
        let touched: Vec<usize> =
            (0..node.count()).filter(|index| !shares[*index].is_empty()).collect();
        let mut done = 0;
        for window in touched.chunks(limits::FETCH_WINDOW) {
            let batch: &Batch = self.batch;
            let reads = window
                .iter()
                .map(async |index| batch.read(&node.child(*index), Class::Metadata).await);
            let bodies = try_join_all(reads).await?;
            for (index, body) in window.iter().zip(&bodies) {
                let child = node.child(*index);
                checked(body, &child, Some(node.level()))?;
                pieces.extend(
                    (done..*index).map(|kept| Piece::Kept(node.key(kept), node.child(kept))),
                );
                pieces.extend(self.change(node.key(*index), &child, body, shares[*index]).await?);
                done = index + 1;
            }
        }
        pieces
            .extend((done..node.count()).map(|kept| Piece::Kept(node.key(kept), node.child(kept))));
        Ok(pieces)
    }

    /// Writes the nodes of one level; returns the entries of the level above.
    async fn settle(&mut self, level: u16, pieces: Vec<Piece>) -> Result<Entries, Error> {
        let mut settled: Vec<Piece> = Vec::with_capacity(pieces.len());
        for mut piece in pieces {
            // A small piece takes its left neighbour in; if it is the first, the right one takes it
            // in.
            let is_small = |piece: &Piece| matches!(piece, Piece::New(entries) if entries.len() < limits::NODE_ENTRIES_MIN);
            while (is_small(&piece) || settled.last().is_some_and(is_small)) && !settled.is_empty()
            {
                let Some(left) = settled.pop() else { break };
                let mut entries = self.entries_of(level, left).await?;
                entries.append(&mut self.entries_of(level, piece).await?);
                piece = Piece::New(entries);
            }
            settled.push(piece);
        }
        let mut above = Entries::with_capacity(settled.len());
        for piece in settled {
            match piece {
                Piece::Kept(first, pointer) => above.push((first, pointer)),
                Piece::New(entries) => self.write(level, &entries, &mut above).await?,
            }
        }
        Ok(above)
    }

    async fn entries_of(&mut self, level: u16, piece: Piece) -> Result<Entries, Error> {
        match piece {
            Piece::New(entries) => Ok(entries),
            Piece::Kept(_, pointer) => {
                let body = self.batch.read(&pointer, Class::Metadata).await?;
                Ok(checked(&body, &pointer, Some(level + 1))?.entries().collect())
            }
        }
    }

    /// Cuts entries evenly into nodes and writes them.
    async fn write(
        &mut self,
        level: u16,
        entries: &[(u64, Pointer)],
        above: &mut Entries,
    ) -> Result<(), Error> {
        let nodes = entries.len().div_ceil(limits::NODE_ENTRIES_MAX);
        let mut rest = entries;
        for node in (1..=nodes).rev() {
            let (part, after) = rest.split_at(rest.len().div_ceil(node));
            rest = after;
            let Some((first, _)) = part.first() else { continue };
            let children = u32::try_from(part.len()).unwrap_or(u32::MAX);
            let body = Body { bytes: self.encode(level, part).into(), children };
            above.push((*first, self.batch.write_body(Class::Metadata, body).await?));
        }
        Ok(())
    }

    /// Encodes a node with the proven places of its chunks, so that `moved/` notes fall out of use.
    fn encode(&self, level: u16, entries: &[(u64, Pointer)]) -> Vec<u8> {
        let moved = self.batch.moved();
        if moved.is_empty() {
            return node::encode(level, entries);
        }
        let entries: Entries =
            entries.iter().map(|(key, pointer)| (*key, moved.proven_place(pointer))).collect();
        node::encode(level, &entries)
    }

    /// Returns the root of the tree below `pointer` without inner nodes that have one child only.
    async fn collapse(&mut self, mut pointer: Pointer) -> Result<Root, Error> {
        loop {
            let body = self.batch.read(&pointer, Class::Metadata).await?;
            let node = checked(&body, &pointer, None)?;
            if node.level() == 0 || node.count() > 1 {
                return Ok(Some(pointer));
            }
            pointer = node.child(0);
        }
    }
}

/// Merges changes into old entries; both ascending.
fn merge(old: impl Iterator<Item = (u64, Pointer)>, changes: &[KeyChange]) -> Entries {
    let mut merged = Entries::new();
    let mut changes = changes.iter().copied().peekable();
    for (key, pointer) in old {
        while let Some((changed, value)) = changes.next_if(|change| change.0 < key) {
            merged.extend(value.map(|value| (changed, value)));
        }
        match changes.next_if(|change| change.0 == key) {
            Some((_, value)) => merged.extend(value.map(|value| (key, value))),
            None => merged.push((key, pointer)),
        }
    }
    merged.extend(changes.filter_map(|(key, value)| Some((key, value?))));
    merged
}
