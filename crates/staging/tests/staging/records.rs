//! A map of records in service, by hand: damage, groups that are given up, policies, refusals.

use crate::bed::{Node, Setup, done, read};
use crate::damage::find;
use crate::map::{self, Map, Op, Values};
use bytes::Bytes;
use rekindle_base::{Serial, VolumeId};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_log::limits::GROUP_ENTRIES_MAX;
use rekindle_staging::{Ack, Error, NewRecord, Policy, Staged, Vault, Written};
use std::sync::Arc;
use std::time::Duration;

fn put(key: u64, byte: u8, length: usize) -> Op {
    Op::Put(key, Bytes::from(vec![byte; length]))
}

async fn start(env: &Env, store: &Store, index_at_once: usize) -> Node {
    let mut setup = Setup::new(Policy::Back, Ack::Flash);
    setup.config.destage_age = Duration::from_secs(3600);
    setup.config.destage_bytes = 1 << 40;
    setup.config.index_at_once = index_at_once;
    Node::start(env, &setup, store, Plan::default()).await
}

async fn write(volume: &Arc<Staged>, ops: &[Op]) {
    done(volume, map::submit(volume, ops, false)).await.unwrap();
}

async fn values(map: &Map) -> Values {
    map.values().await.unwrap()
}

async fn keys(map: &Map) -> Vec<u64> {
    values(map).await.into_keys().collect()
}

/// The map as the datastore has it.
async fn stored(node: &Node, map: &Map) -> Values {
    Map::load(&node.content, &map.stored().0).await.unwrap()
}

#[test]
fn a_map_lives_through_restarts_and_destaging() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    for life in 0..6_u64 {
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store, 4).await;
            let (volume, map) = node.open_map(1).await.unwrap();
            assert_eq!(values(&map).await.len() as u64, life.min(1) + life);
            if life == 0 {
                write(&volume, &[put(30, 1, 100)]).await;
            }
            write(&volume, &[put(life, 7, 50)]).await;
            // A group moves one value on.
            let from = 30 + life;
            let value = values(&map).await[&from].clone();
            write(&volume, &[Op::Delete(from), Op::Put(from + 1, value)]).await;
            let keys = keys(&map).await;
            assert!(keys.contains(&(from + 1)) && !keys.contains(&from));
            if life % 2 == 1 {
                volume.drain().await.unwrap();
                let (root, checkpoint) = map.stored();
                assert_eq!((root, checkpoint), (volume.vault().root, map.last()));
                assert_eq!(stored(&node, &map).await, values(&map).await);
            }
            if life % 3 == 2 {
                // Out of service and back, in the same life.
                volume.close().await.unwrap();
                let (_, again) = node.open_map(1).await.unwrap();
                assert_eq!(values(&again).await, values(&map).await);
            }
        });
        match life % 2 {
            0 => world.cut_power(),
            _ => world.crash_process(),
        }
    }
}

#[test]
fn a_damaged_record_keeps_its_volume_out_of_service_until_its_group_is_given_up() {
    // Listed at once, and while the volume is in service already.
    for index_at_once in [2, 1000] {
        let (world, store) = (World::new(1, Faults::none()), Mem::store());
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store, index_at_once).await;
            let (volume, _) = node.open_map(1).await.unwrap();
            write(&volume, &[put(1, 0x11, 300)]).await;
            write(&volume, &[put(2, 0x22, 300), put(3, 0x33, 300), put(4, 0x44, 300)]).await;
            write(&volume, &[put(5, 0x55, 300)]).await;
        });
        world.cut_power();
        let (path, at) = find(&world, &[0x33; 300]);
        assert!(world.flip_bit(&path, at + 100));
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store, index_at_once).await;
            let Err(Error::Lost { reason, .. }) = node.open_map(1).await else {
                panic!("it is damaged")
            };
            assert!(reason.contains("serial 3 (a record of kind 1)"), "{reason}");
            assert!(reason.contains("rekindle salvage run volume1 --accept-losses"), "{reason}");
            let key = Vault::key(VolumeId([1; 16]));
            let held = node.writer.read::<Vault>(&key).await.unwrap().unwrap();
            let (held, lines) = node.staging.accept_losses(held, 0).await.unwrap();
            assert_eq!(held.value.accepted.unwrap().through, Serial(1), "{lines:?}");
            assert!(lines.iter().any(|line| line == "given up: serial 4, a record of kind 1"));
            let (volume, map) = node.open_map(1).await.unwrap();
            assert_eq!(keys(&map).await, [1]);
            write(&volume, &[put(9, 0x99, 300)]).await;
        });
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store, index_at_once).await;
            let (volume, map) = node.open_map(1).await.unwrap();
            assert_eq!(keys(&map).await, [1, 9]);
            assert_eq!(volume.drain().await.unwrap(), Serial(2));
            assert_eq!(stored(&node, &map).await, values(&map).await);
        });
    }
}

/// Memory acknowledges. A power cut then takes groups back, but none in part.
#[test]
fn a_group_that_only_memory_had_goes_as_a_whole() {
    let mut seen = [0; 4];
    for seed in 0..40 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        let mut setup = Setup::new(Policy::Back, Ack::Memory);
        setup.config.destage_age = Duration::from_secs(3600);
        setup.flush_interval = Duration::from_millis(10);
        let env = world.env();
        world.block_on(async {
            let node = Node::start(&env, &setup, &store, Plan::default()).await;
            let (volume, map) = node.open_map(1).await.unwrap();
            for group in 0..3 {
                let ops: Vec<_> = (0..5).map(|key| put(group * 5 + key, 1, 900)).collect();
                assert!(matches!(map::submit(&volume, &ops, false), Written::Acked));
                assert_eq!(map.last(), Serial(group * 5 + 5), "visible at once");
                env.sleep(Duration::from_millis(env.random_u64() % 12)).await;
            }
        });
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let node = Node::start(&env, &setup, &store, Plan::default()).await;
            let (_, map) = node.open_map(1).await.unwrap();
            assert!(map.last().0.is_multiple_of(5), "{}", map.last());
            seen[map.last().0 as usize / 5] += 1;
        });
    }
    assert!(seen.iter().filter(|&&count| count > 0).count() > 1, "{seen:?}");
}

#[test]
fn the_policies_that_wait_for_the_datastore_show_a_group_with_its_commit() {
    for policy in [Policy::Through, Policy::Uncached] {
        let (world, store) = (World::new(1, Faults::none()), Mem::store());
        let setup = Setup::new(policy, Ack::Flash);
        let env = world.env();
        world.block_on(async {
            let plan = "latency=50ms".parse().unwrap();
            let node = Node::start(&env, &setup, &store, Plan::default()).await;
            let (volume, map) = node.open_map(1).await.unwrap();
            node.faults.set(plan);
            let written = map::submit(&volume, &[put(1, 1, 100), put(2, 2, 100)], false);
            env.sleep(Duration::from_millis(1)).await;
            assert_eq!(map.last(), Serial(0), "the datastore does not have it");
            done(&volume, written).await.unwrap();
            assert_eq!((map.last(), map.stored().1), (Serial(2), Serial(2)));
            assert_eq!(node.vault(1).await.checkpoint, Serial(2));
        });
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let node = Node::start(&env, &setup, &store, Plan::default()).await;
            let (_, map) = node.open_map(1).await.unwrap();
            assert_eq!(keys(&map).await, [1, 2]);
        });
    }
}

#[test]
fn what_is_too_large_or_of_the_other_shape_is_refused_and_leaves_no_trace() {
    for policy in [Policy::Back, Policy::Through] {
        let (world, store) = (World::new(1, Faults::none()), Mem::store());
        let setup = Setup::new(policy, Ack::Flash);
        let env = world.env();
        world.block_on(async {
            let node = Node::start(&env, &setup, &store, Plan::default()).await;
            let (volume, map) = node.open_map(1).await.unwrap();
            let refused = async |written: Written| {
                let error = done(&volume, written).await.unwrap_err();
                assert!(matches!(error, Error::Invalid(_)), "{error}");
                assert_eq!(volume.backlog().serial, 0);
            };
            let many = vec![put(1, 1, 10); GROUP_ENTRIES_MAX + 1];
            refused(map::submit(&volume, &many, false)).await;
            let large = vec![7; 250 << 10];
            let large = [NewRecord { kind: 1, bytes: &large }; 20];
            refused(volume.append_records(&large, false)).await;
            refused(volume.write(0, &[1; 512], false)).await;
            refused(volume.clear(0, 512, true, false)).await;
            assert!(volume.read(0, &mut [0; 512]).await.is_err());
            assert!(volume.read_now(0, &mut [0; 512]).is_err());
            assert!(volume.extents(0, 512).await.is_err());
            let most: Vec<_> = (0..GROUP_ENTRIES_MAX as u64).map(|key| put(key, 1, 1)).collect();
            write(&volume, &most).await;
            assert_eq!(map.last(), Serial(GROUP_ENTRIES_MAX as u64));
            assert!(matches!(volume.append_records(&[], false), Written::Acked));
            volume.drain().await.unwrap();
            let blocks = node.open(2).await.unwrap();
            let record = [NewRecord { kind: 1, bytes: &[1] }];
            let error = done(&blocks, blocks.append_records(&record, false)).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error}");
            assert_eq!(read(&blocks, 0, 1).await, [0]);
        });
    }
}
