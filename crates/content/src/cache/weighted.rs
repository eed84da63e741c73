//! The weighted LRU of HydraFS, with a queue before it. An entry comes in with a weight (metadata
//! 3, data 1), and a lookup restores the weight. A reclaim pass evicts the entries of weight 0 and
//! then takes 1 from all others. Data that no lookup touches survives one pass, metadata three.
//!
//! Each step takes constant time: four lists form a ring. An entry of weight `w` is in list
//! `(pass + w) mod 4`, newest first. A pass empties list `pass mod 4` and counts `pass` up, which
//! takes 1 from all others without touching them. A pass stops as soon as there is room, and the
//! next insertion continues it.
//!
//! What no reader has asked for yet comes into a fifth list, first in first out: a stream passes
//! through it and leaves the ring as it was. The first lookup of an entry there is the one that it
//! was fetched for. A later one moves it into the ring, if much was inserted since the first: a
//! stream may ask for a chunk in small steps, but not again.

use crate::name::{Name, word};
use hashbrown::HashTable;

/// Heaviest weight.
const WEIGHT_MAX: usize = 3;
/// Lists of the ring.
const RING: usize = WEIGHT_MAX + 1;
/// The list of entries for which no reader has asked.
const QUEUE: usize = RING;
/// Share of the budget that the queue has while the ring needs the rest.
const QUEUE_SHARE: u64 = 4;
/// A lookup proves an entry when this share of the budget was inserted since the first one. One
/// reader may have fetched half of the queue ahead; a quarter of it is left for the proof.
const PROOF_SHARE: u64 = 16;
/// No slot.
const NONE: u32 = u32::MAX;

struct Slot<V> {
    name: Name,
    weight: usize,
    bytes: u64,
    list: usize,
    /// Whether it was fetched ahead of a reader.
    is_fetched: bool,
    /// Bytes inserted into the cache up to the first lookup.
    asked: Option<u64>,
    newer: u32,
    older: u32,
    /// `None` in a free slot.
    value: Option<V>,
}

#[derive(Clone, Copy)]
struct List {
    newest: u32,
    oldest: u32,
}

/// The reason why an entry is in the cache for which no reader has asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unasked {
    Written,
    /// It was fetched ahead of a reader.
    Fetched,
}

/// Values that left the cache. Mostly one, so that an insertion allocates nothing.
pub(super) struct Evicted<V> {
    first: Option<V>,
    others: Vec<V>,
}

impl<V> Evicted<V> {
    fn push(&mut self, value: V) {
        match self.first {
            None => self.first = Some(value),
            Some(_) => self.others.push(value),
        }
    }
}

/// A cache with a budget of bytes.
pub(super) struct Weighted<V> {
    bytes_max: u64,
    bytes: u64,
    /// Bytes of the queue.
    queued: u64,
    /// Bytes inserted so far.
    inserted: u64,
    /// Entries that were fetched ahead, and evicted from the queue without a lookup.
    unread: u64,
    pass: usize,
    lists: [List; RING + 1],
    /// Slots by name. The name itself is in the slot only: the table is small and stays near the
    /// core.
    table: HashTable<u32>,
    slots: Vec<Slot<V>>,
    free: Vec<u32>,
}

impl<V> Weighted<V> {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            queued: 0,
            inserted: 0,
            unread: 0,
            pass: 0,
            lists: [List { newest: NONE, oldest: NONE }; RING + 1],
            table: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn unread(&self) -> u64 {
        self.unread
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Looks a name up: restores the weight and makes the entry the newest of its list. An entry of
    /// the queue stays there, unless it is proven.
    pub(super) fn get(&mut self, name: &Name) -> Option<&V> {
        let index = self.find(name)?;
        let slot = &mut self.slots[index as usize];
        let asked = *slot.asked.get_or_insert(self.inserted);
        let is_proven = self.inserted - asked >= self.bytes_max / PROOF_SHARE;
        let list = match slot.list {
            QUEUE if !is_proven => return self.slots[index as usize].value.as_ref(),
            _ => (self.pass + slot.weight) % RING,
        };
        if slot.list != list || slot.newer != NONE {
            self.unlink(index);
            self.link(index, list);
        }
        self.slots[index as usize].value.as_ref()
    }

    /// Inserts or replaces, and makes room. Returns the values that are not in the cache, to be
    /// freed outside the lock.
    pub(super) fn insert(&mut self, name: Name, weight: usize, bytes: u64, value: V) -> Evicted<V> {
        let first = self.remove(&name);
        self.put(name, (weight, None), bytes, value, first)
    }

    /// Like [`Weighted::insert`], for an entry for which no reader has asked yet: what is there
    /// stays as it is.
    pub(super) fn insert_unasked(
        &mut self,
        name: Name,
        weight: usize,
        bytes: u64,
        value: V,
        why: Unasked,
    ) -> Evicted<V> {
        match self.find(&name) {
            Some(_) => Evicted { first: Some(value), others: Vec::new() },
            None => self.put(name, (weight, Some(why)), bytes, value, None),
        }
    }

    fn put(
        &mut self,
        name: Name,
        (weight, unasked): (usize, Option<Unasked>),
        bytes: u64,
        value: V,
        first: Option<V>,
    ) -> Evicted<V> {
        let mut evicted = Evicted { first, others: Vec::new() };
        if bytes > self.bytes_max {
            evicted.push(value);
            return evicted;
        }
        while self.bytes + bytes > self.bytes_max {
            if let Some(value) = self.evict_one(unasked.map_or(0, |_| bytes)) {
                evicted.push(value);
            }
        }
        let weight = weight.min(WEIGHT_MAX);
        let list = unasked.map_or((self.pass + weight) % RING, |_| QUEUE);
        self.inserted += bytes;
        let slot = Slot {
            name,
            weight,
            bytes,
            list,
            is_fetched: unasked == Some(Unasked::Fetched),
            asked: None,
            newer: NONE,
            older: NONE,
            value: Some(value),
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1)
                    .expect("entries cost 192 bytes, so 2^32 do not fit in RAM")
            }
        };
        let slots = &self.slots;
        let hash = |index: &u32| word(&slots[*index as usize].name, 0);
        self.table.insert_unique(word(&name, 0), index, hash);
        self.bytes += bytes;
        self.link(index, list);
        evicted
    }

    pub(super) fn remove(&mut self, name: &Name) -> Option<V> {
        let index = self.find(name)?;
        self.take(index)
    }

    fn find(&self, name: &Name) -> Option<u32> {
        let is_it = |index: &u32| self.slots[*index as usize].name == *name;
        self.table.find(word(name, 0), is_it).copied()
    }

    fn take(&mut self, index: u32) -> Option<V> {
        let hash = word(&self.slots[index as usize].name, 0);
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == index) {
            entry.remove();
        }
        self.unlink(index);
        self.free.push(index);
        let slot = &mut self.slots[index as usize];
        self.bytes -= slot.bytes;
        slot.value.take()
    }

    /// Evicts the oldest entry of the queue, if that would have more than its share with `coming`
    /// bytes; else one of the ring.
    fn evict_one(&mut self, coming: u64) -> Option<V> {
        let ring_is_empty = self.bytes == self.queued;
        if self.queued > 0 && (ring_is_empty || self.queued + coming > self.bytes_max / QUEUE_SHARE)
        {
            let oldest = self.lists[QUEUE].oldest;
            let slot = &self.slots[oldest as usize];
            self.unread += u64::from(slot.is_fetched && slot.asked.is_none());
            return self.take(oldest);
        }
        self.evict_of_ring()
    }

    /// Evicts the oldest entry of weight 0. When there is none, the pass is over: every entry loses
    /// 1.
    fn evict_of_ring(&mut self) -> Option<V> {
        let oldest = self.lists[self.pass % RING].oldest;
        if oldest == NONE {
            self.pass += 1;
            return None;
        }
        self.take(oldest)
    }

    /// Runs a whole pass; returns how many entries it evicted.
    #[cfg(test)]
    fn reclaim(&mut self) -> usize {
        let pass = self.pass;
        let mut evicted = 0;
        while self.pass == pass {
            evicted += usize::from(self.evict_of_ring().is_some());
        }
        evicted
    }

    /// The present weight of an entry of the ring.
    #[cfg(test)]
    fn weight(&self, name: &Name) -> Option<usize> {
        let slot = &self.slots[self.find(name)? as usize];
        (slot.list != QUEUE).then(|| (slot.list + RING - self.pass % RING) % RING)
    }

    fn link(&mut self, index: u32, list: usize) {
        let newest = self.lists[list].newest;
        let slot = &mut self.slots[index as usize];
        slot.list = list;
        if list == QUEUE {
            self.queued += slot.bytes;
        }
        slot.newer = NONE;
        slot.older = newest;
        match newest {
            NONE => self.lists[list].oldest = index,
            newest => self.slots[newest as usize].newer = index,
        }
        self.lists[list].newest = index;
    }

    fn unlink(&mut self, index: u32) {
        let Slot { newer, older, list, bytes, .. } = self.slots[index as usize];
        if list == QUEUE {
            self.queued -= bytes;
        }
        match newer {
            NONE => self.lists[list].newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.lists[list].oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const D: Name = [1; 32];
    const M: Name = [2; 32];

    #[test]
    fn the_golden_trace_of_hydrafs() {
        let mut cache = Weighted::new(1000);
        cache.insert(D, 1, 10, "data");
        cache.insert(M, 3, 10, "metadata");
        assert_eq!(cache.reclaim(), 0);
        assert_eq!((cache.weight(&D), cache.weight(&M)), (Some(0), Some(2)));
        assert_eq!(cache.get(&D), Some(&"data"));
        assert_eq!((cache.weight(&D), cache.weight(&M)), (Some(1), Some(2)));
        assert_eq!(cache.reclaim(), 0);
        assert_eq!((cache.weight(&D), cache.weight(&M)), (Some(0), Some(1)));
        assert_eq!(cache.reclaim(), 1);
        assert_eq!((cache.weight(&D), cache.weight(&M)), (None, Some(0)));
        assert_eq!(cache.reclaim(), 1);
        assert_eq!((cache.weight(&D), cache.weight(&M)), (None, None));
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn a_lookup_proves_an_entry_when_much_was_inserted_since_the_first_one() {
        let mut cache = Weighted::new(100 * PROOF_SHARE);
        cache.insert_unasked(D, 1, 100, "data", Unasked::Written);
        for other in 3..6 {
            cache.insert_unasked([other; 32], 1, 100, "too", Unasked::Fetched);
            cache.remove(&[other; 32]);
        }
        assert!(cache.get(&D).is_some());
        assert_eq!(cache.queued, 100, "it was fetched for this lookup");
        cache.insert_unasked(M, 1, 100, "other", Unasked::Written);
        assert!(cache.get(&D).is_some());
        assert_eq!((cache.queued, cache.weight(&D)), (100, Some(1)));
        cache.insert_unasked(D, 1, 100, "data", Unasked::Written);
        assert_eq!(cache.queued, 100, "what is proven stays where it is");
    }

    #[test]
    fn the_queue_has_its_share_while_the_ring_needs_the_rest_and_else_all() {
        let mut cache = Weighted::new(100 * 64);
        let names = |kind: u8| {
            (0..200).map(move |i| -> Name { [[kind; 16], [i; 16]].concat().try_into().unwrap() })
        };
        let pass = |cache: &mut Weighted<_>, kind, why| {
            names(kind).for_each(|name| drop(cache.insert_unasked(name, 1, 64, "stream", why)));
        };
        pass(&mut cache, 1, Unasked::Fetched);
        assert_eq!((cache.queued, cache.unread), (100 * 64, 100));
        names(2).for_each(|name: Name| drop(cache.insert(name, 1, 64, "asked for")));
        assert_eq!((cache.queued, cache.bytes), (25 * 64, 100 * 64));
        pass(&mut cache, 3, Unasked::Written);
        let unread = cache.unread;
        pass(&mut cache, 4, Unasked::Written);
        assert_eq!(cache.unread, unread, "what was written was not fetched for a reader");
        assert_eq!((cache.queued, cache.bytes), (25 * 64, 100 * 64));
    }

    proptest! {
        /// Against the slow form: a list of (name, weight), a pass walks all of it. An entry of the
        /// queue has the time of its first lookup.
        #[test]
        fn it_does_what_the_slow_form_does(steps in proptest::collection::vec((0u8..5, 0u8..12), 1..200)) {
            let mut cache = Weighted::new(5 * PROOF_SHARE);
            let mut model: Vec<(u8, usize, usize, Option<Option<u64>>)> = Vec::new();
            let mut inserted = 0;
            for (step, key) in steps {
                let weight = if key % 2 == 0 { 1 } else { 3 };
                let is_there = model.iter().any(|entry| entry.0 == key);
                match step {
                    0 => {
                        cache.insert([key; 32], weight, 1, key);
                        model.retain(|entry| entry.0 != key);
                        model.push((key, weight, weight, None));
                        inserted += 1;
                    }
                    1 => {
                        prop_assert_eq!(cache.get(&[key; 32]).is_some(), is_there);
                        for entry in model.iter_mut().filter(|entry| entry.0 == key) {
                            let asked = entry.3.map(|asked| asked.unwrap_or(inserted));
                            entry.3 = asked.filter(|asked| inserted - asked < 5).map(Some);
                            entry.1 = entry.2;
                        }
                    }
                    2 => {
                        cache.reclaim();
                        model.retain(|entry| entry.1 > 0 || entry.3.is_some());
                        let ring = model.iter_mut().filter(|entry| entry.3.is_none());
                        ring.for_each(|entry| entry.1 -= 1);
                    }
                    3 => {
                        cache.insert_unasked([key; 32], weight, 1, key, Unasked::Fetched);
                        if !is_there {
                            inserted += 1;
                            model.push((key, weight, weight, Some(None)));
                        }
                    }
                    _ => {
                        cache.remove(&[key; 32]);
                        model.retain(|entry| entry.0 != key);
                    }
                }
                prop_assert_eq!(cache.bytes(), model.len() as u64);
                let queued = model.iter().filter(|entry| entry.3.is_some()).count();
                prop_assert_eq!(cache.queued, queued as u64);
                for (key, weight, _, queued) in &model {
                    prop_assert_eq!(cache.weight(&[*key; 32]), Some(*weight).filter(|_| queued.is_none()));
                }
            }
        }
    }
}
