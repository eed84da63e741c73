//! Footers of the packs used last: name -> place.

use crate::format::footer::Entry;
use crate::name::{Name, PackMap, word};
use hashbrown::HashTable;
use rekindle_base::PackId;

/// RAM of an entry: itself, and its slot in the table at the usual filling.
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>() + 2 * (size_of::<EntryRef>() + 1);

struct Footer {
    pack: PackId,
    entries: Box<[Entry]>,
    /// Whether the footer was used since the hand passed it.
    is_used: bool,
}

#[derive(Clone, Copy)]
struct EntryRef {
    slot: u32,
    entry: u32,
}

#[derive(Default)]
pub(super) struct Recent {
    footers: Vec<Option<Footer>>,
    free: Vec<u32>,
    by_pack: PackMap<u32>,
    table: HashTable<EntryRef>,
    /// The slot at which the search for an unused footer goes on.
    hand: usize,
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
        let is_it = |place: &EntryRef| {
            let footer = footers.get(place.slot as usize)?.as_ref()?;
            let entry = footer.entries.get(place.entry as usize)?;
            Some(entry.name == *name && good(&footer.pack, entry))
        };
        let place = *self.table.find(word(name, 0), |place| is_it(place) == Some(true))?;
        let footer = self.footers[place.slot as usize].as_mut()?;
        footer.is_used = true;
        Some((footer.pack, &footer.entries[place.entry as usize]))
    }

    pub(super) fn add(&mut self, pack: PackId, entries: &[Entry]) {
        self.insert(Footer { pack, entries: entries.into(), is_used: true });
    }

    fn insert(&mut self, footer: Footer) {
        let (pack, count) = (footer.pack, footer.entries.len());
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
        self.entries += count;
        let Self { footers, table, .. } = self;
        let hash = |place: &EntryRef| hash_at(footers, *place);
        for entry in 0..u32::try_from(count).unwrap_or(0) {
            let place = EntryRef { slot, entry };
            table.insert_unique(hash(&place), place, hash);
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
            self.table.shrink_to_fit(|place| hash_at(footers, *place));
        }
        // Many short footers, then few long ones: the slots of the short ones are given back.
        if self.by_pack.len() * 4 < self.footers.len() {
            let footers = std::mem::take(self).footers;
            footers.into_iter().flatten().for_each(|footer| self.insert(footer));
        }
    }

    /// Drops a footer that was not used lately; `false` when only one is left. The hand goes round
    /// and spares a used footer once, so that a step takes constant time in the mean.
    pub(super) fn evict(&mut self) -> bool {
        if self.by_pack.len() < 2 {
            return false;
        }
        loop {
            self.hand = (self.hand + 1) % self.footers.len();
            match &mut self.footers[self.hand] {
                Some(footer) if footer.is_used => footer.is_used = false,
                Some(footer) => {
                    let pack = footer.pack;
                    self.remove(&pack);
                    return true;
                }
                None => {}
            }
        }
    }
}

fn hash_at(footers: &[Option<Footer>], place: EntryRef) -> u64 {
    let footer = footers.get(place.slot as usize).and_then(Option::as_ref);
    let entry = footer.and_then(|footer| footer.entries.get(place.entry as usize));
    entry.map_or(0, |entry| word(&entry.name, 0))
}
