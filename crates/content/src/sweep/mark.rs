//! Marks: which packs hold something that roots reach, and how much of each.
//!
//! RAM: one bit for every 4 KiB of a pack that is met (32 MiB for a tebibyte), and the names of
//! walked metadata chunks. A bit stands for the chunks whose positions are in its 4 KiB, so marks
//! take at times a little too much for alive, and never too little.

use crate::format::moved::Moved;
use crate::moved;
use crate::name::{NameSet, PackMap, PackSet};
use crate::tree::Visitor;
use crate::{Class, Content, Error, Pointer, Spot, limits, pack};
use hashbrown::HashSet;
use hashbrown::hash_map::Entry;
use rekindle_base::PackId;

/// The live chunks of one pack.
#[derive(Debug, Clone, Default)]
pub(super) struct Alive {
    granules: Vec<u64>,
    /// Bytes of live chunks: an estimate, for choosing what to compact.
    bytes: u64,
    /// Each live spot, for packs where a bit is not enough.
    exact: Option<HashSet<Spot>>,
}

impl Alive {
    /// Marks a chunk that takes so many bytes of its pack.
    fn mark(&mut self, spot: Spot, bytes: u32) {
        if let Some(exact) = &mut self.exact {
            exact.insert(spot);
        }
        let granule = (spot.position() / limits::LIVE_GRANULE_BYTES) as usize;
        if self.granules.len() <= granule / 64 {
            self.granules.resize(granule / 64 + 1, 0);
        }
        let bit = 1 << (granule % 64);
        if self.granules[granule / 64] & bit == 0 {
            self.granules[granule / 64] |= bit;
            self.bytes += u64::from(bytes);
        }
    }

    fn is_empty(&self) -> bool {
        self.granules.is_empty()
    }

    /// Whether a chunk at this spot may be alive.
    fn has(&self, spot: Spot) -> bool {
        let granule = (spot.position() / limits::LIVE_GRANULE_BYTES) as usize;
        self.granules.get(granule / 64).is_some_and(|word| word & (1 << (granule % 64)) != 0)
    }

    /// Whether a chunk with a position in these bytes may be alive.
    fn has_within(&self, begin: u64, end: u64) -> bool {
        let granule = u64::from(limits::LIVE_GRANULE_BYTES);
        let last = (self.granules.len() as u64 * 64).min(end.div_ceil(granule));
        (begin / granule..last).any(|at| {
            let word = usize::try_from(at / 64).ok().and_then(|word| self.granules.get(word));
            word.is_some_and(|word| word & (1 << (at % 64)) != 0)
        })
    }

    fn merge(&mut self, from: &Alive) {
        if self.granules.len() < from.granules.len() {
            self.granules.resize(from.granules.len(), 0);
        }
        for (into, from) in self.granules.iter_mut().zip(&from.granules) {
            *into |= from;
        }
        self.bytes += from.bytes;
        if let (Some(exact), Some(from)) = (&mut self.exact, &from.exact) {
            exact.extend(from);
        }
    }
}

/// The marks of one sweep.
#[derive(Default)]
pub(super) struct Marks {
    /// Live chunks by the places that pointers name, dead packs with notes included.
    named: PackMap<Alive>,
    visited: NameSet,
    /// Packs that are in the store though they have a note: compaction was cut off before the
    /// deletion.
    leftovers: PackSet,
}

/// The meaning of the marks for the packs in the store.
pub(super) struct Verdict<'a> {
    marks: &'a Marks,
    notes: &'a PackSet,
    /// Chunks that are alive because notes lead there.
    noted: PackMap<Alive>,
    /// Of each pack that notes lead to, the length of the longest chain.
    hops: PackMap<usize>,
    /// Notes into which no pointer leads.
    pub(super) idle_notes: Vec<PackId>,
}

impl Visitor for Marks {
    fn meet(&mut self, pointer: &Pointer) -> bool {
        self.named.entry(pointer.pack).or_default().mark(pointer.spot(), pointer.share());
        pack::class(pointer.pack) == Class::Metadata && self.visited.insert(pointer.name)
    }

    fn failed(&mut self, _pointer: &Pointer, error: Error) -> Result<(), Error> {
        // A chunk that cannot be read may reach anything.
        Err(error)
    }
}

impl Marks {
    /// Creates marks for a store with these notes and packs.
    pub(super) fn new(notes: &PackSet, packs: &PackMap<u64>) -> Self {
        let leftovers = notes.iter().filter(|pack| packs.contains_key(*pack)).copied().collect();
        let mut marks = Self { leftovers, ..Self::default() };
        for pack in &marks.leftovers {
            marks.named.insert(*pack, marks.fresh(pack));
        }
        marks
    }

    fn fresh(&self, pack: &PackId) -> Alive {
        Alive { exact: self.leftovers.contains(pack).then(HashSet::new), ..Alive::default() }
    }

    /// Whether all packs that are in the store though they have notes were so when marking began.
    pub(super) fn knows_leftovers(&self, notes: &PackSet, packs: &PackMap<u64>) -> bool {
        notes.iter().all(|pack| !packs.contains_key(pack) || self.leftovers.contains(pack))
    }

    /// Follows the notes: a chunk that is named in a compacted pack is alive where the pack's note
    /// says. Goes round by round, so that each note is read once for each length of chain at which
    /// it lies.
    pub(super) async fn judge<'a>(
        &'a self,
        content: &Content,
        notes: &'a PackSet,
        packs: &PackMap<u64>,
    ) -> Result<Verdict<'a>, Error> {
        let mut verdict = Verdict {
            marks: self,
            notes,
            noted: PackMap::default(),
            hops: PackMap::default(),
            idle_notes: Vec::new(),
        };
        let mut used = PackSet::default();
        let named =
            self.named.iter().filter(|(pack, alive)| notes.contains(*pack) && !alive.is_empty());
        let mut round: PackMap<Alive> = named.map(|(pack, alive)| (*pack, alive.clone())).collect();
        for hop in 1.. {
            if round.is_empty() {
                break;
            }
            if hop > limits::MOVED_HOPS_MAX {
                return Err(Error::Stopped("the notes of moved chunks lead in a circle".into()));
            }
            let mut next = PackMap::default();
            for (pack, alive) in std::mem::take(&mut round) {
                used.insert(pack);
                let note = content.inner.moved.note(&content.inner.store, pack).await?;
                let note = note.ok_or_else(|| {
                    Error::Stopped(format!("the note of pack {pack} has vanished"))
                })?;
                let followed = self.follow(&note, &alive, |place| {
                    // A note that an earlier sweeper wrote too late leads nowhere; the pack itself
                    // is still there then.
                    packs.contains_key(place) || notes.contains(place) || !packs.contains_key(&pack)
                });
                merge_all(&mut next, followed.moved);
                if !followed.stayed.is_empty() {
                    verdict.noted.entry(pack).or_default().merge(&followed.stayed);
                }
            }
            for (target, alive) in next {
                if notes.contains(&target) {
                    round.insert(target, alive);
                } else {
                    let hops = verdict.hops.entry(target).or_default();
                    *hops = hop.max(*hops);
                    verdict.noted.entry(target).or_default().merge(&alive);
                }
            }
        }
        verdict.idle_notes = notes.iter().filter(|pack| !used.contains(*pack)).copied().collect();
        Ok(verdict)
    }

    /// Splits the live places of a pack with a note: those that the note moves, and those that
    /// stay.
    fn follow(
        &self,
        note: &Moved,
        alive: &Alive,
        leads_somewhere: impl Fn(&PackId) -> bool,
    ) -> Followed {
        let mut moved: PackMap<Alive> = PackMap::default();
        let mut rest = alive.exact.clone();
        for (spot, place) in &note.entries {
            let is_named =
                alive.exact.as_ref().map_or(alive.has(*spot), |exact| exact.contains(spot));
            if is_named && leads_somewhere(&place.pack) {
                let target = moved.entry(place.pack).or_insert_with(|| self.fresh(&place.pack));
                target.mark(place.spot(), place.share());
                rest.as_mut().map(|rest| rest.remove(spot));
            }
        }
        // A live chunk of a leftover that the note does not name is alive where it is.
        let mut stayed = Alive::default();
        rest.iter().flatten().for_each(|spot| stayed.mark(*spot, 1));
        Followed { moved, stayed }
    }
}

struct Followed {
    moved: PackMap<Alive>,
    stayed: Alive,
}

impl Verdict<'_> {
    /// Returns the chunks that pointers name in a pack directly; a pack with a note is judged by
    /// the note.
    fn direct(&self, pack: &PackId) -> Option<&Alive> {
        if self.notes.contains(pack) { None } else { self.marks.named.get(pack) }
    }

    /// Whether something in this pack is alive.
    pub(super) fn is_alive(&self, pack: &PackId) -> bool {
        let noted = self.noted.get(pack).is_some_and(|alive| !alive.is_empty());
        noted || self.direct(pack).is_some_and(|alive| !alive.is_empty())
    }

    /// Bytes of this pack that are alive; an estimate.
    pub(super) fn bytes(&self, pack: &PackId) -> u64 {
        self.direct(pack).map_or(0, |alive| alive.bytes)
            + self.noted.get(pack).map_or(0, |alive| alive.bytes)
    }

    /// Whether the chunk at this spot may be alive.
    pub(super) fn has(&self, pack: &PackId, spot: Spot) -> bool {
        [self.direct(pack), self.noted.get(pack)].into_iter().flatten().any(|alive| alive.has(spot))
    }

    /// Whether a chunk with a position in these bytes of a pack may be alive.
    pub(super) fn has_within(&self, pack: &PackId, bytes: std::ops::Range<u64>) -> bool {
        [self.direct(pack), self.noted.get(pack)]
            .into_iter()
            .flatten()
            .any(|alive| alive.has_within(bytes.start, bytes.end))
    }

    /// Length of the longest chain of notes at whose end a pack lies.
    pub(super) fn hops(&self, pack: &PackId) -> usize {
        self.hops.get(pack).copied().unwrap_or(0)
    }
}

fn merge_all(into: &mut PackMap<Alive>, from: PackMap<Alive>) {
    for (pack, alive) in from {
        match into.entry(pack) {
            Entry::Occupied(mut entry) => entry.get_mut().merge(&alive),
            Entry::Vacant(entry) => drop(entry.insert(alive)),
        }
    }
}

/// Lists the packs that have a note.
pub(super) async fn list_notes(content: &Content) -> Result<PackSet, Error> {
    let mut notes = PackSet::default();
    let mut after: Option<String> = None;
    loop {
        let page = content.inner.store.list(moved::PREFIX, after.as_deref()).await?;
        let Some(last) = page.last() else {
            return Ok(notes);
        };
        after = Some(last.key.clone());
        notes.extend(
            page.iter()
                .filter_map(|note| note.key.strip_prefix(moved::PREFIX)?.parse::<PackId>().ok()),
        );
    }
}

/// Lists the packs in the store, with their lengths.
pub(super) async fn list_packs(content: &Content) -> Result<PackMap<u64>, Error> {
    let mut packs: PackMap<u64> = PackMap::default();
    for class in [Class::Data, Class::Metadata] {
        packs.extend(pack::list(&content.inner.store, class).await?);
    }
    Ok(packs)
}
