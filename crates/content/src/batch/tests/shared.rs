//! Packs that batches share.

use super::*;
use crate::testing::Remote;
use crate::{Batch, tree};
use futures_util::future::{join, join_all};
use rekindle_datastore::Store;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};

/// Runs a test over a store that takes milliseconds for each request.
fn far(test: impl AsyncFnOnce(Env, Store, Arc<Broken>)) {
    let world = World::new(1, Faults::none());
    let broken = Arc::new(Broken::new());
    let remote = Arc::new(Remote::new(world.host("store").env(), broken.clone()));
    world.block_on(test(world.env(), remote, broken));
}

async fn with_chunk(content: &Content, seed: u64) -> (Batch, Pointer) {
    let mut batch = content.batch();
    let pointer = batch.write(Class::Data, random(seed, 5000), &[]).await.unwrap();
    (batch, pointer)
}

#[test]
fn batches_that_flush_at_once_share_a_pack_and_each_finds_its_bytes_durable() {
    far(async |env, store, _| {
        for parity in [None, Some("4+1".parse().unwrap())] {
            let config = Config { parity, ..config() };
            let content = Content::open(env.clone(), store.clone(), config.clone());
            let each = (0..40).map(|seed| {
                let (content, env, store) = (&content, &env, &store);
                let config = config.clone();
                async move {
                    env.sleep(Duration::from_micros(env.random_u64() % 20_000)).await;
                    let (mut batch, chunk) = with_chunk(content, seed).await;
                    let changes = [(seed, Some(chunk))];
                    let root = tree::update(content, &mut batch, &None, &changes).await.unwrap();
                    batch.flush().await.unwrap();
                    let cold = Content::open(env.clone(), store.clone(), config);
                    assert_eq!(tree::get(&cold, &root, seed).await.unwrap(), Some(chunk));
                    assert_eq!(cold.read(&chunk, Class::Data).await.unwrap(), random(seed, 5000));
                    batch.committed();
                }
            });
            join_all(each).await;
            let packs = content.stats().packs_written;
            assert!(packs < 40, "{packs} packs for 40 batches, 2 each");
            assert_eq!(content.stats().holds, 0);
        }
    });
}

#[test]
fn a_batch_with_much_has_packs_of_its_own_from_the_beginning_if_that_is_known() {
    run(async |env| {
        let content = Content::open(env, Mem::store(), config());
        let (mut small, shared) = with_chunk(&content, 1).await;
        let (other, also_shared) = with_chunk(&content, 2).await;
        assert_eq!(shared.pack, also_shared.pack);
        let mut large = content.batch();
        large.expect(1 << 20);
        let own = large.write(Class::Data, random(3, 5000), &[]).await.unwrap();
        assert_ne!(own.pack, shared.pack);
        // A batch whose bytes are not known in advance goes over to packs of its own.
        let mut packs = std::collections::HashSet::new();
        for seed in 10..40 {
            packs.insert(small.write(Class::Data, random(seed, 5000), &[]).await.unwrap().pack);
        }
        assert_eq!(packs.len(), 2);
        drop((other, large));
        small.flush().await.unwrap();
        assert_eq!(content.stats().packs_written, 2);
    });
}

#[test]
fn a_shared_pack_that_cannot_be_uploaded_is_an_error_of_each_batch_and_one_attempt_serves_all() {
    far(async |env, store, broken| {
        let content = Content::open(env.clone(), store.clone(), config());
        let (mut first, one) = with_chunk(&content, 1).await;
        let (mut second, other) = with_chunk(&content, 2).await;
        assert_eq!(one.pack, other.pack);
        broken.refuse_writes(true);
        let (result, also) = join(first.flush(), second.flush()).await;
        assert!(result.is_err() && also.is_err(), "{result:?} {also:?}");
        assert!(second.flush().await.is_err(), "it is tried again, and fails again");
        broken.refuse_writes(false);
        first.flush().await.unwrap();
        let written = content.stats().packs_written;
        second.flush().await.unwrap();
        assert_eq!((written, content.stats().packs_written), (1, 1));
        let cold = Content::open(env, store, config());
        for (seed, chunk) in [(1, one), (2, other)] {
            assert_eq!(cold.read(&chunk, Class::Data).await.unwrap(), random(seed, 5000));
        }
    });
}

#[test]
fn no_batch_waits_long_for_the_upload_of_another_pack_or_at_all_when_its_pack_has_much() {
    far(async |env, store, _| {
        let content =
            Content::open(env.clone(), store, Config { pack_bytes: 16 << 20, ..config() });
        // The request of another pack hangs.
        let _turn = content.inner.shared[0].turn.clone().acquire_owned().await;
        let (mut batch, _) = with_chunk(&content, 1).await;
        let begun = env.now();
        batch.flush().await.unwrap();
        let waited = env.now().since(begun);
        assert!((1000..1500).contains(&waited.as_millis()), "{waited:?}");
        let mut batches = Vec::new();
        for first in [1000, 2000] {
            let mut batch = content.batch();
            for seed in first..first + 40 {
                batch.write(Class::Data, random(seed, 60_000), &[]).await.unwrap();
            }
            batches.push(batch);
        }
        let begun = env.now();
        join_all(batches.iter_mut().map(Batch::flush)).await;
        assert!(env.now().since(begun) < Duration::from_millis(500));
        assert_eq!(content.stats().packs_written, 2);
    });
}

#[test]
fn a_batch_that_is_dropped_takes_nothing_from_those_that_share_its_pack() {
    far(async |env, store, _| {
        let content = Content::open(env.clone(), store.clone(), config());
        let (mut leader, _) = with_chunk(&content, 1).await;
        let (mut second, chunk) = with_chunk(&content, 2).await;
        let (third, _) = with_chunk(&content, 3).await;
        drop(third);
        // The first begins the upload and is given up.
        let given_up = futures_util::future::select(
            Box::pin(leader.flush()),
            env.sleep(Duration::from_micros(1)),
        );
        drop(given_up.await);
        drop(leader);
        second.flush().await.unwrap();
        let cold = Content::open(env.clone(), store.clone(), config());
        assert_eq!(cold.read(&chunk, Class::Data).await.unwrap(), random(2, 5000));
        drop(second);
        // A pack with no batch in it is gone: its garbage never reaches the store.
        let written = content.stats().packs_written;
        let (garbage, before) = with_chunk(&content, 4).await;
        drop(garbage);
        let (mut batch, after) = with_chunk(&content, 5).await;
        assert_ne!(before.pack, after.pack);
        batch.flush().await.unwrap();
        assert_eq!((written, content.stats().packs_written), (1, 2));
    });
}

#[test]
fn a_batch_reads_its_chunks_while_others_fill_and_upload_the_pack() {
    far(async |env, store, _| {
        let small = Config { cache_bytes: 0, pack_bytes: 64 << 10, ..config() };
        let content = Content::open(env.clone(), store, small);
        let (reader, chunk) = with_chunk(&content, 1).await;
        let read = async || reader.read(&chunk, Class::Data).await.unwrap().bytes;
        assert_eq!(read().await, random(1, 5000), "open");
        let others = (10..60).map(async |seed| {
            let (mut batch, _) = with_chunk(&content, seed).await;
            assert_eq!(read().await, random(1, 5000));
            batch.flush().await.unwrap();
            assert_eq!(read().await, random(1, 5000));
        });
        join_all(others).await;
        assert!(content.stats().packs_written >= 4, "250 kB, 64 KiB a pack");
    });
}

#[test]
fn a_pack_that_is_in_the_store_is_read_from_there() {
    run(async |env| {
        let content = Content::open(env, Mem::store(), config());
        let mut batches = [content.batch(), content.batch()];
        let mut pack = None;
        for (seed, batch) in (0..).zip(&mut batches) {
            let pointer = batch.write(Class::Data, random(seed, 5000), &[]).await.unwrap();
            assert_eq!(pointer.pack, *pack.get_or_insert(pointer.pack));
        }
        let [first, second] = &mut batches;
        first.flush().await.unwrap();
        // The second batch still has the pack in hand.
        assert!(content.inner.sealed(pack.unwrap()).is_none());
        second.flush().await.unwrap();
    });
}

#[test]
fn a_complete_batch_is_read_by_anyone_and_the_batch_behind_it_finds_its_chunks() {
    far(async |env, store, broken| {
        let content = Content::open(env, store, config());
        let mut first = content.batch();
        first.set_cached(false);
        // Little goes into shared packs, much into packs of the batch's own.
        let mut written = Vec::new();
        for seed in 0..30 {
            let class = if seed == 0 { Class::Metadata } else { Class::Data };
            written.push((
                class,
                seed,
                first.write(class, random(seed, 20_000), &[]).await.unwrap(),
            ));
        }
        assert!(written.iter().any(|(.., at)| at.pack != written[1].2.pack));
        broken.refuse_reads(true);
        broken.refuse_writes(true);
        first.complete().await;
        for (class, seed, at) in &written {
            let bytes = random(*seed, 20_000);
            assert_eq!(content.read_uncached(at, *class).await.unwrap(), bytes, "{seed}");
        }
        let mut behind = content.batch_behind(&first);
        let mut alone = content.batch();
        for (class, seed, at) in &written {
            let bytes = random(*seed, 20_000);
            assert_eq!(behind.write(*class, bytes.clone(), &[]).await.unwrap(), *at);
            assert_ne!(alone.write(*class, bytes, &[]).await.unwrap(), *at);
        }
        broken.refuse_reads(false);
        broken.refuse_writes(false);
        while first.flush().await.is_err() {}
        first.committed();
        let packs = content.stats().packs_written;
        behind.flush().await.unwrap();
        assert_eq!(content.stats().packs_written, packs, "it has nothing of its own");
    });
}
