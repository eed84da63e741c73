//! The content store of a node: its parts. Reads are in `read`, writes in `batch`.

use crate::batch::shared::Shared;
use crate::bundles::Bundles;
use crate::cache::Cache;
use crate::compression::Compressor;
use crate::index::Index;
use crate::live::{Hold, Live};
use crate::moved::MovedNotes;
use crate::name::{Namer, PackMap};
use crate::pack::blobs::Blobs;
use crate::pack::reader::Body;
use crate::pack::writer::{Pool, Sealed};
use crate::single_flight::SingleFlight;
use crate::warm_nodes::WarmNodes;
use crate::{Compression, Parity, Pointer, limits};
use parking_lot::Mutex;
use rekindle_base::PackId;
use rekindle_datastore::Store;
use rekindle_env::Env;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Semaphore;

/// Settings of a content store.
#[derive(Debug, Clone)]
pub struct Config {
    /// Key of all names, from `rekindle.json`.
    pub secret: [u8; 32],
    /// Compression of new chunks.
    pub compression: Compression,
    /// Parity of new packs.
    pub parity: Option<Parity>,
    /// A pack is uploaded when it has this many bytes.
    pub pack_bytes: u64,
    /// RAM for cached chunks and nodes.
    pub cache_bytes: u64,
    /// RAM for the dedup index.
    pub index_bytes: u64,
    /// Uploads in flight, at most.
    pub uploads: usize,
}

/// The content store of one node. Clones share it.
#[derive(Clone)]
pub struct Content {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) env: Env,
    pub(crate) store: Store,
    pub(crate) config: Config,
    pub(crate) namer: Namer,
    pub(crate) cache: Cache,
    /// See [`Content::open_plain`].
    pub(crate) is_plain: bool,
    pub(crate) warm: WarmNodes,
    pub(crate) index: Index,
    pub(crate) live: Arc<Live>,
    pub(crate) moved: MovedNotes,
    pub(crate) pool: Arc<Pool>,
    /// Compressors that no task uses.
    pub(crate) compressors: Mutex<Vec<Compressor>>,
    /// Room for blobs that are made ahead, for reuse.
    blobs: Mutex<Vec<Blobs>>,
    pub(crate) uploads: Arc<Semaphore>,
    /// The packs that small batches share: data, metadata.
    pub(crate) shared: [Shared; 2],
    pub(crate) counters: Counters,
    /// Whether the store had no room for the last pack.
    pub(crate) full: AtomicBool,
    /// Room for prefetches, a permit a byte.
    pub(crate) prefetches: Arc<Semaphore>,
    /// Chunks that prefetches will have in the cache, unless the store fails.
    pub(crate) expected: Mutex<HashSet<Pointer>>,
    pub(crate) flights: SingleFlight<Pointer, Body>,
    pub(crate) bundles: Bundles,
    /// Packs that are complete but perhaps not in the store yet, as long as a batch or an upload
    /// has them.
    sealed: Mutex<PackMap<Weak<Sealed>>>,
}

/// Counters since start, and sizes at the moment.
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
    /// Chunks of data, and of metadata, for which a reader waited.
    pub data_waits: u64,
    pub metadata_waits: u64,
    /// Chunks that were fetched ahead of a reader, and those of them that left the cache before any
    /// reader had asked: more than a few mean that the windows are too long for the cache.
    pub fetched_ahead: u64,
    pub fetched_in_vain: u64,
    pub cache_bytes: u64,
    pub index_bytes: u64,
    /// Holds at the moment: batches, uploads, and readers below a root.
    pub holds: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) chunks_written: AtomicU64,
    pub(crate) chunks_deduplicated: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_deduplicated: AtomicU64,
    pub(crate) bytes_stored: AtomicU64,
    pub(crate) packs_written: AtomicU64,
    pub(crate) cache_hits: AtomicU64,
    pub(crate) cache_misses: AtomicU64,
    pub(crate) data_waits: AtomicU64,
    pub(crate) metadata_waits: AtomicU64,
    pub(crate) fetched_ahead: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl Content {
    /// Opens the store's content; reads nothing. Metadata is kept in RAM only.
    #[must_use]
    pub fn open(env: Env, store: Store, config: Config) -> Self {
        Self::open_warm(env, store, config, None)
    }

    /// Opens the store's content; reads nothing. Metadata that is read or written is also kept in
    /// `frames`, where the next process finds it; every chunk that is taken out is verified against
    /// its name.
    #[must_use]
    pub fn open_warm(
        env: Env,
        store: Store,
        config: Config,
        frames: Option<rekindle_warm::Frames>,
    ) -> Self {
        let cache = Cache::new(config.cache_bytes);
        Self::open_as(env, store, config, (cache, false), frames)
    }

    /// Opens the store's content for a measurement of what the help for readers is worth: without
    /// it. The cache is plain LRU, metadata comes when a reader is there, node by node, and
    /// [`Content::is_plain`] says so to those who know shorter ways.
    #[must_use]
    pub fn open_plain(env: Env, store: Store, config: Config) -> Self {
        let cache = Cache::plain(config.cache_bytes);
        Self::open_as(env, store, config, (cache, true), None)
    }

    fn open_as(
        env: Env,
        store: Store,
        mut config: Config,
        (cache, is_plain): (Cache, bool),
        frames: Option<rekindle_warm::Frames>,
    ) -> Self {
        config.pack_bytes = config.pack_bytes.clamp(limits::PACK_BYTES_MIN, limits::PACK_BYTES_MAX);
        config.uploads = config.uploads.clamp(1, 1024);
        let inner = Inner {
            namer: Namer::new(&config.secret),
            cache,
            is_plain,
            warm: WarmNodes::new(frames),
            index: Index::new(config.index_bytes),
            live: Arc::default(),
            moved: MovedNotes::default(),
            pool: Pool::new(config.uploads.min(4) + 1),
            compressors: Mutex::default(),
            blobs: Mutex::default(),
            uploads: Arc::new(Semaphore::new(config.uploads)),
            shared: Default::default(),
            counters: Counters::default(),
            full: AtomicBool::new(false),
            prefetches: Arc::new(Semaphore::new(limits::PREFETCH_BYTES_MAX as usize)),
            expected: Mutex::default(),
            flights: SingleFlight::default(),
            bundles: Bundles::default(),
            sealed: Mutex::default(),
            env,
            store,
            config,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Whether the store had no room for the last pack that was to be written.
    #[must_use]
    pub fn is_store_full(&self) -> bool {
        self.inner.full.load(Ordering::Relaxed)
    }

    /// A key from the store's secret, for a hash that decides where chunks end.
    #[must_use]
    pub fn cut_key(&self) -> u64 {
        crate::name::cut_key(&self.inner.config.secret)
    }

    /// A number of the store's secret, by which files that a node keeps are known as this store's.
    pub(crate) fn store_fingerprint(&self) -> [u8; 16] {
        crate::name::store_fingerprint(&self.inner.config.secret)
    }

    /// Keeps a sweep from ending: see [`Hold`].
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.inner.live.hold()
    }

    /// Whether only data is fetched ahead: see [`Content::open_plain`].
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.inner.is_plain
    }

    /// Most bytes that the cache of chunks takes.
    #[must_use]
    pub fn cache_bytes_max(&self) -> u64 {
        self.inner.config.cache_bytes
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counters = &self.inner.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            chunks_written: get(&counters.chunks_written),
            chunks_deduplicated: get(&counters.chunks_deduplicated),
            bytes_in: get(&counters.bytes_in),
            bytes_deduplicated: get(&counters.bytes_deduplicated),
            bytes_stored: get(&counters.bytes_stored),
            packs_written: get(&counters.packs_written),
            cache_hits: get(&counters.cache_hits),
            cache_misses: get(&counters.cache_misses),
            data_waits: get(&counters.data_waits),
            metadata_waits: get(&counters.metadata_waits),
            fetched_ahead: get(&counters.fetched_ahead),
            fetched_in_vain: self.inner.cache.unread(),
            cache_bytes: self.inner.cache.bytes(),
            index_bytes: self.inner.index.bytes(),
            holds: self.inner.live.count() as u64,
        }
    }
}

impl Inner {
    /// A compressor for a task, which gives it to `compressors` when it is done.
    pub(crate) fn compressor(&self) -> Compressor {
        let kept = self.compressors.lock().pop();
        kept.unwrap_or_else(|| Compressor::new(self.config.compression))
    }

    /// Room for blobs; [`Inner::used`] takes it back.
    pub(crate) fn room(&self) -> Blobs {
        self.blobs.lock().pop().unwrap_or_default()
    }

    /// Takes room for blobs back. Fresh memory would cost page faults, and be zeroed.
    pub(crate) fn used(&self, mut blobs: Blobs) {
        blobs.clear();
        let mut spare = self.blobs.lock();
        if spare.len() < limits::BLOBS_KEPT_MAX {
            spare.push(blobs);
        }
    }

    /// Returns a complete pack that may not be in the store yet.
    pub(crate) fn sealed(&self, pack: PackId) -> Option<Arc<Sealed>> {
        self.sealed.lock().get(&pack)?.upgrade()
    }

    /// Makes a complete pack readable before it is in the store.
    pub(crate) fn publish(&self, pack: &Arc<Sealed>) {
        let mut sealed = self.sealed.lock();
        sealed.retain(|_, pack| pack.strong_count() > 0);
        sealed.insert(pack.id, Arc::downgrade(pack));
    }

    /// Has a pack read from the store from now on.
    pub(crate) fn unpublish(&self, pack: PackId) {
        self.sealed.lock().remove(&pack);
    }
}
