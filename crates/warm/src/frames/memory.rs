//! The place of the frames, and the only way to their bytes.
//!
//! Why the slices handed out are sound:
//! - the bytes of a set are reached only through [`Shared`] and [`Exclusive`], which hold the lock
//!   that the set shares with others; only [`Exclusive::put`] writes bytes and keys, through
//!   `&mut self`;
//! - words and hashes of evicted keys are only ever reached as atomics;
//! - every length that bounds a slice is checked against the frame's size, so that a damaged
//!   mapping cannot move one;
//! - no other process writes: the mapping and the log's folder are locked.
//!
//! Why a crash at any store is harmless: a frame's word is 0 while its key and bytes are written,
//! and is published with one store after them.

use crate::format::{EVICTED_AT, KEY_BYTES, KEYS_AT, SET_BYTES, SET_FRAMES};
use crate::heap::Heap;
use crate::limits::{FRAME_BYTES, STRIPES, WAYS};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use rekindle_env::Region;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Private words of a set: one a frame, and one for the eviction.
const PRIVATE_WORDS: usize = SET_FRAMES + 1;

/// Sets in a mapped region, with what this life knows of them in ordinary memory.
pub(super) struct Sets {
    region: Arc<dyn Region>,
    start: usize,
    count: usize,
    private: Heap,
    stripes: [RwLock<()>; STRIPES],
    #[cfg(test)]
    pub(super) stores: super::crash_tests::Stores,
}

/// A set that no thread writes meanwhile.
pub(super) struct Shared<'a> {
    place: HeldSet<'a>,
    _lock: RwLockReadGuard<'a, ()>,
}

/// A set that no other thread reads or writes meanwhile.
pub(super) struct Exclusive<'a> {
    place: HeldSet<'a>,
    _lock: RwLockWriteGuard<'a, ()>,
}

/// A set whose lock is held.
pub(super) struct HeldSet<'a> {
    sets: &'a Sets,
    set: usize,
}

/// Bytes of a part with so many sets: records first, then frames.
pub(crate) fn bytes_of(sets: usize) -> usize {
    sets * set_bytes()
}

/// Bytes of one set.
pub(crate) const fn set_bytes() -> usize {
    SET_BYTES + WAYS * (FRAME_BYTES[0] + FRAME_BYTES[1])
}

/// Offset of the bytes of a frame in a part of so many sets.
pub(crate) fn place_of(sets: usize, set: usize, way: usize) -> usize {
    let before = if way < WAYS { 0 } else { WAYS * FRAME_BYTES[0] };
    let within = before + way % WAYS * frame_bytes(way);
    sets * SET_BYTES + set * (set_bytes() - SET_BYTES) + within
}

/// Bytes of the frame `way`: the small ones come first.
pub(super) fn frame_bytes(way: usize) -> usize {
    FRAME_BYTES[way / WAYS]
}

impl Sets {
    /// The sets that lie at `start` of the region. Touches none of them.
    pub(super) fn new(region: Arc<dyn Region>, start: usize, count: usize) -> io::Result<Sets> {
        let end = start.checked_add(bytes_of(count));
        let aligned = region.base().addr().is_multiple_of(64) && start.is_multiple_of(64);
        if count == 0 || !aligned || end.is_none_or(|end| end > region.length()) {
            return Err(io::Error::other("the mapped region has no room for the frames"));
        }
        Ok(Sets {
            region,
            start,
            count,
            private: Heap::new(count * PRIVATE_WORDS * 8)?,
            stripes: [const { RwLock::new(()) }; STRIPES],
            #[cfg(test)]
            stores: super::crash_tests::Stores::default(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The set that a key's hash chooses.
    pub(super) fn of(&self, hash: u32) -> usize {
        usize::try_from((u64::from(hash) * self.count as u64) >> 32).expect("below the count")
    }

    pub(super) fn read(&self, set: usize) -> Shared<'_> {
        assert!(set < self.count, "there is such a set");
        let lock = self.stripes[set % STRIPES].read();
        Shared { place: HeldSet { sets: self, set }, _lock: lock }
    }

    pub(super) fn write(&self, set: usize) -> Exclusive<'_> {
        assert!(set < self.count, "there is such a set");
        let lock = self.stripes[set % STRIPES].write();
        Exclusive { place: HeldSet { sets: self, set }, _lock: lock }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.region.base().wrapping_add(self.start + offset)
    }
}

impl<'a> std::ops::Deref for Shared<'a> {
    type Target = HeldSet<'a>;
    fn deref(&self) -> &HeldSet<'a> {
        &self.place
    }
}

impl<'a> std::ops::Deref for Exclusive<'a> {
    type Target = HeldSet<'a>;
    fn deref(&self) -> &HeldSet<'a> {
        &self.place
    }
}

impl HeldSet<'_> {
    /// Number of the set.
    pub(super) fn number(&self) -> usize {
        self.set
    }

    /// The word of a frame; 0 when there is none.
    pub(super) fn word(&self, way: usize) -> u64 {
        self.atomic(way).load(Ordering::Acquire)
    }

    /// Takes a frame out, if its word is still this one. Readers of its bytes are not disturbed.
    pub(super) fn withdraw(&self, way: usize, word: u64) {
        #[cfg(test)]
        self.sets.stores.note(self.sets.start + self.word_at(way), &0u64.to_le_bytes());
        // A thread that came first has done it already.
        let _ = self.atomic(way).compare_exchange(word, 0, Ordering::AcqRel, Ordering::Acquire);
        self.private(way).store(0, Ordering::Release);
    }

    pub(super) fn key(&self, way: usize) -> &[u8; KEY_BYTES] {
        // SAFETY: inside the region (checked in `Sets::new`, and below); keys are written under the
        // exclusive lock only, and `self` borrows from a lock. An array of bytes has no alignment.
        unsafe { &*self.sets.at(self.key_at(way)).cast::<[u8; KEY_BYTES]>() }
    }

    /// The first `length` bytes of a frame; `None` when it has not as many.
    pub(super) fn bytes(&self, way: usize, length: usize) -> Option<&[u8]> {
        let at = self.bytes_at(way);
        // SAFETY: as for keys: inside the region, and written under the exclusive lock only.
        (length <= frame_bytes(way))
            .then(|| unsafe { std::slice::from_raw_parts(self.sets.at(at), length) })
    }

    /// The word that this life has verified for a frame; 0 when none.
    pub(super) fn verified(&self, way: usize) -> u64 {
        self.private(way).load(Ordering::Acquire)
    }

    pub(super) fn set_verified(&self, way: usize, word: u64) {
        self.private(way).store(word, Ordering::Release);
    }

    /// Bits of the eviction's own, which only this life knows.
    pub(super) fn clock(&self) -> &AtomicU64 {
        self.private(SET_FRAMES)
    }

    /// Hash number `index` of the keys evicted lately; 0 when there is none.
    pub(super) fn evicted(&self, index: usize) -> u32 {
        self.evicted_atomic(index).load(Ordering::Relaxed)
    }

    fn word_at(&self, way: usize) -> usize {
        assert!(way < SET_FRAMES, "there is such a frame");
        self.set * SET_BYTES + way * 8
    }

    fn key_at(&self, way: usize) -> usize {
        assert!(way < SET_FRAMES, "there is such a frame");
        self.set * SET_BYTES + KEYS_AT + way * KEY_BYTES
    }

    fn bytes_at(&self, way: usize) -> usize {
        assert!(way < SET_FRAMES, "there is such a frame");
        place_of(self.sets.count, self.set, way)
    }

    fn atomic(&self, way: usize) -> &AtomicU64 {
        // SAFETY: inside the region, aligned to 8 (records are whole cache lines behind an aligned
        // start), mapped for as long as the sets live, and only ever reached as an atomic.
        unsafe { AtomicU64::from_ptr(self.sets.at(self.word_at(way)).cast()) }
    }

    fn evicted_atomic(&self, index: usize) -> &AtomicU32 {
        assert!(index < SET_FRAMES, "there is such a hash");
        let at = self.set * SET_BYTES + EVICTED_AT + index * 4;
        // SAFETY: as for words, with an alignment of 4.
        unsafe { AtomicU32::from_ptr(self.sets.at(at).cast()) }
    }

    fn private(&self, index: usize) -> &AtomicU64 {
        assert!(index < PRIVATE_WORDS, "there is such a word");
        let address = self.sets.private.base().wrapping_add((self.set * PRIVATE_WORDS + index) * 8);
        // SAFETY: inside the heap (its length is that of all sets), page-aligned, only ever reached
        // as an atomic.
        unsafe { AtomicU64::from_ptr(address.cast()) }
    }
}

impl Exclusive<'_> {
    /// Takes the content of a frame out of it.
    pub(super) fn clear(&mut self, way: usize) {
        #[cfg(test)]
        self.sets.stores.note(self.sets.start + self.word_at(way), &0u64.to_le_bytes());
        // Acquire, too: the writes that follow must not come before.
        self.atomic(way).swap(0, Ordering::AcqRel);
        self.set_verified(way, 0);
    }

    /// Puts a key and its bytes into a frame and publishes them under `word`.
    pub(super) fn put(&mut self, way: usize, key: &[u8; KEY_BYTES], parts: &[&[u8]], word: u64) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        assert!(length <= frame_bytes(way), "the bytes fit the frame");
        self.clear(way);
        self.copy(self.key_at(way), key);
        let mut at = self.bytes_at(way);
        for part in parts {
            self.copy(at, part);
            at += part.len();
        }
        #[cfg(test)]
        self.sets.stores.note(self.sets.start + self.word_at(way), &word.to_le_bytes());
        self.atomic(way).store(word, Ordering::Release);
        self.set_verified(way, word);
    }

    pub(super) fn set_evicted(&mut self, index: usize, hash: u32) {
        #[cfg(test)]
        self.sets.stores.note(
            self.sets.start + self.set * SET_BYTES + EVICTED_AT + index * 4,
            &hash.to_le_bytes(),
        );
        self.evicted_atomic(index).store(hash, Ordering::Relaxed);
    }

    fn copy(&mut self, at: usize, bytes: &[u8]) {
        #[cfg(test)]
        self.sets.stores.note(self.sets.start + at, bytes);
        // SAFETY: the places are those of this set and were checked against its sizes by the
        // callers; no other thread holds the lock, and `&mut self` ends every slice that was handed
        // out under it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.sets.at(at), bytes.len());
        };
    }
}
