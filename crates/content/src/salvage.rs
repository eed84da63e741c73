//! Repair of what a root reaches: chunks that cannot be read come from the cache or warm memory if they are there; the
//! rest is given up, exactly, and the tree goes on without it. Nothing is invented: whoever asked is told which keys are
//! lost and must not take their absence for emptiness.
//!
//! Three steps, so that the long one needs nobody's patience: [`examine`] beside all other work, [`repair`] while the root
//! stands still, [`mend_packs`] once the new root is committed.

use crate::format::{self, footer};
use crate::name::PackSet;
use crate::pack::reader::{Body, open_blob, scan};
use crate::pack::writer::pointer;
use crate::tree::Root;
use crate::tree::prune::{Fates, prune};
use crate::verify::{Damage, Progress, verify};
use crate::{Batch, Class, Content, Error, Pointer, pack};
use base::{Kind, PackId};
use std::ops::Range;

/// What is damaged below a root.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// What was read.
    pub checked: Progress,
    damages: Vec<Damage>,
    footers: Vec<PackId>,
}

impl Findings {
    /// Nothing is damaged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty() && self.footers.is_empty()
    }

    /// Every chunk is sound; [`mend_packs`] is all there may be to do.
    #[must_use]
    pub fn are_chunks_sound(&self) -> bool {
        self.damages.is_empty()
    }
}

/// What a repair came to.
#[derive(Debug, Clone, Default)]
pub struct Repaired {
    /// The root without what is lost. Durable, but nobody's before its owner commits it.
    pub root: Root,
    /// Keys of the outermost tree that are lost, ascending, apart from one another.
    pub lost: Vec<Range<u64>>,
    /// Chunks that came back from the cache.
    pub refetched: u64,
    /// A node came back whose children nobody has looked at yet: examine the new root.
    pub again: bool,
    /// What was found and done, for people.
    pub lines: Vec<String>,
}

/// Reads and checks everything below `root`, beside all other work. An error means that nothing can be said now (the
/// store is away).
pub async fn examine(
    content: &Content,
    root: &Root,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Findings, Error> {
    let report = verify(content, &[*root], progress).await?;
    let footers = report.footers.into_iter().map(|(pack, _)| pack).collect();
    Ok(Findings { checked: report.progress, damages: report.damages, footers })
}

/// Repairs a root into `batch`, which is flushed. `root` may be newer than the one that was examined: what has been
/// overwritten meanwhile is not lost.
pub async fn repair(
    content: &Content,
    batch: &mut Batch,
    root: &Root,
    findings: &Findings,
) -> Result<Repaired, Error> {
    // Duplicates are not to be found there from now on.
    content.inner.index.condemn_also(findings.damages.iter().map(|damage| damage.pointer.pack));
    let mut repaired = Repaired::default();
    let mut fates = Fates { chunks: Default::default(), hurt: Vec::new() };
    for damage in &findings.damages {
        let pointer = damage.pointer;
        let class = pack::class(pointer.pack);
        let keys = damage.keys.first().cloned().unwrap_or(0..u64::MAX);
        let fate = match (fates.chunks.get(&pointer.name), cached(content, &pointer, class)) {
            (Some(known), _) => *known,
            (None, Some(body)) => {
                repaired.refetched += 1;
                Some(batch.write_anew(class, pointer.name, body).await?)
            }
            (None, None) => None,
        };
        repaired.again |= fate.is_some() && class == Class::Metadata;
        let outcome = if fate.is_some() { "came back from the cache" } else { "cannot be had" };
        repaired.lines.push(format!("{}; it {outcome}", damage.error));
        fates.chunks.insert(pointer.name, fate);
        fates.hurt.push(keys);
    }
    fates.hurt = merged(fates.hurt);
    let (root, gone) = prune(batch, root, &fates).await?;
    (repaired.root, repaired.lost) = (root, merged(gone));
    batch.flush().await?;
    Ok(repaired)
}

/// Gives the packs in which something was damaged, be it the footer itself, a new footer, made from the blobs that are
/// sound. Else the next client that writes the same bytes again would be given the damaged chunk as a duplicate. How
/// many, and what was done, for people.
pub async fn mend_packs(content: &Content, findings: &Findings) -> (u64, Vec<String>) {
    let hurt = findings.damages.iter().map(|damage| damage.pointer.pack);
    let packs: PackSet = hurt.chain(findings.footers.iter().copied()).collect();
    let (mut mended, mut lines) = (0, Vec::new());
    for id in packs {
        match mend(content, id).await {
            Ok(None) => {}
            Ok(Some(left)) => {
                mended += 1;
                lines.push(format!("pack {id}: new footer, {left} sound chunk(s)"));
            }
            Err(error) => lines.push(format!("pack {id}: its footer stays as it is: {error}")),
        }
    }
    (mended, lines)
}

/// A chunk in the cache, or in warm memory, if it is what it should be: memory is not believed either.
fn cached(content: &Content, pointer: &Pointer, class: Class) -> Option<Body> {
    let inner = &content.inner;
    let is_it = |body: &Body| inner.namer.name(class, body.children, &body.bytes) == pointer.name;
    let cached = inner.cache.get(&pointer.name).filter(is_it);
    cached.or_else(|| inner.warm.get(&inner.namer, pointer).ok())
}

/// Writes a pack's footer anew, so that it names the chunks that are sound and no others; how many these are. `None`:
/// it does already, or the pack is gone.
async fn mend(content: &Content, id: PackId) -> Result<Option<u64>, Error> {
    let inner = content.inner.clone();
    let work = async move {
        let key = pack::key(id);
        let (object, version) = match inner.store.get(&key).await {
            Err(datastore::Error::NotFound(_)) => return Ok(None),
            found => found?,
        };
        let footer = footer::decode(&object).ok();
        let listed = footer.clone().unwrap_or_else(|| scan(id, &object));
        let mut entries = listed.clone();
        entries.retain(|entry| {
            let (begin, end) =
                (entry.offset as usize, entry.offset as usize + entry.stored as usize);
            object.get(begin..end).is_some_and(|_| {
                open_blob(&inner.namer, &pointer(id, entry), &object.slice(begin..end)).is_ok()
            })
        });
        if footer.as_ref() == Some(&entries) {
            return Ok(None);
        }
        // Blobs stay where they are, the damaged ones too: pointers carry offsets.
        let end = listed
            .last()
            .map_or(format::pack::BYTES, |last| last.offset as usize + last.stored as usize);
        let mut mended = object[..end.min(object.len())].to_vec();
        footer::append(&entries, &mut mended);
        match inner.store.replace(&key, mended.into(), &version).await {
            // The sweep has deleted or another salvage has mended it.
            Err(error) if error.kind() == Kind::Conflict => return Ok(None),
            replaced => replaced?,
        };
        inner.index.forget(&[id]);
        Ok(Some(entries.len() as u64))
    };
    content.inner.env.run("content-mend", work).await
}

/// Ascending, without overlaps or neighbours.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests;
