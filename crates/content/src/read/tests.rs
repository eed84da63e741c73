//! The way of a read: its hops to other threads, and its copies.

use super::*;
use crate::testing::{Broken, Remote, config, random, stretch, text};
use crate::{Compression, Config};
use rekindle_datastore::Store;
use rekindle_datastore::backend::{dir::Dir, mem::Mem};
use rekindle_datastore::layer::{fault::Plan, usual};
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};

const CHUNK_BYTES: usize = 128 << 10;

/// Writes chunks that do not compress into one pack, and returns their pointers.
async fn planted(env: &Env, store: &Store, chunks: u64) -> Vec<Pointer> {
    let content = Content::open(env.clone(), store.clone(), large());
    let mut batch = content.batch();
    let mut pointers = Vec::new();
    for seed in 0..chunks {
        pointers.push(batch.write(Class::Data, random(seed, CHUNK_BYTES), &[]).await.unwrap());
    }
    batch.flush().await.unwrap();
    batch.committed();
    pointers
}

fn large() -> Config {
    Config { pack_bytes: 8 << 20, ..config() }
}

#[test]
fn a_cold_read_hops_once_where_the_store_is_and_not_at_all_before() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    let folder = tempfile::tempdir().unwrap();
    world.block_on(async {
        let remote: Store = Arc::new(Remote::new(env.clone(), Mem::store()));
        let dir = Dir::open(&env, folder.path()).await.unwrap();
        for (store, hops) in [(Mem::store(), 0), (dir, 1), (remote, 1)] {
            let store = usual(&env, store, Plan::default()).store;
            let pointers = planted(&env, &store, 9).await;
            let cold = Content::open(env.clone(), store, large());
            let before = world.tasks_started();
            cold.read(&pointers[0], Class::Data).await.unwrap();
            assert_eq!(world.tasks_started() - before, hops, "one chunk");
            cold.read(&pointers[0], Class::Data).await.unwrap();
            assert_eq!(world.tasks_started() - before, hops, "it is cached");
            let together = cold.read_many(&pointers[1..8], Class::Data, true).await.unwrap();
            assert_eq!(together.len(), 7);
            assert_eq!(world.tasks_started() - before, 2 * hops, "neighbours");
            let (one, other) = futures_util::future::join(
                cold.read(&pointers[8], Class::Data),
                cold.read(&pointers[8], Class::Data),
            )
            .await;
            assert_eq!(one.unwrap(), other.unwrap());
            assert_eq!(world.tasks_started() - before, 3 * hops, "two readers of one chunk");
        }
    });
}

#[test]
fn a_stream_that_is_fetched_ahead_and_one_that_is_written_leave_what_readers_use() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let store: Store = Arc::new(Remote::new(env.clone(), Mem::store()));
        let pointers = planted(&env, &store, 12 + 320).await;
        let (hot, stream) = pointers.split_at(12);
        let content = Content::open(env.clone(), store, Config { cache_bytes: 4 << 20, ..large() });
        let stay = || hot.iter().all(|pointer| content.inner.cache.get(&pointer.name).is_some());
        content.read_many(hot, Class::Data, true).await.unwrap();
        for ahead in stream.chunks(2) {
            content.prefetch(ahead, Class::Data);
            while !content.inner.flights.is_under_way(&ahead[1]) {
                env.sleep(std::time::Duration::from_nanos(1)).await;
            }
            // The reader of the stream waits for what is on its way.
            content.read_many(ahead, Class::Data, true).await.unwrap();
        }
        assert!(stay(), "a stream of ten times the cache was read");
        let mut batch = content.batch();
        for seed in 1000..1320 {
            batch.write_many(&[stretch(&[random(seed, CHUNK_BYTES)])]).await.unwrap();
        }
        assert!(stay(), "a stream of ten times the cache was written");
    });
}

#[test]
fn what_is_prefetched_is_coming_from_the_call_on_until_it_is_there() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let store = Mem::store();
        let pointers = planted(&env, &store, 4).await;
        let cold = Content::open(env.clone(), store, large());
        assert!(!cold.is_there_or_coming(&pointers[0]));
        cold.prefetch(&pointers[..2], Class::Data);
        assert!(cold.is_there_or_coming(&pointers[0]), "no task has run yet");
        assert!(!cold.is_there_or_coming(&pointers[2]), "no one has asked for it");
        while cold.inner.is_coming(&pointers[1]) {
            assert!(cold.is_there_or_coming(&pointers[1]));
            env.sleep(std::time::Duration::from_micros(100)).await;
        }
        assert!(pointers[..2].iter().all(|pointer| cold.is_there_or_coming(pointer)));
        assert!(pointers[..2].iter().all(|pointer| cold.read_now(pointer).is_some()));
    });
}

#[test]
fn a_reader_of_a_chunk_that_comes_with_others_makes_no_request() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let broken = Arc::new(Broken::new());
        let store: Store = Arc::new(Remote::new(env.clone(), broken.clone()));
        let pointers = planted(&env, &store, 39).await;
        let cold = Content::open(env.clone(), store, large());
        let together = cold.read_many(&pointers, Class::Data, false);
        let alone = cold.read_uncached(&pointers[38], Class::Data);
        let some = cold.read_many(&pointers[37..], Class::Data, false);
        let (together, alone, some) = futures_util::join!(together, alone, some);
        let expected = random(38, CHUNK_BYTES);
        assert_eq!(together.unwrap()[38], expected);
        assert_eq!(alone.unwrap(), expected);
        assert_eq!(some.unwrap(), [random(37, CHUNK_BYTES), expected]);
        assert_eq!(broken.reads(), 2, "39 chunks are more than one request takes");
        assert!(cold.inner.flights.is_empty());
    });
}

#[test]
fn a_chunk_that_is_fetched_alone_is_not_copied_and_one_of_a_group_pins_no_other() {
    let world = World::new(2, Faults::none());
    let env = world.env();
    world.block_on(async {
        let broken = Arc::new(Broken::new());
        let store: Store = broken.clone();
        let pointers = planted(&env, &store, 5).await;
        let is_within =
            |bytes: &Bytes, answer: &Bytes| answer.as_ptr_range().contains(&bytes.as_ptr());
        let cold = Content::open(env.clone(), store.clone(), large());
        let alone = cold.read(&pointers[0], Class::Data).await.unwrap();
        assert!(is_within(&alone, &broken.last_answer()), "where the store has put it");
        assert_eq!(broken.last_answer().len(), pointers[0].stored as usize);
        let together = cold.read_many(&pointers[1..], Class::Data, true).await.unwrap();
        assert!(broken.last_answer().len() > 4 * CHUNK_BYTES, "one answer for all");
        assert!(!together.iter().any(|chunk| is_within(chunk, &broken.last_answer())));
    });
}

#[test]
fn a_dropped_read_leaves_nothing_behind() {
    let world = World::new(3, Faults::none());
    let env = world.env();
    world.block_on(async {
        let store: Store = Arc::new(Remote::new(env.clone(), Mem::store()));
        let pointers = planted(&env, &store, 3).await;
        let config = Config { compression: Compression::None, ..large() };
        let cold = Content::open(env.clone(), store, config);
        for _ in 0..20 {
            let limit = std::time::Duration::from_micros(env.random_u64() % 8000);
            let one = cold.read_uncached(&pointers[0], Class::Data);
            drop(env.timeout(limit, one).await);
            let many = cold.read_many(&pointers, Class::Data, false);
            drop(env.timeout(limit, many).await);
            assert!(cold.inner.flights.is_empty());
        }
        assert_eq!(cold.stats().cache_bytes, 0);
        let read = cold.read_many(&pointers, Class::Data, true).await.unwrap();
        assert_eq!(read[2], random(2, CHUNK_BYTES));
    });
}

#[test]
fn a_store_that_goes_away_ends_a_read_of_many_chunks_as_soon_as_a_read_of_one() {
    let world = World::new(3, Faults::none());
    let env = world.env();
    world.block_on(async {
        let broken = Arc::new(Broken::new());
        let store = usual(&env, broken.clone(), Plan::default()).store;
        let neighbours = planted(&env, &store, 20).await;
        let mut scattered = Vec::new();
        for _ in 0..160 {
            scattered.extend(planted(&env, &store, 1).await);
        }
        let cold = Content::open(env.clone(), store, large());
        broken.refuse_reads(true);
        let begun = env.now();
        cold.read_uncached(&neighbours[0], Class::Data).await.expect_err("it is away");
        let one = env.now().since(begun);
        for pointers in [&neighbours, &scattered] {
            let begun = env.now();
            let results = cold.inner.read_each(pointers, Class::Data, Keep::No).await;
            assert!(results.len() == pointers.len() && results.values().all(Result::is_err));
            let each = env.now().since(begun);
            assert!(each < one * 3, "{one:?} for one, {each:?} for {}", pointers.len());
        }
        let begun = env.now();
        let results = cold.inner.fetch_each(neighbours, &OnceLock::new()).await;
        assert!(results.len() == 20 && results.iter().all(|(_, result)| result.is_err()));
        let each = env.now().since(begun);
        assert!(each < one * 3, "{one:?} for one, {each:?} for its neighbours");
    });
}

/// Writes chunks that compress, in bundles of sixteen; returns their pointers.
async fn bundled(env: &Env, store: &Store, chunks: u64) -> Vec<Pointer> {
    let content = Content::open(env.clone(), store.clone(), large());
    let mut batch = content.batch();
    let chunks: Vec<Bytes> = (0..chunks).map(|seed| text(seed, 16 << 10)).collect();
    let pointers = batch.write_many(&[stretch(&chunks)]).await.unwrap();
    batch.flush().await.unwrap();
    batch.committed();
    assert!(pointers.iter().all(|pointer| !pointer.part.is_whole()));
    pointers
}

#[test]
fn readers_of_a_bundle_share_one_request_and_its_neighbours_need_none() {
    let world = World::new(4, Faults::none());
    let env = world.env();
    world.block_on(async {
        let broken = Arc::new(Broken::new());
        let store: Store = broken.clone();
        let pointers = bundled(&env, &store, 48).await;
        let cold = Content::open(env.clone(), store, large());
        let reads = pointers[..10].iter().map(|pointer| cold.read(pointer, Class::Data));
        for (seed, read) in (0..).zip(futures_util::future::join_all(reads).await) {
            assert_eq!(read.unwrap(), text(seed, 16 << 10));
        }
        assert_eq!(broken.reads(), 1, "ten readers at once");
        assert_eq!(cold.read_now(&pointers[15]), Some(text(15, 16 << 10)), "a neighbour");
        assert_eq!(cold.read_now(&pointers[16]), None, "another bundle");
        // A read of many that ends within a bundle leaves its rest at hand.
        let many = cold.read_many(&pointers[10..40], Class::Data, true).await.unwrap();
        assert_eq!((many[29].clone(), broken.reads()), (text(39, 16 << 10), 2));
        let kept = cold.stats().cache_bytes;
        assert!(cold.read_now(&pointers[47]).is_some());
        assert!(cold.stats().cache_bytes > kept);
        assert!(cold.inner.bundles.flights.is_empty());
    });
}

#[test]
fn a_bundle_in_ram_proves_nothing_of_the_store_and_is_not_believed_itself() {
    let world = World::new(5, Faults::none());
    let env = world.env();
    world.block_on(async {
        let broken = Arc::new(Broken::new());
        let store: Store = broken.clone();
        let pointers = bundled(&env, &store, 16).await;
        let config = Config { cache_bytes: 0, ..large() };
        let cold = Content::open(env.clone(), store, config);
        cold.read_uncached(&pointers[0], Class::Data).await.unwrap();
        let place = BundlePlace::of(&pointers[0]).unwrap();
        assert!(cold.inner.bundles.get(place).is_some());
        let key = pack::key(pointers[0].pack);
        // In the lengths: no chunk of the bundle can be had then.
        let at = u64::from(pointers[0].offset) + 30;
        broken.flip(&key, at);
        let proof = cold.inner.fetch(&pointers[1], Sharing::No).await.unwrap_err();
        assert!(matches!(proof, Error::Damaged { .. }), "{proof}");
        cold.inner.bundles.forget(place);
        let read = cold.read_uncached(&pointers[1], Class::Data).await.unwrap_err();
        assert!(matches!(read, Error::Damaged { .. }), "{read}");
        broken.unflip();
        // Bytes that RAM has turned are read once more.
        let mut bodies = cold.inner.fetch(&pointers[2], Sharing::Yes).await.unwrap().bytes.to_vec();
        bodies = [vec![0; 3 * (16 << 10)], std::mem::take(&mut bodies)].concat();
        cold.inner.bundles.keep(place, bodies.into());
        let read = cold.read_uncached(&pointers[2], Class::Data).await.unwrap();
        assert_eq!(read, text(2, 16 << 10));
        // One misread gives the chunk; two that differ prove no damage.
        for reads in [1, 2] {
            cold.inner.bundles.forget(place);
            broken.misread(&key, at, reads);
            match cold.read_uncached(&pointers[3], Class::Data).await {
                Ok(read) => assert_eq!((read, reads), (text(3, 16 << 10), 1)),
                Err(error) => {
                    assert!(matches!(error, Error::Unsteady { .. }) && reads == 2, "{error}")
                }
            }
        }
    });
}
