//! Damaged content: what is lost is found, taken out of the tree, and refused to readers.
//!
//! - [`salvage`]: the repair of one volume in service.
//! - [`records`]: the part that only the kind of a volume of records knows.
//! - [`snapshots`]: the contents that snapshots keep.
//! - [`replay`]: the way back to the previous root, with the log's changes folded again.

pub(crate) mod records;
pub(crate) mod replay;
pub(crate) mod salvage;
mod snapshots;
