//! Mending of damaged packs: parity rebuilds what it can in its place, and the footer names the
//! chunks that are sound and no others.

use super::Findings;
use crate::format::footer;
use crate::format::parity::Layout;
use crate::name::{Namer, PackSet};
use crate::pack::parity;
use crate::pack::reader::check_blob;
use crate::pack::scan::list;
use crate::verify::Damage;
use crate::{Content, Error, format, pack};
use bytes::Bytes;
use rekindle_base::{Kind, PackId};
use std::ops::Range;

/// Mends the packs in which a chunk or the footer was damaged. The new footer leaves damaged chunks
/// out: the next client that writes the same bytes again would else be given such a chunk as a
/// duplicate. Returns how many packs were mended, and what was done, for the user.
pub async fn mend_packs(content: &Content, findings: &Findings) -> (u64, Vec<String>) {
    let hurt = findings.damages.iter().map(Damage::pack);
    let packs: PackSet = hurt.chain(findings.footers.iter().copied()).collect();
    let (mut mended, mut lines) = (0, Vec::new());
    for id in packs {
        match mend(content, id).await {
            Ok(None) => {}
            Ok(Some(line)) => {
                mended += 1;
                lines.push(format!("pack {id}: {line}"));
            }
            Err(error) => lines.push(format!("pack {id}: it stays as it is: {error}")),
        }
    }
    (mended, lines)
}

/// Mends a pack; returns what was done. `None`: there is nothing to do, or the pack is gone.
async fn mend(content: &Content, id: PackId) -> Result<Option<String>, Error> {
    let inner = content.inner.clone();
    let work = async move {
        let key = pack::key(id);
        let (object, version) = match inner.store.get(&key).await {
            Err(rekindle_datastore::Error::NotFound(_)) => return Ok(None),
            found => found?,
        };
        let footer = footer::decode(&object).ok();
        let listed = footer.clone().unwrap_or_else(|| list(&inner.namer, id, &object));
        let mended = match parity::find(Some(id), &object) {
            Some(layout) => with_parity(&inner.namer, id, &object, &layout, listed),
            None => without_parity(&inner.namer, id, &object, listed),
        };
        let Mended { mut bytes, entries, is_whole } = mended;
        let is_rebuilt = !object.starts_with(&bytes);
        if footer.as_ref() == Some(&entries) && !is_rebuilt {
            return Ok(None);
        }
        // Damage that one read shows may come from the way to the store; writing it back would put
        // it into the store.
        let (again, _) = inner.store.get(&key).await?;
        if again != object {
            let text = "two reads of it differ".to_owned();
            return Err(rekindle_datastore::Error::Unavailable(text).into());
        }
        footer::append(&entries, &mut bytes);
        match inner.store.replace(&key, bytes.into(), &version).await {
            // The sweep has deleted the pack, or another salvage has mended it.
            Err(error) if error.kind() == Kind::Conflict => return Ok(None),
            replaced => replaced?,
        };
        match is_whole {
            true => inner.index.forget_wholly(&[id]),
            false => inner.index.forget(&[id]),
        }
        let what = match (is_rebuilt, is_whole) {
            (true, true) => "whole again from its parity",
            (true, false) => "rebuilt in part from its parity",
            (false, _) => "new footer",
        };
        Ok(Some(format!("{what}, {} sound chunk(s)", entries.len())))
    };
    // A task of its own: once the footer is replaced the index must learn so, even if the caller
    // goes away.
    content.inner.env.run("content-mend", work).await
}

/// A pack without its footer.
struct Mended {
    bytes: Vec<u8>,
    /// Entries of the blobs that are sound.
    entries: Vec<footer::Entry>,
    /// Whether all bytes are those that were written.
    is_whole: bool,
}

/// Leaves blobs where they are, the damaged ones too: pointers carry offsets.
fn without_parity(
    namer: &Namer,
    id: PackId,
    object: &Bytes,
    entries: Vec<footer::Entry>,
) -> Mended {
    let end = entries.last().map_or(format::pack::BYTES, |last| place(last).end);
    let bytes = object[..end.min(object.len())].to_vec();
    let mut sound = Vec::with_capacity(entries.len());
    for blob in entries.chunk_by(footer::Entry::is_beside) {
        if is_sound(namer, id, blob, object) {
            sound.extend_from_slice(blob);
        }
    }
    Mended { bytes, entries: sound, is_whole: false }
}

/// Puts rebuilt bytes into their place blob by blob, and only where the name of the chunk proves
/// them. Parity is written anew when nothing else is wrong; else it stays as it is, because it
/// still says what was there.
fn with_parity(
    namer: &Namer,
    id: PackId,
    object: &Bytes,
    layout: &Layout,
    mut entries: Vec<footer::Entry>,
) -> Mended {
    let healed = parity::heal(object, layout);
    let rebuilt = Bytes::from(healed.covered);
    let mut bytes = object[..layout.covered].to_vec();
    if !object.starts_with(&rebuilt) {
        // Also chunks that an earlier salvage had to leave out, or that a damaged footer or header
        // hid.
        entries.extend(list(namer, id, &rebuilt));
        entries.sort_by_key(footer::Entry::spot);
        entries.dedup();
        if format::pack::decode(&rebuilt).is_ok_and(|(_, found)| found == id) {
            bytes[..format::pack::BYTES].copy_from_slice(&rebuilt[..format::pack::BYTES]);
        }
    }
    let (mut end, mut sound) = (format::pack::BYTES, Vec::with_capacity(entries.len()));
    for beside in entries.chunk_by(footer::Entry::is_beside) {
        let place = place(&beside[0]);
        if place.start < end {
            continue;
        }
        let blob = candidates(beside).into_iter().find(|blob| {
            if is_sound(namer, id, blob, object) {
                return true;
            }
            let is_rebuilt = is_sound(namer, id, blob, &rebuilt);
            if is_rebuilt {
                bytes[place.clone()].copy_from_slice(&rebuilt[place.clone()]);
            }
            is_rebuilt
        });
        if let Some(blob) = blob {
            sound.extend(blob);
            end = place.end;
        }
    }
    let entries = sound;
    let is_whole = healed.hopeless == 0 && bytes == rebuilt;
    if is_whole {
        parity::append_as(id, layout, &mut bytes);
    } else {
        bytes.extend_from_slice(&object[layout.covered..layout.end().min(object.len())]);
    }
    Mended { bytes, entries, is_whole }
}

fn place(entry: &footer::Entry) -> Range<usize> {
    entry.offset as usize..entry.offset as usize + entry.stored as usize
}

/// The blobs that may lie at one offset, by the footer and by a scan: chunks, and a bundle.
fn candidates(beside: &[footer::Entry]) -> Vec<Vec<footer::Entry>> {
    let (chunks, mut bundle): (Vec<footer::Entry>, Vec<_>) =
        beside.iter().partition(|entry| entry.part.is_whole());
    bundle.dedup_by_key(|entry| entry.spot());
    let mut all: Vec<_> = chunks.into_iter().map(|entry| vec![entry]).collect();
    all.extend((!bundle.is_empty()).then_some(bundle));
    all
}

/// Whether all chunks of the blob have their names.
fn is_sound(namer: &Namer, id: PackId, blob: &[footer::Entry], bytes: &[u8]) -> bool {
    let stored = bytes.get(place(&blob[0]));
    stored.is_some_and(|stored| check_blob(namer, id, blob, stored).is_ok())
}
