//! Footers of the packs used last: name -> place.

use crate::format::footer::Entry;
use crate::name::{Name, PackMap, word};
use hashbrown::HashTable;
use rekindle_base::PackId;

/// RAM of an entry: itself, and its slot in the table at the usual filling.
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>() + 2 * (size_of::<Place>() + 1);

struct Footer {
    pack: PackId,
    entries: Box<[Entry]>,
    used: u64,
}

#[derive(Clone, Copy)]
struct Place {
    slot: u32,
    entry: u32,
}

#[derive(Default)]
pub(super) struct Recent {
    footers: Vec<Option<Footer>>,
    free: Vec<u32>,
    by_pack: PackMap<u32>,
    table: HashTable<Place>,
    clock: u64,
    entries: usize,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries * size_of::<Entry>()
            + self.table.allocation_size()
            + self.footers.capacity() * size_of::<Option<Footer>>()
            + self.by_pack.allocation_size()
    }

    pub(super) fn contains(&self, pack: &PackId) -> bool {
        self.by_pack.contains_key(pack)
    }

    /// Finds a place of the name that is `good`.
    pub(super) fn get(
        &mut self,
        name: &Name,
        good: impl Fn(&PackId, &Entry) -> bool,
    ) -> Option<(PackId, &Entry)> {
        let footers = &self.footers;
        let is_it = |place: &Place| {
            let footer = footers.get(place.slot as usize)?.as_ref()?;
            let entry = footer.entries.get(place.entry as usize)?;
            Some(entry.name == *name && good(&footer.pack, entry))
        };
        let place = *self.table.find(word(name, 0), |place| is_it(place) == Some(true))?;
        self.clock += 1;
        let footer = self.footers[place.slot as usize].as_mut()?;
        footer.used = self.clock;
        Some((footer.pack, &footer.entries[place.entry as usize]))
    }

    pub(super) fn add(&mut self, pack: PackId, entries: &[Entry]) {
        self.clock += 1;
        let footer = Footer { pack, entries: entries.into(), used: self.clock };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.footers[slot as usize] = Some(footer);
                slot
            }
            None => {
                self.footers.push(Some(footer));
                u32::try_from(self.footers.len() - 1).unwrap_or(0)
            }
        };
        self.by_pack.insert(pack, slot);
        self.entries += entries.len();
        let Self { footers, table, .. } = self;
        for (index, entry) in (0u32..).zip(entries) {
            let rehash =
                |place: &Place| entry_at(footers, *place).map_or(0, |entry| word(&entry.name, 0));
            table.insert_unique(word(&entry.name, 0), Place { slot, entry: index }, rehash);
        }
    }

    pub(super) fn remove(&mut self, pack: &PackId) {
        let Some(slot) = self.by_pack.remove(pack) else { return };
        let Some(footer) = self.footers[slot as usize].take() else { return };
        for entry in &footer.entries {
            if let Ok(found) = self.table.find_entry(word(&entry.name, 0), |place| {
                place.slot == slot && footer.entries[place.entry as usize].name == entry.name
            }) {
                found.remove();
            }
        }
        self.entries -= footer.entries.len();
        self.free.push(slot);
        if self.table.len() * 4 < self.table.capacity() {
            let footers = &self.footers;
            self.table.shrink_to_fit(|place| {
                entry_at(footers, *place).map_or(0, |entry| word(&entry.name, 0))
            });
        }
    }

    /// Drops the footer that was used longest ago; `false` when only one is left.
    pub(super) fn evict(&mut self) -> bool {
        if self.by_pack.len() < 2 {
            return false;
        }
        let oldest = self
            .footers
            .iter()
            .flatten()
            .min_by_key(|footer| footer.used)
            .map(|footer| footer.pack);
        oldest.is_some_and(|pack| {
            self.remove(&pack);
            true
        })
    }
}

fn entry_at(footers: &[Option<Footer>], place: Place) -> Option<&Entry> {
    footers.get(place.slot as usize)?.as_ref()?.entries.get(place.entry as usize)
}
