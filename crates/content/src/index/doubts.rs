//! Places from which a read did not get its chunk: a writer of the same bytes is not led there.
//!
//! A doubt is apart from a sweep's condemned set, which comes and goes with each sweep. A doubt
//! ends only when a read proves the place, or with the pack. Doubts are in RAM and known to this
//! node alone: the next life finds out anew.

use crate::limits;
use crate::name::PackMap;
use hashbrown::HashSet;
use rekindle_base::PackId;

#[derive(Default)]
pub(super) struct Doubts {
    packs: PackMap<Doubt>,
    /// Whether more packs are doubted than are remembered: then no place gives a duplicate any
    /// more.
    everything: bool,
}

enum Doubt {
    /// The chunks that begin at these offsets.
    Places(HashSet<u32>),
    /// All of the pack.
    Whole,
}

impl Doubts {
    pub(super) fn holds(&self, pack: &PackId, offset: u32) -> bool {
        self.everything
            || match self.packs.get(pack) {
                None => false,
                Some(Doubt::Places(offsets)) => offsets.contains(&offset),
                Some(Doubt::Whole) => true,
            }
    }

    pub(super) fn add(&mut self, pack: PackId, offset: u32) {
        if self.packs.len() >= limits::DOUBTED_PACKS_MAX && !self.packs.contains_key(&pack) {
            self.everything = true;
            return;
        }
        let doubt = self.packs.entry(pack).or_insert_with(|| Doubt::Places(HashSet::default()));
        let Doubt::Places(offsets) = doubt else { return };
        offsets.insert(offset);
        if offsets.len() > limits::DOUBTED_PLACES_MAX {
            *doubt = Doubt::Whole;
        }
    }

    /// Ends the doubt about a place from which a read has just got its chunk. A pack that is
    /// doubted as a whole stays so.
    pub(super) fn end(&mut self, pack: &PackId, offset: u32) {
        if let Some(Doubt::Places(offsets)) = self.packs.get_mut(pack) {
            offsets.remove(&offset);
            if offsets.is_empty() {
                self.packs.remove(pack);
            }
        }
    }

    /// Ends all doubts about a pack that is gone, or was proven whole.
    pub(super) fn end_all(&mut self, pack: &PackId) {
        self.packs.remove(pack);
    }
}
