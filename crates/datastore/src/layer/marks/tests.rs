//! Folders that are away, foreign or old, and the cost of their markers.

use super::wrap;
use crate::backend::mem::Mem;
use crate::identity::{self, Identity};
use crate::layer::{fault, meter, usual};
use crate::record::Writer;
use crate::{Error, Store, key};
use bytes::Bytes;
use rekindle_base::NodeId;
use rekindle_env::sim::{Faults, World};
use std::time::Duration;

fn writer(world: &World, store: &Store) -> Writer {
    Writer::new(world.env(), store.clone(), NodeId([1; 16]))
}

#[test]
fn a_prefix_that_is_away_for_two_seconds_costs_nothing_but_two_seconds() {
    for seed in 0..50 {
        let world = World::new(seed, Faults::none());
        let env = world.env();
        world.block_on(async {
            let layers = usual(&env, Mem::store(), "latency=1ms".parse().unwrap());
            let (store, handle) = (layers.store, layers.faults);
            identity::open_or_create(&writer(&world, &store)).await.unwrap();
            store.put("packs/data/a", Bytes::from_static(b"1")).await.unwrap();
            handle.set("latency=1ms,absent=packs/data/:2s@100ms".parse().unwrap());
            env.sleep(Duration::from_millis(env.random_u64() % 200)).await;
            let (read, listed, written) = futures_util::future::join3(
                store.get_range("packs/data/a", 0..1),
                store.list("packs/data/", None),
                store.put("packs/data/b", Bytes::from_static(b"2")),
            )
            .await;
            assert_eq!(read.unwrap(), "1", "seed {seed}");
            assert!(listed.unwrap().iter().any(|object| object.key == "packs/data/a"));
            written.unwrap();
            env.sleep(Duration::from_secs(3)).await;
            assert_eq!(store.get("packs/data/b").await.unwrap().0, "2", "seed {seed}: it landed");
        });
    }
}

#[test]
fn a_record_that_is_made_in_a_folder_over_the_right_one_is_not_taken_for_made() {
    for seed in 0..50 {
        let world = World::new(seed, Faults::none());
        let env = world.env();
        world.block_on(async {
            let layers = usual(&env, Mem::store(), "latency=1ms".parse().unwrap());
            let (store, handle) = (layers.store, layers.faults);
            let writer = writer(&world, &store);
            let identity = identity::open_or_create(&writer).await.unwrap();
            // This look makes the layer believe that the folder is the right one.
            store.list("volumes/", None).await.unwrap();
            let lie = if seed % 2 == 0 { 0 } else { 20 };
            let plan = format!("latency=1ms,lie={lie}%,absent=volumes/:2s");
            handle.set(plan.parse().unwrap());
            let made = writer.create("volumes/a", identity).await;
            env.sleep(Duration::from_secs(3)).await;
            handle.set(fault::Plan::default());
            let found = writer.read::<Identity>("volumes/a").await.unwrap();
            assert!(made.is_err() || found.is_some(), "seed {seed}: it was made, and is not there");
        });
    }
}

#[test]
fn a_store_of_an_older_version_is_served_as_before_until_it_is_marked() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let bare = Mem::store();
        let old = Bytes::from_static(include_bytes!("../../../golden/store-1.json"));
        bare.put(key::IDENTITY, old).await.unwrap();
        bare.put("volumes/a", Bytes::new()).await.unwrap();
        let store = wrap(&env, bare.clone()).0;
        assert!(matches!(store.get("packs/data/a").await, Err(Error::NotFound(_))));
        assert!(store.list("packs/data/", None).await.unwrap().is_empty());
        let writer = writer(&world, &store);
        let found = identity::open_or_create(&writer).await.unwrap();
        assert!(!found.is_marked(), "nobody has seen yet that it is sound");
        let marked = identity::mark(&writer).await.unwrap();
        assert!(marked.is_marked() && marked.store == found.store);
        assert_eq!(identity::find(&writer).await.unwrap(), Some(marked));
        store.list("volumes/", None).await.unwrap();
        bare.delete(&key::marker_key(key::PACKS_DATA)).await.unwrap();
        let gone = store.get("packs/data/a").await;
        assert!(matches!(gone, Err(Error::Unavailable(_))), "{gone:?}");
        identity::mark(&writer).await.unwrap();
        let gone = store.get("packs/data/a").await;
        assert!(matches!(gone, Err(Error::Unavailable(_))), "it is not made again: {gone:?}");
        // The user says that the folder is the right one.
        let (copy, _) = bare.get(key::IDENTITY).await.unwrap();
        bare.put(&key::marker_key(key::PACKS_DATA), copy).await.unwrap();
        assert!(matches!(store.get("packs/data/a").await, Err(Error::NotFound(_))));
    });
}

#[test]
fn another_stores_folder_is_not_ours() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (ours, theirs) = (Mem::store(), Mem::store());
        for store in [&ours, &theirs] {
            identity::open_or_create(&writer(&world, store)).await.unwrap();
        }
        let key = key::marker_key(key::VOLUMES);
        let (foreign, _) = theirs.get(&key).await.unwrap();
        ours.put(&key, foreign).await.unwrap();
        ours.put("volumes/a", Bytes::new()).await.unwrap();
        let store = wrap(&env, ours.clone()).0;
        let error = store.list("volumes/", None).await.unwrap_err();
        assert!(
            matches!(&error, Error::Unproven(text) if text.contains("another store")),
            "a sweep would take our packs for garbage: {error}"
        );
        // A damaged identity is no reason to judge anything.
        let (text, _) = ours.get(key::IDENTITY).await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap().replace("secret", "sekret");
        ours.put(key::IDENTITY, Bytes::from(text)).await.unwrap();
        let store = wrap(&env, ours).0;
        let gone = store.get("packs/data/a").await;
        assert!(matches!(gone, Err(Error::Unavailable(_))), "{gone:?}");
    });
}

#[test]
fn a_damaged_marker_is_told_at_once_and_until_it_is_mended() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let bare = Mem::store();
        let layers = usual(&env, bare.clone(), fault::Plan::default());
        let store = layers.store;
        identity::open_or_create(&writer(&world, &store)).await.unwrap();
        store.list("names/", None).await.unwrap();
        assert_eq!(layers.marks.unproven().await, [""; 0]);
        let key = key::marker_key(key::NAMES);
        let (sound, _) = bare.get(&key).await.unwrap();
        let mut damaged = sound.to_vec();
        damaged[40] ^= 1;
        bare.put(&key, Bytes::from(damaged)).await.unwrap();
        let began = env.now();
        let told = store.list("names/", None).await.unwrap_err();
        assert!(env.now().since(began) < std::time::Duration::from_secs(1), "it is not awaited");
        assert_eq!(told.kind(), rekindle_base::Kind::Unavailable, "callers may wait for it");
        assert!(told.to_string().contains("copy rekindle.json to names/.rekindle"), "{told}");
        let unproven = layers.marks.unproven().await;
        assert!(unproven.len() == 1 && unproven[0].contains("'names/'"), "{unproven:?}");
        bare.put(&key, sound).await.unwrap();
        assert_eq!(layers.marks.unproven().await, [""; 0]);
        store.list("names/", None).await.unwrap();
    });
}

#[test]
fn a_write_into_a_bucket_costs_no_look_afterwards() {
    for (bare, looks) in [(Mem::bucket(), 0), (Mem::store(), 10)] {
        let world = World::new(1, Faults::none());
        let env = world.env();
        world.block_on(async {
            let (metered, meter) = meter::wrap(&env, bare);
            let store = wrap(&env, metered).0;
            identity::open_or_create(&writer(&world, &store)).await.unwrap();
            store.list("packs/data/", None).await.unwrap();
            let before = meter.read(meter::Call::Get).calls;
            for number in 0..10 {
                store.put(&format!("packs/data/{number}"), Bytes::new()).await.unwrap();
            }
            assert_eq!(meter.read(meter::Call::Get).calls - before, looks);
        });
    }
}

#[test]
fn what_is_found_costs_nothing_more() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (metered, meter) = meter::wrap(&env, Mem::store());
        let (faulty, _) = fault::wrap(&env, metered, fault::Plan::default());
        let store = wrap(&env, faulty).0;
        let writer = writer(&world, &store);
        identity::open_or_create(&writer).await.unwrap();
        let held = writer.read::<Identity>(key::IDENTITY).await.unwrap().unwrap();
        store.put("packs/data/a", Bytes::from_static(b"1")).await.unwrap();
        let calls = || meter::Call::ALL.map(|call| meter.read(call).calls).iter().sum::<u64>();
        let before = calls();
        for _ in 0..100 {
            store.get_range("packs/data/a", 0..1).await.unwrap();
            store.get("packs/data/a").await.unwrap();
        }
        writer.replace(&held, held.value.clone()).await.unwrap();
        assert_eq!(calls() - before, 201);
        // Objects that are often absent cost one look at the marker each second. The identity was
        // replaced and is read again.
        let before = calls();
        for _ in 0..100 {
            assert!(store.get("moved/a").await.is_err());
        }
        assert_eq!(calls() - before, 102);
    });
}
