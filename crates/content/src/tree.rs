//! The copy-on-write B-tree: `u64` key to [`Pointer`]. A node is a metadata chunk whose declared children are its
//! pointers. The empty tree is `None`.

use crate::{Batch, Content, Error, Pointer};
use std::ops::Range;

/// Root of a tree; `None` is the empty tree.
pub type Root = Option<Pointer>;

/// What the cache knows of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The key has this pointer.
    Present(Pointer),
    /// The key is absent.
    Absent,
    /// A node on the way is not in the cache.
    Unknown,
}

/// Looks a key up in cached nodes. A plain call: no I/O.
#[must_use]
pub fn get_now(content: &Content, root: &Root, key: u64) -> Lookup {
    let _ = (content, root, key);
    todo!()
}

/// Looks a key up.
pub async fn get(content: &Content, root: &Root, key: u64) -> Result<Option<Pointer>, Error> {
    let _ = (content, root, key);
    todo!()
}

/// All entries with keys in `keys`, ascending. Nodes that lie ahead are fetched together.
pub async fn range(content: &Content, root: &Root, keys: Range<u64>) -> Result<Vec<(u64, Pointer)>, Error> {
    let _ = (content, root, keys);
    todo!()
}

/// A new version with `changes` (ascending keys, each once; `None` removes) written bottom-up into `batch`.
/// Untouched nodes are shared. The result is not durable before `batch.flush()`.
pub async fn update(
    content: &Content,
    batch: &mut Batch,
    root: &Root,
    changes: &[(u64, Option<Pointer>)],
) -> Result<Root, Error> {
    let _ = (content, batch, root, changes);
    todo!()
}
