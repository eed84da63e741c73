//! The copy-on-write B-tree: `u64` key to [`Pointer`]. A node is a metadata chunk whose declared
//! children are its pointers. The empty tree is `None`.
//!
//! Nodes are never changed: [`update`] writes those on the way to the changes anew, bottom-up, and
//! shares all others with the version before. What a batch has not flushed is readable through
//! [`update`] with that batch only.

pub(crate) mod prune;
mod read;
mod update;
mod walk;

pub use read::{floor, floor_now, get, range, read_ahead};
pub use update::update;
pub(crate) use walk::walk_at;
pub use walk::{Visitor, walk};

use crate::Pointer;

/// Root of a tree; `None` is the empty tree.
pub type Root = Option<Pointer>;

/// The answer of the cache about the entry at or before a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The greatest key that is not above the one asked for, and its pointer.
    Present(u64, Pointer),
    /// There is no such key.
    Absent,
    /// A node on the way is not in the cache.
    Unknown,
}

#[cfg(test)]
mod tests;
