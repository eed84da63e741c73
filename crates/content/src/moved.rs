//! Following `moved/<pack>` notes: where compaction took the chunks of a pack that is no more.

use crate::format::moved::{self, Moved};
use crate::name::{PackMap, PackSet, PlaceMap};
use crate::{Error, Pointer, limits};
use parking_lot::Mutex;
use rekindle_base::PackId;
use rekindle_datastore::Store;
use std::sync::Arc;

/// Prefix of the keys of notes.
pub(crate) const PREFIX: &str = "moved/";

/// The key of the note of a pack.
pub(crate) fn key(pack: PackId) -> String {
    format!("{PREFIX}{pack}")
}

/// Returns the pack whose note has this key.
pub(crate) fn pack_of(key: &str) -> Option<PackId> {
    key.strip_prefix(PREFIX)?.parse().ok()
}

/// Notes that were read lately, and the places that reads have proven.
#[derive(Default)]
pub(crate) struct MovedNotes {
    state: Mutex<NoteTable>,
}

#[derive(Default)]
struct NoteTable {
    notes: PackMap<Arc<Moved>>,
    /// Packs whose notes were written by this process, after the copies were durable.
    own: PackSet,
    /// By pointer, the place from which the chunk was read after a note had said so.
    proven: PlaceMap<Pointer>,
}

impl MovedNotes {
    /// Whether no new place of any chunk is proven.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.own.is_empty() && state.proven.is_empty()
    }

    /// Returns the place of a chunk as far as it is proven: for pointers that are written anew. A
    /// note may be void: its copies never became durable, and the pack that it speaks of is still
    /// there. A dead place in a node would be damage.
    pub(crate) fn proven_place(&self, pointer: &Pointer) -> Pointer {
        let state = self.state.lock();
        if let Some(place) = state.proven.get(pointer) {
            return *place;
        }
        let mut place = *pointer;
        for _ in 0..limits::MOVED_HOPS_MAX {
            let own = state.notes.get(&place.pack).filter(|note| state.own.contains(&note.pack));
            match own.and_then(|note| note.place(&place)) {
                Some(next) => place = next,
                None => break,
            }
        }
        place
    }

    /// Notes that a chunk was read from `place`, whatever its pointer says.
    pub(crate) fn prove(&self, pointer: &Pointer, place: &Pointer) {
        if pointer == place {
            return;
        }
        let mut state = self.state.lock();
        if state.proven.len() >= limits::MOVED_PROVEN_MAX {
            state.proven.clear();
        }
        state.proven.insert(*pointer, *place);
    }

    /// Returns the places of a chunk by the notes in RAM: first that of the pointer, last where the
    /// notes lead.
    pub(crate) fn known_places(&self, pointer: &Pointer) -> Vec<Pointer> {
        let state = self.state.lock();
        let mut places = vec![*pointer];
        let mut place = *pointer;
        for _ in 0..limits::MOVED_HOPS_MAX {
            match state.notes.get(&place.pack).and_then(|note| note.place(&place)) {
                Some(next) => place = next,
                None => break,
            }
            places.push(place);
        }
        places
    }

    /// Returns where a chunk went, by the note of its pack, which is gone.
    pub(crate) async fn place(
        &self,
        store: &Store,
        pointer: &Pointer,
    ) -> Result<Option<Pointer>, Error> {
        Ok(self.note(store, pointer.pack).await?.and_then(|note| note.place(pointer)))
    }

    /// Returns the note of a pack, if there is one.
    pub(crate) async fn note(
        &self,
        store: &Store,
        pack: PackId,
    ) -> Result<Option<Arc<Moved>>, Error> {
        if let Some(note) = self.state.lock().notes.get(&pack) {
            return Ok(Some(note.clone()));
        }
        self.read(store, pack).await
    }

    /// Whether this process has written the note of a pack.
    pub(crate) fn is_own(&self, pack: &PackId) -> bool {
        self.state.lock().own.contains(pack)
    }

    /// Returns the note of a pack as it is now, whatever was read before; `None` without one.
    pub(crate) async fn look(
        &self,
        store: &Store,
        pack: PackId,
    ) -> Result<Option<Arc<Moved>>, Error> {
        match self.own(&pack) {
            Some(note) => Ok(Some(note)),
            None => self.read(store, pack).await,
        }
    }

    async fn read(&self, store: &Store, pack: PackId) -> Result<Option<Arc<Moved>>, Error> {
        let bytes = match store.get(&key(pack)).await {
            Ok((bytes, _)) => bytes,
            Err(rekindle_datastore::Error::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let note = Arc::new(moved::decode(&bytes)?);
        self.keep(note.clone());
        Ok(Some(note))
    }

    /// Returns a note that this process has written, if it is at hand: no other process writes it.
    fn own(&self, pack: &PackId) -> Option<Arc<Moved>> {
        let state = self.state.lock();
        state.notes.get(pack).filter(|_| state.own.contains(pack)).cloned()
    }

    /// Keeps a note that this process has written.
    pub(crate) fn keep_own(&self, note: Arc<Moved>) {
        self.state.lock().own.insert(note.pack);
        self.keep(note);
    }

    pub(crate) fn keep(&self, note: Arc<Moved>) {
        let mut state = self.state.lock();
        if state.notes.len() >= limits::MOVED_CACHED_MAX {
            // Any note may go: it is read again when it is missed.
            let any = state.notes.keys().next().copied();
            if let Some(pack) = any {
                state.drop_note(pack);
            }
        }
        state.notes.insert(note.pack, note);
    }

    pub(crate) fn forget(&self, pack: PackId) {
        let mut state = self.state.lock();
        state.drop_note(pack);
        state.proven.retain(|pointer, place| pointer.pack != pack && place.pack != pack);
    }

    /// Drops notes and proven places that lead from or to these packs, which a sweep may delete: no
    /// pointer is written to them any more.
    pub(crate) fn condemn(&self, packs: &[PackId]) {
        let packs: PackSet = packs.iter().copied().collect();
        let mut state = self.state.lock();
        if state.proven.is_empty() && state.own.is_empty() {
            return;
        }
        let leads_there =
            |note: &Moved| note.entries.iter().any(|(_, place)| packs.contains(&place.pack));
        let void: Vec<PackId> = state
            .notes
            .values()
            .filter(|note| packs.contains(&note.pack) || leads_there(note))
            .map(|note| note.pack)
            .collect();
        void.into_iter().for_each(|pack| state.drop_note(pack));
        state.proven.retain(|pointer, place| {
            !packs.contains(&pointer.pack) && !packs.contains(&place.pack)
        });
    }
}

impl NoteTable {
    fn drop_note(&mut self, pack: PackId) {
        self.notes.remove(&pack);
        self.own.remove(&pack);
    }
}
