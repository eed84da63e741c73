//! A batch: new chunks on their way into packs.
//!
//! Each chunk costs one hash, a lookup in the batch's own names and in the index, and compression.
//! Of many chunks at once several cores share the cost, and neighbours are compressed together: see
//! [`ahead`]. Full packs are uploaded in the background. What little a batch has goes into a pack
//! that it shares with others: see [`shared`].
//! A pack enters the index when its upload is done, so that a batch finds only durable chunks in
//! the index.

mod ahead;
pub(crate) mod shared;
mod stretch;
mod upload;

pub use stretch::Stretch;

use crate::cache::{Keep, Unasked};
use crate::compression::Compressor;
use crate::content::{Inner, add};
use crate::format::footer::Entry;
use crate::index::IndexAnswer;
use crate::live::Hold;
use crate::moved::MovedNotes;
use crate::name::{Name, NameMap};
use crate::pack::blobs::{Blob, Blobs, Chunk};
use crate::pack::reader::{self, Body, Opener};
use crate::pack::writer::Writer;
use crate::{Class, Content, Error, POINTER_BYTES, Pointer, Spot, limits, pack};
use bytes::Bytes;
use futures_util::future::join_all;
use rekindle_base::PackId;
use shared::{Upload, slot};
use std::collections::BTreeMap;
use std::sync::Arc;
use upload::granted;

/// One batch of new chunks. See the crate's page.
pub struct Batch {
    inner: Arc<Inner>,
    hold: Hold,
    compressor: Compressor,
    is_cached: bool,
    /// Whether duplicates are found among this batch's own chunks only.
    is_anew: bool,
    /// Chunks of this batch that are not durable yet, by name.
    own: NameMap<Pointer>,
    /// Those of the batch before it that were not durable when this one began.
    earlier: NameMap<Pointer>,
    /// The packs of its own that are being filled: data, metadata.
    open: [Option<Writer>; 2],
    /// Bytes of each class that may still go into shared packs.
    shared_left: [u64; 2],
    /// Room for the blobs of one chunk, or of few.
    blobs: Blobs,
    /// Packs that are not known to be durable: own ones that are complete, and all shared ones.
    uploads: Vec<Arc<Upload>>,
    /// Footers are loaded for duplicates only as long as they give some: each load costs
    /// [`FOOTER_COST`], each duplicate gives 1.
    footer_credit: u32,
}

const FOOTER_COST: u32 = 8;
const FOOTER_CREDIT_MAX: u32 = 256;

impl Content {
    /// Begins a batch.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch::new(self.inner.clone())
    }

    /// Begins a batch that finds the chunks of an earlier one, too, whose packs are on their way.
    /// Its root may be committed only over a root of the earlier batch. It finds nothing of batches
    /// before that: they may have ended, and a sweep since then may have condemned their chunks.
    #[must_use]
    pub fn batch_behind(&self, earlier: &Batch) -> Batch {
        let mut batch = self.batch();
        batch.earlier = earlier.own.clone();
        batch
    }
}

impl Batch {
    fn new(inner: Arc<Inner>) -> Self {
        Self {
            hold: inner.live.hold(),
            compressor: Compressor::new(inner.config.compression),
            is_cached: true,
            is_anew: false,
            own: NameMap::default(),
            earlier: NameMap::default(),
            open: [None, None],
            shared_left: [limits::SHARED_BYTES_MAX.min(inner.config.pack_bytes / 4); 2],
            blobs: Blobs::default(),
            uploads: Vec::new(),
            footer_credit: FOOTER_CREDIT_MAX,
            inner,
        }
    }

    /// Sets whether data written from now on goes into the cache (by default it does). Metadata
    /// always does.
    pub fn set_cached(&mut self, is_cached: bool) {
        self.is_cached = is_cached;
    }

    /// Finds duplicates among this batch's own chunks only from now on: for a caller that mistrusts
    /// the store's copy of the same bytes.
    pub fn set_anew(&mut self) {
        self.is_anew = true;
    }

    /// Tells how many bytes of data will come: much of it goes into packs of the batch's own from
    /// the beginning.
    pub fn expect(&mut self, bytes: u64) {
        let left = &mut self.shared_left[slot(Class::Data)];
        if bytes > *left {
            *left = 0;
        }
    }

    /// Adds a chunk: names it, looks for a duplicate, compresses, packs. Starts uploads of full
    /// packs in the background and waits only when too many are in flight. `children` are the
    /// pointers that the chunk declares (none for data), and its name covers them.
    ///
    /// `data` may stay in the cache: a slice keeps the whole of its buffer there.
    pub async fn write(
        &mut self,
        class: Class,
        data: Bytes,
        children: &[Pointer],
    ) -> Result<Pointer, Error> {
        if children.is_empty() {
            return self.write_body(class, Body { bytes: data, children: 0 }).await;
        }
        if class == Class::Data {
            return Err(Error::Invalid("a data chunk cannot have children".into()));
        }
        if children.len() > limits::CHILDREN_MAX {
            return Err(Error::Invalid(format!("a chunk cannot have {} children", children.len())));
        }
        let mut body = Vec::with_capacity(children.len() * POINTER_BYTES + data.len());
        children.iter().for_each(|child| body.extend_from_slice(&child.encode()));
        body.extend_from_slice(&data);
        let count = u32::try_from(children.len()).unwrap_or(u32::MAX);
        self.write_body(class, Body { bytes: body.into(), children: count }).await
    }

    pub(crate) async fn write_body(&mut self, class: Class, body: Body) -> Result<Pointer, Error> {
        let name = self.inner.namer.name(class, body.children, &body.bytes);
        let length = body.bytes.len();
        check_length(length)?;
        self.counts(length);
        let found = self.find_any(&name).await;
        let pointer = match found {
            Some(pointer) => {
                self.counts_duplicate(length);
                pointer
            }
            None => self.append(class, name, &body).await?,
        };
        self.cache(class, name, found.is_some(), || body);
        Ok(pointer)
    }

    fn counts(&self, length: usize) {
        add(&self.inner.counters.chunks_written, 1);
        add(&self.inner.counters.bytes_in, length as u64);
    }

    fn counts_duplicate(&self, length: usize) {
        add(&self.inner.counters.chunks_deduplicated, 1);
        add(&self.inner.counters.bytes_deduplicated, length as u64);
    }

    /// Puts a chunk into the cache, if this batch's chunks of the class go there. A duplicate that
    /// the cache has already is made the newest there, no more.
    fn cache(&self, class: Class, name: Name, is_old: bool, body: impl FnOnce() -> Body) {
        let is_wanted = class == Class::Metadata || self.is_cached;
        if is_wanted && !(is_old && self.inner.cache.touch(&name)) {
            self.inner.keep(name, class, Keep::Unasked(Unasked::Written), body());
        }
    }

    /// Looks for a chunk with this name, that this batch or the store has already.
    async fn find_any(&mut self, name: &Name) -> Option<Pointer> {
        let found = match self.find(name) {
            IndexAnswer::Place(pointer) => Some(pointer),
            IndexAnswer::Footer(pack, bytes) => self.find_in_footer(name, pack, bytes).await,
            IndexAnswer::Nothing => None,
        };
        let gain = u32::from(found.is_some());
        self.footer_credit = (self.footer_credit + gain).min(FOOTER_CREDIT_MAX);
        found
    }

    fn find(&self, name: &Name) -> IndexAnswer {
        if let Some(pointer) = self.own.get(name) {
            return IndexAnswer::Place(*pointer);
        }
        if self.is_anew {
            return IndexAnswer::Nothing;
        }
        match self.earlier.get(name) {
            Some(pointer) => IndexAnswer::Place(*pointer),
            None => self.inner.index.lookup(name),
        }
    }

    /// Loads the footer of a pack that may hold the chunk, so that its neighbours are found too.
    async fn find_in_footer(&mut self, name: &Name, pack: PackId, bytes: u64) -> Option<Pointer> {
        self.footer_credit = self.footer_credit.checked_sub(FOOTER_COST)?;
        match reader::read_footer(&self.inner.store, &self.inner.namer, pack, bytes).await {
            Ok(entries) => self.inner.index.add(pack, bytes, &entries),
            Err(Error::Store(rekindle_datastore::Error::NotFound(_))) => {
                self.inner.index.forget(&[pack])
            }
            Err(error) => {
                tracing::debug!(%pack, %error, "the footer of a pack cannot be read: no duplicates from it")
            }
        }
        self.inner.index.lookup_recent(name)
    }

    /// Adds a chunk that is new.
    async fn append(&mut self, class: Class, name: Name, body: &Body) -> Result<Pointer, Error> {
        let mut blobs = std::mem::take(&mut self.blobs);
        blobs.clear();
        blobs.push((class, name, body.children), &body.bytes, &mut self.compressor);
        let mut pointers = Vec::with_capacity(1);
        self.append_all(class, &blobs, &mut pointers).await?;
        self.blobs = blobs;
        Ok(pointers[0])
    }

    /// Adds blobs of new chunks, and the pointer to each chunk to `pointers`.
    async fn append_all(
        &mut self,
        class: Class,
        blobs: &Blobs,
        pointers: &mut Vec<Pointer>,
    ) -> Result<(), Error> {
        for blob in blobs.iter() {
            let left = &mut self.shared_left[slot(class)];
            match left.checked_sub(blob.raw() as u64) {
                Some(rest) => {
                    *left = rest;
                    self.append_shared(class, blob, pointers).await?;
                }
                None => {
                    *left = 0;
                    self.append_own(class, blob, pointers).await?;
                }
            }
        }
        Ok(())
    }

    /// Adds a blob to the pack that batches share.
    async fn append_shared(
        &mut self,
        class: Class,
        blob: Blob<'_>,
        pointers: &mut Vec<Pointer>,
    ) -> Result<(), Error> {
        loop {
            let Self { inner, hold, uploads, own, .. } = self;
            let new = || Writer::new(pack::new_id(&inner.env, class), class, inner.pool.take());
            let result = inner.shared[slot(class)].append(new, |writer, upload| {
                if !writer.fits(&blob, inner.config.pack_bytes) {
                    return None;
                }
                if !uploads.iter().any(|known| Arc::ptr_eq(known, upload)) {
                    hold.wrote(upload.id);
                    uploads.push(upload.clone());
                }
                writer.append(blob, |pointer| {
                    own.insert(pointer.name, pointer);
                    pointers.push(pointer);
                });
                Some(())
            });
            match result {
                Ok(()) => return Ok(()),
                Err(full) => {
                    self.reap()?;
                    full.begin(&self.inner, granted(&self.inner.uploads).await);
                }
            }
        }
    }

    /// Adds a blob to a pack of the batch's own.
    async fn append_own(
        &mut self,
        class: Class,
        blob: Blob<'_>,
        pointers: &mut Vec<Pointer>,
    ) -> Result<(), Error> {
        self.make_room(class, &blob).await?;
        self.writer(class).append(blob, |pointer| pointers.push(pointer));
        for pointer in &pointers[pointers.len() - blob.chunks.len()..] {
            self.own.insert(pointer.name, *pointer);
        }
        Ok(())
    }

    /// Adds all chunks of a blob as another pack stores it, and notes their new places. The caller
    /// has verified them. For compaction.
    pub(crate) async fn append_as_it_is(
        &mut self,
        pack: PackId,
        entries: &[Entry],
        stored: &[u8],
        places: &mut BTreeMap<Spot, Pointer>,
    ) -> Result<(), Error> {
        let mut pointers = Vec::with_capacity(entries.len());
        match entries {
            [entry] if self.own.contains_key(&entry.name) => pointers.push(self.own[&entry.name]),
            _ => {
                let chunk =
                    |&Entry { name, length, part, .. }: &Entry| Chunk { name, length, part };
                let chunks: Vec<Chunk> = entries.iter().map(chunk).collect();
                let blob = Blob { stored, chunks: &chunks };
                self.append_own(pack::class(pack), blob, &mut pointers).await?;
            }
        }
        places.extend(entries.iter().map(Entry::spot).zip(pointers));
        Ok(())
    }

    /// Adds chunks of data whose bodies lie one after the other, without a lookup, and returns
    /// their places. For compaction.
    pub(crate) async fn append_together(
        &mut self,
        chunks: &[(Name, usize)],
        bodies: &[u8],
    ) -> Result<Vec<Pointer>, Error> {
        let mut pointers = Vec::with_capacity(chunks.len());
        let mut blobs = std::mem::take(&mut self.blobs);
        blobs.clear();
        blobs.push_together(chunks, bodies, &mut self.compressor);
        for blob in blobs.iter() {
            self.append_own(Class::Data, blob, &mut pointers).await?;
        }
        self.blobs = blobs;
        Ok(pointers)
    }

    /// Adds a chunk without a lookup in the index: the copy in the store is damaged.
    pub(crate) async fn write_anew(
        &mut self,
        class: Class,
        name: Name,
        body: Body,
    ) -> Result<Pointer, Error> {
        let pointer = match self.own.get(&name) {
            Some(pointer) => *pointer,
            None => self.append(class, name, &body).await?,
        };
        self.inner.cache.insert(name, class, Keep::Unasked(Unasked::Written), body);
        Ok(pointer)
    }

    fn writer(&mut self, class: Class) -> &mut Writer {
        self.open[slot(class)].get_or_insert_with(|| {
            let id = pack::new_id(&self.inner.env, class);
            self.hold.wrote(id);
            Writer::new(id, class, self.inner.pool.take())
        })
    }

    async fn make_room(&mut self, class: Class, blob: &Blob<'_>) -> Result<(), Error> {
        let bytes_max = self.inner.config.pack_bytes;
        let is_full =
            |writer: &Writer| writer.bytes() >= bytes_max || !writer.fits(blob, bytes_max);
        if self.open[slot(class)].as_ref().is_some_and(is_full) {
            self.reap()?;
            self.seal(class).await;
        }
        Ok(())
    }

    /// Uploads the open pack of a class in the background; waits while too many uploads are in
    /// flight.
    async fn seal(&mut self, class: Class) {
        if self.open[slot(class)].is_none() {
            return;
        }
        // First the permit, then the pack: a caller that drops this future in between loses
        // nothing.
        let permit = granted(&self.inner.uploads).await;
        let Some(writer) = self.open[slot(class)].take() else { return };
        let upload = Upload::new(writer);
        self.uploads.push(upload.clone());
        upload.begin(&self.inner, permit);
    }

    async fn seal_all(&mut self) {
        self.seal(Class::Data).await;
        self.seal(Class::Metadata).await;
    }

    /// Removes the packs that are durable and returns the first error. Packs whose uploads failed
    /// are kept, so that `flush` can try again.
    fn reap(&mut self) -> Result<(), Error> {
        let mut failed = None;
        let own = &mut self.own;
        self.uploads.retain(|upload| match upload.outcome() {
            None => true,
            Some(Ok(())) => {
                let pack = upload.sealed();
                let entries = pack.iter().flat_map(|pack| &pack.entries);
                entries.for_each(|entry| {
                    own.remove(&entry.name);
                });
                false
            }
            Some(Err(error)) => {
                failed.get_or_insert(error);
                true
            }
        });
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Completes the packs and begins their uploads. From here on anyone can read every chunk
    /// added so far, though the store may not have it yet.
    pub async fn complete(&mut self) {
        self.seal_all().await;
        // A pack that is shared waits for no company.
        for upload in self.uploads.iter().filter(|upload| upload.sealed().is_none()) {
            upload.begin(&self.inner, granted(&self.inner.uploads).await);
        }
    }

    /// Makes everything added so far durable in the store. After an error the call may be repeated:
    /// packs whose uploads failed are uploaded once more. A shared pack that could not be uploaded
    /// is an error of each batch in it, and one attempt serves all of them.
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.seal_all().await;
        join_all(self.uploads.iter().map(|upload| upload.end(&self.inner))).await;
        self.reap()
    }

    /// Ends a batch whose chunks a durable root reaches, or that gave nothing. Call after the
    /// root's commit, when its outcome is known: for a batch that is dropped instead, a commit may
    /// still be on its way.
    pub fn committed(self) {
        self.hold.end_known();
        // The end of the hold is all that the sweep waits for.
        drop(self);
    }

    /// Reads a chunk from this batch's packs (which may not be in the store yet), the cache or the
    /// store.
    pub(crate) async fn read(&self, pointer: &Pointer, class: Class) -> Result<Body, Error> {
        if self.inner.cache.get(&pointer.name).is_none() {
            let open = |blob: &[u8]| Opener::new(&self.inner.namer).open(pointer, blob);
            let own = self.open.iter().flatten().find(|writer| writer.id() == pointer.pack);
            let shared = || self.uploads.iter().find(|upload| upload.id == pointer.pack);
            let found = match own {
                Some(writer) => writer.blob(pointer).map(open),
                None => shared().and_then(|upload| upload.look(pointer, open)),
            };
            if let Some(found) = found {
                return found;
            }
        }
        self.inner.read(pointer, class, Keep::Yes).await
    }

    /// The notes of where compaction has moved chunks.
    pub(crate) fn moved(&self) -> &MovedNotes {
        &self.inner.moved
    }
}

/// Refuses a chunk that is too long.
fn check_length(length: usize) -> Result<(), Error> {
    match length {
        0..=limits::CHUNK_BYTES_MAX => Ok(()),
        _ => Err(Error::Invalid(format!("a chunk cannot have {length} bytes"))),
    }
}

#[cfg(test)]
mod tests;
