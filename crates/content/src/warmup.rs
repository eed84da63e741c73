//! Filling the dedup index after a start.

use crate::pack::{self, reader};
use crate::sweep::condemned;
use crate::{Class, Content, Error, limits};
use futures_util::future::join_all;
use rekindle_base::PackId;

/// The result of a warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WarmUp {
    /// Packs in the store.
    pub packs: usize,
    /// Footers that are in RAM now.
    pub footers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Yes,
    /// The pack is condemned, or its footer cannot be read.
    No,
    NoRoom,
}

impl Content {
    /// Loads the footers of existing packs, newest first, until the index is full. For the
    /// background after a start: nothing waits for it. Footers that cannot be read are left out.
    ///
    /// First of all reads `sweep/condemned`: a sweep that a crash cut off may be deleting packs,
    /// and a duplicate must not be found in one of them. When that record cannot be read, nothing
    /// is loaded.
    pub async fn warm_index(&self) -> Result<WarmUp, Error> {
        let condemned = condemned::read(&self.inner.store).await?;
        self.inner.index.condemn_also(condemned.refused());
        let mut packs = pack::list(&self.inner.store, Class::Data).await?;
        packs.extend(pack::list(&self.inner.store, Class::Metadata).await?);
        // Ids begin with the time of their making.
        packs.sort_unstable_by(|a, b| b.cmp(a));
        let mut warm_up = WarmUp { packs: packs.len(), footers: 0 };
        for window in packs.chunks(limits::FETCH_WINDOW) {
            let loaded =
                join_all(window.iter().map(|(pack, bytes)| self.load_footer(*pack, *bytes))).await;
            warm_up.footers += loaded.iter().filter(|loaded| **loaded == Loaded::Yes).count();
            if loaded.contains(&Loaded::NoRoom) {
                break;
            }
        }
        Ok(warm_up)
    }

    async fn load_footer(&self, pack: PackId, bytes: u64) -> Loaded {
        // While this hold lives, no sweep deletes packs that it condemns from now on; packs that
        // are condemned already are not touched.
        let _hold = self.hold();
        if self.inner.index.is_condemned(&pack) {
            return Loaded::No;
        }
        if self.inner.index.is_full(0) {
            return Loaded::NoRoom;
        }
        match reader::read_footer(&self.inner.store, &self.inner.namer, pack, bytes).await {
            Ok(entries) if self.inner.index.is_full(entries.len()) => Loaded::NoRoom,
            Ok(entries) => {
                self.inner.index.add(pack, bytes, &entries);
                Loaded::Yes
            }
            Err(error) => {
                tracing::debug!(%pack, %error, "the footer of a pack cannot be read: no duplicates from it");
                Loaded::No
            }
        }
    }
}
