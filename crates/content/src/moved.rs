//! Following `moved/<pack>` notes: where compaction took the chunks of a pack that is no more.

use crate::format::moved::{self, Moved};
use crate::name::PackMap;
use crate::{Error, Pointer, limits};
use base::PackId;
use datastore::Store;
use parking_lot::Mutex;
use std::sync::Arc;

/// Prefix of the keys of notes.
pub(crate) const PREFIX: &str = "moved/";

/// The key of the note of a pack.
pub(crate) fn key(pack: PackId) -> String {
    format!("{PREFIX}{pack}")
}

/// Notes that were read lately.
#[derive(Default)]
pub(crate) struct MovedNotes {
    notes: Mutex<PackMap<Arc<Moved>>>,
}

impl MovedNotes {
    /// Whether no note is in RAM.
    pub(crate) fn is_empty(&self) -> bool {
        self.notes.lock().is_empty()
    }

    /// Where a chunk lies by the notes in RAM: where the pointer says when there is none.
    pub(crate) fn known_place(&self, pointer: &Pointer) -> Pointer {
        let notes = self.notes.lock();
        let mut place = *pointer;
        for _ in 0..limits::MOVED_HOPS_MAX {
            match notes.get(&place.pack).and_then(|note| note.place(&place)) {
                Some(next) => place = next,
                None => break,
            }
        }
        place
    }

    /// Where the note of a pack that is gone says that the chunk went.
    pub(crate) async fn place(
        &self,
        store: &Store,
        pointer: &Pointer,
    ) -> Result<Option<Pointer>, Error> {
        Ok(self.note(store, pointer.pack).await?.and_then(|note| note.place(pointer)))
    }

    /// The note of a pack.
    pub(crate) async fn note(
        &self,
        store: &Store,
        pack: PackId,
    ) -> Result<Option<Arc<Moved>>, Error> {
        if let Some(note) = self.notes.lock().get(&pack) {
            return Ok(Some(note.clone()));
        }
        let bytes = match store.get(&key(pack)).await {
            Ok((bytes, _)) => bytes,
            Err(datastore::Error::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let note = Arc::new(moved::decode(&bytes)?);
        self.keep(note.clone());
        Ok(Some(note))
    }

    pub(crate) fn keep(&self, note: Arc<Moved>) {
        let mut notes = self.notes.lock();
        if notes.len() >= limits::MOVED_CACHED_MAX {
            // Any one: they are read again when they are missed.
            let any = notes.keys().next().copied();
            any.and_then(|pack| notes.remove(&pack));
        }
        notes.insert(note.pack, note);
    }

    pub(crate) fn forget(&self, pack: PackId) {
        self.notes.lock().remove(&pack);
    }
}
