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

pub use prune::{Fates, Pruned, Values, prune, prune_inner, prune_outer};
#[cfg(test)]
pub(crate) use read::nodes_over;
pub use read::{above, floor, floor_now, get, prefetch, range, range_now};
pub use update::update;
pub use walk::{Visitor, walk};

use crate::Pointer;
use std::ops::Range;

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

/// Sorts ranges, and joins those that overlap or touch.
#[must_use]
pub fn joined(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = ranges.into_iter().collect();
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests;
