//! The dedup index: a **hint**, bounded, partial, lost at every restart. A pointer says where its
//! chunk lies, so no read needs the index; a duplicate that the index misses costs space, nothing
//! else.
//!
//! Two parts share the budget:
//!
//! - [`recent`]: the footers of packs used last, name -> place;
//! - [`hooks`]: a sample of the names of all packs, name -> pack. A hit loads that pack's footer
//!   once, so that the neighbours of the chunk, which were written with it, are found in `recent`.
//!   The sample is as dense as half the budget allows: every name of a small store, 1 in 8 to 1 in
//!   64 of a large one.
//!
//! The rows of known packs have at most a quarter of the budget. With more packs those that were
//! made longest ago are forgotten, an eighth at once: a hook names a row, so each forgetting looks
//! at all hooks.
//!
//! The index names no pack that the sweep has condemned: see [`crate::sweep`]. Nor does it name a
//! place from which a read did not get its chunk: see [`doubts`].

mod doubts;
mod hooks;
mod recent;

use crate::Pointer;
use crate::format::footer::Entry;
use crate::name::{Name, PackMap, PackSet};
use crate::pack::writer::pointer;
use doubts::Doubts;
use hooks::Hooks;
use parking_lot::Mutex;
use recent::Recent;
use rekindle_base::PackId;

/// The answer of the index about a name.
pub(crate) enum IndexAnswer {
    /// The chunk lies there.
    Place(Pointer),
    /// The chunk is perhaps in this pack (of so many bytes), whose footer should be loaded.
    Footer(PackId, u64),
    /// Nothing.
    Nothing,
}

pub(crate) struct Index {
    state: Mutex<PackTable>,
    /// Apart from the rest: each read from the store asks here, and must not wait for work on the
    /// hooks. Locked after `state`.
    doubts: Mutex<Doubts>,
}

struct PackTable {
    bytes_max: usize,
    packs: Vec<Row>,
    rows: PackMap<u32>,
    /// Rows to use again.
    free: Vec<u32>,
    hooks: Hooks,
    recent: Recent,
    condemned: PackSet,
}

/// A known pack.
#[derive(Clone, Copy)]
struct Row {
    pack: PackId,
    bytes: u32,
}

/// RAM of a known pack: its row, and its slot in the map at the usual filling.
const ROW_BYTES: usize = size_of::<Row>() + 2 * (size_of::<(PackId, u32)>() + 1);

impl Index {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Self {
            state: Mutex::new(PackTable {
                bytes_max,
                packs: Vec::new(),
                rows: PackMap::default(),
                free: Vec::new(),
                hooks: Hooks::new(bytes_max / 2),
                recent: Recent::new(),
                condemned: PackSet::default(),
            }),
            doubts: Mutex::default(),
        }
    }

    /// Looks up where a chunk with this name lies, or may lie.
    pub(crate) fn lookup(&self, name: &Name) -> IndexAnswer {
        self.state.lock().lookup(name, &self.doubts)
    }

    /// Looks up where a chunk lies, by the footers in RAM alone.
    pub(crate) fn lookup_recent(&self, name: &Name) -> Option<Pointer> {
        match self.lookup(name) {
            IndexAnswer::Place(pointer) => Some(pointer),
            _ => None,
        }
    }

    /// Takes a pack's footer in, newly written or loaded. A condemned pack stays out.
    pub(crate) fn add(&self, pack: PackId, bytes: u64, entries: &[Entry]) {
        let mut state = self.state.lock();
        if !state.condemned.contains(&pack) {
            state.add(pack, bytes, entries);
        }
    }

    /// Whether another footer of so many entries would push one out: then the warm-up stops.
    pub(crate) fn is_full(&self, entries: usize) -> bool {
        let state = self.state.lock();
        state.bytes() + entries * recent::ENTRY_BYTES > state.bytes_max
    }

    /// Gives no duplicates in these packs from now on. Replaces the set of the call before.
    pub(crate) fn condemn(&self, packs: impl IntoIterator<Item = PackId>) {
        let mut state = self.state.lock();
        state.condemned = packs.into_iter().collect();
        let PackTable { condemned, recent, .. } = &mut *state;
        condemned.iter().for_each(|pack| recent.remove(pack));
    }

    /// Gives no duplicates in these packs either.
    pub(crate) fn condemn_also(&self, packs: impl IntoIterator<Item = PackId>) {
        let mut state = self.state.lock();
        for pack in packs {
            state.recent.remove(&pack);
            state.condemned.insert(pack);
        }
    }

    pub(crate) fn is_condemned(&self, pack: &PackId) -> bool {
        self.state.lock().condemned.contains(pack)
    }

    /// Notes that a read did not get the chunk that should lie there: no writer is led there until
    /// a read does.
    pub(crate) fn doubt(&self, place: &Pointer) {
        self.doubts.lock().add(place.pack, place.spot());
    }

    /// Like [`Index::doubt`], for a pack that is not in the store. A pack that the index does not
    /// know gives no duplicates anyway.
    pub(crate) fn doubt_absent(&self, place: &Pointer) {
        if self.state.lock().rows.contains_key(&place.pack) {
            self.doubt(place);
        }
    }

    /// Notes that a read got the chunk that lies there.
    pub(crate) fn believe(&self, place: &Pointer) {
        self.doubts.lock().end(&place.pack, place.spot());
    }

    /// Forgets packs whose footers are gone or have changed. Doubts about them stay.
    pub(crate) fn forget(&self, packs: &[PackId]) {
        self.state.lock().forget(packs);
    }

    /// Forgets packs that exist no more or are whole again, and ends all doubts about them.
    pub(crate) fn forget_wholly(&self, packs: &[PackId]) {
        let mut state = self.state.lock();
        state.forget(packs);
        let mut doubts = self.doubts.lock();
        packs.iter().for_each(|pack| doubts.end_all(pack));
    }

    /// RAM in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes() as u64
    }
}

impl PackTable {
    fn lookup(&mut self, name: &Name, doubts: &Mutex<Doubts>) -> IndexAnswer {
        let is_sound = |pack: &PackId, entry: &Entry| !doubts.lock().holds(pack, entry.spot());
        if let Some((pack, entry)) = self.recent.get(name, is_sound) {
            return IndexAnswer::Place(pointer(pack, entry));
        }
        let Some(row) = self.hooks.get(name).and_then(|row| self.packs.get(row as usize)) else {
            return IndexAnswer::Nothing;
        };
        // When the footer is in RAM and yet the name was not found, the hook is another chunk's.
        if self.condemned.contains(&row.pack) || self.recent.contains(&row.pack) {
            return IndexAnswer::Nothing;
        }
        IndexAnswer::Footer(row.pack, u64::from(row.bytes))
    }

    fn add(&mut self, pack: PackId, bytes: u64, entries: &[Entry]) {
        // A footer of more than a quarter would leave no room for others.
        if self.recent.contains(&pack) || self.bytes_max / 4 < entries.len() * recent::ENTRY_BYTES {
            return;
        }
        let Ok(bytes) = u32::try_from(bytes) else { return };
        let row = match self.rows.get(&pack) {
            Some(row) => *row,
            None => {
                if (self.rows.len() + 1) * ROW_BYTES > self.bytes_max / 4 {
                    self.forget_oldest();
                }
                let row = self.new_row(Row { pack, bytes });
                for entry in entries {
                    self.hooks.insert(&entry.name, row);
                }
                row
            }
        };
        debug_assert!(self.packs[row as usize].pack == pack);
        self.recent.add(pack, entries);
        while self.bytes() > self.bytes_max && self.recent.evict() {}
    }

    fn new_row(&mut self, row: Row) -> u32 {
        let index = match self.free.pop() {
            Some(index) => {
                self.packs[index as usize] = row;
                index
            }
            None => {
                self.packs.push(row);
                // 2^32 rows would take more than 200 GiB of RAM: there are never as many.
                u32::try_from(self.packs.len() - 1).unwrap_or(0)
            }
        };
        self.rows.insert(row.pack, index);
        index
    }

    fn forget(&mut self, packs: &[PackId]) {
        let mut gone = hashbrown::HashSet::new();
        for pack in packs {
            self.recent.remove(pack);
            gone.extend(self.rows.remove(pack));
        }
        if !gone.is_empty() {
            self.hooks.retain(|row| !gone.contains(&row));
            self.free.extend(gone);
        }
    }

    /// Forgets an eighth of the packs whose footers are not in RAM, those made first.
    fn forget_oldest(&mut self) {
        let mut packs: Vec<PackId> =
            self.rows.keys().filter(|pack| !self.recent.contains(pack)).copied().collect();
        if packs.is_empty() {
            packs.extend(self.rows.keys());
        }
        // Ids begin with the time of their making.
        let count = packs.len().div_ceil(8);
        if count < packs.len() {
            packs.select_nth_unstable(count);
            packs.truncate(count);
        }
        self.forget(&packs);
    }

    fn bytes(&self) -> usize {
        self.packs.len() * ROW_BYTES + self.hooks.bytes() + self.recent.bytes()
    }
}

#[cfg(test)]
mod tests;
