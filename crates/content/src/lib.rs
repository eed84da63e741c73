//! The content-addressed store: chunks named by their keyed hash, bundled in packs, reached from
//! trees.
//!
//! A [`Pointer`] carries a chunk's name **and** where it lies, so reading needs no index; the dedup
//! index is a hint. Writing goes through a [`Batch`]. Nothing that a batch wrote counts until its
//! owner has made a root that reaches it durable, and has called [`Batch::committed`]. A batch that
//! is dropped leaves garbage, never damage.
//!
//! Where to look: [`tree`] for the B-tree, `chunker` for cutting streams (feature `streams`, until
//! file volumes use it), [`sweep`] for reclaiming space beside traffic, [`verify`] for proving that
//! everything is there, [`salvage`] for repair, [`format`] for the bytes.

mod batch;
mod bundles;
mod cache;
#[cfg(any(test, feature = "streams"))]
pub mod chunker;
mod compression;
mod content;
mod error;
mod fetch;
pub mod format;
mod formats;
mod index;
pub mod landed;
pub mod limits;
mod live;
mod moved;
mod name;
pub mod pack;
mod parity;
#[cfg(any(test, feature = "streams"))]
pub mod pipeline;
mod pointer;
mod read;
pub mod salvage;
mod single_flight;
pub mod sweep;
#[cfg(test)]
mod testing;
pub mod tree;
pub mod verify;
mod warm_nodes;
mod warmup;

pub use batch::{Batch, Stretch};
pub use content::{Config, Content, Stats};
pub use error::{Error, Missing};
pub use formats::FORMATS;
pub use live::Hold;
pub use parity::Parity;
pub use pointer::{BadPointer, POINTER_BYTES, Part, Pointer, Spot};
pub use read::Parent;

use serde::{Deserialize, Serialize};

/// The use of a chunk: decides the pack it goes to and its weight in the cache (metadata 3, data
/// 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Clients' bytes. They have no children.
    Data,
    /// Tree nodes, and all other chunks that have children.
    Metadata,
}

/// The compression of chunks (each one is compressed only when that pays).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// Fast.
    Lz4,
    /// Denser (level 1).
    Zstd,
}
