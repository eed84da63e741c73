//! A batch: new chunks on their way into packs.
//!
//! Each chunk costs one hash, a lookup in the batch's own names and in the index, and compression
//! straight into the pack's buffer. Full packs are uploaded in the background. A pack belongs to
//! one batch and enters the index when its upload is done, so that a batch finds only durable
//! chunks in the index.

use crate::compression::Compressor;
use crate::content::{Inner, add};
use crate::index::Found;
use crate::live::Hold;
use crate::moved::MovedNotes;
use crate::name::{Name, NameMap};
use crate::pack::reader::{self, Body};
use crate::pack::writer::{Sealed, Writer};
use crate::read::Keep;
use crate::{Class, Content, Error, POINTER_BYTES, Pointer, limits, pack};
use bytes::Bytes;
use rekindle_base::PackId;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// One batch of new chunks. See the crate's page.
pub struct Batch {
    inner: Arc<Inner>,
    /// Shared with the uploads: an upload that outlives its batch still writes a pack, and puts it
    /// into the index.
    hold: Arc<Hold>,
    compressor: Compressor,
    is_cached: bool,
    /// Whether duplicates are found among this batch's own chunks only.
    is_anew: bool,
    /// Chunks of this batch that are not durable yet, by name.
    own: NameMap<Pointer>,
    /// The packs being filled: data, metadata.
    open: [Option<Writer>; 2],
    uploads: Vec<Upload>,
    /// Footers are loaded for duplicates only as long as they give some: each load costs
    /// [`FOOTER_COST`], each duplicate gives 1.
    footer_credit: u32,
}

const FOOTER_COST: u32 = 8;
const FOOTER_CREDIT_MAX: u32 = 256;

struct Upload {
    pack: Arc<Sealed>,
    state: State,
}

enum State {
    Running(oneshot::Receiver<Result<(), rekindle_datastore::Error>>),
    Failed(rekindle_datastore::Error),
}

impl Content {
    /// Begins a batch.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch::new(self.inner.clone())
    }
}

impl Batch {
    fn new(inner: Arc<Inner>) -> Self {
        Self {
            hold: Arc::new(inner.live.hold()),
            compressor: Compressor::new(inner.config.compression),
            is_cached: true,
            is_anew: false,
            own: NameMap::default(),
            open: [None, None],
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
        let length = body.bytes.len();
        if length > limits::CHUNK_BYTES_MAX {
            return Err(Error::Invalid(format!("a chunk cannot have {length} bytes")));
        }
        let name = self.inner.namer.name(class, body.children, &body.bytes);
        let counters = &self.inner.counters;
        add(&counters.chunks_written, 1);
        add(&counters.bytes_in, length as u64);
        let found = match self.find(&name) {
            Found::Place(pointer) => Some(pointer),
            Found::Footer(pack, bytes) => self.find_in_footer(&name, pack, bytes).await,
            Found::Nothing => None,
        };
        let pointer = match found {
            Some(pointer) => {
                add(&self.inner.counters.chunks_deduplicated, 1);
                add(&self.inner.counters.bytes_deduplicated, length as u64);
                self.footer_credit = (self.footer_credit + 1).min(FOOTER_CREDIT_MAX);
                pointer
            }
            None => self.append(class, name, &body).await?,
        };
        // A duplicate that the cache has already is made the newest there, no more.
        let is_wanted = class == Class::Metadata || self.is_cached;
        if is_wanted && !(found.is_some() && self.inner.cache.touch(&name)) {
            self.inner.keep(name, class, body);
        }
        Ok(pointer)
    }

    fn find(&self, name: &Name) -> Found {
        if let Some(pointer) = self.own.get(name) {
            return Found::Place(*pointer);
        }
        if self.is_anew {
            return Found::Nothing;
        }
        self.inner.index.lookup(name)
    }

    /// Loads the footer of a pack that may hold the chunk, so that its neighbours are found too.
    async fn find_in_footer(&mut self, name: &Name, pack: PackId, bytes: u64) -> Option<Pointer> {
        self.footer_credit = self.footer_credit.checked_sub(FOOTER_COST)?;
        match reader::read_footer(&self.inner.store, pack, bytes).await {
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

    async fn append(&mut self, class: Class, name: Name, body: &Body) -> Result<Pointer, Error> {
        self.make_room(class, body.bytes.len()).await?;
        let writer = self.writer(class);
        let pointer = writer.0.append(name, body.children, &body.bytes, writer.1);
        self.own.insert(name, pointer);
        Ok(pointer)
    }

    /// Adds a verified blob as another pack stores it; for compaction.
    pub(crate) async fn append_blob(
        &mut self,
        from: &Pointer,
        stored: &[u8],
    ) -> Result<Pointer, Error> {
        if let Some(pointer) = self.own.get(&from.name) {
            return Ok(*pointer);
        }
        let class = pack::class(from.pack);
        self.make_room(class, stored.len()).await?;
        let pointer = self.writer(class).0.append_blob(from.name, from.length as usize, stored);
        self.own.insert(from.name, pointer);
        Ok(pointer)
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
        self.inner.cache.insert(name, class, body);
        Ok(pointer)
    }

    fn writer(&mut self, class: Class) -> (&mut Writer, &mut Compressor) {
        let writer = self.open[slot(class)].get_or_insert_with(|| {
            let id = pack::new_id(&self.inner.env, class);
            self.hold.wrote(id);
            Writer::new(id, class, self.inner.pool.take())
        });
        (writer, &mut self.compressor)
    }

    async fn make_room(&mut self, class: Class, length: usize) -> Result<(), Error> {
        let bytes_max = self.inner.config.pack_bytes;
        let is_full =
            |writer: &Writer| writer.bytes() >= bytes_max || !writer.fits(length, bytes_max);
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
        let permit = self.inner.upload_permit().await;
        let Some(writer) = self.open[slot(class)].take() else { return };
        let pack = Arc::new(writer.seal(self.inner.config.parity, &self.inner.pool));
        self.inner.publish(&pack);
        let state = State::Running(upload(&self.inner, &self.hold, &pack, permit));
        self.uploads.push(Upload { pack, state });
    }

    /// Removes the uploads that have succeeded and returns the first error. Packs whose uploads
    /// failed are kept, so that `flush` can try again.
    fn reap(&mut self) -> Result<(), Error> {
        let mut failed = None;
        let own = &mut self.own;
        self.uploads.retain_mut(|upload| {
            let result = match &mut upload.state {
                State::Running(receiver) => match receiver.try_recv() {
                    Ok(result) => result,
                    Err(oneshot::error::TryRecvError::Empty) => return true,
                    Err(oneshot::error::TryRecvError::Closed) => Err(lost()),
                },
                State::Failed(error) => Err(error.clone()),
            };
            match result {
                Ok(()) => {
                    upload.pack.entries.iter().for_each(|entry| {
                        own.remove(&entry.name);
                    });
                    false
                }
                Err(error) => {
                    upload.state = State::Failed(error.clone());
                    failed.get_or_insert(error);
                    true
                }
            }
        });
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Makes everything added so far durable in the store. After an error the call may be repeated:
    /// packs whose uploads failed are uploaded once more.
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.seal(Class::Data).await;
        self.seal(Class::Metadata).await;
        for at in 0..self.uploads.len() {
            if matches!(self.uploads[at].state, State::Failed(_)) {
                let permit = self.inner.upload_permit().await;
                let upload_again = &mut self.uploads[at];
                upload_again.state =
                    State::Running(upload(&self.inner, &self.hold, &upload_again.pack, permit));
            }
        }
        for upload in &mut self.uploads {
            if let State::Running(receiver) = &mut upload.state {
                // The result is put back, so that `reap` finds it even if this future is dropped
                // while it waits for the next upload.
                let result = receiver.await.unwrap_or_else(|_| Err(lost()));
                upload.state = match result {
                    Ok(()) => State::Running(done()),
                    Err(error) => State::Failed(error),
                };
            }
        }
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
        let open = self.open.iter().flatten().find(|writer| writer.id() == pointer.pack);
        if let (None, Some(blob)) =
            (self.inner.cache.get(&pointer.name), open.and_then(|writer| writer.blob(pointer)))
        {
            return reader::open_within(&self.inner.namer, pointer, blob);
        }
        self.inner.read(pointer, class, Keep::Yes).await
    }

    /// The notes of where compaction has moved chunks.
    pub(crate) fn moved(&self) -> &MovedNotes {
        &self.inner.moved
    }
}

fn slot(class: Class) -> usize {
    match class {
        Class::Data => 0,
        Class::Metadata => 1,
    }
}

fn lost() -> rekindle_datastore::Error {
    rekindle_datastore::Error::Unavailable("the upload was broken off".into())
}

fn done() -> oneshot::Receiver<Result<(), rekindle_datastore::Error>> {
    let (sender, receiver) = oneshot::channel();
    let _ = sender.send(Ok(()));
    receiver
}

fn upload(
    inner: &Arc<Inner>,
    hold: &Arc<Hold>,
    pack: &Arc<Sealed>,
    permit: OwnedSemaphorePermit,
) -> oneshot::Receiver<Result<(), rekindle_datastore::Error>> {
    let (sender, receiver) = oneshot::channel();
    let (inner, pack, hold) = (inner.clone(), pack.clone(), hold.clone());
    inner.env.clone().spawn("content-upload", async move {
        let result = inner.store.put(&pack::key(pack.id), pack.object.clone()).await;
        match &result {
            Ok(()) => inner.full.store(false, Ordering::Relaxed),
            Err(error) if error.kind() == rekindle_base::Kind::Full => {
                inner.full.store(true, Ordering::Relaxed);
            }
            // Any other error says nothing about room.
            Err(_) => {}
        }
        if result.is_ok() {
            add(&inner.counters.packs_written, 1);
            add(&inner.counters.bytes_stored, pack.object.len() as u64);
            inner.index.add(pack.id, pack.object.len() as u64, &pack.entries);
        }
        drop(permit);
        drop(pack);
        // The task that waits for the result may end the batch at once, so the hold ends before.
        drop(hold);
        let _ = sender.send(result);
    });
    receiver
}

impl Inner {
    async fn upload_permit(&self) -> OwnedSemaphorePermit {
        self.uploads.clone().acquire_owned().await.expect("nobody closes the semaphore of uploads")
    }
}

#[cfg(test)]
mod tests;
