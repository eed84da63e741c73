//! Repair of what a root reaches. A chunk that cannot be read at its place comes from the cache or
//! warm memory, from another copy in the store, or from the parity of its pack. A chunk that does
//! not come back stays in the tree, unless the caller may drop it: **absent is not lost**. Nothing
//! is invented: the caller is told which keys are lost, and must not take their absence for
//! emptiness.
//!
//! There are three steps, so that no task waits for the long one: [`examine`] beside all other
//! work, [`repair`] while the root stands still, [`mend_packs`] once the new root is committed.

mod copies;
mod mend;
mod rebuild;

pub use mend::mend_packs;

use crate::fetch::Sharing;
use crate::name::NameMap;
use crate::pack::reader::Body;
use crate::sweep::condemned::{self, CondemnedState};
use crate::tree::prune::{Fate, Fates, prune};
use crate::tree::{Root, joined};
use crate::verify::{Damage, Progress, verify};
use crate::{Batch, Class, Content, Error, Hold, Missing, Pointer, limits, pack};
use copies::OtherPlaces;
use futures_util::future::join_all;
use rebuild::Rebuild;
use rekindle_base::PackId;
use std::ops::Range;

/// The permission of a repair to drop chunks that cannot be had. Chunks that it may not drop stay
/// in the tree, and reads of them go on being errors until they are back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MayDrop {
    /// Nothing at all.
    Nothing,
    /// Chunks that two equal reads have shown to be wrong. Never a root.
    Damaged,
    /// Also absent chunks, and a root with all that it reaches: the caller has proof that this
    /// lasts, or the user's word.
    Everything,
}

/// The chunks below a root that cannot be had.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// The chunks and bytes that were read.
    pub checked: Progress,
    damages: Vec<Damage>,
    footers: Vec<PackId>,
    copies: OtherPlaces,
}

impl Findings {
    /// Whether nothing is missing.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty() && self.footers.is_empty()
    }

    /// Whether every chunk is sound; then [`mend_packs`] is all there may be to do.
    #[must_use]
    pub fn are_chunks_sound(&self) -> bool {
        self.damages.is_empty()
    }

    /// Number of chunks that are not there now, though nothing says that they are lost.
    #[must_use]
    pub fn absent(&self) -> u64 {
        self.damages.iter().filter(|damage| damage.missing == Missing::Absent).count() as u64
    }

    /// The damage of the root itself. A root that cannot be had is no empty root.
    #[must_use]
    pub fn root(&self) -> Option<&Damage> {
        self.damages.iter().find(|damage| damage.is_root())
    }

    /// Each chunk that cannot be had.
    #[must_use]
    pub fn damages(&self) -> &[Damage] {
        &self.damages
    }
}

/// The result of a repair.
#[derive(Debug, Clone, Default)]
pub struct Repaired {
    /// The root without what is lost. Durable, but in no record before its owner commits it.
    pub root: Root,
    /// Keys of the outermost tree that are lost, ascending, apart from one another.
    pub lost: Vec<Range<u64>>,
    /// Chunks that are absent, of those that cannot be had. They may come back.
    pub absent: u64,
    /// Keys that are absent and stay in the tree.
    pub kept_absent: Vec<Range<u64>>,
    /// Keys that are damaged and stay in the tree, because they may not be dropped.
    pub kept_damaged: Vec<Range<u64>>,
    /// Chunks that came back.
    pub refetched: u64,
    /// Of these, from parity.
    pub from_parity: u64,
    /// Of these, from another copy in the store.
    pub from_copies: u64,
    /// Whether a node came back whose children were not examined: examine the new root.
    pub again: bool,
    /// What was found and done, for the user.
    pub lines: Vec<String>,
}

/// Reads and checks everything below `root`, beside all other work, and looks for other copies of
/// chunks that cannot be had. An error means that no answer is possible now (the store is away).
pub async fn examine(
    content: &Content,
    root: &Root,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Findings, Error> {
    examine_each(content, &[*root], progress).await
}

/// Like [`examine`], also for `others`, which share most of what they reach with `root`, so that
/// this is read once. Returns what was found below `root`, and what below the others: chunks that
/// both reach are in both. The count of what was read, and the footers, are in the first.
pub async fn examine_beside(
    content: &Content,
    root: &Root,
    others: &[Root],
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(Findings, Findings), Error> {
    let roots: Vec<Root> = [root].into_iter().chain(others).copied().collect();
    let Findings { checked, damages, footers, copies } =
        examine_each(content, &roots, progress).await?;
    let (damages, mut beside): (Vec<_>, Vec<_>) =
        damages.into_iter().partition(|damage| damage.root == 0);
    beside.iter_mut().for_each(|damage| damage.root -= 1);
    let first = Findings { checked, damages, footers, copies: copies.clone() };
    Ok((first, Findings { damages: beside, copies, ..Findings::default() }))
}

/// Like [`examine`], of several roots: [`Damage::root`] is an index of these.
pub async fn examine_each(
    content: &Content,
    roots: &[Root],
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Findings, Error> {
    let report = verify(content, roots, progress).await?;
    let footers = report.footers.into_iter().map(|(pack, _)| pack).collect();
    let copies = copies::search(content, &report.damages).await?;
    Ok(Findings { checked: report.progress, damages: report.damages, footers, copies })
}

/// Like [`examine`], for a root that no record names any more and to which the caller wants to go
/// back. `None`: a sweep is about to delete packs that no root reached, so chunks that are there
/// now may be gone soon. Chunks that are found sound stay so while `hold` lives.
pub async fn examine_earlier(
    content: &Content,
    _hold: &Hold,
    root: &Root,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Option<Findings>, Error> {
    // A sweep that condemns from now on waits for the hold, and marks again afterwards.
    if condemned::read(&content.inner.store).await?.state != CondemnedState::Clear {
        return Ok(None);
    }
    Ok(Some(examine(content, root, progress).await?))
}

/// Repairs a root into `batch`, which is flushed. `root` may be newer than the one that was
/// examined: keys that have been overwritten meanwhile are not lost. With [`MayDrop::Nothing`] the
/// result shows what would be lost.
pub async fn repair(
    content: &Content,
    batch: &mut Batch,
    root: &Root,
    findings: &Findings,
    may_drop: MayDrop,
) -> Result<Repaired, Error> {
    let (fates, mut repaired) = settle(content, batch, findings, may_drop).await?;
    let pruned = prune(batch, root, &fates).await?;
    repaired.root = pruned.root;
    repaired.lost = joined(pruned.gone);
    let of = |missing| {
        let kept = pruned.kept.iter().filter(move |(_, why)| *why == missing);
        joined(kept.map(|(keys, _)| keys.clone()))
    };
    (repaired.kept_absent, repaired.kept_damaged) = (of(Missing::Absent), of(Missing::Damaged));
    batch.flush().await?;
    Ok(repaired)
}

/// The first half of [`repair`]: what becomes of each chunk that cannot be had. For a caller that
/// prunes the tree itself, as it knows what the chunks below the outermost tree are; the root and
/// the keys of the result are left to it, and to flush the batch.
pub async fn settle(
    content: &Content,
    batch: &mut Batch,
    findings: &Findings,
    may_drop: MayDrop,
) -> Result<(Fates, Repaired), Error> {
    // From now on no duplicates are found there.
    findings.damages.iter().for_each(|damage| content.inner.index.doubt(&damage.pointer));
    let mut repaired = Repaired::default();
    // Pack by pack, so that each is fetched for its parity once.
    let mut damages: Vec<&Damage> = findings.damages.iter().collect();
    damages.sort_by_key(|damage| (damage.pack(), damage.pointer.spot()));
    let mut fates = Fates::default();
    let (mut hurt, mut torn) = (Vec::new(), Vec::new());
    let mut helper =
        Helper { content, findings, rebuild: Rebuild::new(content), healed: NameMap::default() };
    for window in damages.chunks(limits::FETCH_WINDOW) {
        let looks = window.iter().map(|damage| look_again(content, damage));
        for (damage, look) in window.iter().zip(join_all(looks).await) {
            let pointer = damage.pointer;
            let is_node = pack::class(pointer.pack) == Class::Metadata;
            let Some(missing) = look? else {
                // The children of the node were not examined.
                repaired.again |= is_node;
                repaired.lines.push(format!("{}; it is there again", damage.error));
                continue;
            };
            let (fate, outcome) = match fates.chunks.get(&pointer) {
                Some(fate) => (*fate, "as said before"),
                None => match helper.bring_back(batch, &pointer, &mut repaired).await? {
                    Some((place, from)) => (Fate::Moved(place), from),
                    None if may(may_drop, damage, missing) => (Fate::Lost, "it is given up"),
                    None => (Fate::Kept(missing), kept(damage, missing)),
                },
            };
            let is_had = matches!(fate, Fate::Moved(_));
            repaired.absent += u64::from(!is_had && missing == Missing::Absent);
            repaired.again |= is_had && is_node;
            repaired.lines.push(format!("{}; {outcome}", damage.error));
            fates.chunks.insert(pointer, fate);
            hurt.push(outermost(damage));
            torn.extend((fate == Fate::Lost).then(|| outermost(damage)));
        }
    }
    (fates.hurt, fates.torn) = (joined(hurt), joined(torn));
    Ok((fates, repaired))
}

/// The keys of the outermost tree that a chunk answers for.
fn outermost(damage: &Damage) -> Range<u64> {
    damage.keys.first().cloned().unwrap_or(0..u64::MAX)
}

fn may(may_drop: MayDrop, damage: &Damage, missing: Missing) -> bool {
    match may_drop {
        MayDrop::Nothing => false,
        MayDrop::Damaged => missing == Missing::Damaged && !damage.is_root(),
        MayDrop::Everything => true,
    }
}

fn kept(damage: &Damage, missing: Missing) -> &'static str {
    match missing {
        _ if damage.is_root() => "it is the root: nothing is known of what is below",
        Missing::Absent => "it is absent, which is not lost",
        Missing::Damaged => "it cannot be had, and was not given up",
    }
}

/// Reads a chunk once more, and returns why it still cannot be had: the more careful of two
/// answers. `None`: it is back.
async fn look_again(content: &Content, damage: &Damage) -> Result<Option<Missing>, Error> {
    match content.inner.fetch(&damage.pointer, Sharing::No).await {
        Ok(_) => Ok(None),
        Err(error) => match error.missing() {
            Some(missing) => Ok(Some(missing.min(damage.missing))),
            None => Err(error),
        },
    }
}

/// All sources that may have a chunk.
struct Helper<'a> {
    content: &'a Content,
    findings: &'a Findings,
    rebuild: Rebuild<'a>,
    /// New places of chunks that came back: one is enough for all places of a name.
    healed: NameMap<Pointer>,
}

impl Helper<'_> {
    /// Writes a chunk to a new place, if a source has it; returns the place and the source.
    async fn bring_back(
        &mut self,
        batch: &mut Batch,
        pointer: &Pointer,
        repaired: &mut Repaired,
    ) -> Result<Option<(Pointer, &'static str)>, Error> {
        if let Some(place) = self.healed.get(&pointer.name) {
            return Ok(Some((*place, "it came back before")));
        }
        let class = pack::class(pointer.pack);
        let (mut body, mut from) =
            (cached(self.content, pointer, class), "it came back from the cache");
        if body.is_none() {
            body = self.findings.copies.read(self.content, pointer).await?;
            repaired.from_copies += u64::from(body.is_some());
            from = "it came back from another copy";
        }
        if body.is_none() {
            body = self.rebuild.chunk(pointer).await?;
            repaired.from_parity += u64::from(body.is_some());
            from = "it came back from parity";
        }
        let Some(body) = body else { return Ok(None) };
        repaired.refetched += 1;
        let place = batch.write_anew(class, pointer.name, body).await?;
        self.healed.insert(pointer.name, place);
        Ok(Some((place, from)))
    }
}

/// Returns a chunk from the cache or warm memory, if it has its name: memory is not believed
/// either.
fn cached(content: &Content, pointer: &Pointer, class: Class) -> Option<Body> {
    let inner = &content.inner;
    let is_it = |body: &Body| inner.namer.name(class, body.children, &body.bytes) == pointer.name;
    let cached = inner.cache.get(&pointer.name).filter(is_it);
    cached.or_else(|| inner.warm.get(&inner.namer, pointer).ok())
}

#[cfg(test)]
mod tests;
