//! The content-addressed store: chunks named by their keyed hash, bundled in packs, reached from trees.
//!
//! A [`Pointer`] carries a chunk's name **and** where it lies, so reading needs no index; the dedup index is a hint.
//! Writing goes through a [`Batch`]: nothing that it wrote counts until its owner has made a root that reaches it
//! durable and called [`Batch::committed`]; a batch that is dropped leaves garbage, never damage.

pub mod chunker;
mod pointer;
pub mod tree;

pub use pointer::{Pointer, POINTER_BYTES};

use bytes::Bytes;
use datastore::Store;
use env::Env;
use std::sync::Arc;

mod error;
pub use error::Error;

/// What a chunk is for: decides the pack it goes to and its weight in the cache (metadata 3, data 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Clients' bytes.
    Data,
    /// Tree nodes.
    Metadata,
}

/// How chunks are compressed (each one only when it pays).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// Fast.
    Lz4,
    /// Denser (level 1).
    Zstd,
}

/// Settings of a content store.
#[derive(Debug, Clone)]
pub struct Config {
    /// Key of all names, from `rekindle.json`.
    pub secret: [u8; 32],
    /// Compression of new chunks.
    pub compression: Compression,
    /// A pack is uploaded when it has this many bytes.
    pub pack_bytes: u64,
    /// RAM for cached chunks and nodes.
    pub cache_bytes: u64,
    /// RAM for the dedup index.
    pub index_bytes: u64,
    /// Uploads in flight, at most.
    pub uploads: usize,
}

/// The content store of one node. Clones mean the same one.
#[derive(Clone)]
pub struct Content {
    inner: Arc<Inner>,
}

struct Inner {}

/// One batch of new chunks. See the crate's page.
pub struct Batch {}

/// Counters, all since start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    pub chunks_written: u64,
    pub chunks_deduplicated: u64,
    pub bytes_in: u64,
    pub bytes_deduplicated: u64,
    pub bytes_stored: u64,
    pub packs_written: u64,
    pub cache_hits: u64,
    pub cache_misses: u64,
    pub cache_bytes: u64,
    pub index_bytes: u64,
}

impl Content {
    /// Opens the store's content; reads nothing.
    #[must_use]
    pub fn open(env: Env, store: Store, config: Config) -> Self {
        let _ = (env, store, config);
        todo!()
    }

    /// Begins a batch.
    #[must_use]
    pub fn batch(&self) -> Batch {
        todo!()
    }

    /// A chunk that is in the cache. A plain call: no I/O, no other thread.
    #[must_use]
    pub fn read_now(&self, pointer: &Pointer, class: Class) -> Option<Bytes> {
        let _ = (pointer, class);
        todo!()
    }

    /// A chunk, verified against its name: from the cache or the store (following `moved/` notes). Concurrent reads
    /// of one chunk make one request.
    pub async fn read(&self, pointer: &Pointer, class: Class) -> Result<Bytes, Error> {
        let _ = (pointer, class);
        todo!()
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        todo!()
    }
}

impl Batch {
    /// Adds a chunk: names it, looks for a duplicate, compresses, packs; starts uploads of full packs in the
    /// background and waits only when too many are in flight. `children` are the pointers the chunk declares
    /// (none for data); the name covers them.
    pub async fn write(&mut self, class: Class, data: Bytes, children: &[Pointer]) -> Result<Pointer, Error> {
        let _ = (class, data, children);
        todo!()
    }

    /// Everything added so far is durable in the store when this returns.
    pub async fn flush(&mut self) -> Result<(), Error> {
        todo!()
    }

    /// A durable root reaches what was added (or the batch gave nothing). Call after the root's commit.
    pub fn committed(self) {
        todo!()
    }
}
