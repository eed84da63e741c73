//! Reading packs: a blob, a footer.

use crate::compression::decompress;
use crate::format::{Bad, blob, bundle, footer};
use crate::name::Namer;
use crate::pack::writer::pointer;
use crate::{Class, Error, POINTER_BYTES, Pointer, limits};
use bytes::Bytes;
use rekindle_base::PackId;
use rekindle_datastore::Store;
use std::borrow::Cow;

/// The body of a chunk: encoded children, then content. Verified against the chunk's name.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    pub(crate) bytes: Bytes,
    pub(crate) children: u32,
}

impl Body {
    /// The bytes that the caller wrote.
    pub(crate) fn content(&self) -> Bytes {
        self.bytes.slice((self.children as usize * POINTER_BYTES).min(self.bytes.len())..)
    }

    /// The declared children.
    pub(crate) fn children(&self) -> impl Iterator<Item = Pointer> + '_ {
        let end = (self.children as usize * POINTER_BYTES).min(self.bytes.len());
        crate::pointer::encoded_slice(&self.bytes[..end])
            .unwrap_or_default()
            .iter()
            .map(Pointer::from)
    }
}

/// Opens the blob of one chunk that was read from `pointer`'s place, and verifies its body.
/// `stored` holds this blob alone: a body that is not compressed stays where it is.
pub(crate) fn open_whole(namer: &Namer, pointer: &Pointer, stored: &Bytes) -> Result<Body, Error> {
    let (body, children) = open(namer, pointer, stored)?;
    let bytes = match body {
        Cow::Borrowed(_) => stored.slice(blob::BYTES..),
        Cow::Owned(body) => body.into(),
    };
    Ok(Body { bytes, children })
}

/// Opens a bundle that was read from the place of one of its chunks: returns all bodies, which are
/// not verified.
pub(crate) fn open_bundle(pointer: &Pointer, stored: &[u8]) -> Result<Vec<u8>, Error> {
    is_all(pointer, stored)?;
    let header = bundle::decode(stored).map_err(|bad| unreadable(pointer, bad))?;
    if header.stored() != stored.len() {
        return Err(Error::damaged(pointer, ELSE));
    }
    let bodies = decompress(header.codec, &stored[header.head()..], header.raw());
    bodies.map(Cow::into_owned).map_err(|reason| Error::damaged(pointer, reason))
}

/// Takes a chunk out of the bodies of its bundle, and verifies it. The body has a buffer of its
/// own, so that one chunk in the cache does not keep all of them.
pub(crate) fn take_chunk(namer: &Namer, pointer: &Pointer, bodies: &[u8]) -> Result<Body, Error> {
    let begin = pointer.part.begin();
    let body = bodies.get(begin..begin + pointer.length as usize);
    let body = body.ok_or_else(|| Error::damaged(pointer, ELSE))?;
    if namer.name(Class::Data, 0, body) != pointer.name {
        return Err(Error::damaged(pointer, NAMELESS));
    }
    Ok(Body { bytes: Bytes::copy_from_slice(body), children: 0 })
}

/// An opener of blobs that lie within other bytes. Keeps the bodies of the last bundle, so that all
/// chunks of a bundle cost one decompression when they come one after the other.
pub(crate) struct Opener<'a> {
    namer: &'a Namer,
    bundle: Option<(PackId, u32, Result<Vec<u8>, Error>)>,
    opened: usize,
}

impl<'a> Opener<'a> {
    pub(crate) fn new(namer: &'a Namer) -> Self {
        Self { namer, bundle: None, opened: 0 }
    }

    /// Bytes that were decompressed or verified so far.
    pub(crate) fn opened(&self) -> usize {
        self.opened
    }

    /// Opens a chunk's blob, and verifies the chunk. The body has a buffer of its own.
    pub(crate) fn open(&mut self, pointer: &Pointer, stored: &[u8]) -> Result<Body, Error> {
        self.opened += pointer.length as usize;
        if pointer.part.is_whole() {
            let (body, children) = open(self.namer, pointer, stored)?;
            return Ok(Body { bytes: body.into_owned().into(), children });
        }
        if !self.has(pointer) {
            let bodies = open_bundle(pointer, stored);
            self.opened += bodies.as_ref().map_or(0, Vec::len);
            self.bundle = Some((pointer.pack, pointer.offset, bodies));
        }
        match &self.bundle {
            Some((_, _, Ok(bodies))) => take_chunk(self.namer, pointer, bodies),
            // The error names the chunk for which the bundle was opened.
            Some((_, _, Err(Error::Damaged { reason, .. }))) => {
                Err(Error::damaged(pointer, reason.clone()))
            }
            Some((_, _, Err(error))) => Err(error.clone()),
            None => Err(Error::damaged(pointer, ELSE)),
        }
    }

    /// Whether the last bundle is that of a chunk.
    fn has(&self, pointer: &Pointer) -> bool {
        let bundle = self.bundle.as_ref();
        bundle.is_some_and(|(pack, offset, _)| (*pack, *offset) == (pointer.pack, pointer.offset))
    }

    /// Returns the bodies of the bundle in which a chunk lies, if that was the last one.
    pub(crate) fn into_bundle(self, pointer: &Pointer) -> Option<Vec<u8>> {
        self.has(pointer).then_some(self.bundle?.2.ok()?)
    }
}

/// Verifies all chunks of a blob of a pack, as the footer lists them: each has its name, and no
/// chunk of a bundle is left out.
pub(crate) fn check_blob(
    namer: &Namer,
    pack: PackId,
    entries: &[footer::Entry],
    stored: &[u8],
) -> Result<(), Error> {
    let mut opener = Opener::new(namer);
    let mut end = 0;
    for entry in entries {
        let chunk = pointer(pack, entry);
        opener.open(&chunk, stored)?;
        if entry.part.begin() != end {
            return Err(Error::damaged(&chunk, UNLISTED));
        }
        end += entry.length as usize;
    }
    match opener.bundle {
        Some((_, _, Ok(bodies))) if bodies.len() != end => {
            Err(Error::damaged(&pointer(pack, &entries[0]), UNLISTED))
        }
        _ => Ok(()),
    }
}

const UNLISTED: &str = "the footer leaves out a chunk of its bundle";
const ELSE: &str = "another chunk lies at its place";
const NAMELESS: &str = "its bytes do not have its name";

/// Refuses bytes that are not as many as the blob has.
fn is_all(pointer: &Pointer, stored: &[u8]) -> Result<(), Error> {
    if stored.len() == pointer.stored as usize {
        return Ok(());
    }
    let (found, wanted) = (stored.len(), pointer.stored);
    let reason = format!("the pack ends within it: {found} of {wanted} bytes");
    Err(Error::damaged(pointer, reason))
}

/// The error of a header that was not decoded.
fn unreadable(pointer: &Pointer, bad: Bad) -> Error {
    match bad {
        newer @ Bad::Newer { .. } => newer.into(),
        Bad::Damaged { reason, .. } => Error::damaged(pointer, format!("in its header, {reason}")),
    }
}

/// Returns the verified body of a chunk's own blob, where it lies or decompressed, and its number
/// of children.
fn open<'a>(
    namer: &Namer,
    pointer: &Pointer,
    stored: &'a [u8],
) -> Result<(Cow<'a, [u8]>, u32), Error> {
    is_all(pointer, stored)?;
    let header = blob::decode(stored).map_err(|bad| unreadable(pointer, bad))?;
    let payload_fits = header.payload as usize + blob::BYTES == stored.len();
    if header.name != pointer.name || header.length != pointer.length || !payload_fits {
        return Err(Error::damaged(pointer, ELSE));
    }
    let payload = &stored[blob::BYTES..];
    let body = decompress(header.codec, payload, header.length as usize)
        .map_err(|reason| Error::damaged(pointer, reason))?;
    if namer.name(header.class, header.children, &body) != pointer.name {
        return Err(Error::damaged(pointer, NAMELESS));
    }
    Ok((body, header.children))
}

/// Reads the footer of a pack that is `length` bytes long: one request, rarely two. When the footer
/// is damaged the pack is scanned instead.
pub(crate) async fn read_footer(
    store: &Store,
    namer: &Namer,
    pack: PackId,
    length: u64,
) -> Result<Vec<footer::Entry>, Error> {
    match read_sound_footer(store, pack, length).await {
        Err(Error::Format(Bad::Damaged { .. })) => rebuild(store, namer, pack).await,
        result => result,
    }
}

/// Reads the footer of a pack; an error when it is damaged.
pub(crate) async fn read_sound_footer(
    store: &Store,
    pack: PackId,
    length: u64,
) -> Result<Vec<footer::Entry>, Error> {
    let key = super::key(pack);
    let begin = length.saturating_sub(limits::FOOTER_GUESS_BYTES);
    let tail = store.get_range(&key, begin..length).await?;
    let footer_bytes = footer::length_from_tail(&tail)?;
    if footer_bytes <= tail.len() {
        return Ok(footer::decode(&tail)?);
    }
    let begin = length.saturating_sub(footer_bytes as u64);
    Ok(footer::decode(&store.get_range(&key, begin..length).await?)?)
}

async fn rebuild(store: &Store, namer: &Namer, pack: PackId) -> Result<Vec<footer::Entry>, Error> {
    tracing::warn!(%pack, "the footer of a pack is damaged: its chunks are found by scanning");
    let (object, _) = store.get(&super::key(pack)).await?;
    Ok(super::scan::list(namer, pack, &object))
}

#[cfg(test)]
mod tests;
