//! The cache of verified chunks, by name: sharded, so that sessions on different threads rarely
//! meet.
//!
//! A value is a chunk's body. A tree node is used as it lies in its body, so nothing is decoded on
//! a hit.

mod weighted;

use crate::Class;
use crate::limits;
use crate::name::{Name, word};
use crate::pack::reader::Body;
use parking_lot::Mutex;
pub(crate) use weighted::Unasked;
use weighted::Weighted;

pub(crate) struct Cache {
    shards: Vec<Mutex<Weighted<Body>>>,
    /// Whether all entries are alike: with one weight, and no queue, the ring is an LRU list.
    is_plain: bool,
}

/// The choice whether a chunk stays in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// A reader has asked for it.
    Yes,
    /// No reader has asked for it yet: it was fetched ahead, or is written. Data then stays for a
    /// while, and pushes out little that readers ask for.
    Unasked(Unasked),
    No,
}

/// RAM of an entry beside its bytes: key, links, table slot, the buffer's own book-keeping.
const ENTRY_BYTES: u64 = 192;

impl Cache {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let shards =
            (bytes_max / limits::CACHE_SHARD_BYTES_MIN).clamp(1, limits::CACHE_SHARDS as u64);
        let shards = (0..shards).map(|_| Mutex::new(Weighted::new(bytes_max / shards))).collect();
        Self { shards, is_plain: false }
    }

    /// Makes a plain LRU cache, to compare with.
    pub(crate) fn plain(bytes_max: u64) -> Self {
        Self { is_plain: true, ..Self::new(bytes_max) }
    }

    fn shard(&self, name: &Name) -> &Mutex<Weighted<Body>> {
        // Any word but the one that the shard's own table takes.
        let index = word(name, 1) % self.shards.len() as u64;
        &self.shards[usize::try_from(index).unwrap_or(0)]
    }

    pub(crate) fn get(&self, name: &Name) -> Option<Body> {
        self.shard(name).lock().get(name).cloned()
    }

    /// Whether a chunk is in the cache. Counts as a lookup.
    pub(crate) fn touch(&self, name: &Name) -> bool {
        self.shard(name).lock().get(name).is_some()
    }

    pub(crate) fn insert(&self, name: Name, class: Class, keep: Keep, body: Body) {
        let bytes = body.bytes.len() as u64 + ENTRY_BYTES;
        let mut shard = self.shard(&name).lock();
        let evicted = match (keep, class) {
            (Keep::No, _) => return,
            _ if self.is_plain => shard.insert(name, 1, bytes, body),
            (Keep::Unasked(why), Class::Data) => shard.insert_unasked(name, 1, bytes, body, why),
            (Keep::Yes, Class::Data) => shard.insert(name, 1, bytes, body),
            (_, Class::Metadata) => shard.insert(name, 3, bytes, body),
        };
        // Evicted values are freed after the lock is released.
        drop(shard);
        drop(evicted);
    }

    /// Returns the number of chunks that left the cache before the reader came for whom they were
    /// fetched.
    pub(crate) fn unread(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().unread()).sum()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use rekindle_base::random::Random;
    use std::cell::RefCell;
    use std::collections::{BTreeMap, HashMap};

    fn name(i: u64) -> Name {
        *blake3::hash(&i.to_le_bytes()).as_bytes()
    }

    #[test]
    fn the_budget_holds_and_metadata_outlives_a_stream_of_data() {
        let cache = Cache::new(16 << 20);
        let body = |length: usize| Body { bytes: Bytes::from(vec![0; length]), children: 0 };
        for i in 0..50 {
            cache.insert(name(i), Class::Metadata, Keep::Yes, body(16 << 10));
        }
        for i in 1000..3000 {
            cache.insert(name(i), Class::Data, Keep::Yes, body(16 << 10));
            assert!(cache.bytes() <= 16 << 20);
            if i % 200 == 0 {
                for i in 0..50 {
                    assert!(cache.get(&name(i)).is_some(), "metadata that is used stays");
                }
            }
        }
        cache.insert(name(9), Class::Data, Keep::Yes, body(64 << 20));
        assert!(cache.get(&name(9)).is_none(), "what is larger than the cache is not kept");
        assert!(cache.bytes() <= 16 << 20);
    }

    /// Plain LRU, of names with one size.
    struct Lru {
        most: usize,
        now: u64,
        used: HashMap<Name, u64>,
        order: BTreeMap<u64, Name>,
    }

    impl Lru {
        fn get(&mut self, name: &Name) -> bool {
            let Some(used) = self.used.remove(name) else { return false };
            self.order.remove(&used);
            self.insert(*name);
            true
        }

        fn insert(&mut self, name: Name) {
            self.now += 1;
            self.used.insert(name, self.now);
            self.order.insert(self.now, name);
            if self.used.len() > self.most {
                let (_, oldest) = self.order.pop_first().unwrap();
                self.used.remove(&oldest);
            }
        }
    }

    const HOT: u64 = 512;
    const BODY: u64 = 16 << 10;
    const CACHE: u64 = 16 << 20;

    /// Reads a hot set of half of the cache, at random. Beside that a stream of ten times the cache
    /// passes once: it is fetched some chunks ahead of its reader. Returns the hit rate of the hot
    /// set. `insert` is told whether a reader has asked.
    fn hit_rate(get: impl Fn(&Name) -> bool, insert: impl Fn(Name, bool)) -> f64 {
        (0..HOT).for_each(|i| insert(name(i), true));
        let mut random = Random::new(1);
        let (mut hits, mut reads) = (0, 0);
        for at in 0..10 * CACHE / BODY {
            insert(name(HOT + at + 32), false);
            get(&name(HOT + at));
            if at % 4 == 0 {
                let hot = name(random.below(HOT));
                reads += 1;
                match get(&hot) {
                    true => hits += 1,
                    false => insert(hot, true),
                }
            }
        }
        f64::from(hits) / f64::from(reads)
    }

    /// Of one size, since a cache in shards is LRU in each of them only.
    #[test]
    fn the_plain_cache_is_lru() {
        let body = Body { bytes: vec![0; BODY as usize].into(), children: 0 };
        let cache = Cache::plain(limits::CACHE_SHARD_BYTES_MIN);
        let most = (limits::CACHE_SHARD_BYTES_MIN / (BODY + ENTRY_BYTES)) as usize;
        let mut lru = Lru { most, now: 0, used: HashMap::new(), order: BTreeMap::new() };
        let mut random = Random::new(2);
        for step in 0..20_000 {
            let name = name(random.below(2 * most as u64));
            let is_there = lru.get(&name);
            assert_eq!(cache.get(&name).is_some(), is_there, "step {step}");
            if !is_there {
                let keep = [Keep::Yes, Keep::Unasked(Unasked::Fetched)][random.index(2)];
                let class = [Class::Data, Class::Metadata][random.index(2)];
                cache.insert(name, class, keep, body.clone());
                lru.insert(name);
            }
        }
    }

    #[test]
    fn a_stream_leaves_a_hot_set_in_the_cache() {
        let rate = |unasked: Keep| {
            let cache = Cache::new(CACHE);
            let body = Body { bytes: vec![0; BODY as usize].into(), children: 0 };
            let get = |name: &Name| cache.get(name).is_some();
            hit_rate(get, |name, is_asked| {
                let keep = if is_asked { Keep::Yes } else { unasked };
                cache.insert(name, Class::Data, keep, body.clone());
            })
        };
        let most = (CACHE / (BODY + ENTRY_BYTES)) as usize;
        let lru = Lru { most, now: 0, used: HashMap::new(), order: BTreeMap::new() };
        let lru = RefCell::new(lru);
        let plain =
            hit_rate(|name| lru.borrow_mut().get(name), |name, _| lru.borrow_mut().insert(name));
        let (all_alike, queued) = (rate(Keep::Yes), rate(Keep::Unasked(Unasked::Fetched)));
        println!("hit rate: plain LRU {plain:.3}, all alike {all_alike:.3}, queued {queued:.3}");
        assert!(queued > 0.99, "{queued}");
        assert!(queued > 1.36 * plain.max(all_alike), "{plain} {all_alike}");
    }
}
