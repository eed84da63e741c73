//! Which part of a file system a chunk is of.

use crate::state::ORPHANS;
use crate::table;
use rekindle_content::tree::{self, Root};
use rekindle_content::{Content, Pointer};
use std::ops::Range;

/// Says which part of a file system a chunk is of that cannot be read. `keys`: those of the trees
/// that lead to it. The first ones are of the table of inodes, whose pages answer for all keys up
/// to the next page.
pub(crate) async fn of(
    content: &Content,
    root: &Root,
    keys: &[Range<u64>],
    chunk: Pointer,
) -> String {
    let Some(outer) = keys.first() else { return "the table of inodes".to_owned() };
    match keys.get(1) {
        Some(inner) => match owner(content, root, outer.start, inner, chunk).await {
            Some(ORPHANS) => "what the file system says of itself".to_owned(),
            Some(ino) => format!("part of inode {ino}"),
            None => format!("part of one of {}", inodes(content, root, outer).await),
        },
        None => inodes(content, root, outer).await,
    }
}

/// Names the inodes that pages answer for.
async fn inodes(content: &Content, root: &Root, keys: &Range<u64>) -> String {
    let first = keys.start.max(ORPHANS + 1);
    match tree::above(content, root, keys.end - 1).await {
        Ok(Some((next, _))) if next > first + 1 => format!("the inodes {first} to {}", next - 1),
        Ok(Some(_)) => format!("inode {first}"),
        _ => format!("the inodes from {first} on"),
    }
}

/// Returns the inode of a page below whose row the chunk is.
async fn owner(
    content: &Content,
    root: &Root,
    page: u64,
    inner: &Range<u64>,
    chunk: Pointer,
) -> Option<u64> {
    let (_, page) = tree::floor(content, root, page).await.ok()??;
    let rows = table::rows_of(content, &page).await.ok()?;
    let mut unreadable = None;
    for (ino, row) in rows {
        for child in row.children {
            if child == chunk {
                return Some(ino);
            }
            match tree::range(content, &Some(child), inner.clone()).await {
                Ok(found) if found.iter().any(|(_, value)| *value == chunk) => return Some(ino),
                Ok(_) => {}
                // A node on the way cannot be read: that may be the chunk.
                Err(_) => unreadable = unreadable.or(Some(ino)),
            }
        }
    }
    unreadable
}
