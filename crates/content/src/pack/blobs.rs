//! Making blobs: of a chunk, and of chunks that are compressed together.

use crate::Class;
use crate::compression::Compressor;
use crate::format::blob::Codec;
use crate::format::{blob, bundle};
use crate::name::Name;
use crate::pointer::Part;
use rekindle_base::checksum::crc32c;

/// A blob that is ready for a pack.
#[derive(Clone, Copy)]
pub(crate) struct Blob<'a> {
    /// Header and payload.
    pub(crate) stored: &'a [u8],
    /// The chunks; more than one in a bundle.
    pub(crate) chunks: &'a [Chunk],
}

/// A chunk of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) name: Name,
    /// Bytes of the body.
    pub(crate) length: u32,
    pub(crate) part: Part,
}

impl Blob<'_> {
    /// Bytes of the chunks.
    pub(crate) fn raw(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.length as usize).sum()
    }
}

/// Blobs that are ready, one after the other.
#[derive(Default)]
pub(crate) struct Blobs {
    /// The blobs, then bytes of those before: bytes that will be overwritten need not be zeroed.
    bytes: Vec<u8>,
    chunks: Vec<Chunk>,
    /// Of each blob, where it ends in `bytes` and in `chunks`.
    ends: Vec<(usize, usize)>,
}

impl Blobs {
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.ends.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Blob<'_>> {
        let begins = std::iter::once((0, 0)).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|((byte, chunk), end)| Blob {
            stored: &self.bytes[byte..end.0],
            chunks: &self.chunks[chunk..end.1],
        })
    }

    /// Room for a blob of `length` bytes, behind those that are ready.
    fn room(&mut self, length: usize) -> &mut [u8] {
        let begin = self.ends.last().map_or(0, |end| end.0);
        if self.bytes.len() < begin + length {
            self.bytes.resize(begin + length, 0);
        }
        &mut self.bytes[begin..]
    }

    /// Takes the bytes that were written to the room as a blob of all chunks that no blob has yet.
    fn end(&mut self, stored: usize) {
        let begin = self.ends.last().map_or(0, |end| end.0);
        self.ends.push((begin + stored, self.chunks.len()));
    }

    /// Adds a chunk, compressed if that pays.
    pub(crate) fn push(
        &mut self,
        (class, name, children): (Class, Name, u32),
        body: &[u8],
        compressor: &mut Compressor,
    ) {
        let room = self.room(blob::BYTES + compressor.room(body.len()));
        let (codec, payload) = compressor.compress(body, &mut room[blob::BYTES..]);
        self.enter((class, name, children), body.len(), codec, payload);
    }

    /// Writes the header of a chunk whose payload is in its place.
    fn enter(
        &mut self,
        (class, name, children): (Class, Name, u32),
        length: usize,
        codec: Codec,
        payload: usize,
    ) {
        let header = blob::Blob {
            codec,
            class,
            length: narrow(length),
            payload: narrow(payload),
            children,
            name,
        };
        self.room(blob::BYTES)[..blob::BYTES].copy_from_slice(&blob::encode(&header));
        self.chunks.push(Chunk { name, length: narrow(length), part: Part::WHOLE });
        self.end(blob::BYTES + payload);
    }

    /// Adds chunks of data whose bodies lie one after the other in `bodies`: as a bundle, if that
    /// pays. Else each has a blob of its own and is stored as it is, so that it is read alone.
    pub(crate) fn push_together(
        &mut self,
        chunks: &[(Name, usize)],
        bodies: &[u8],
        compressor: &mut Compressor,
    ) {
        debug_assert!(chunks.iter().map(|(_, length)| length).sum::<usize>() == bodies.len());
        if let [(name, _)] = chunks {
            return self.push((Class::Data, *name, 0), bodies, compressor);
        }
        let head = bundle::head_bytes(chunks.len());
        let room = self.room(head + compressor.room(bodies.len()));
        let compressed = compressor.try_compress(bodies, &mut room[head..]);
        if let Some((codec, payload)) = compressed
            && let Some(parts) = parts(chunks, bodies.len(), head + payload)
        {
            let lengths = parts.iter().map(|chunk| chunk.length).collect();
            let sum = crc32c(&room[head..head + payload]);
            bundle::encode(&bundle::Bundle { codec, payload: narrow(payload), sum, lengths }, room);
            self.chunks.extend(parts);
            return self.end(head + payload);
        }
        let mut begin = 0;
        for (name, length) in chunks {
            let body = &bodies[begin..begin + length];
            begin += length;
            if compressed.is_some() {
                // The bundle is so short that its chunks would have no positions of their own.
                self.push((Class::Data, *name, 0), body, compressor);
                continue;
            }
            self.room(blob::BYTES + length)[blob::BYTES..][..*length].copy_from_slice(body);
            self.enter((Class::Data, *name, 0), *length, Codec::None, *length);
        }
    }
}

/// The parts of a bundle; `None` when no parts can say where its chunks are.
fn parts(chunks: &[(Name, usize)], raw: usize, stored: usize) -> Option<Vec<Chunk>> {
    let mut begin = 0;
    let part = |(name, length): &(Name, usize)| {
        let part = Part::new(begin, raw, stored)?;
        begin += length;
        Some(Chunk { name: *name, length: narrow(*length), part })
    };
    chunks.iter().map(part).collect()
}

/// Narrows a length of a chunk or a bundle, which fits: `CHUNK_BYTES_MAX` bounds it.
fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
