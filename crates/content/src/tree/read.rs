//! Reading trees.

use super::{Lookup, Root};
use crate::cache::Keep;
use crate::content::Inner;
use crate::format::node::{self, View};
use crate::pack::reader::Body;
use crate::{Class, Content, Error, Pointer, limits};
use std::ops::Range;
use std::sync::Arc;

/// Finds the entry with the greatest key that is not above `key`, in cached nodes. A plain call: no
/// I/O.
#[must_use]
pub fn floor_now(content: &Content, root: &Root, key: u64) -> Lookup {
    let Some(pointer) = *root else { return Lookup::Absent };
    let mut descent = Descent { pointer, key, above: None, left: None };
    for _ in 0..=2 * limits::TREE_LEVEL_MAX {
        let look =
            |bytes: &[u8], children| node::view(bytes, children).map(|node| descent.step(&node));
        match content.inner.look_now(&descent.pointer, look) {
            Some(Ok(Step::Leaf(Some((key, pointer))))) => return Lookup::Present(key, pointer),
            Some(Ok(Step::Leaf(None))) => return Lookup::Absent,
            Some(Ok(Step::Down(next))) => descent = next,
            // A node that makes no sense is for `floor` to report.
            Some(Err(_)) | None => return Lookup::Unknown,
        }
    }
    Lookup::Unknown
}

/// Adds all entries with keys in `keys` to `found`, ascending, as far as cached nodes tell. Returns
/// the first key of which they do not, else the end. A plain call: no I/O.
pub fn range_now(
    content: &Content,
    root: &Root,
    keys: &Range<u64>,
    found: &mut Vec<(u64, Pointer)>,
) -> u64 {
    match root {
        Some(pointer) if !keys.is_empty() => {
            collect_now(&content.inner, (pointer, None, keys.start), keys, found)
        }
        _ => keys.end,
    }
}

/// Adds the entries below one node, whose parent has level `above`, and whose keys begin at `from`.
fn collect_now(
    inner: &Inner,
    (pointer, above, from): (&Pointer, Option<u16>, u64),
    keys: &Range<u64>,
    found: &mut Vec<(u64, Pointer)>,
) -> u64 {
    let mut below = Vec::new();
    let look = |bytes: &[u8], children| {
        let node = node::view(bytes, children).ok()?;
        if above.is_some_and(|above| node.level() >= above) {
            return None;
        }
        let (from, all) = match node.level() {
            0 => (node.lower_bound(keys.start), &mut *found),
            _ => (node.covering(keys.start), &mut below),
        };
        all.extend((from..node.lower_bound(keys.end)).map(|at| (node.key(at), node.child(at))));
        Some(node.level())
    };
    // A node that makes no sense is for `range` to report.
    let Some(Some(level)) = inner.look_now(pointer, look) else { return from };
    for (index, (key, child)) in below.iter().enumerate() {
        let begins = if index == 0 { from } else { from.max(*key) };
        let until = collect_now(inner, (child, Some(level), begins), keys, found);
        if until != keys.end {
            return until;
        }
    }
    keys.end
}

/// Finds the entry with the greatest key that is not above `key`.
pub async fn floor(
    content: &Content,
    root: &Root,
    key: u64,
) -> Result<Option<(u64, Pointer)>, Error> {
    let Some(pointer) = *root else { return Ok(None) };
    let mut descent = Descent { pointer, key, above: None, left: None };
    let mut body = fetch(&content.inner, &pointer).await?;
    loop {
        let node = checked(&body, &descent.pointer, descent.above)?;
        match descent.step(&node) {
            Step::Leaf(found) => return Ok(found),
            Step::Down(next) => descent = next,
        }
        body = fetch_child(&content.inner, &node, &descent.pointer).await?;
    }
}

/// Finds the entry with the least key that is above `key`.
pub async fn above(
    content: &Content,
    root: &Root,
    key: u64,
) -> Result<Option<(u64, Pointer)>, Error> {
    let (Some(mut pointer), Some(least)) = (*root, key.checked_add(1)) else { return Ok(None) };
    // The nearest node to the right of the way, and the level of its parent: if the leaf on the way
    // ends before, its first entry is the one.
    let (mut above, mut right) = (None, None);
    let mut least = least;
    loop {
        let body = fetch(&content.inner, &pointer).await?;
        let node = checked(&body, &pointer, above)?;
        if node.level() > 0 {
            let index = node.covering(least);
            if index + 1 < node.count() {
                right = Some((node.child(index + 1), node.level()));
            }
            (pointer, above) = (node.child(index), Some(node.level()));
            continue;
        }
        let index = node.lower_bound(least);
        if index < node.count() {
            return Ok(Some((node.key(index), node.child(index))));
        }
        let Some((next, level)) = right.take() else { return Ok(None) };
        (pointer, above, least) = (next, Some(level), 0);
    }
}

/// Looks a key up.
pub async fn get(content: &Content, root: &Root, key: u64) -> Result<Option<Pointer>, Error> {
    let found = floor(content, root, key).await?;
    Ok(found.filter(|(at, _)| *at == key).map(|(_, pointer)| pointer))
}

/// A descent to the last entry whose key is not above `key`.
#[derive(Clone, Copy)]
struct Descent {
    /// The node to look at, and the level of its parent.
    pointer: Pointer,
    above: Option<u16>,
    key: u64,
    /// The nearest node to the left of the way, and the level of its parent: a node that lost its
    /// first entries is still entered above with their key.
    left: Option<(Pointer, u16)>,
}

enum Step {
    Leaf(Option<(u64, Pointer)>),
    Down(Descent),
}

impl Descent {
    fn step(&self, node: &View<'_>) -> Step {
        if node.level() > 0 {
            let index = node.covering(self.key);
            let left = index.checked_sub(1).map(|before| (node.child(before), node.level()));
            return Step::Down(Self {
                pointer: node.child(index),
                above: Some(node.level()),
                left: left.or(self.left),
                ..*self
            });
        }
        match (node.floor(self.key), self.left) {
            (None, Some((pointer, above))) => {
                Step::Down(Self { pointer, above: Some(above), key: u64::MAX, left: None })
            }
            (found, _) => Step::Leaf(found),
        }
    }
}

/// Reads the nodes that cover `keys` in the background, so that they are at hand afterwards. A
/// hint, as [`Content::prefetch`] is.
pub fn prefetch(content: &Content, root: &Root, keys: Range<u64>) {
    let (Some(root), inner) = (*root, content.inner.clone()) else { return };
    if inner.is_plain {
        return;
    }
    let Some(permit) = inner.prefetch_room(limits::PREFETCH_COST_MIN) else { return };
    content.inner.env.spawn("tree-prefetch", async move {
        let _ = nodes_over(&inner, root, &keys).await;
        drop(permit);
    });
}

/// Reads the nodes that cover `keys`, the upper ones first; at most [`limits::READ_AHEAD_NODES`].
pub(crate) async fn nodes_over(
    inner: &Arc<Inner>,
    root: Pointer,
    keys: &Range<u64>,
) -> Result<(), Error> {
    let (mut level, mut left) = (vec![root], limits::READ_AHEAD_NODES);
    while !level.is_empty() && left > 0 {
        level.truncate(left);
        left -= level.len();
        let mut below = Vec::new();
        for window in level.chunks(limits::WALK_WINDOW) {
            for (pointer, body) in window.iter().zip(fetch_all(inner, window).await?) {
                let node = checked(&body, pointer, None)?;
                if node.level() > 0 {
                    below.extend(children_over(&node, keys));
                }
            }
        }
        level = below;
    }
    Ok(())
}

/// The children of a node that cover `keys`.
fn children_over(node: &View<'_>, keys: &Range<u64>) -> Vec<Pointer> {
    let (from, to) = (node.covering(keys.start), node.lower_bound(keys.end));
    (from..to).map(|index| node.child(index)).collect()
}

/// Returns all entries with keys in `keys`, ascending. Nodes that lie ahead are fetched together.
pub async fn range(
    content: &Content,
    root: &Root,
    keys: Range<u64>,
) -> Result<Vec<(u64, Pointer)>, Error> {
    let mut found = Vec::new();
    if let (Some(pointer), false) = (root, keys.is_empty()) {
        let body = fetch(&content.inner, pointer).await?;
        checked(&body, pointer, None)?;
        collect(&content.inner, &body, pointer, &keys, &mut found).await?;
    }
    Ok(found)
}

/// Adds the entries below one node. Its children are fetched a window at a time, all at once within
/// the window.
fn collect<'a>(
    inner: &'a Arc<Inner>,
    body: &'a Body,
    pointer: &'a Pointer,
    keys: &'a Range<u64>,
    found: &'a mut Vec<(u64, Pointer)>,
) -> rekindle_env::BoxFuture<'a, Result<(), Error>> {
    Box::pin(async move {
        let node = node::view(&body.bytes, body.children)
            .map_err(|bad| Error::damaged(pointer, bad.to_string()))?;
        if node.level() == 0 {
            let (begin, end) = (node.lower_bound(keys.start), node.lower_bound(keys.end));
            found.extend((begin..end).map(|index| (node.key(index), node.child(index))));
            return Ok(());
        }
        let level = node.level();
        let children = children_over(&node, keys);
        if let [child] = children[..] {
            let body = fetch_child(inner, &node, &child).await?;
            checked(&body, &child, Some(level))?;
            return collect(inner, &body, &child, keys, found).await;
        }
        for window in children.chunks(limits::FETCH_WINDOW) {
            let bodies = fetch_all(inner, window).await?;
            for (child, body) in window.iter().zip(&bodies) {
                checked(body, child, Some(level))?;
                collect(inner, body, child, keys, found).await?;
            }
        }
        Ok(())
    })
}

pub(super) async fn fetch(inner: &Arc<Inner>, pointer: &Pointer) -> Result<Body, Error> {
    inner.read(pointer, Class::Metadata, Keep::Yes).await
}

/// Fetches a child of a node. Siblings beside it come with the same request: a reader of one place
/// soon needs places around it, and the request takes as long.
async fn fetch_child(
    inner: &Arc<Inner>,
    node: &View<'_>,
    pointer: &Pointer,
) -> Result<Body, Error> {
    if inner.is_plain {
        return fetch(inner, pointer).await;
    }
    let siblings = node.entries().map(|(_, child)| child).filter(|child| child != pointer);
    inner.read_beside(pointer, siblings, Class::Metadata).await
}

/// Fetches nodes; neighbours in a pack come with one request.
async fn fetch_all(inner: &Arc<Inner>, pointers: &[Pointer]) -> Result<Vec<Body>, Error> {
    inner.read_all(pointers, Class::Metadata, Keep::Yes).await
}

/// Decodes the node in a body, one level below `above`. The bytes have their name, so this fails
/// only for a chunk that was never a node of a tree: a wrong root, a writer with a bug.
pub(super) fn checked<'a>(
    body: &'a Body,
    pointer: &Pointer,
    above: Option<u16>,
) -> Result<View<'a>, Error> {
    let node = node::decode(&body.bytes, body.children)
        .map_err(|bad| Error::damaged(pointer, bad.to_string()))?;
    if above.is_some_and(|above| node.level() + 1 != above) {
        return Err(Error::damaged(pointer, "the tree node has a wrong level"));
    }
    Ok(node)
}
