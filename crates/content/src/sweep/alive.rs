//! The places of packs that are alive, for compaction.

use super::tally::{Tally, Trouble};
use crate::Spot;
use crate::format::counts::CountedPlace;
use crate::name::PackMap;
use rekindle_base::PackId;

/// The places that are alive in some packs.
#[derive(Default)]
pub(super) struct Alive {
    packs: PackMap<Vec<CountedPlace>>,
}

impl Alive {
    pub(super) async fn of(
        tally: &mut Tally,
        packs: impl IntoIterator<Item = PackId>,
    ) -> Result<Self, Trouble> {
        let mut alive = Self::default();
        for pack in packs {
            let places = tally.places(&pack).await?;
            alive.packs.insert(pack, places);
        }
        Ok(alive)
    }

    fn places(&self, pack: &PackId) -> &[CountedPlace] {
        self.packs.get(pack).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a chunk is alive.
    pub(super) fn has(&self, pack: &PackId, spot: Spot) -> bool {
        self.places(pack).binary_search_by_key(&spot, |place| place.spot).is_ok()
    }

    /// Returns the spots of a pack that are alive.
    pub(super) fn spots(&self, pack: &PackId) -> impl Iterator<Item = Spot> {
        self.places(pack).iter().map(|place| place.spot)
    }
}
