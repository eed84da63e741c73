//! Packs in which something was damaged, made as good as they can be: parity rebuilds what it can in its place, and the
//! footer names the chunks that are sound and no others.

use super::Findings;
use crate::format::footer;
use crate::format::parity::Layout;
use crate::name::PackSet;
use crate::pack::parity::{self, Healed};
use crate::pack::reader::{open_blob, scan};
use crate::pack::writer::pointer;
use crate::verify::Damage;
use crate::{Content, Error, format, pack};
use base::{Kind, PackId};
use bytes::Bytes;

/// Mends the packs in which something was damaged, be it the footer itself. Without a footer that leaves damaged chunks
/// out, the next client that writes the same bytes again would be given such a chunk as a duplicate. How many, and what
/// was done, for people.
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

/// Mends a pack; what was done. `None`: there is nothing to do, or the pack is gone.
async fn mend(content: &Content, id: PackId) -> Result<Option<String>, Error> {
    let inner = content.inner.clone();
    let work = async move {
        let key = pack::key(id);
        let (object, version) = match inner.store.get(&key).await {
            Err(datastore::Error::NotFound(_)) => return Ok(None),
            found => found?,
        };
        let healed =
            parity::find(Some(id), &object).map(|layout| (layout, parity::heal(&object, &layout)));
        let footer = footer::decode(&object).ok();
        let blobs = match &healed {
            Some((_, healed)) => Bytes::copy_from_slice(&healed.covered),
            None => object.clone(),
        };
        let mut entries = listed(id, &object, &blobs, footer.as_ref());
        // Blobs stay where they are, the damaged ones too: pointers carry offsets.
        let mut mended = match &healed {
            Some((layout, healed)) => with_section(id, &object, layout, healed),
            None => object[..end(&entries).min(object.len())].to_vec(),
        };
        entries.retain(|entry| {
            let range = entry.offset as usize..entry.offset as usize + entry.stored as usize;
            blobs.get(range.clone()).is_some_and(|_| {
                open_blob(&inner.namer, &pointer(id, entry), &blobs.slice(range)).is_ok()
            })
        });
        let damaged_cells = healed.as_ref().map_or(0, |(_, healed)| healed.damaged);
        if footer.as_ref() == Some(&entries) && damaged_cells == 0 {
            return Ok(None);
        }
        footer::append(&entries, &mut mended);
        if mended == object {
            return Ok(None);
        }
        match inner.store.replace(&key, mended.into(), &version).await {
            // The sweep has deleted or another salvage has mended it.
            Err(error) if error.kind() == Kind::Conflict => return Ok(None),
            replaced => replaced?,
        };
        inner.index.forget(&[id]);
        Ok(Some(match healed {
            Some((_, Healed { damaged: 1.., hopeless: 0, .. })) => {
                format!("whole again from its parity, {} chunk(s)", entries.len())
            }
            _ => format!("new footer, {} sound chunk(s)", entries.len()),
        }))
    };
    content.inner.env.run("content-mend", work).await
}

/// The chunks that may be in a pack: what its footer names, unless that is damaged, or older than what has been rebuilt.
fn listed(
    id: PackId,
    object: &[u8],
    blobs: &[u8],
    footer: Option<&Vec<footer::Entry>>,
) -> Vec<footer::Entry> {
    match footer {
        Some(footer) if object.starts_with(blobs) => footer.clone(),
        _ => scan(Some(id), blobs),
    }
}

/// Where the last of these blobs ends.
fn end(entries: &[footer::Entry]) -> usize {
    entries.last().map_or(format::pack::BYTES, |last| last.offset as usize + last.stored as usize)
}

/// Header, blobs and parity, rebuilt. Where something is beyond rebuilding, the parity stays as it is: it still says
/// what was there.
fn with_section(id: PackId, object: &[u8], layout: &Layout, healed: &Healed) -> Vec<u8> {
    let mut mended = healed.covered.clone();
    if healed.hopeless == 0 {
        parity::append_as(id, layout, &mut mended);
    } else {
        mended.extend_from_slice(&object[layout.covered..layout.end().min(object.len())]);
    }
    mended
}
