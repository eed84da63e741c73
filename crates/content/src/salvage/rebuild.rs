//! Chunks that parity gives back. A damaged pack is fetched whole: [`super::mend_packs`] will do
//! the same.

use crate::pack::parity;
use crate::pack::reader::{Body, Opener};
use crate::{Content, Error, Pointer, limits, pack};
use bytes::Bytes;
use rekindle_base::PackId;

/// A rebuilder of chunks; keeps the pack that was rebuilt last.
pub(super) struct Rebuild<'a> {
    content: &'a Content,
    last: Option<(PackId, Rebuilt)>,
}

/// The result of rebuilding a pack.
#[derive(Clone)]
enum Rebuilt {
    /// Header and blobs, as far as parity makes them whole.
    Blobs(Bytes),
    /// The pack has no parity, or none that can be found.
    WithoutParity,
    /// The pack is not in the store.
    Gone,
}

impl<'a> Rebuild<'a> {
    pub(super) fn new(content: &'a Content) -> Self {
        Self { content, last: None }
    }

    /// Rebuilds a chunk, verified against its name. An error means that no answer is possible now.
    pub(super) async fn chunk(&mut self, pointer: &Pointer) -> Result<Option<Body>, Error> {
        match self.find(pointer).await {
            Err(error) if error.missing().is_some() => Ok(None),
            found => found,
        }
    }

    async fn find(&mut self, pointer: &Pointer) -> Result<Option<Body>, Error> {
        let inner = &self.content.inner;
        let known = inner.moved.known_places(pointer);
        let mut place = known.last().copied().unwrap_or(*pointer);
        for _ in 0..limits::MOVED_HOPS_MAX {
            match self.pack(place.pack).await? {
                Rebuilt::Blobs(blobs) => {
                    let range =
                        place.offset as usize..place.offset as usize + place.stored as usize;
                    let mut opener = Opener::new(&inner.namer);
                    let blob = blobs.get(range);
                    return Ok(blob.and_then(|blob| opener.open(&place, blob).ok()));
                }
                Rebuilt::WithoutParity => break,
                Rebuilt::Gone => match inner.moved.place(&inner.store, &place).await? {
                    Some(next) => place = next,
                    None => break,
                },
            }
        }
        Ok(None)
    }

    async fn pack(&mut self, id: PackId) -> Result<Rebuilt, Error> {
        if let Some((_, rebuilt)) = self.last.as_ref().filter(|(last, _)| *last == id) {
            return Ok(rebuilt.clone());
        }
        // Freed before the next pack is fetched.
        self.last = None;
        let rebuilt = match self.content.inner.store.get(&pack::key(id)).await {
            Err(rekindle_datastore::Error::NotFound(_)) => Rebuilt::Gone,
            Err(error) => return Err(error.into()),
            Ok((object, _)) => match parity::find(Some(id), &object) {
                Some(layout) => Rebuilt::Blobs(parity::heal(&object, &layout).covered.into()),
                None => Rebuilt::WithoutParity,
            },
        };
        self.last = Some((id, rebuilt.clone()));
        Ok(rebuilt)
    }
}
