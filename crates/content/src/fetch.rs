//! Chunks out of the store: the way of a read that RAM cannot serve, and of every proof.
//!
//! Packs of this node that are still being uploaded, or one ranged read -> verify. When the pack is
//! gone, its `moved/` note says where the chunk is now.

use crate::bundles::{BundlePlace, Fetched};
use crate::content::Inner;
use crate::pack::reader::{self, Body, Opener};
use crate::{Error, Pointer, limits, pack};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use rekindle_base::Kind;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Whether a bundle will do that is in RAM, or on its way for another reader. A proof reads the
/// store itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    Yes,
    No,
}

/// Groups pointers, so that one ranged read can fetch each group.
pub(crate) fn neighbours(mut pointers: Vec<Pointer>) -> Vec<Vec<Pointer>> {
    pointers.sort_unstable_by_key(|pointer| (pointer.pack, pointer.spot()));
    pointers.dedup();
    let mut groups: Vec<Vec<Pointer>> = Vec::new();
    for pointer in pointers {
        match groups.last_mut() {
            Some(group) if may_join(group, &pointer) => group.push(pointer),
            _ => groups.push(vec![pointer]),
        }
    }
    groups
}

/// Whether one ranged read may fetch the group and this chunk behind it.
fn may_join(group: &[Pointer], pointer: &Pointer) -> bool {
    let (first, last, blob) = (&group[0], &group[group.len() - 1], pointer.blob());
    first.pack == pointer.pack
        && blob.start <= last.blob().end + limits::PREFETCH_GAP_BYTES
        && blob.end - first.blob().start <= limits::PREFETCH_READ_BYTES_MAX
}

/// Returns the bytes of its pack that one ranged read for a group gets, gaps included.
pub(crate) fn range_of(group: &[Pointer]) -> Range<u64> {
    group[0].blob().start..group[group.len() - 1].blob().end
}

impl Inner {
    /// Fetches a chunk from its place, else from another copy that the dedup index knows.
    pub(crate) async fn fetch_any(self: &Arc<Self>, pointer: &Pointer) -> Result<Body, Error> {
        let error = match self.fetch(pointer, Sharing::Yes).await {
            Err(error) if error.missing().is_some() => error,
            result => return result,
        };
        let other = self.index.lookup_recent(&pointer.name).filter(|other| other != pointer);
        let Some(other) = other else { return Err(error) };
        let Ok(body) = self.fetch(&other, Sharing::Yes).await else { return Err(error) };
        tracing::warn!(%error, pack = %other.pack, "another copy of the chunk serves");
        Ok(body)
    }

    /// Fetches a chunk from the store, wherever compaction has moved it; no other copy of it.
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        pointer: &Pointer,
        sharing: Sharing,
    ) -> Result<Body, Error> {
        let mut known = self.moved.known_places(pointer);
        let mut place = known.pop().unwrap_or(*pointer);
        let mut damage = None;
        for _ in 0..limits::MOVED_HOPS_MAX {
            match self.fetch_at(&place, sharing).await {
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
            match self.fetch_at(&earlier, sharing).await {
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
    async fn fetch_at(self: &Arc<Self>, place: &Pointer, sharing: Sharing) -> Result<Body, Error> {
        let result = match BundlePlace::of(place) {
            None => self.open_at(place).await,
            Some(bundle) => self.open_in(bundle, place, sharing).await,
        };
        match &result {
            Ok(_) => self.index.believe(place),
            Err(Error::Store(rekindle_datastore::Error::NotFound(_))) => {
                self.index.doubt_absent(place)
            }
            Err(_) => self.index.doubt(place),
        }
        result
    }

    /// Reads the bytes of a chunk's blob.
    async fn blob_at(&self, place: &Pointer) -> Result<Bytes, Error> {
        match self.sealed(place.pack) {
            Some(sealed) => {
                let begin = place.offset as usize;
                let blob = sealed.object.get(begin..begin + place.stored as usize);
                Ok(blob.map_or_else(Bytes::new, |blob| sealed.object.slice_ref(blob)))
            }
            None => Ok(self.store.get_range(&pack::key(place.pack), place.blob()).await?),
        }
    }

    /// Reads a chunk that has a blob of its own.
    async fn open_at(&self, place: &Pointer) -> Result<Body, Error> {
        let stored = self.blob_at(place).await?;
        match reader::open_whole(&self.namer, place, &stored) {
            // The second read: the store's bytes may be sound, and only the way here was not.
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!(%error, "a chunk is damaged: it is read once more");
                let again = self.blob_at(place).await?;
                match reader::open_whole(&self.namer, place, &again) {
                    Err(Error::Damaged { .. }) if again != stored => Err(Error::unsteady(place)),
                    result => result,
                }
            }
            result => result,
        }
    }

    /// Reads a chunk that lies in a bundle.
    async fn open_in(
        self: &Arc<Self>,
        bundle: BundlePlace,
        place: &Pointer,
        sharing: Sharing,
    ) -> Result<Body, Error> {
        let fetched = match sharing {
            Sharing::Yes => self.share_bundle(bundle, place).await?,
            Sharing::No => self.fetch_bundle(place).await?,
        };
        match self.take(place, &fetched) {
            // The second read, as above. What is in RAM may be damaged, too.
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!(%error, "a chunk is damaged: it is read once more");
                self.bundles.forget(bundle);
                let again = self.fetch_bundle(place).await?;
                match self.take(place, &again) {
                    Err(Error::Damaged { .. }) if again != fetched => Err(Error::unsteady(place)),
                    result => result,
                }
            }
            result => result,
        }
    }

    /// Takes a chunk out of its bundle, and verifies it.
    fn take(&self, place: &Pointer, fetched: &Fetched) -> Result<Body, Error> {
        match fetched {
            Fetched::Bodies(bodies) => reader::take_chunk(&self.namer, place, bodies),
            Fetched::Bad(stored) => {
                let bodies = reader::open_bundle(place, stored)?;
                reader::take_chunk(&self.namer, place, &bodies)
            }
        }
    }

    /// Reads and decompresses the bundle of a chunk.
    async fn fetch_bundle(&self, place: &Pointer) -> Result<Fetched, Error> {
        let stored = self.blob_at(place).await?;
        match reader::open_bundle(place, &stored) {
            Ok(bodies) => Ok(Fetched::Bodies(bodies.into())),
            Err(Error::Damaged { .. }) => Ok(Fetched::Bad(stored)),
            Err(error) => Err(error),
        }
    }

    /// Returns the bundle of a chunk from RAM, or as one of the readers that wait for it.
    async fn share_bundle(
        self: &Arc<Self>,
        bundle: BundlePlace,
        place: &Pointer,
    ) -> Result<Fetched, Error> {
        if let Some(bodies) = self.bundles.get(bundle) {
            return Ok(Fetched::Bodies(bodies));
        }
        let read = || {
            let (inner, place) = (self.clone(), *place);
            async move {
                let fetched = inner.fetch_bundle(&place).await?;
                if let Fetched::Bodies(bodies) = &fetched {
                    inner.bundles.keep(bundle, bodies.clone());
                }
                Ok(fetched)
            }
        };
        self.bundles.flights.share(bundle, read).await
    }

    /// Fetches the chunks of a group as [`Inner::fetch`] does. One ranged read gives most of them;
    /// the others are fetched one by one. `away` is that of [`unless_away`].
    pub(crate) async fn fetch_each(
        self: &Arc<Self>,
        group: Vec<Pointer>,
        away: &OnceLock<Error>,
    ) -> Vec<(Pointer, Result<Body, Error>)> {
        let mut bodies = Vec::new();
        // A chunk that has been moved is read where it is now.
        let is_moved = |pointer: &Pointer| self.moved.known_places(pointer).len() > 1;
        if group.len() > 1 && away.get().is_none() && !group.iter().any(is_moved) {
            bodies = self.fetch_group(&group, Sharing::No).await;
        }
        for (pointer, _) in group.iter().zip(&bodies).filter(|(_, body)| body.is_some()) {
            self.index.believe(pointer);
        }
        let read = |pointer| async move { self.fetch(&pointer, Sharing::No).await };
        complete(group, bodies, away, read).await
    }

    /// Returns those chunks of a group that one ranged read gives. With `sharing` the last bundle
    /// stays in RAM, for the reader of what lies behind the group.
    pub(crate) async fn fetch_group(
        &self,
        group: &[Pointer],
        sharing: Sharing,
    ) -> Vec<Option<Body>> {
        let first = &group[0];
        let Ok(stored) = self.store.get_range(&pack::key(first.pack), range_of(group)).await else {
            return Vec::new();
        };
        let mut bodies = Vec::with_capacity(group.len());
        let (mut opener, mut pause) = (Opener::new(&self.namer), limits::OPENED_AT_ONCE_BYTES);
        for pointer in group {
            let at = (pointer.offset - first.offset) as usize;
            let blob = stored.get(at..at + pointer.stored as usize);
            bodies.push(blob.and_then(|blob| opener.open(pointer, blob).ok()));
            // A group may have megabytes: other requests of the same thread go in between.
            if opener.opened() >= pause {
                pause = opener.opened() + limits::OPENED_AT_ONCE_BYTES;
                tokio::task::yield_now().await;
            }
        }
        let last = &group[group.len() - 1];
        if sharing == Sharing::Yes
            && let Some(bundle) = BundlePlace::of(last)
            && let Some(all) = opener.into_bundle(last)
        {
            self.bundles.keep(bundle, all.into());
        }
        bodies
    }
}

/// Reads a chunk, one of many. Once the store does not answer one of these reads, its error is in
/// `away`, and the reads that follow get it: the caller would else wait out the retries of each.
pub(crate) async fn unless_away(
    away: &OnceLock<Error>,
    read: impl Future<Output = Result<Body, Error>>,
) -> Result<Body, Error> {
    if let Some(error) = away.get() {
        return Err(error.clone());
    }
    let result = read.await;
    if let Err(error @ Error::Store(store)) = &result
        && store.kind() == Kind::Unavailable
    {
        away.get_or_init(|| error.clone());
    }
    result
}

/// Reads those chunks of a group, one by one, that a ranged read has not given. `away` is that of
/// [`unless_away`].
async fn complete<F: Future<Output = Result<Body, Error>>>(
    group: Vec<Pointer>,
    mut bodies: Vec<Option<Body>>,
    away: &OnceLock<Error>,
    read: impl Fn(Pointer) -> F,
) -> Vec<(Pointer, Result<Body, Error>)> {
    bodies.resize(group.len(), None);
    let read = &read;
    let each = group.into_iter().zip(bodies).map(|(pointer, body)| async move {
        let result = match body {
            Some(body) => Ok(body),
            None => unless_away(away, read(pointer)).await,
        };
        (pointer, result)
    });
    stream::iter(each).buffered(limits::FETCH_WINDOW).collect().await
}
