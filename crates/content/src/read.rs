//! The way of a read.
//!
//! Cache -> warm memory (metadata) -> packs of this node that are still being uploaded, or one
//! ranged read -> verify -> cache. When the pack is gone, its `moved/` note says where the chunk is
//! now.
//!
//! A read runs in the tasks of its readers from begin to end. The one hop to another thread is the
//! store's: a backend that blocks, or whose connections live on the background threads, goes there
//! itself.

use crate::content::{Inner, add};
use crate::name::Name;
use crate::pack::reader::{self, Body};
use crate::{Class, Content, Error, Pointer, limits, pack};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use rekindle_base::Kind;
use rekindle_env::boot::{Source, Watch};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The choice whether a chunk that is read from the store stays in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Yes,
    No,
}

impl Content {
    /// Returns a chunk that is in the cache or, as metadata, in warm memory. A plain call: no I/O,
    /// no other thread.
    #[must_use]
    pub fn read_now(&self, pointer: &Pointer) -> Option<Bytes> {
        self.inner.cached(pointer).map(|body| body.content())
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
    #[cfg(test)]
    pub(crate) async fn read_with_children(
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
        let keep = if keep { Keep::Yes } else { Keep::No };
        let bodies = self.inner.read_all(pointers, class, keep).await?;
        Ok(bodies.iter().map(Body::content).collect())
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
                let _ = inner.read_group(group, class, Keep::Yes, &OnceLock::new()).await;
                drop(permit);
            });
        }
    }
}

/// Groups pointers, so that one ranged read can fetch each group.
pub(crate) fn neighbours(mut pointers: Vec<Pointer>) -> Vec<Vec<Pointer>> {
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

/// Returns the bytes of its pack that one ranged read for a group gets, gaps included.
pub(crate) fn range_of(group: &[Pointer]) -> Range<u64> {
    let (first, last) = (&group[0], &group[group.len() - 1]);
    u64::from(first.offset)..u64::from(last.offset) + u64::from(last.stored)
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
        let watch = self.env.watch();
        if let Some(found) = self.in_cache(pointer, watch) {
            return Some(look(&found.bytes, found.children));
        }
        let found = self.warm.look(pointer, look)?;
        self.fetched(pointer, Source::Warm, watch);
        Some(found)
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
        let read = || {
            let inner = self.clone();
            async move {
                // A reader that was a moment faster may have left the chunk there.
                match inner.cache.get(&pointer.name) {
                    Some(body) => Ok(body),
                    None => inner.fetch_any(&pointer).await,
                }
            }
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
            let stored = sealed.object.get(begin..end).unwrap_or_default();
            return reader::open_within(&self.namer, place, stored);
        }
        let key = pack::key(place.pack);
        let stored = self.store.get_range(&key, range.clone()).await?;
        match reader::open_whole(&self.namer, place, &stored) {
            // The second read: the store's bytes may be sound, and only the way here was not.
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!(%error, "a chunk is damaged: it is read once more");
                let again = self.store.get_range(&key, range).await?;
                match reader::open_whole(&self.namer, place, &again) {
                    Err(Error::Damaged { .. }) if again != stored => Err(Error::unsteady(place)),
                    result => result,
                }
            }
            result => result,
        }
    }

    /// Reads the chunks of a group with one ranged read. Those that it cannot give (they were
    /// moved, are not uploaded yet or are damaged, or the store failed) are read one by one. `away`
    /// is that of [`complete`].
    async fn read_group(
        self: &Arc<Self>,
        group: Vec<Pointer>,
        class: Class,
        keep: Keep,
        away: &OnceLock<Error>,
    ) -> Vec<(Pointer, Result<Body, Error>)> {
        let watch = self.env.watch();
        let bodies = match group.len() {
            2.. if away.get().is_none() => Box::pin(self.fetch_group(&group)).await,
            _ => Vec::new(),
        };
        for (pointer, body) in group.iter().zip(&bodies) {
            let Some(body) = body else { continue };
            self.fetched(pointer, Source::Store, watch);
            add(&self.counters.cache_misses, 1);
            if keep == Keep::Yes {
                self.keep(pointer.name, class, body.clone());
            }
        }
        let read = |pointer| async move { self.read(&pointer, class, keep).await };
        complete(group, bodies, away, read).await
    }

    /// Reads chunks. Neighbours in a pack that are not at hand come with one request.
    pub(crate) async fn read_each(
        self: &Arc<Self>,
        pointers: &[Pointer],
        class: Class,
        keep: Keep,
    ) -> HashMap<Pointer, Result<Body, Error>> {
        let mut found = HashMap::with_capacity(pointers.len());
        let mut missing = Vec::new();
        for pointer in pointers {
            match self.at_hand(pointer, keep) {
                Ok(body) => drop(found.insert(*pointer, Ok(body))),
                Err(_) => missing.push(*pointer),
            }
        }
        let away = &OnceLock::new();
        let groups = neighbours(missing).into_iter();
        let groups = groups.map(|group| self.read_group(group, class, keep, away));
        found.extend(stream::iter(groups).buffer_unordered(limits::FETCH_WINDOW).concat().await);
        found
    }

    /// Like [`Inner::read_each`], in the order of `pointers`.
    pub(crate) async fn read_all(
        self: &Arc<Self>,
        pointers: &[Pointer],
        class: Class,
        keep: Keep,
    ) -> Result<Vec<Body>, Error> {
        let found = self.read_each(pointers, class, keep).await;
        pointers.iter().map(|pointer| found[pointer].clone()).collect()
    }

    /// Fetches the chunks of a group as [`Inner::fetch`] does. One ranged read gives most of them;
    /// the others are fetched one by one. `away` is that of [`complete`].
    pub(crate) async fn fetch_each(
        &self,
        group: Vec<Pointer>,
        away: &OnceLock<Error>,
    ) -> Vec<(Pointer, Result<Body, Error>)> {
        let mut bodies = Vec::new();
        // A chunk that has been moved is read where it is now.
        let is_moved = |pointer: &Pointer| self.moved.known_places(pointer).len() > 1;
        if group.len() > 1 && away.get().is_none() && !group.iter().any(is_moved) {
            bodies = self.fetch_group(&group).await;
        }
        for (pointer, _) in group.iter().zip(&bodies).filter(|(_, body)| body.is_some()) {
            self.index.believe(pointer);
        }
        let read = |pointer| async move { self.fetch(&pointer).await };
        complete(group, bodies, away, read).await
    }

    /// Returns those chunks of a group that one ranged read gives.
    async fn fetch_group(&self, group: &[Pointer]) -> Vec<Option<Body>> {
        let first = &group[0];
        let Ok(stored) = self.store.get_range(&pack::key(first.pack), range_of(group)).await else {
            return Vec::new();
        };
        let mut bodies = Vec::with_capacity(group.len());
        let mut opened = 0;
        for pointer in group {
            let at = (pointer.offset - first.offset) as usize;
            let blob = stored.get(at..at + pointer.stored as usize);
            bodies.push(blob.and_then(|blob| reader::open_within(&self.namer, pointer, blob).ok()));
            opened += pointer.length as usize;
            // A group may have megabytes: other requests of the same thread go in between.
            if opened >= limits::OPENED_AT_ONCE_BYTES {
                opened = 0;
                tokio::task::yield_now().await;
            }
        }
        bodies
    }
}

/// Reads those chunks of a group, one by one, that a ranged read has not given. Once the store does
/// not answer a read, its error is in `away`, and all other chunks get it: the caller would else
/// wait out the retries of each.
async fn complete<F: Future<Output = Result<Body, Error>>>(
    group: Vec<Pointer>,
    mut bodies: Vec<Option<Body>>,
    away: &OnceLock<Error>,
    read: impl Fn(Pointer) -> F,
) -> Vec<(Pointer, Result<Body, Error>)> {
    bodies.resize(group.len(), None);
    let read = &read;
    let each = group.into_iter().zip(bodies).map(|(pointer, body)| async move {
        if let Some(body) = body {
            return (pointer, Ok(body));
        }
        if let Some(error) = away.get() {
            return (pointer, Err(Error::clone(error)));
        }
        let result = read(pointer).await;
        if let Err(error @ Error::Store(store)) = &result
            && store.kind() == Kind::Unavailable
        {
            away.get_or_init(|| error.clone());
        }
        (pointer, result)
    });
    stream::iter(each).buffered(limits::FETCH_WINDOW).collect().await
}

#[cfg(test)]
mod tests;
