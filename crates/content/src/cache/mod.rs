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
use weighted::Weighted;

pub(crate) struct Cache {
    shards: Vec<Mutex<Weighted<Body>>>,
}

/// RAM of an entry beside its bytes: key, links, table slot, the buffer's own book-keeping.
const ENTRY_BYTES: u64 = 192;

impl Cache {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let shards =
            (bytes_max / limits::CACHE_SHARD_BYTES_MIN).clamp(1, limits::CACHE_SHARDS as u64);
        let shards = (0..shards).map(|_| Mutex::new(Weighted::new(bytes_max / shards))).collect();
        Self { shards }
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

    pub(crate) fn insert(&self, name: Name, class: Class, body: Body) {
        let weight = match class {
            Class::Data => 1,
            Class::Metadata => 3,
        };
        let bytes = body.bytes.len() as u64 + ENTRY_BYTES;
        // Evicted values are freed after the lock is released.
        let evicted = self.shard(&name).lock().insert(name, weight, bytes, body);
        drop(evicted);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn name(i: u64) -> Name {
        *blake3::hash(&i.to_le_bytes()).as_bytes()
    }

    #[test]
    fn the_budget_holds_and_metadata_outlives_a_stream_of_data() {
        let cache = Cache::new(16 << 20);
        let body = |length: usize| Body { bytes: Bytes::from(vec![0; length]), children: 0 };
        for i in 0..50 {
            cache.insert(name(i), Class::Metadata, body(16 << 10));
        }
        for i in 1000..3000 {
            cache.insert(name(i), Class::Data, body(16 << 10));
            assert!(cache.bytes() <= 16 << 20);
            if i % 200 == 0 {
                for i in 0..50 {
                    assert!(cache.get(&name(i)).is_some(), "metadata that is used stays");
                }
            }
        }
        cache.insert(name(9), Class::Data, body(64 << 20));
        assert!(cache.get(&name(9)).is_none(), "what is larger than the cache is not kept");
        assert!(cache.bytes() <= 16 << 20);
    }
}
