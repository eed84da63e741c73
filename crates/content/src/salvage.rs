//! Repair of what a root reaches: chunks that cannot be read come from the cache or warm memory if they are there, else
//! from the parity of their pack if it has some; the rest is given up, exactly, and the tree goes on without it. Nothing is
//! invented: whoever asked is told which keys are lost and must not take their absence for emptiness.
//!
//! Three steps, so that the long one needs nobody's patience: [`examine`] beside all other work, [`repair`] while the root
//! stands still, [`mend_packs`] once the new root is committed.

mod mend;
mod rebuild;

pub use mend::mend_packs;

use crate::pack::reader::Body;
use crate::sweep::condemned::{self, State};
use crate::tree::Root;
use crate::tree::prune::{Fates, prune};
use crate::verify::{Damage, Progress, verify};
use crate::{Batch, Class, Content, Error, Hold, Pointer, pack};
use base::PackId;
use rebuild::Rebuild;
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
    /// Chunks that came back.
    pub refetched: u64,
    /// Of these, from parity; the others from the cache or warm memory.
    pub from_parity: u64,
    /// Of what cannot be had, chunks that are not there at all. Those may come back with whatever hides them.
    pub absent: u64,
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

/// As [`examine`], for a root that no record names any more and somebody wants to go back to. `None`: a sweep is about to
/// delete what nobody reached, so what is there now may be gone soon. What is found sound stays so while `hold` lives.
pub async fn examine_earlier(
    content: &Content,
    _hold: &Hold,
    root: &Root,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Option<Findings>, Error> {
    // A sweep that condemns from now on waits for the hold, and marks again afterwards.
    if condemned::read(&content.inner.store).await?.state != State::Clear {
        return Ok(None);
    }
    Ok(Some(examine(content, root, progress).await?))
}

/// Repairs a root into `batch`, which is flushed. `root` may be newer than the one that was examined: what has been
/// overwritten meanwhile is not lost.
pub async fn repair(
    content: &Content,
    batch: &mut Batch,
    root: &Root,
    findings: &Findings,
) -> Result<Repaired, Error> {
    repair_or(content, batch, root, findings, false).await
}

/// As [`repair`], and what cannot be had stays where it is: nothing is given up.
pub async fn repair_keeping(
    content: &Content,
    batch: &mut Batch,
    root: &Root,
    findings: &Findings,
) -> Result<Repaired, Error> {
    repair_or(content, batch, root, findings, true).await
}

async fn repair_or(
    content: &Content,
    batch: &mut Batch,
    root: &Root,
    findings: &Findings,
    keep: bool,
) -> Result<Repaired, Error> {
    // Duplicates are not to be found there from now on.
    content.inner.index.condemn_also(findings.damages.iter().map(Damage::pack));
    let mut repaired = Repaired::default();
    let mut fates = Fates { chunks: Default::default(), hurt: Vec::new() };
    // Pack by pack, so that each is fetched for its parity once.
    let mut damages: Vec<&Damage> = findings.damages.iter().collect();
    damages.sort_by_key(|damage| (damage.pack(), damage.pointer.offset));
    let mut rebuild = Rebuild::new(content);
    for damage in damages {
        let pointer = damage.pointer;
        let class = pack::class(pointer.pack);
        let keys = damage.keys.first().cloned().unwrap_or(0..u64::MAX);
        let mut outcome = "it came back before";
        let came_back;
        let fate = match fates.chunks.get(&pointer.name) {
            Some(known) => {
                came_back = known.is_some_and(|place| place != pointer);
                *known
            }
            None => {
                let mut body = cached(content, &pointer, class);
                outcome = "it came back from the cache";
                if body.is_none() {
                    body = rebuild.chunk(&pointer).await?;
                    repaired.from_parity += u64::from(body.is_some());
                    outcome = "it came back from parity";
                }
                repaired.refetched += u64::from(body.is_some());
                came_back = body.is_some();
                match body {
                    Some(body) => Some(batch.write_anew(class, pointer.name, body).await?),
                    None => keep.then_some(pointer),
                }
            }
        };
        repaired.again |= came_back && class == Class::Metadata;
        repaired.absent += u64::from(!came_back && damage.is_absence());
        let outcome = if came_back { outcome } else { "it cannot be had" };
        repaired.lines.push(format!("{}; {outcome}", damage.error));
        fates.chunks.insert(pointer.name, fate);
        fates.hurt.push(keys);
    }
    if keep && repaired.refetched == 0 {
        // Also where the root itself cannot be read.
        repaired.root = *root;
        return Ok(repaired);
    }
    fates.hurt = merged(fates.hurt);
    let (root, gone) = prune(batch, root, &fates).await?;
    (repaired.root, repaired.lost) = (root, merged(gone));
    batch.flush().await?;
    Ok(repaired)
}

/// A chunk in the cache, or in warm memory, if it is what it should be: memory is not believed either.
fn cached(content: &Content, pointer: &Pointer, class: Class) -> Option<Body> {
    let inner = &content.inner;
    let is_it = |body: &Body| inner.namer.name(class, body.children, &body.bytes) == pointer.name;
    let cached = inner.cache.get(&pointer.name).filter(is_it);
    cached.or_else(|| inner.warm.get(&inner.namer, pointer).ok())
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
