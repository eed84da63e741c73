//! The weighted LRU of HydraFS. An entry comes in with a weight (metadata 3, data 1), and a lookup
//! restores the weight. A reclaim pass evicts the entries of weight 0 and then takes 1 from all
//! others. Data that no lookup touches survives one pass, metadata three.
//!
//! Each step takes constant time: four lists form a ring. An entry of weight `w` is in list
//! `(pass + w) mod 4`, newest first. A pass empties list `pass mod 4` and counts `pass` up, which
//! takes 1 from all others without touching them. A pass stops as soon as there is room, and the
//! next insertion continues it.

use crate::name::{Name, word};
use hashbrown::HashTable;

/// Heaviest weight.
const WEIGHT_MAX: usize = 3;
const LISTS: usize = WEIGHT_MAX + 1;
/// No slot.
const NONE: u32 = u32::MAX;

struct Slot<V> {
    name: Name,
    weight: usize,
    bytes: u64,
    list: usize,
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
    pass: usize,
    lists: [List; LISTS],
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
            pass: 0,
            lists: [List { newest: NONE, oldest: NONE }; LISTS],
            table: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Looks a name up: restores the weight and makes the entry the newest of its list.
    pub(super) fn get(&mut self, name: &Name) -> Option<&V> {
        let index = self.find(name)?;
        let slot = &self.slots[index as usize];
        let list = (self.pass + slot.weight) % LISTS;
        if slot.list != list || slot.newer != NONE {
            self.unlink(index);
            self.link(index, list);
        }
        self.slots[index as usize].value.as_ref()
    }

    /// Inserts or replaces, and makes room. Returns the evicted values, to be freed outside the
    /// lock.
    pub(super) fn insert(&mut self, name: Name, weight: usize, bytes: u64, value: V) -> Evicted<V> {
        let mut evicted = Evicted { first: self.remove(&name), others: Vec::new() };
        if bytes > self.bytes_max {
            evicted.push(value);
            return evicted;
        }
        while self.bytes + bytes > self.bytes_max {
            if let Some(value) = self.evict_one() {
                evicted.push(value);
            }
        }
        let weight = weight.min(WEIGHT_MAX);
        let slot =
            Slot { name, weight, bytes, list: 0, newer: NONE, older: NONE, value: Some(value) };
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
        self.link(index, (self.pass + weight) % LISTS);
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

    /// Evicts the oldest entry of weight 0. When there is none, the pass is over: every entry loses
    /// 1.
    fn evict_one(&mut self) -> Option<V> {
        let oldest = self.lists[self.pass % LISTS].oldest;
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
            evicted += usize::from(self.evict_one().is_some());
        }
        evicted
    }

    /// The present weight of an entry.
    #[cfg(test)]
    fn weight(&self, name: &Name) -> Option<usize> {
        let slot = &self.slots[self.find(name)? as usize];
        Some((slot.list + LISTS - self.pass % LISTS) % LISTS)
    }

    fn link(&mut self, index: u32, list: usize) {
        let newest = self.lists[list].newest;
        let slot = &mut self.slots[index as usize];
        slot.list = list;
        slot.newer = NONE;
        slot.older = newest;
        match newest {
            NONE => self.lists[list].oldest = index,
            newest => self.slots[newest as usize].newer = index,
        }
        self.lists[list].newest = index;
    }

    fn unlink(&mut self, index: u32) {
        let Slot { newer, older, list, .. } = self.slots[index as usize];
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

    proptest! {
        /// Against the slow form: a list of (name, weight), a pass walks all of it.
        #[test]
        fn it_does_what_the_slow_form_does(steps in proptest::collection::vec((0u8..4, 0u8..12), 1..200)) {
            let mut cache = Weighted::new(1 << 20);
            let mut model: Vec<(u8, usize, usize)> = Vec::new();
            for (step, key) in steps {
                let weight = if key % 2 == 0 { 1 } else { 3 };
                match step {
                    0 => {
                        cache.insert([key; 32], weight, 1, key);
                        model.retain(|entry| entry.0 != key);
                        model.push((key, weight, weight));
                    }
                    1 => {
                        prop_assert_eq!(cache.get(&[key; 32]).copied(), model.iter().find(|e| e.0 == key).map(|e| e.0));
                        model.iter_mut().filter(|entry| entry.0 == key).for_each(|entry| entry.1 = entry.2);
                    }
                    2 => {
                        cache.reclaim();
                        model.retain(|entry| entry.1 > 0);
                        model.iter_mut().for_each(|entry| entry.1 -= 1);
                    }
                    _ => {
                        cache.remove(&[key; 32]);
                        model.retain(|entry| entry.0 != key);
                    }
                }
                prop_assert_eq!(cache.bytes(), model.len() as u64);
                for (key, weight, _) in &model {
                    prop_assert_eq!(cache.weight(&[*key; 32]), Some(*weight));
                }
            }
        }
    }
}
