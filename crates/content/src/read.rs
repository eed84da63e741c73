//! The way of a read.
//!
//! Cache -> bundles that are in RAM, or warm memory (metadata) -> the store ([`crate::fetch`]) ->
//! cache.
//!
//! A read runs in the tasks of its readers from begin to end. The one hop to another thread is the
//! store's: a backend that blocks, or whose connections live on the background threads, goes there
//! itself.

use crate::bundles::BundlePlace;
use crate::cache::{Keep, Unasked};
use crate::content::{Inner, add};
use crate::fetch::{Sharing, neighbours, range_of, unless_away};
use crate::name::Name;
use crate::pack::reader::{self, Body};
use crate::{Class, Content, Error, POINTER_BYTES, Pointer, limits, pack};
use bytes::Bytes;
use futures_util::future::{FutureExt, join_all};
use futures_util::stream::{self, StreamExt};
use rekindle_env::boot::{Source, Watch};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A chunk that declares children: one that a volume's kind understands, and no tree node.
#[derive(Clone)]
pub struct Parent(Body);

impl Parent {
    /// The bytes that were written with the children.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.0.bytes[(self.0.children as usize * POINTER_BYTES).min(self.0.bytes.len())..]
    }

    /// The child at `index`.
    #[must_use]
    pub fn child(&self, index: usize) -> Option<Pointer> {
        self.0.children().nth(index)
    }
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

    /// Returns a metadata chunk that is in RAM, with the children that it declares. A plain call.
    #[must_use]
    pub fn parent_now(&self, pointer: &Pointer) -> Option<Parent> {
        self.inner.cached(pointer).map(Parent)
    }

    /// Reads a metadata chunk with the children that it declares.
    pub async fn parent(&self, pointer: &Pointer) -> Result<Parent, Error> {
        Ok(Parent(self.inner.read(pointer, Class::Metadata, Keep::Yes).await?))
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
    /// hint: requests beyond [`limits::PREFETCH_BYTES_MAX`] are not made, and errors are left to
    /// the reader that meets them.
    pub fn prefetch(&self, pointers: &[Pointer], class: Class) {
        let missing = pointers
            .iter()
            .filter(|pointer| self.inner.cache.get(&pointer.name).is_none())
            .filter(|pointer| !self.inner.is_coming(pointer))
            .copied()
            .collect();
        for group in neighbours(missing) {
            let range = range_of(&group);
            let bytes = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
            let Some(permit) = self.inner.prefetch_room(bytes) else { return };
            // Before the task runs: a reader may come first.
            let expected = Expected::new(&self.inner, group);
            self.inner.env.spawn("content-prefetch", async move {
                let Expected { inner, chunks } = &expected;
                let _ = inner.read_each(chunks, class, Keep::Unasked(Unasked::Fetched)).await;
                drop(permit);
            });
        }
    }

    /// Whether a chunk is in RAM, or will be without another request: a prefetch or a reader has
    /// asked for it. A plain call.
    #[must_use]
    pub fn is_there_or_coming(&self, pointer: &Pointer) -> bool {
        // In this order: what comes is in the cache before it is expected no longer.
        let inner = &self.inner;
        inner.is_coming(pointer)
            || inner.cache.get(&pointer.name).is_some()
            || BundlePlace::of(pointer).is_some_and(|place| inner.bundles.get(place).is_some())
    }
}

/// Chunks that a prefetch has promised; its drop takes the promise back.
struct Expected {
    inner: Arc<Inner>,
    chunks: Vec<Pointer>,
}

impl Expected {
    fn new(inner: &Arc<Inner>, chunks: Vec<Pointer>) -> Self {
        inner.expected.lock().extend(&chunks);
        Self { inner: inner.clone(), chunks }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let mut expected = self.inner.expected.lock();
        for chunk in &self.chunks {
            expected.remove(chunk);
        }
    }
}

impl Inner {
    /// Takes room for a prefetch of so many bytes, if there is any.
    pub(crate) fn prefetch_room(&self, bytes: u32) -> Option<OwnedSemaphorePermit> {
        let cost = bytes.clamp(limits::PREFETCH_COST_MIN, limits::PREFETCH_BYTES_MAX);
        self.prefetches.clone().try_acquire_many_owned(cost).ok()
    }

    /// Whether a prefetch or a reader has asked for a chunk, and does not have it yet.
    fn is_coming(&self, pointer: &Pointer) -> bool {
        self.expected.lock().contains(pointer) || self.flights.is_under_way(pointer)
    }

    /// Returns a chunk that is in the cache, in a bundle in RAM, or in warm memory.
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

    /// Returns a chunk that is in the cache, in a bundle in RAM, or in warm memory, else why warm
    /// memory does not have it.
    fn at_hand(&self, pointer: &Pointer, keep: Keep) -> Result<Body, Option<rekindle_warm::Miss>> {
        let watch = self.env.watch();
        if let Some(found) = self.in_cache(pointer, watch) {
            return Ok(found);
        }
        let (found, source) = match self.in_bundle(pointer) {
            Some(found) => (found, Source::Ram),
            None => (self.warm.get(&self.namer, pointer)?, Source::Warm),
        };
        self.fetched(pointer, source, watch);
        self.cache.insert(pointer.name, pack::class(pointer.pack), keep, found.clone());
        Ok(found)
    }

    /// Returns a chunk that lies in a bundle in RAM.
    fn in_bundle(&self, pointer: &Pointer) -> Option<Body> {
        let place = BundlePlace::of(pointer)?;
        let bodies = self.bundles.get(place)?;
        let found = reader::take_chunk(&self.namer, pointer, &bodies).ok()?;
        add(&self.counters.cache_hits, 1);
        Some(found)
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
    pub(crate) fn keep(&self, name: Name, class: Class, keep: Keep, body: Body) {
        if keep != Keep::No {
            self.warm.keep(&name, class, &body);
            self.cache.insert(name, class, keep, body);
        }
    }

    /// Reads a chunk from the cache, warm memory or the store.
    pub(crate) async fn read(
        self: &Arc<Self>,
        pointer: &Pointer,
        class: Class,
        keep: Keep,
    ) -> Result<Body, Error> {
        if let Some(body) = self.at_hand_or_missed(pointer, keep) {
            return Ok(body);
        }
        let place = *pointer;
        self.read_absent(pointer, class, keep, |inner| async move { inner.fetch_any(&place).await })
            .await
    }

    /// Returns a chunk that is at hand, else notes that it was missed. A walk over everything says
    /// nothing about what readers miss.
    fn at_hand_or_missed(&self, pointer: &Pointer, keep: Keep) -> Option<Body> {
        let miss = match self.at_hand(pointer, keep) {
            Ok(body) => return Some(body),
            Err(miss) => miss,
        };
        if keep != Keep::No {
            self.warm.missed(miss);
            if let Some(miss) = miss {
                self.env.boot_missed(miss.as_str(), self.env.watch());
            }
        }
        None
    }

    /// Reads a chunk that is not at hand: by `fetch`, or as one of those that wait for it.
    async fn read_absent<F>(
        self: &Arc<Self>,
        pointer: &Pointer,
        class: Class,
        keep: Keep,
        fetch: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<Body, Error>
    where
        F: Future<Output = Result<Body, Error>> + Send + 'static,
    {
        let watch = self.env.watch();
        add(&self.counters.cache_misses, 1);
        let counter = match (keep, class) {
            (Keep::Unasked(Unasked::Fetched), _) => Some(&self.counters.fetched_ahead),
            (Keep::Yes, Class::Data) => Some(&self.counters.data_waits),
            (Keep::Yes, Class::Metadata) => Some(&self.counters.metadata_waits),
            (Keep::No | Keep::Unasked(Unasked::Written), _) => None,
        };
        counter.into_iter().for_each(|counter| add(counter, 1));
        let (inner, name) = (self.clone(), pointer.name);
        let read = || {
            let fetched = fetch(inner.clone());
            async move {
                // A reader that was a moment faster may have left the chunk there.
                if let Some(body) = inner.cache.get(&name) {
                    return Ok(body);
                }
                let body = fetched.await?;
                // As the first of the readers says: one that joins a fetch ahead is a stream.
                inner.keep(name, class, keep, body.clone());
                Ok(body)
            }
        };
        let body = self.flights.share(*pointer, read).await?;
        self.fetched(pointer, Source::Store, watch);
        if keep != Keep::No && !self.cache.touch(&name) {
            self.keep(name, class, keep, body.clone());
        }
        Ok(body)
    }

    /// Reads a chunk, and with the same request those of `others` that lie beside it in its pack.
    /// These are a hint: the ones that the request does not give stay where they are.
    pub(crate) async fn read_beside(
        self: &Arc<Self>,
        pointer: &Pointer,
        others: impl Iterator<Item = Pointer>,
        class: Class,
    ) -> Result<Body, Error> {
        if let Some(body) = self.at_hand_or_missed(pointer, Keep::Yes) {
            return Ok(body);
        }
        let place = *pointer;
        let is_near = |other: &Pointer| {
            other.pack == place.pack
                && u64::from(other.offset.abs_diff(place.offset)) <= limits::BESIDE_BYTES
                && self.cache.get(&other.name).is_none()
        };
        let mut near: Vec<Pointer> = others.filter(is_near).collect();
        near.push(place);
        let group = neighbours(near).into_iter().find(|group| group.contains(&place));
        let group = group.unwrap_or_default();
        let fetch = |inner: Arc<Self>| async move {
            let mut found = None;
            if group.len() > 1 {
                let bodies = inner.fetch_group(&group, Sharing::Yes).await;
                for (pointer, body) in group.iter().zip(bodies) {
                    match body {
                        Some(body) if *pointer == place => found = Some(body),
                        Some(body) => inner.keep(pointer.name, class, Keep::Yes, body),
                        None => {}
                    }
                }
            }
            match found {
                Some(body) => Ok(body),
                None => inner.fetch_any(&place).await,
            }
        };
        self.read_absent(pointer, class, Keep::Yes, fetch).await
    }

    /// Reads the chunks of a group with one ranged read, which other readers of these chunks wait
    /// for, too. Those that it cannot give (they were moved, are not uploaded yet or are damaged,
    /// or the store failed) are read one by one. `away` is that of [`unless_away`].
    async fn read_group(
        self: &Arc<Self>,
        group: Vec<Pointer>,
        class: Class,
        keep: Keep,
        away: &Arc<OnceLock<Error>>,
    ) -> Vec<(Pointer, Result<Body, Error>)> {
        let together = (group.len() > 1 && away.get().is_none()).then(|| {
            let (inner, group) = (self.clone(), group.clone());
            async move { Arc::new(inner.fetch_group(&group, Sharing::Yes).await) }.boxed().shared()
        });
        let window = Arc::new(Semaphore::new(limits::FETCH_WINDOW));
        let reads = group.into_iter().enumerate().map(|(index, pointer)| {
            let (together, away, window) = (together.clone(), away.clone(), window.clone());
            let fetch = move |inner: Arc<Self>| async move {
                if let Some(together) = together
                    && let Some(Some(body)) = together.await.get(index)
                {
                    return Ok(body.clone());
                }
                let _turn = window.acquire().await;
                unless_away(&away, inner.fetch_any(&pointer)).await
            };
            async move { (pointer, self.read_absent(&pointer, class, keep, fetch).await) }
        });
        join_all(reads).await
    }

    /// Reads chunks. Neighbours in a pack that are not at hand come with one request; a chunk that
    /// is on its way for another reader is waited for.
    pub(crate) async fn read_each(
        self: &Arc<Self>,
        pointers: &[Pointer],
        class: Class,
        keep: Keep,
    ) -> HashMap<Pointer, Result<Body, Error>> {
        let mut found = HashMap::with_capacity(pointers.len());
        let (mut missing, mut groups) = (Vec::new(), Vec::new());
        for pointer in pointers {
            match self.at_hand_or_missed(pointer, keep) {
                Some(body) => drop(found.insert(*pointer, Ok(body))),
                None if self.flights.is_under_way(pointer) => groups.push(vec![*pointer]),
                None => missing.push(*pointer),
            }
        }
        let away = &Arc::default();
        groups.extend(neighbours(missing));
        let groups = groups.into_iter().map(|group| self.read_group(group, class, keep, away));
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
}

#[cfg(test)]
mod tests;
