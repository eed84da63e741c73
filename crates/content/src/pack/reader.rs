//! Reading packs: a blob, a footer, and the footer again from the blobs when it is lost.

use crate::compression::decompress;
use crate::format::{Bad, blob, footer, pack, parity};
use crate::name::Namer;
use crate::{Error, POINTER_BYTES, Pointer, limits};
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

/// Opens a blob that was read from `pointer`'s place, and verifies its body. `stored` holds this
/// blob alone: a body that is not compressed stays where it is.
pub(crate) fn open_whole(namer: &Namer, pointer: &Pointer, stored: &Bytes) -> Result<Body, Error> {
    let (body, children) = open(namer, pointer, stored)?;
    let bytes = match body {
        Cow::Borrowed(_) => stored.slice(blob::BYTES..),
        Cow::Owned(body) => body.into(),
    };
    Ok(Body { bytes, children })
}

/// Like [`open_whole`], for a blob within other bytes. The body has a buffer of its own, so that
/// one chunk in the cache does not keep all of them.
pub(crate) fn open_within(namer: &Namer, pointer: &Pointer, stored: &[u8]) -> Result<Body, Error> {
    let (body, children) = open(namer, pointer, stored)?;
    Ok(Body { bytes: body.into_owned().into(), children })
}

/// Verifies a blob that was read from `pointer`'s place.
pub(crate) fn check_blob(namer: &Namer, pointer: &Pointer, stored: &[u8]) -> Result<(), Error> {
    open(namer, pointer, stored).map(drop)
}

/// Returns the verified body of a blob, where it lies or decompressed, and its number of children.
fn open<'a>(
    namer: &Namer,
    pointer: &Pointer,
    stored: &'a [u8],
) -> Result<(Cow<'a, [u8]>, u32), Error> {
    let damaged = |reason: String| Error::damaged(pointer, reason);
    if stored.len() != pointer.stored as usize {
        return Err(damaged(format!(
            "the pack ends within it: {} of {} bytes",
            stored.len(),
            pointer.stored
        )));
    }
    let header = match blob::decode(stored) {
        Ok(header) => header,
        Err(newer @ Bad::Newer { .. }) => return Err(newer.into()),
        Err(Bad::Damaged { reason, .. }) => {
            return Err(damaged(format!("in its header, {reason}")));
        }
    };
    let payload_fits = header.payload as usize + blob::BYTES == stored.len();
    if header.name != pointer.name || header.length != pointer.length || !payload_fits {
        return Err(damaged("another chunk lies at its place".into()));
    }
    let payload = &stored[blob::BYTES..];
    let body = decompress(header.codec, payload, header.length as usize).map_err(damaged)?;
    if namer.name(header.class, header.children, &body) != pointer.name {
        return Err(damaged("its bytes do not have its name".into()));
    }
    Ok((body, header.children))
}

/// Reads the footer of a pack that is `length` bytes long: one request, rarely two. When the footer
/// is damaged the pack is scanned instead.
pub(crate) async fn read_footer(
    store: &Store,
    pack: PackId,
    length: u64,
) -> Result<Vec<footer::Entry>, Error> {
    match read_sound_footer(store, pack, length).await {
        Err(Error::Format(Bad::Damaged { .. })) => rebuild(store, pack).await,
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

async fn rebuild(store: &Store, pack: PackId) -> Result<Vec<footer::Entry>, Error> {
    tracing::warn!(%pack, "the footer of a pack is damaged: its chunks are found by scanning");
    let (object, _) = store.get(&super::key(pack)).await?;
    Ok(scan(Some(pack), &object))
}

/// Finds the chunks of a pack without its footer: blob after blob; after damage, from the next
/// header that is sound. `id` is that of the pack, if it is known.
#[must_use]
pub fn scan(id: Option<PackId>, object: &[u8]) -> Vec<footer::Entry> {
    let mut entries = Vec::new();
    // A damaged pack header says nothing about the blobs; only another pack is not scanned.
    if pack::decode(object).is_ok_and(|(_, found)| id.is_some_and(|id| found != id)) {
        return entries;
    }
    // The section is left out: parity of one blob and of zeros may be a copy of that blob.
    let end = parity::find(id, object).map_or(object.len(), |layout| layout.covered);
    let object = &object[..end];
    let mut at = pack::BYTES;
    while let Some(rest) = object.get(at..).filter(|rest| rest.len() >= blob::BYTES) {
        let header = blob::decode(rest)
            .ok()
            .filter(|header| blob::BYTES + header.payload as usize <= rest.len());
        let Some(header) = header else {
            at += 1;
            continue;
        };
        let stored = blob::BYTES + header.payload as usize;
        let (Ok(offset), Ok(stored_u32)) = (u32::try_from(at), u32::try_from(stored)) else {
            break;
        };
        entries.push(footer::Entry {
            offset,
            stored: stored_u32,
            length: header.length,
            name: header.name,
        });
        at += stored;
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::Compressor;
    use crate::pack::writer::{Pool, Sealed, Writer, pointer};
    use crate::{Class, Compression};
    use proptest::prelude::*;

    fn sealed(namer: &Namer, bodies: &[Vec<u8>]) -> Sealed {
        let mut compressor = Compressor::new(Compression::Zstd);
        let mut writer = Writer::new(PackId([2; 16]), Class::Data, Vec::new());
        for body in bodies {
            writer.append(namer.name(Class::Data, 0, body), body, &mut compressor);
        }
        writer.seal(None, &Pool::new(1))
    }

    fn bodies() -> Vec<Vec<u8>> {
        (0..5u8).map(|i| vec![i; 1000 * usize::from(i)]).collect()
    }

    #[test]
    fn a_pack_reads_back_and_its_footer_can_be_rebuilt() {
        let namer = Namer::new(&[1; 32]);
        let pack = sealed(&namer, &bodies());
        assert_eq!(footer::decode(&pack.object).unwrap(), pack.entries);
        assert_eq!(scan(Some(pack.id), &pack.object), pack.entries);
        assert_eq!(scan(Some(PackId([4; 16])), &pack.object), []);
        for (entry, body) in pack.entries.iter().zip(bodies()) {
            let begin = entry.offset as usize;
            let stored = pack.object.slice(begin..begin + entry.stored as usize);
            let at = pointer(pack.id, entry);
            assert_eq!(open_whole(&namer, &at, &stored).unwrap().bytes, body);
            assert_eq!(open_within(&namer, &at, &stored).unwrap().bytes, body);
            assert!(check_blob(&namer, &at, &stored).is_ok());
            assert!(check_blob(&Namer::new(&[2; 32]), &at, &stored).is_err());
        }
        let mut damaged = pack.object.to_vec();
        damaged[pack.entries[1].offset as usize] ^= 1;
        let rest: Vec<_> = pack
            .entries
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != 1)
            .map(|(_, entry)| *entry)
            .collect();
        assert_eq!(scan(Some(pack.id), &damaged), rest, "one damaged blob costs one chunk");
    }

    #[test]
    fn the_image_of_a_pack_stays_as_it_is() {
        let namer = Namer::new(&[1; 32]);
        let mut compressor = Compressor::new(Compression::None);
        let mut writer = Writer::new(PackId([2; 16]), Class::Data, Vec::new());
        for body in [&b"one"[..], b"three"] {
            writer.append(namer.name(Class::Data, 0, body), body, &mut compressor);
        }
        crate::format::check_golden("pack.bin", &writer.seal(None, &Pool::new(1)).object);
    }

    proptest! {
        #[test]
        fn one_flipped_bit_never_gives_wrong_content(at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let namer = Namer::new(&[1; 32]);
            let pack = sealed(&namer, &bodies());
            let mut damaged = pack.object.to_vec();
            let at = at.index(damaged.len());
            damaged[at] ^= 1 << bit;
            let damaged = Bytes::from(damaged);
            for (entry, body) in pack.entries.iter().zip(bodies()) {
                let begin = entry.offset as usize;
                let stored = damaged.slice(begin..begin + entry.stored as usize);
                if let Ok(read) = open_whole(&namer, &pointer(pack.id, entry), &stored) {
                    prop_assert_eq!(&read.bytes[..], &body[..]);
                }
            }
        }

        #[test]
        fn any_bytes_are_scanned(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            let _ = scan(None, &bytes);
        }
    }
}
