//! The content store of a node: its parts, and the read path.
//!
//! Read: cache -> warm memory (metadata) -> packs of this node that are still being uploaded, or
//! one ranged read -> verify -> cache. When the pack is gone, its `moved/` note says where the
//! chunk is now.

use crate::cache::Cache;
use crate::index::Index;
use crate::live::{Hold, Live};
use crate::moved::MovedNotes;
use crate::name::{Name, Namer, PackMap};
use crate::pack::reader::{self, Body};
use crate::pack::writer::{Pool, Sealed};
use crate::single_flight::SingleFlight;
use crate::warm_nodes::WarmNodes;
use crate::{Batch, Class, Compression, Error, Parity, Pointer, limits, pack};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use rekindle_base::PackId;
use rekindle_datastore::Store;
use rekindle_env::Env;
use rekindle_env::boot::{Source, Watch};
use std::collections::HashMap;
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
    /// Whether a plain call returns chunks that are in RAM. `false`: only after a message to
    /// another thread and back, as in most servers, to show what that costs.
    pub direct_path: bool,
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
    pub(crate) warm: WarmNodes,
    pub(crate) index: Index,
    pub(crate) live: Arc<Live>,
    pub(crate) moved: MovedNotes,
    pub(crate) pool: Arc<Pool>,
    pub(crate) uploads: Arc<Semaphore>,
    pub(crate) counters: Counters,
    /// Whether the store had no room for the last pack.
    pub(crate) full: AtomicBool,
    prefetches: Arc<Semaphore>,
    flights: SingleFlight,
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
    cache_hits: AtomicU64,
    cache_misses: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// The choice whether a chunk that is read from the store stays in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Yes,
    No,
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
        mut config: Config,
        frames: Option<rekindle_warm::Frames>,
    ) -> Self {
        config.pack_bytes = config.pack_bytes.clamp(limits::PACK_BYTES_MIN, limits::PACK_BYTES_MAX);
        config.uploads = config.uploads.clamp(1, 1024);
        let inner = Inner {
            namer: Namer::new(&config.secret),
            cache: Cache::new(config.cache_bytes),
            warm: WarmNodes::new(frames),
            index: Index::new(config.index_bytes),
            live: Arc::default(),
            moved: MovedNotes::default(),
            pool: Pool::new(config.uploads.min(4) + 1),
            uploads: Arc::new(Semaphore::new(config.uploads)),
            counters: Counters::default(),
            full: AtomicBool::new(false),
            prefetches: Arc::new(Semaphore::new(limits::PREFETCH_MAX)),
            flights: SingleFlight::default(),
            sealed: Mutex::default(),
            env,
            store,
            config,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Begins a batch.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch::new(self.inner.clone())
    }

    /// Whether the store had no room for the last pack that was to be written.
    #[must_use]
    pub fn is_store_full(&self) -> bool {
        self.inner.full.load(Ordering::Relaxed)
    }

    /// Keeps a sweep from ending: see [`Hold`].
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.inner.live.hold()
    }

    /// Returns a chunk that is in the cache or, as metadata, in warm memory. A plain call: no I/O,
    /// no other thread.
    #[must_use]
    pub fn read_now(&self, pointer: &Pointer) -> Option<Bytes> {
        self.inner.cached_now(pointer).map(|body| body.content())
    }

    /// Reads a chunk, verified against its name, from the cache, warm memory or the store
    /// (following `moved/` notes). Concurrent reads of one chunk make one request.
    pub async fn read(&self, pointer: &Pointer, class: Class) -> Result<Bytes, Error> {
        Ok(self.inner.read(pointer, class, Keep::Yes).await?.content())
    }

    /// Like [`Content::read`], but what comes from the store does not go into the cache.
    pub async fn read_uncached(&self, pointer: &Pointer, class: Class) -> Result<Bytes, Error> {
        Ok(self.inner.read(pointer, class, Keep::No).await?.content())
    }

    /// Reads a chunk with the children that it declared.
    pub async fn read_with_children(
        &self,
        pointer: &Pointer,
        class: Class,
    ) -> Result<(Bytes, Vec<Pointer>), Error> {
        let body = self.inner.read(pointer, class, Keep::Yes).await?;
        Ok((body.content(), body.children().collect()))
    }

    /// Reads many chunks, each as [`Content::read`] (or, unless `keep`, [`Content::read_uncached`])
    /// does, in the order of `pointers`. Neighbours in a pack that are not in the cache come with
    /// one request.
    pub async fn read_many(
        &self,
        pointers: &[Pointer],
        class: Class,
        keep: bool,
    ) -> Result<Vec<Bytes>, Error> {
        let inner = &self.inner;
        let keep = if keep { Keep::Yes } else { Keep::No };
        inner.message().await;
        let mut found: HashMap<_, Body> = HashMap::with_capacity(pointers.len());
        let mut missing = Vec::new();
        for pointer in pointers {
            match inner.cached(pointer) {
                Some(body) => drop(found.insert(pointer.name, body)),
                None => missing.push(*pointer),
            }
        }
        let fetch =
            |group: Vec<Pointer>| async move { inner.read_group(&group, class, keep).await };
        let mut groups =
            stream::iter(neighbours(missing)).map(fetch).buffer_unordered(limits::FETCH_WINDOW);
        while let Some(group) = groups.try_next().await? {
            found.extend(group);
        }
        Ok(pointers
            .iter()
            .filter_map(|pointer| found.get(&pointer.name))
            .map(Body::content)
            .collect())
    }

    /// Fetches chunks into the cache in the background, neighbours in a pack with one request. A
    /// hint: requests beyond [`limits::PREFETCH_MAX`] are not made, and errors are left to the
    /// reader that meets them.
    pub fn prefetch(&self, pointers: &[Pointer], class: Class) {
        let missing = pointers
            .iter()
            .filter(|pointer| self.inner.cache.get(&pointer.name).is_none())
            .copied()
            .collect();
        for group in neighbours(missing) {
            let Ok(permit) = self.inner.prefetches.clone().try_acquire_owned() else {
                return;
            };
            let inner = self.inner.clone();
            self.inner.env.spawn("content-prefetch", async move {
                let _ = inner.read_group(&group, class, Keep::Yes).await;
                drop(permit);
            });
        }
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
            cache_bytes: self.inner.cache.bytes(),
            index_bytes: self.inner.index.bytes(),
            holds: self.inner.live.count() as u64,
        }
    }
}

/// Groups pointers, so that one ranged read can fetch each group.
fn neighbours(mut pointers: Vec<Pointer>) -> Vec<Vec<Pointer>> {
    pointers.sort_unstable_by_key(|pointer| (pointer.pack, pointer.offset));
    pointers.dedup();
    let end = |pointer: &Pointer| u64::from(pointer.offset) + u64::from(pointer.stored);
    let mut groups: Vec<Vec<Pointer>> = Vec::new();
    for pointer in pointers {
        match groups.last_mut() {
            Some(group)
                if group[0].pack == pointer.pack
                    && u64::from(pointer.offset)
                        <= end(&group[group.len() - 1]) + limits::PREFETCH_GAP_BYTES
                    && end(&pointer) - u64::from(group[0].offset)
                        <= limits::PREFETCH_READ_BYTES_MAX =>
            {
                group.push(pointer);
            }
            _ => groups.push(vec![pointer]),
        }
    }
    groups
}

impl Inner {
    /// Returns a chunk that is in the cache or in warm memory.
    pub(crate) fn cached(&self, pointer: &Pointer) -> Option<Body> {
        self.at_hand(pointer, Keep::Yes).ok()
    }

    /// Hands a metadata chunk that is in RAM to `look`: its body and its number of children. A
    /// chunk in warm memory is shown where it lies. For callers that have another way when it is
    /// not there. A plain call.
    pub(crate) fn look_now<R>(
        &self,
        pointer: &Pointer,
        look: impl FnOnce(&[u8], u32) -> R,
    ) -> Option<R> {
        if !self.config.direct_path {
            return None;
        }
        let watch = self.env.watch();
        if let Some(found) = self.in_cache(pointer, watch) {
            return Some(look(&found.bytes, found.children));
        }
        let found = self.warm.look(pointer, look)?;
        self.fetched(pointer, Source::Warm, watch);
        Some(found)
    }

    /// Like [`Inner::cached`], with the direct path only: for callers that have another way.
    pub(crate) fn cached_now(&self, pointer: &Pointer) -> Option<Body> {
        if self.config.direct_path { self.cached(pointer) } else { None }
    }

    /// Sends a message to another thread and back, unless reads take the direct path.
    async fn message(&self) {
        if !self.config.direct_path {
            self.env.run("content-message", async {}).await;
        }
    }

    /// Returns a chunk that is in the cache or in warm memory, else why warm memory does not have
    /// it.
    fn at_hand(&self, pointer: &Pointer, keep: Keep) -> Result<Body, Option<rekindle_warm::Miss>> {
        let watch = self.env.watch();
        if let Some(found) = self.in_cache(pointer, watch) {
            return Ok(found);
        }
        let found = self.warm.get(&self.namer, pointer)?;
        self.fetched(pointer, Source::Warm, watch);
        if keep == Keep::Yes {
            self.cache.insert(pointer.name, Class::Metadata, found.clone());
        }
        Ok(found)
    }

    fn in_cache(&self, pointer: &Pointer, watch: Watch) -> Option<Body> {
        let found = self.cache.get(&pointer.name)?;
        add(&self.counters.cache_hits, 1);
        self.fetched(pointer, Source::Ram, watch);
        Some(found)
    }

    /// Tells the report of the start where a chunk came from.
    fn fetched(&self, pointer: &Pointer, source: Source, watch: Watch) {
        let what = match pack::class(pointer.pack) {
            Class::Metadata => "node",
            Class::Data => "chunk",
        };
        self.env.boot_fetch(what, || pointer.short_name(), source, watch);
    }

    /// Keeps a verified chunk for the next reader in this process, and in the next one.
    pub(crate) fn keep(&self, name: Name, class: Class, body: Body) {
        self.warm.keep(&name, class, &body);
        self.cache.insert(name, class, body);
    }

    /// Reads a chunk from the cache, warm memory or the store.
    pub(crate) async fn read(
        self: &Arc<Self>,
        pointer: &Pointer,
        class: Class,
        keep: Keep,
    ) -> Result<Body, Error> {
        self.message().await;
        let miss = match self.at_hand(pointer, keep) {
            Ok(body) => return Ok(body),
            Err(miss) => miss,
        };
        let watch = self.env.watch();
        add(&self.counters.cache_misses, 1);
        // A walk over everything says nothing about what readers miss.
        if keep == Keep::Yes {
            self.warm.missed(miss);
            if let Some(miss) = miss {
                self.env.boot_missed(miss.as_str(), watch);
            }
        }
        let pointer = *pointer;
        let read = || async {
            // A reader that was a moment faster may have left the chunk there.
            if let Some(body) = self.cache.get(&pointer.name) {
                return Ok(body);
            }
            let inner = self.clone();
            // On the background threads: an object store's connections live there.
            self.env.run("content-read", async move { inner.fetch_any(&pointer).await }).await
        };
        let body = self.flights.share(pointer, read).await?;
        self.fetched(&pointer, Source::Store, watch);
        if keep == Keep::Yes {
            self.keep(pointer.name, class, body.clone());
        }
        Ok(body)
    }

    /// Fetches a chunk from its place, else from another copy that the dedup index knows.
    async fn fetch_any(&self, pointer: &Pointer) -> Result<Body, Error> {
        let error = match self.fetch(pointer).await {
            Err(error) if error.missing().is_some() => error,
            result => return result,
        };
        let other = self.index.lookup_recent(&pointer.name).filter(|other| other != pointer);
        let Some(other) = other else { return Err(error) };
        let Ok(body) = self.fetch(&other).await else { return Err(error) };
        tracing::warn!(%error, pack = %other.pack, "another copy of the chunk serves");
        Ok(body)
    }

    /// Fetches a chunk from the store, wherever compaction has moved it; no other copy of it.
    pub(crate) async fn fetch(&self, pointer: &Pointer) -> Result<Body, Error> {
        let mut known = self.moved.known_places(pointer);
        let mut place = known.pop().unwrap_or(*pointer);
        let mut damage = None;
        for _ in 0..limits::MOVED_HOPS_MAX {
            match self.fetch_at(&place).await {
                Err(Error::Store(rekindle_datastore::Error::NotFound(_))) => {}
                Err(error) if error.missing().is_some() => {
                    damage = Some(error);
                    break;
                }
                Err(error) => return Err(error),
                Ok(body) => {
                    self.moved.prove(pointer, &place);
                    return Ok(body);
                }
            }
            match self.moved.place(&self.store, &place).await? {
                Some(next) => place = next,
                None => break,
            }
        }
        // A note that leads nowhere is void as long as the chunk lies where it came from.
        while let Some(earlier) = known.pop() {
            match self.fetch_at(&earlier).await {
                Err(Error::Store(rekindle_datastore::Error::NotFound(_))) => {}
                Err(error) if error.missing().is_some() => drop(damage.get_or_insert(error)),
                Err(error) => return Err(error),
                Ok(body) => {
                    self.moved.forget(earlier.pack);
                    return Ok(body);
                }
            }
        }
        Err(damage.unwrap_or(Error::Gone { name: pointer.short_name(), pack: place.pack }))
    }

    /// Fetches a chunk from this place and no other. Tells the index whether that worked: a place
    /// that failed gives no duplicates.
    async fn fetch_at(&self, place: &Pointer) -> Result<Body, Error> {
        let result = self.open_at(place).await;
        match &result {
            Ok(_) => self.index.believe(place),
            Err(Error::Store(rekindle_datastore::Error::NotFound(_))) => {
                self.index.doubt_absent(place)
            }
            Err(_) => self.index.doubt(place),
        }
        result
    }

    async fn open_at(&self, place: &Pointer) -> Result<Body, Error> {
        let range = u64::from(place.offset)..u64::from(place.offset) + u64::from(place.stored);
        if let Some(sealed) = self.sealed(place.pack) {
            let (begin, end) =
                (place.offset as usize, place.offset as usize + place.stored as usize);
            let stored =
                sealed.object.get(begin..end).map(Bytes::copy_from_slice).unwrap_or_default();
            return reader::open_blob(&self.namer, place, &stored);
        }
        let key = pack::key(place.pack);
        let stored = self.store.get_range(&key, range.clone()).await?;
        match reader::open_blob(&self.namer, place, &stored) {
            // The second read: the store's bytes may be sound, and only the way here was not.
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!(%error, "a chunk is damaged: it is read once more");
                let again = self.store.get_range(&key, range).await?;
                match reader::open_blob(&self.namer, place, &again) {
                    Err(Error::Damaged { .. }) if again != stored => Err(Error::unsteady(place)),
                    result => result,
                }
            }
            result => result,
        }
    }

    pub(crate) fn sealed(&self, pack: PackId) -> Option<Arc<Sealed>> {
        self.sealed.lock().get(&pack)?.upgrade()
    }

    /// Makes a complete pack readable before it is in the store.
    pub(crate) fn publish(&self, pack: &Arc<Sealed>) {
        let mut sealed = self.sealed.lock();
        sealed.retain(|_, pack| pack.strong_count() > 0);
        sealed.insert(pack.id, Arc::downgrade(pack));
    }

    /// Reads the chunks of a group with one ranged read. Those that it cannot give (they were
    /// moved, are not uploaded yet or are damaged, or the store failed) are read one by one.
    async fn read_group(
        self: &Arc<Self>,
        group: &[Pointer],
        class: Class,
        keep: Keep,
    ) -> Result<Vec<([u8; 32], Body)>, Error> {
        let watch = self.env.watch();
        let mut bodies = Vec::new();
        if group.len() > 1 {
            let (inner, pointers) = (self.clone(), group.to_vec());
            // On the background threads, as in `read`.
            let together = async move { inner.fetch_group(&pointers).await };
            bodies = self.env.run("content-read", together).await;
        }
        bodies.resize(group.len(), None);
        for pointer in
            group.iter().zip(&bodies).filter_map(|(pointer, body)| body.as_ref().map(|_| pointer))
        {
            self.fetched(pointer, Source::Store, watch);
        }
        let read = |(pointer, body): (Pointer, Option<Body>)| async move {
            let Some(body) = body else {
                return Ok((pointer.name, self.read(&pointer, class, keep).await?));
            };
            add(&self.counters.cache_misses, 1);
            if keep == Keep::Yes {
                self.keep(pointer.name, class, body.clone());
            }
            Ok((pointer.name, body))
        };
        let each = group.iter().copied().zip(bodies);
        stream::iter(each).map(read).buffered(limits::FETCH_WINDOW).try_collect().await
    }

    /// Returns those chunks of a group that one ranged read gives.
    async fn fetch_group(&self, group: &[Pointer]) -> Vec<Option<Body>> {
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let begin = u64::from(first.offset);
        let end = u64::from(last.offset) + u64::from(last.stored);
        let Ok(stored) = self.store.get_range(&pack::key(first.pack), begin..end).await else {
            return Vec::new();
        };
        let open = |pointer: &Pointer| {
            let at = (pointer.offset - first.offset) as usize;
            // A copy, so that one chunk in the cache does not pin the whole read.
            let blob = Bytes::copy_from_slice(stored.get(at..at + pointer.stored as usize)?);
            reader::open_blob(&self.namer, pointer, &blob).ok()
        };
        group.iter().map(open).collect()
    }
}
