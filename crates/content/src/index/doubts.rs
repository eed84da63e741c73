//! Places from which a read did not get its chunk: a writer of the same bytes is not led there.
//!
//! A doubt is apart from a sweep's condemned set, which comes and goes with each sweep. A doubt
//! ends only when a read proves the place, or with the pack. Doubts are in RAM and known to this
//! node alone: the next life finds out anew.

use crate::name::PackMap;
use crate::{Spot, limits};
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
    /// The chunks at these spots.
    Places(HashSet<Spot>),
    /// All of the pack.
    Whole,
}

impl Doubts {
    pub(super) fn holds(&self, pack: &PackId, spot: Spot) -> bool {
        self.everything
            || match self.packs.get(pack) {
                None => false,
                Some(Doubt::Places(spots)) => spots.contains(&spot),
                Some(Doubt::Whole) => true,
            }
    }

    pub(super) fn add(&mut self, pack: PackId, spot: Spot) {
        if self.packs.len() >= limits::DOUBTED_PACKS_MAX && !self.packs.contains_key(&pack) {
            self.everything = true;
            return;
        }
        let doubt = self.packs.entry(pack).or_insert_with(|| Doubt::Places(HashSet::default()));
        let Doubt::Places(spots) = doubt else { return };
        spots.insert(spot);
        if spots.len() > limits::DOUBTED_PLACES_MAX {
            *doubt = Doubt::Whole;
        }
    }

    /// Ends the doubt about a place from which a read has just got its chunk. A pack that is
    /// doubted as a whole stays so.
    pub(super) fn end(&mut self, pack: &PackId, spot: Spot) {
        if let Some(Doubt::Places(spots)) = self.packs.get_mut(pack) {
            spots.remove(&spot);
            if spots.is_empty() {
                self.packs.remove(pack);
            }
        }
    }

    /// Ends all doubts about a pack that is gone, or was proven whole.
    pub(super) fn end_all(&mut self, pack: &PackId) {
        self.packs.remove(pack);
    }
}
