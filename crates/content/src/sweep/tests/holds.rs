//! Held chunks stay: by batches, by their uploads, by readers. Also a full store, and a lying
//! footer.

use super::*;
use crate::format::{footer, pack as header};

#[test]
fn an_upload_that_outlives_its_batch_holds_until_its_pack_is_known() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let store: Store = Arc::new(Remote::new(world.host("store").env(), Mem::store()));
        let content = Content::open(env.clone(), store, small());
        let mut batch = content.batch();
        for seed in 0..10 {
            batch.write(Class::Data, random(seed, 4000), &[]).await.unwrap();
        }
        assert!(content.stats().packs_written < 2, "they are on their way");
        drop(batch);
        assert!(content.stats().holds > 0, "an upload is under way");
        content.inner.live.settle().await;
        assert_eq!(content.stats().holds, 0);
        let present = packs_of(&content).await.unwrap().len();
        env.sleep(Duration::from_secs(5)).await;
        assert_eq!(packs_of(&content).await.unwrap().len(), present, "none came after");
    });
}

#[test]
fn what_a_reader_holds_stays_and_without_a_hold_it_is_gone() {
    for is_held in [true, false] {
        let world = World::new(1, Faults::none());
        let env = world.env();
        world.block_on(async {
            let content = Content::open(env.clone(), Mem::store(), small());
            let vaults = Arc::new(Vaults::default());
            commit(&env, &content, &vaults, 0, &[(1, Some(1))]).await.unwrap();
            let root = vaults.volumes.lock()[&0].0;
            assert_eq!(content.stats().holds, 0);
            let hold = is_held.then(|| content.hold());
            assert_eq!(content.stats().holds, u64::from(is_held));
            let pointer = tree::get(&content, &root, 1).await.unwrap().unwrap();
            commit(&env, &content, &vaults, 0, &[(1, None)]).await.unwrap();
            let sweeper = Arc::new(sweeper(&env, &content, &vaults, false));
            let running = sweeper.clone();
            env.spawn("sweep", async move { drop(running.run().await) });
            env.sleep(Duration::from_secs(30)).await;
            let read = content.read_uncached(&pointer, Class::Data).await;
            let cold = Content::open(env.clone(), content.inner.store.clone(), small());
            let cold = cold.read_uncached(&pointer, Class::Data).await;
            assert_eq!((read.is_ok() || !is_held, cold.is_ok()), (true, is_held));
            drop(hold);
            env.sleep(Duration::from_secs(30)).await;
            assert!(sweeper.progress().packs_deleted > 0);
        });
    }
}

#[test]
fn a_full_store_is_swept_and_compaction_waits_for_room() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let store = Arc::new(Broken::new());
        let content =
            Content::open(env.clone(), store.clone(), Config { pack_bytes: 64 << 10, ..small() });
        let vaults = Arc::new(Vaults::default());
        let put = |keys: std::ops::Range<u64>| keys.map(|key| (key, Some(key))).collect::<Vec<_>>();
        commit(&env, &content, &vaults, 0, &put(0..200)).await.unwrap();
        commit(&env, &content, &vaults, 1, &put(1000..1100)).await.unwrap();
        let most: Vec<_> = (0..200).filter(|key| key % 10 != 0).map(|key| (key, None)).collect();
        commit(&env, &content, &vaults, 0, &most).await.unwrap();
        vaults.volumes.lock().remove(&1);
        let sweeper = sweeper(&env, &content, &vaults, true);
        store.fill(true);
        let status = sweeper.run().await.unwrap();
        assert!(status.packs_deleted > 0 && status.packs_compacted == 0, "{status:?}");
        let compacted_in_vain = status.packs_condemned - status.packs_deleted;
        assert!(compacted_in_vain <= 3, "other groups would find no room either: {status:?}");
        assert!(status.left_out.unwrap().contains("full"));
        check(&env, &content.inner.store, &vaults).await;
        store.fill(false);
        assert!(sweeper.run().await.unwrap().packs_compacted > 0);
        check(&env, &content.inner.store, &vaults).await;
    });
}

#[test]
fn a_pack_whose_footer_leaves_out_what_is_alive_is_not_compacted() {
    for (parity, left_out) in
        [None, Some("3+1".parse().unwrap())].into_iter().flat_map(|p| [0, 5, 19].map(|n| (p, n)))
    {
        let world = World::new(1, Faults::none());
        let env = world.env();
        world.block_on(async {
            let config = Config { pack_bytes: 256 << 10, parity, ..small() };
            let content = Content::open(env.clone(), Mem::store(), config);
            let vaults = Arc::new(Vaults::default());
            let put: Vec<_> = (0..80).map(|key| (key, Some(key))).collect();
            commit(&env, &content, &vaults, 0, &put).await.unwrap();
            let root = vaults.volumes.lock()[&0].0;
            let all = tree::range(&content, &root, 0..u64::MAX).await.unwrap();
            let gone: Vec<_> = (20..80).map(|key| (key, None)).collect();
            commit(&env, &content, &vaults, 0, &gone).await.unwrap();
            // A footer that is sound in itself, and lacks one entry.
            let hidden = all[left_out].1;
            let key = pack::key(hidden.pack);
            let object = content.inner.store.get(&key).await.unwrap().0;
            let mut entries = footer::decode(&object).unwrap();
            entries.retain(|entry| entry.offset != hidden.offset);
            let length = footer::length_from_tail(&object).unwrap();
            let mut bytes = object[..object.len() - length].to_vec();
            assert!(bytes.len() > header::BYTES);
            footer::append(&entries, &mut bytes);
            content.inner.store.put(&key, bytes.into()).await.unwrap();
            let content = Content::open(env.clone(), content.inner.store.clone(), small());
            sweeper(&env, &content, &vaults, true).run().await.unwrap();
            assert!(packs_of(&content).await.unwrap().contains_key(&hidden.pack));
            check(&env, &content.inner.store, &vaults).await;
        });
    }
}

#[test]
fn a_root_that_lies_with_the_data_ends_the_sweep() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let content = Content::open(env.clone(), Mem::store(), small());
        let vaults = Arc::new(Vaults::default());
        commit(&env, &content, &vaults, 0, &[(1, Some(1))]).await.unwrap();
        // One wrong digit in a vault.
        vaults.volumes.lock().get_mut(&0).unwrap().0.as_mut().unwrap().pack.0[15] ^= 1;
        let before = packs_of(&content).await.unwrap().len();
        assert!(sweeper(&env, &content, &vaults, true).run().await.is_err());
        assert_eq!(packs_of(&content).await.unwrap().len(), before);
    });
}
