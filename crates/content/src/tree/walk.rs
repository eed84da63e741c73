//! Everything that roots reach.
//!
//! The walk knows nothing of trees: it follows the pointers that chunks declare, so whatever is
//! built from chunks (a tree of inodes whose entries are trees themselves) is walked whole. Data
//! chunks have no children and are not read.

use crate::cache::Keep;
use crate::{Class, Content, Error, Pointer, limits, pack};

/// The receiver of what a walk meets.
pub trait Visitor: Send {
    /// Receives a pointer, each time one is met. For a metadata chunk, returns whether to go into
    /// it: `false` when it was visited before (chunks are immutable, so once is enough, for ever).
    fn meet(&mut self, pointer: &Pointer) -> bool;

    /// Receives the error of a metadata chunk that cannot be read. An error ends the walk; `Ok`
    /// leaves out what is below.
    fn failed(&mut self, pointer: &Pointer, error: Error) -> Result<(), Error>;
}

/// Walks everything below `roots`. Nodes are read a window at a time, and do not enter the cache.
pub async fn walk(
    content: &Content,
    roots: &[Pointer],
    visitor: &mut impl Visitor,
) -> Result<(), Error> {
    // Depth first, a window of siblings at once: the list is at most as long as height x children
    // of a node, however large the trees.
    let mut open: Vec<Pointer> = Vec::new();
    let meet = |open: &mut Vec<Pointer>, visitor: &mut dyn Visitor, pointer: Pointer| {
        if visitor.meet(&pointer) && pack::class(pointer.pack) == Class::Metadata {
            open.push(pointer);
        }
    };
    roots.iter().for_each(|root| meet(&mut open, visitor, *root));
    while !open.is_empty() {
        let window = open.split_off(open.len().saturating_sub(limits::WALK_WINDOW));
        let mut nodes = content.inner.read_each(&window, Class::Metadata, Keep::No).await;
        for pointer in &window {
            match nodes.remove(pointer) {
                Some(Ok(body)) => body.children().for_each(|child| meet(&mut open, visitor, child)),
                Some(Err(error)) => visitor.failed(pointer, error)?,
                // It is in the window twice.
                None => {}
            }
        }
    }
    Ok(())
}
