//! A sample of all names: name -> pack.
//!
//! An open-addressing table of 12-byte slots that holds 64 bits of each name. When it would outgrow
//! its budget the sample is thinned: only names whose next bit is 0 stay, half of them. The bits
//! that decide about the sample are the low ones, those that decide about the place the high ones.

use crate::name::{Name, word};

#[derive(Clone, Copy)]
struct Slot {
    // Two halves, so that a slot has 12 bytes and not 16.
    key: [u32; 2],
    row: u32,
}

const EMPTY: Slot = Slot { key: [0, 0], row: u32::MAX };

pub(super) struct Hooks {
    bytes_max: usize,
    slots: Vec<Slot>,
    used: usize,
    /// Names whose low bits under this mask are all 0 are in the sample.
    mask: u64,
}

const SLOTS_MIN: usize = 1024;

impl Hooks {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, slots: Vec::new(), used: 0, mask: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
    }

    /// The sample has one name in so many.
    #[cfg(test)]
    pub(super) fn thinning(&self) -> u64 {
        self.mask + 1
    }

    pub(super) fn get(&self, name: &Name) -> Option<u32> {
        let key = word(name, 1);
        if key & self.mask != 0 || self.slots.is_empty() {
            return None;
        }
        let mut at = place(key, self.slots.len());
        loop {
            let slot = self.slots[at];
            if slot.row == EMPTY.row {
                return None;
            }
            if whole(slot.key) == key {
                return Some(slot.row);
            }
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
    }

    /// Takes a name into the sample, if it belongs there. The newest pack of a name wins.
    pub(super) fn insert(&mut self, name: &Name, row: u32) {
        let key = word(name, 1);
        while key & self.mask == 0 && (self.used + 1) * 6 > self.slots.len() * 5 {
            if !self.make_room() {
                return;
            }
        }
        if key & self.mask == 0 && self.put(key, row) {
            self.used += 1;
        }
    }

    fn put(&mut self, key: u64, row: u32) -> bool {
        let mut at = place(key, self.slots.len());
        loop {
            let slot = &mut self.slots[at];
            let is_new = slot.row == EMPTY.row;
            if is_new || whole(slot.key) == key {
                *slot = Slot { key: halves(key), row };
                return is_new;
            }
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
    }

    /// Grows by half within the budget, else thins the sample. `false` when there is no budget at
    /// all.
    fn make_room(&mut self) -> bool {
        let most = self.bytes_max / size_of::<Slot>();
        if most < SLOTS_MIN || self.mask == u64::MAX {
            return false;
        }
        let grown = (self.slots.len() * 3 / 2).clamp(SLOTS_MIN, most);
        if grown == self.slots.len() {
            self.mask = self.mask << 1 | 1;
        }
        self.rebuild(grown, |_| true);
        true
    }

    /// Keeps only the hooks of some packs.
    pub(super) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        self.rebuild(self.slots.len(), keep);
    }

    fn rebuild(&mut self, length: usize, keep: impl Fn(u32) -> bool) {
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; length]);
        self.used = 0;
        for slot in old {
            let key = whole(slot.key);
            if slot.row != EMPTY.row && key & self.mask == 0 && keep(slot.row) {
                self.put(key, slot.row);
                self.used += 1;
            }
        }
    }
}

fn place(key: u64, length: usize) -> usize {
    // The high half of the product is below `length`.
    usize::try_from((u128::from(key) * length as u128) >> 64).unwrap_or(0)
}

fn halves(key: u64) -> [u32; 2] {
    [(key >> 32) as u32, key as u32]
}

fn whole(key: [u32; 2]) -> u64 {
    u64::from(key[0]) << 32 | u64::from(key[1])
}
