//! Filling a pack in RAM.

#[cfg(test)]
use crate::compression::Compressor;
use crate::format::{footer, pack};
#[cfg(test)]
use crate::name::Name;
#[cfg(test)]
use crate::pack::blobs::Blobs;
use crate::pack::{blobs::Blob, parity};
use crate::{Class, Parity, Pointer, limits};
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_base::PackId;
use std::sync::Arc;

/// A pack that is being filled.
pub(crate) struct Writer {
    id: PackId,
    /// The pack so far, then bytes that the pack before it left in this buffer: bytes that will be
    /// overwritten need not be zeroed before.
    buffer: Vec<u8>,
    length: usize,
    entries: Vec<footer::Entry>,
}

/// A pack that is complete.
pub(crate) struct Sealed {
    pub(crate) id: PackId,
    pub(crate) object: Bytes,
    pub(crate) entries: Vec<footer::Entry>,
}

impl Writer {
    /// Begins a pack in a buffer, whose content does not matter.
    pub(crate) fn new(id: PackId, class: Class, buffer: Vec<u8>) -> Self {
        let mut writer = Self { id, buffer, length: 0, entries: Vec::new() };
        writer.put(&pack::encode(class, id, false));
        writer
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        self.buffer[self.length..end].copy_from_slice(bytes);
        self.length = end;
    }

    pub(crate) fn id(&self) -> PackId {
        self.id
    }

    /// Bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.length as u64
    }

    /// Whether a blob still fits under `bytes_max`. An empty pack takes any.
    pub(crate) fn fits(&self, blob: &Blob<'_>, bytes_max: u64) -> bool {
        let (bytes, chunks) = (self.length + blob.stored.len(), self.entries.len());
        self.entries.is_empty()
            || (bytes as u64 <= bytes_max && chunks + blob.chunks.len() <= limits::PACK_CHUNKS_MAX)
    }

    /// Adds a blob that was made for a pack, or as another pack holds it; that one the caller has
    /// verified. Passes the pointer to each of its chunks to `place`.
    pub(crate) fn append(&mut self, blob: Blob<'_>, mut place: impl FnMut(Pointer)) {
        let offset = self.length;
        self.put(blob.stored);
        for chunk in blob.chunks {
            let entry = footer::Entry {
                offset: narrow(offset),
                stored: narrow(blob.stored.len()),
                length: chunk.length,
                part: chunk.part,
                name: chunk.name,
            };
            self.entries.push(entry);
            place(pointer(self.id, &entry));
        }
    }

    /// Adds a chunk of data.
    #[cfg(test)]
    pub(crate) fn append_chunk(&mut self, name: Name, body: &[u8], compressor: &mut Compressor) {
        let mut blobs = Blobs::default();
        blobs.push((Class::Data, name, 0), body, compressor);
        blobs.iter().for_each(|blob| self.append(blob, |_| {}));
    }

    /// The blob at a place of this pack.
    pub(crate) fn blob(&self, pointer: &Pointer) -> Option<&[u8]> {
        let begin = pointer.offset as usize;
        self.buffer[..self.length].get(begin..begin + pointer.stored as usize)
    }

    /// Completes the pack: says in its header whether it has bundles, writes parity, if the setting
    /// asks for it, and the footer. `pool` gets the buffer back when the upload has let go of it.
    pub(crate) fn seal(&mut self, parity: Option<Parity>, pool: &Arc<Pool>) -> Sealed {
        let mut buffer = std::mem::take(&mut self.buffer);
        let entries = std::mem::take(&mut self.entries);
        buffer.truncate(self.length);
        if footer::have_bundles(&entries) {
            let header = pack::encode(super::class(self.id), self.id, true);
            buffer[..pack::BYTES].copy_from_slice(&header);
        }
        if let Some(parity) = parity {
            parity::append(self.id, parity, &mut buffer);
        }
        footer::append(&entries, &mut buffer);
        // A short pack would pin a long buffer for as long as the store keeps the object in RAM.
        let object = if buffer.len() < buffer.capacity() / 8 {
            let object = Bytes::copy_from_slice(&buffer);
            pool.give(buffer);
            object
        } else {
            Bytes::from_owner(Lent { buffer, pool: pool.clone() })
        };
        Sealed { id: self.id, object, entries }
    }
}

/// The pointer to an entry of a pack.
pub(crate) fn pointer(pack: PackId, entry: &footer::Entry) -> Pointer {
    Pointer {
        name: entry.name,
        pack,
        offset: entry.offset,
        stored: entry.stored,
        length: entry.length,
        part: entry.part,
    }
}

/// Narrows a length within a pack, which fits: `PACK_BYTES_MAX` and `CHUNK_BYTES_MAX` bound it.
fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Pack buffers for reuse: fresh memory costs a page fault for every 4 KiB, which is a tenth of the
/// ingest rate.
pub(crate) struct Pool {
    kept_max: usize,
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Pool {
    pub(crate) fn new(kept_max: usize) -> Arc<Self> {
        Arc::new(Self { kept_max, buffers: Mutex::new(Vec::new()) })
    }

    pub(crate) fn take(&self) -> Vec<u8> {
        self.buffers.lock().pop().unwrap_or_else(|| Vec::with_capacity(limits::PACK_BUFFER_BYTES))
    }

    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock();
        if buffers.len() < self.kept_max {
            buffers.push(buffer);
        }
    }
}

/// A buffer that returns to its pool when the last reader of the object lets go.
struct Lent {
    buffer: Vec<u8>,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}
impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.buffer));
    }
}
