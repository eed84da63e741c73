//! The blobs of a pack whose footer is lost.

use crate::Class;
use crate::compression::decompress;
use crate::format::{blob, bundle, footer, pack, parity};
use crate::name::Namer;
use crate::pointer::Part;
use rekindle_base::PackId;
use rekindle_base::checksum::crc32c;

/// A blob that a scan has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scanned {
    /// The blob of a chunk.
    Chunk(footer::Entry),
    /// A bundle at this offset. Only the store's key tells the names of its chunks.
    Bundle(u32, bundle::Bundle),
}

impl Scanned {
    /// Bytes of the blob.
    #[must_use]
    pub fn stored(&self) -> usize {
        match self {
            Scanned::Chunk(entry) => entry.stored as usize,
            Scanned::Bundle(_, header) => header.stored(),
        }
    }
}

/// Finds the blobs of a pack without its footer: one after the other; after damage, from the next
/// header that is sound. `id` is that of the pack, if it is known.
#[must_use]
pub fn scan(id: Option<PackId>, object: &[u8]) -> Vec<Scanned> {
    let mut blobs = Vec::new();
    // A damaged pack header says nothing about the blobs; only another pack is not scanned.
    if pack::decode(object).is_ok_and(|(_, found)| id.is_some_and(|id| found != id)) {
        return blobs;
    }
    // The section is left out: parity of one blob and of zeros may be a copy of that blob.
    let end = parity::find(id, object).map_or(object.len(), |layout| layout.covered);
    let object = &object[..end];
    let mut at = pack::BYTES;
    while let Some(rest) = object.get(at..).filter(|rest| rest.len() >= bundle::BYTES) {
        let Ok(offset) = u32::try_from(at) else { break };
        match scan_one(offset, rest).filter(|blob| blob.stored() <= rest.len()) {
            Some(blob) => {
                at += blob.stored();
                blobs.push(blob);
            }
            None => at += 1,
        }
    }
    blobs
}

/// Decodes the header of the blob with which `bytes` begin.
fn scan_one(offset: u32, bytes: &[u8]) -> Option<Scanned> {
    if bundle::is_bundle(bytes) {
        return bundle::decode(bytes).ok().map(|header| Scanned::Bundle(offset, header));
    }
    let header = blob::decode(bytes).ok()?;
    Some(Scanned::Chunk(footer::Entry {
        offset,
        stored: u32::try_from(blob::BYTES + header.payload as usize).ok()?,
        length: header.length,
        part: Part::WHOLE,
        name: header.name,
    }))
}

/// Lists the chunks of a pack without its footer. The chunks of a bundle are named anew, or left
/// out when the bundle is damaged.
pub(crate) fn list(namer: &Namer, id: PackId, object: &[u8]) -> Vec<footer::Entry> {
    let mut entries = Vec::new();
    for blob in scan(Some(id), object) {
        match blob {
            Scanned::Chunk(entry) => entries.push(entry),
            Scanned::Bundle(offset, header) => {
                let at = offset as usize;
                let payload = &object[at + header.head()..at + header.stored()];
                entries.extend(name_all(namer, offset, &header, payload).unwrap_or_default());
            }
        }
    }
    entries
}

/// Names the chunks of a bundle; `None` when it is damaged.
fn name_all(
    namer: &Namer,
    offset: u32,
    header: &bundle::Bundle,
    payload: &[u8],
) -> Option<Vec<footer::Entry>> {
    if crc32c(payload) != header.sum {
        return None;
    }
    let bodies = decompress(header.codec, payload, header.raw()).ok()?;
    let stored = u32::try_from(header.stored()).ok()?;
    let mut begin = 0;
    let entry = |length: &u32| {
        let part = Part::new(begin, bodies.len(), header.stored())?;
        let body = &bodies[begin..begin + *length as usize];
        begin += *length as usize;
        let name = namer.name(Class::Data, 0, body);
        Some(footer::Entry { offset, stored, length: *length, part, name })
    };
    header.lengths.iter().map(entry).collect()
}
