//! Block frames: bytes that were read or written lately, under their 32-byte key, kept over the end
//! of the process.
//!
//! The idea is the metabuffer cache of the fast reboot of a virtual storage appliance, without its
//! index, its sorting and its flush protocol. Frames lie in *sets* of 8 ways (8 small, 8 large), a
//! key's hash chooses the set, and frames are used in place. Opening costs the same, however many
//! frames there are. A frame that an earlier process left is verified (a checksum over place, key,
//! length and bytes) when it is first found; from then on this process trusts it.
//!
//! All calls are plain, may come from any thread, and hold one lock at a time, which a 64th of the
//! sets shares.
//!
//! Frames do *not* promise to keep anything (a full set evicts one), nor to be up to date. A
//! process that knows no frames may have run in between. So a value must prove by itself that it is
//! the latest, as a chunk does whose key is its content's hash.

#[cfg(test)]
mod crash_tests;
mod memory;
mod stats;
#[cfg(test)]
mod tests;

use crate::format::{FrameWord, KEY_BYTES, SET_FRAMES, frame_crc, key_hash, mark};
use crate::limits::{FRAME_BYTES, WAYS};
use memory::{Exclusive, HeldSet, Sets};
pub(crate) use memory::{bytes_of, place_of, set_bytes};
use rekindle_env::Region;
use stats::Counters;
pub use stats::{Beginning, Miss, Stats, Usage};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Key of a frame: a uniform hash, or anything else of this length.
pub type Key = [u8; KEY_BYTES];

/// The frames of an arena. Clones mean the same frames.
#[derive(Clone)]
pub struct Frames {
    inner: Arc<Inner>,
}

struct Inner {
    sets: Sets,
    salt: u64,
    began: Beginning,
    counters: Counters,
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames").field("sets", &self.inner.sets.count()).finish_non_exhaustive()
    }
}

impl Frames {
    pub(crate) fn new(
        region: Arc<dyn Region>,
        start: usize,
        sets: usize,
        salt: u64,
        began: Beginning,
    ) -> io::Result<Frames> {
        let sets = Sets::new(region, start, sets)?;
        let counters = Counters::default();
        Ok(Frames { inner: Arc::new(Inner { sets, salt, began, counters }) })
    }

    /// Longest value that is kept, bytes.
    #[must_use]
    pub fn bytes_max() -> usize {
        FRAME_BYTES[FRAME_BYTES.len() - 1]
    }

    /// Hands the bytes of `key` to `accept`, verified at their first use in this process, and gives
    /// the result of `accept`. `None` from `accept` means that the bytes are not what the key
    /// stands for: the frame is thrown away as damaged.
    ///
    /// `accept` runs under the set's lock, and must not call any of these methods. `get` counts
    /// hits only: the caller that has to fetch the bytes from elsewhere counts the miss
    /// ([`Frames::missed`]), so that asking twice is not missing twice.
    pub fn get<R>(&self, key: &Key, accept: impl FnOnce(&[u8]) -> Option<R>) -> Result<R, Miss> {
        let inner = &*self.inner;
        let hash = key_hash(inner.salt, key);
        let set = inner.sets.read(inner.sets.of(hash));
        let Some((way, word)) = find(&set, hash, key) else {
            let is_evicted = (0..SET_FRAMES).any(|index| set.evicted(index) == hash && hash != 0);
            return Err(if is_evicted { Miss::Evicted } else { inner.began.miss() });
        };
        let found = inner.verified(&set, way, word).and_then(accept);
        match found {
            Some(found) => {
                set_used(&set, way);
                Counters::add(&inner.counters.hits);
                Ok(found)
            }
            None => {
                set.withdraw(way, word);
                Err(Miss::Damaged)
            }
        }
    }

    /// Keeps `parts`, joined, under `key`, unless bytes are there that this process has seen to be
    /// sound: for keys that stand for the same bytes for ever. Returns whether the bytes are there
    /// now: not when they are longer than [`Frames::bytes_max`].
    pub fn insert(&self, key: &Key, parts: &[&[u8]]) -> bool {
        let inner = &*self.inner;
        let hash = key_hash(inner.salt, key);
        let set = inner.sets.read(inner.sets.of(hash));
        if let Some((way, word)) = find(&set, hash, key)
            && set.verified(way) == word
        {
            set_used(&set, way);
            return true;
        }
        drop(set);
        self.replace(key, parts)
    }

    /// Keeps `parts`, joined, under `key`, instead of any bytes there. Returns whether they are
    /// there now: not when they are longer than [`Frames::bytes_max`]; then nothing is under the
    /// key.
    ///
    /// A process that dies meanwhile leaves the old bytes, the new ones, or nothing.
    pub fn replace(&self, key: &Key, parts: &[&[u8]]) -> bool {
        let inner = &*self.inner;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let hash = key_hash(inner.salt, key);
        let mut set = inner.sets.write(inner.sets.of(hash));
        let old = find(&set, hash, key).map(|(way, _)| way);
        let Some(size) = FRAME_BYTES.iter().position(|bytes| length <= *bytes) else {
            if let Some(old) = old {
                set.clear(old);
            }
            Counters::add(&inner.counters.too_long);
            return false;
        };
        // Clear a frame of the other size first: two frames of one key would be one truth too many.
        let same = old.filter(|way| way / WAYS == size);
        if let (Some(old), None) = (old, same) {
            set.clear(old);
        }
        let way = same.unwrap_or_else(|| self.make_room(&mut set, size));
        let frame = (inner.sets.of(hash) * SET_FRAMES + way) as u64;
        let crc = frame_crc(inner.salt, frame, key, parts);
        let length = u16::try_from(length).expect("a frame has less than 64 KiB");
        set.put(way, key, parts, FrameWord { crc, length, mark: mark(hash) }.pack());
        forget_eviction(&mut set, hash);
        Counters::add(&inner.counters.insertions);
        true
    }

    /// Takes `key` out; returns whether it was there.
    pub fn remove(&self, key: &Key) -> bool {
        let hash = key_hash(self.inner.salt, key);
        let mut set = self.inner.sets.write(self.inner.sets.of(hash));
        let found = find(&set, hash, key);
        if let Some((way, _)) = found {
            set.clear(way);
        }
        found.is_some()
    }

    /// Empties every frame, also for the next process, and returns how many were filled. Other
    /// threads may go on meanwhile: a value that they put into an emptied set stays.
    pub fn drop_all(&self) -> u64 {
        let mut dropped = 0;
        for set in 0..self.inner.sets.count() {
            let mut set = self.inner.sets.write(set);
            for way in 0..SET_FRAMES {
                // Reads before it writes: what was never used stays untouched memory.
                if set.word(way) != 0 {
                    set.clear(way);
                    dropped += 1;
                }
                if set.evicted(way) != 0 {
                    set.set_evicted(way, 0);
                }
            }
        }
        dropped
    }

    /// Counts a miss that had to be made good from elsewhere.
    pub fn missed(&self, miss: Miss) {
        self.inner.counters.missed(miss);
    }

    /// Counters since the start of this process.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.counters.stats(self.inner.began)
    }

    /// Counts what the frames hold. Looks at every set's words and keys, not at the bytes: for a
    /// request of the user, not for every second. A frame that this process has not used yet counts
    /// as held, though its bytes may turn out to be damaged.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let inner = &*self.inner;
        let sets = inner.sets.count();
        let mut usage = Usage {
            bytes_max: bytes_of(sets) as u64,
            frames_max: [(sets * WAYS) as u64; 2],
            ..Usage::default()
        };
        for set in 0..sets {
            let set = inner.sets.read(set);
            let mut taken = [0; 2];
            for way in 0..SET_FRAMES {
                let Some(frame) = FrameWord::unpack(set.word(way)) else { continue };
                // A frame that an earlier life of the part left under another salt is none.
                if mark(key_hash(inner.salt, set.key(way))) == frame.mark {
                    taken[way / WAYS] += 1;
                    usage.bytes += u64::from(frame.length);
                    usage.verified += u64::from(set.verified(way) == set.word(way));
                }
            }
            for (size, taken) in taken.into_iter().enumerate() {
                usage.frames[size] += taken as u64;
                usage.sets[size][taken] += 1;
            }
        }
        usage
    }

    /// Finds a way of this size that may be filled: an empty one, else the first one that was not
    /// used since the clock's hand last came by.
    fn make_room(&self, set: &mut Exclusive<'_>, size: usize) -> usize {
        let ways = size * WAYS..(size + 1) * WAYS;
        if let Some(empty) = ways.clone().find(|way| set.word(*way) == 0) {
            return empty;
        }
        let clock = set.clock().load(Ordering::Relaxed);
        let (mut used, mut hands) = (clock & USED_BITS, clock >> HANDS_SHIFT);
        let hand_shift = size * 8;
        let mut hand = usize::try_from((hands >> hand_shift) & 0xff).expect("masked") % WAYS;
        while used & (1 << (ways.start + hand)) != 0 {
            used &= !(1 << (ways.start + hand));
            hand = (hand + 1) % WAYS;
        }
        let way = ways.start + hand;
        hands &= !(0xff << hand_shift);
        hands |= (((hand + 1) % WAYS) as u64) << hand_shift;
        let newest = (hands >> EVICTED_SHIFT) & 0xff;
        hands &= !(0xff << EVICTED_SHIFT);
        hands |= ((newest + 1) % SET_FRAMES as u64) << EVICTED_SHIFT;
        set.clock().store(used | (hands << HANDS_SHIFT), Ordering::Relaxed);
        let evicted = key_hash(self.inner.salt, set.key(way));
        if FrameWord::unpack(set.word(way)).is_some_and(|frame| frame.mark == mark(evicted)) {
            set.set_evicted(usize::try_from(newest).expect("masked") % SET_FRAMES, evicted);
            Counters::add(&self.inner.counters.evictions);
        }
        way
    }
}

impl Inner {
    /// The bytes of a frame, if they are sound; verified at their first use.
    fn verified<'a>(&self, set: &'a HeldSet<'_>, way: usize, word: u64) -> Option<&'a [u8]> {
        let frame = FrameWord::unpack(word)?;
        let bytes = set.bytes(way, usize::from(frame.length))?;
        if set.verified(way) != word {
            let number = (set.number() * SET_FRAMES + way) as u64;
            if frame_crc(self.salt, number, set.key(way), &[bytes]) != frame.crc {
                return None;
            }
            set.set_verified(way, word);
            Counters::add(&self.counters.verifications);
        }
        Some(bytes)
    }
}

/// Bits of a set's clock: the frames that were used since the hand came by. Above them lie one byte
/// each for the hands of the two sizes, and one for the next place in the list of evicted keys.
const USED_BITS: u64 = (1 << SET_FRAMES) - 1;
const HANDS_SHIFT: u32 = 16;
const EVICTED_SHIFT: u32 = 16;
const _: () = assert!(SET_FRAMES == HANDS_SHIFT as usize, "the bits do not overlap");

fn set_used(set: &HeldSet<'_>, way: usize) {
    // Reads before it writes: a frame that is used all the time is not written to all the time.
    if set.clock().load(Ordering::Relaxed) & (1 << way) == 0 {
        set.clock().fetch_or(1 << way, Ordering::Relaxed);
    }
}

/// The frame with this key, and its word.
fn find(set: &HeldSet<'_>, hash: u32, key: &Key) -> Option<(usize, u64)> {
    (0..SET_FRAMES).map(|way| (way, set.word(way))).find(|(way, word)| {
        FrameWord::unpack(*word).is_some_and(|frame| frame.mark == mark(hash))
            && set.key(*way) == key
    })
}

/// Forgets that a key was evicted, because it is here again: a later miss has another cause.
fn forget_eviction(set: &mut Exclusive<'_>, hash: u32) {
    if let Some(index) = (0..SET_FRAMES).find(|index| set.evicted(*index) == hash && hash != 0) {
        set.set_evicted(index, 0);
    }
}
