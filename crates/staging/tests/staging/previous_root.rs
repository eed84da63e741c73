//! The previous root: a salvage goes back to it before it gives anything up, and keeping it has no
//! other effect.

use crate::bed::{BLOCK, MIB, Node, Setup, done, read, until};
use crate::salvage::{block, damage, refusal};
use bytes::Bytes;
use rekindle_base::Kind;
use rekindle_content::Class;
use rekindle_content::pack::prefix;
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Allowance, Lost, Policy, Salvaged, Staged};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// A setup without a cache: content that the store loses is nowhere but in the log.
fn cold() -> Setup {
    Setup { cache_bytes: 0, ..Setup::new(Policy::Back, Ack::Flash) }
}

/// The keys of all packs.
async fn packs(store: &Store) -> BTreeSet<String> {
    let listed = store.list("packs/", None).await.unwrap();
    listed.into_iter().map(|listed| listed.key).collect()
}

async fn write(volume: &Arc<Staged>, key: u64, tag: u8) {
    done(volume, volume.write(key * BLOCK, &block(tag), false)).await.unwrap();
}

async fn destaged(node: &Node, volume: &Arc<Staged>) {
    until(&node.env, volume, |backlog| backlog.changes == 0).await;
}

/// Writes blocks 0 to 3 in one commit, then 2 to 5 in another. Returns the packs of the latter.
async fn planted(node: &Node, store: &Store, volume: &Arc<Staged>) -> BTreeSet<String> {
    for tag in 0..4u8 {
        write(volume, u64::from(tag), tag).await;
    }
    destaged(node, volume).await;
    let before = packs(store).await;
    for tag in 2..6u8 {
        write(volume, u64::from(tag), 10 + tag).await;
    }
    destaged(node, volume).await;
    &packs(store).await - &before
}

/// Flips every second byte of these packs, or removes them.
async fn ruin(store: &Store, packs: &BTreeSet<String>, is_gone: bool) {
    for key in packs {
        if is_gone {
            store.delete(key).await.unwrap();
            continue;
        }
        let mut object = store.get(key).await.unwrap().0.to_vec();
        object.iter_mut().step_by(2).for_each(|byte| *byte ^= 1);
        store.put(key, Bytes::from(object)).await.unwrap();
    }
}

async fn salvage(volume: &Arc<Staged>) -> Salvaged {
    volume.salvage(Allowance::ALL, &AtomicU64::new(0)).await.unwrap()
}

/// Checks that the blocks are as [`planted`] left them.
async fn assert_whole(volume: &Staged) {
    for (key, tag) in [(0, 0), (1, 1), (2, 12), (3, 13), (4, 14), (5, 15u8)] {
        assert_eq!(read(volume, key * BLOCK, BLOCK as usize).await, block(tag), "block {key}");
    }
}

#[test]
fn what_the_store_lost_of_the_last_commit_is_folded_again() {
    for (seed, is_gone) in [(1, false), (2, true)] {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        world.block_on(async {
            let node = Node::start(&world.env(), &cold(), &store, Plan::default()).await;
            let volume = node.open(1).await.unwrap();
            let last = planted(&node, &store, &volume).await;
            assert_eq!(last.len(), 2, "data and nodes");
            ruin(&store, &last, is_gone).await;
            assert!(volume.read(2 * BLOCK, &mut [0; 16]).await.is_err());

            let salvaged = salvage(&volume).await;
            assert_eq!((salvaged.replayed, &salvaged.lost[..]), (4, &[][..]), "{salvaged:?}");
            assert!(salvaged.lines.iter().any(|line| line.contains("replayed 4 change(s)")));
            assert_whole(&volume).await;
            let vault = node.vault(1).await;
            assert_eq!((vault.checkpoint.0, vault.lost.len()), (8, 0));
            let again = self::salvage(&volume).await;
            assert_eq!((again.damages, again.replayed), (0, 0));

            // The volume goes on as ever, over a restart too.
            write(&volume, 7, 99).await;
            destaged(&node, &volume).await;
            volume.close().await.unwrap();
            let volume = node.open(1).await.unwrap();
            assert_whole(&volume).await;
            assert_eq!(read(&volume, 7 * BLOCK, BLOCK as usize).await, block(99));
        });
    }
}

#[test]
fn without_an_earlier_root_exactly_what_is_lost_is_quarantined() {
    // The three ways: after its age; after a drain; in the next life.
    for way in 0..3u64 {
        let (world, store) = (World::new(way, Faults::none()), Mem::store());
        let env = world.env();
        world.block_on(async {
            let node = Node::start(&env, &cold(), &store, Plan::default()).await;
            let volume = node.open(1).await.unwrap();
            planted(&node, &store, &volume).await;
            match way {
                0 => env.sleep(Duration::from_secs(61)).await,
                1 => drop(volume.drain().await.unwrap()),
                _ => return,
            }
            damage(&node, &store, 4).await;
            let salvaged = salvage(&volume).await;
            assert_eq!(salvaged.lost, [Lost { position: 4 * BLOCK, span: BLOCK }]);
            assert_eq!(salvaged.replayed, 0);
        });
        if way == 2 {
            world.cut_power();
            let env = world.env();
            world.block_on(async {
                let node = Node::start(&env, &cold(), &store, Plan::default()).await;
                let volume = node.open(1).await.unwrap();
                assert_eq!(volume.backlog().changes, 0, "what is destaged stays so");
                damage(&node, &store, 4).await;
                let salvaged = salvage(&volume).await;
                assert_eq!(salvaged.lost, [Lost { position: 4 * BLOCK, span: BLOCK }]);
                assert_eq!(salvaged.replayed, 0);
            });
        }
    }
}

#[test]
fn what_both_roots_share_is_quarantined_and_the_rest_comes_back() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let node = Node::start(&world.env(), &cold(), &store, Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        planted(&node, &store, &volume).await;
        damage(&node, &store, 0).await;
        let salvaged = salvage(&volume).await;
        let lost = Lost { position: 0, span: BLOCK };
        assert_eq!((salvaged.replayed, &salvaged.lost[..]), (0, &[lost][..]), "no way back");

        let volume = node.open(1).await.unwrap();
        damage(&node, &store, 1).await;
        damage(&node, &store, 5).await;
        let salvaged = salvage(&volume).await;
        let lost = Lost { position: BLOCK, span: BLOCK };
        // The failed rollback before has folded everything once more, and its chunks are another
        // copy.
        assert_eq!((salvaged.refetched, &salvaged.lost[..]), (1, &[lost][..]), "{salvaged:?}");
        assert_eq!(node.vault(1).await.lost, [Lost { position: 0, span: 2 * BLOCK }]);
        assert_eq!(refusal(&volume, 0, BLOCK).await.kind(), Kind::Damaged);
        assert_eq!(read(&volume, 5 * BLOCK, BLOCK as usize).await, block(15));
        assert_eq!(salvage_damages(&volume).await, 0);
    });
}

async fn salvage_damages(volume: &Arc<Staged>) -> u64 {
    salvage(volume).await.damages
}

#[test]
fn what_the_last_commit_rests_on_is_not_given_up_for_it() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let node = Node::start(&world.env(), &cold(), &store, Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        write(&volume, 1, 1).await;
        destaged(&node, &volume).await;
        damage_later(&node, &store, &volume).await;
        let salvaged = salvage(&volume).await;
        // Folding again would need the rest of block 1, which only the present root has.
        assert_eq!(salvaged.lost, [Lost { position: 2 * BLOCK, span: BLOCK }]);
        assert_eq!(salvaged.replayed, 0);
        let mut expected = block(1);
        expected[..3].copy_from_slice(b"new");
        assert_eq!(read(&volume, BLOCK, BLOCK as usize).await, expected);
    });
}

/// Commits a part of block 1 and block 2; then damages the old block 1 and the new block 2.
async fn damage_later(node: &Node, store: &Store, volume: &Arc<Staged>) {
    let old = node.vault(1).await.root;
    done(volume, volume.write(BLOCK, b"new", false)).await.unwrap();
    write(volume, 2, 2).await;
    destaged(node, volume).await;
    damage(node, store, 2).await;
    let pointer = rekindle_content::tree::get(&node.content, &old, 1).await.unwrap().unwrap();
    let key = rekindle_content::pack::key(pointer.pack);
    let mut object = store.get(&key).await.unwrap().0.to_vec();
    object[pointer.offset as usize + 100] ^= 1;
    store.put(&key, Bytes::from(object)).await.unwrap();
}

#[test]
fn what_is_written_during_the_salvage_is_kept() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    world.block_on(async {
        let node = Node::start(&world.env(), &cold(), &store, Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        let last = planted(&node, &store, &volume).await;
        // The nodes are whole, so that commits go on.
        let data = last.into_iter().filter(|key| key.starts_with(prefix(Class::Data))).collect();
        ruin(&store, &data, false).await;
        node.faults.set(Plan { latency: Duration::from_millis(300), ..Plan::default() });
        let chunks = AtomicU64::new(0);
        let writing = async {
            for round in 0..30u8 {
                write(&volume, 8 + u64::from(round % 4), 100 + round).await;
                node.env.sleep(Duration::from_millis(200)).await;
            }
        };
        let (salvaged, ()) =
            futures_util::future::join(volume.salvage(Allowance::ALL, &chunks), writing).await;
        let salvaged = salvaged.unwrap();
        assert!(salvaged.replayed > 4 && salvaged.lost.is_empty(), "{salvaged:?}");
        node.faults.set(Plan::default());
        destaged(&node, &volume).await;
        assert_whole(&volume).await;
        for (key, round) in [(8, 28), (9, 29), (10, 26), (11, 27u8)] {
            assert_eq!(read(&volume, key * BLOCK, BLOCK as usize).await, block(100 + round));
        }
        assert_eq!(salvage_damages(&volume).await, 0);
    });
}

/// 20 MiB go into one commit, which three segments hold.
fn large() -> Setup {
    let mut setup = cold();
    setup.size = 64 * MIB;
    setup.config.destage_bytes = 64 * MIB;
    setup.config.batch_bytes = 64 * MIB;
    setup.config.destage_age = Duration::from_secs(1);
    setup
}

async fn write_much(volume: &Arc<Staged>, mebibytes: u64) {
    for at in 0..mebibytes * 8 {
        let data = vec![at as u8 | 1; 128 * 1024];
        done(volume, volume.write(at % 512 * 128 * 1024, &data, false)).await.unwrap();
    }
}

/// Count of the needed segments.
fn segments(node: &Node) -> u64 {
    node.log.usage().flash_bytes / rekindle_base::limits::SEGMENT_BYTES
}

#[test]
fn the_log_keeps_the_last_commit_for_a_minute() {
    let (world, store) = (World::new(6, Faults::none()), Mem::store());
    world.block_on(async {
        let node = Node::start(&world.env(), &large(), &store, Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        write_much(&volume, 20).await;
        destaged(&node, &volume).await;
        node.env.sleep(Duration::from_secs(50)).await;
        assert_eq!(segments(&node), 3);
        let view = (volume.view().flash_bytes, volume.backlog().bytes);
        assert_eq!(view, (0, 0), "it is nothing that the volume owes");
        node.env.sleep(Duration::from_secs(11)).await;
        assert_eq!(segments(&node), 1, "the head");
        // The next commit takes the place of the previous one.
        write_much(&volume, 20).await;
        destaged(&node, &volume).await;
        write(&volume, 0, 1).await;
        destaged(&node, &volume).await;
        node.env.sleep(Duration::from_millis(100)).await;
        assert_eq!(segments(&node), 1);
    });
}

#[test]
fn who_drains_or_closes_leaves_nothing_in_the_log() {
    let (world, store) = (World::new(7, Faults::none()), Mem::store());
    world.block_on(async {
        let node = Node::start(&world.env(), &large(), &store, Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        write_much(&volume, 20).await;
        volume.drain().await.unwrap();
        node.env.sleep(Duration::from_millis(100)).await;
        assert_eq!(segments(&node), 1, "its commit was the drain's");
        write_much(&volume, 20).await;
        destaged(&node, &volume).await;
        volume.drain().await.unwrap();
        assert_eq!(segments(&node), 1, "there was nothing to drain");
        write_much(&volume, 20).await;
        destaged(&node, &volume).await;
        assert_eq!(segments(&node), 3);
        volume.close().await.unwrap();
        assert_eq!(segments(&node), 1);
        let volume = node.open(1).await.unwrap();
        write_much(&volume, 20).await;
        destaged(&node, &volume).await;
        node.staging.stop().await;
        assert_eq!(segments(&node), 1);
    });
}

#[test]
fn no_write_waits_for_room_that_an_earlier_root_holds() {
    let (world, store) = (World::new(8, Faults::none()), Mem::store());
    world.block_on(async {
        let mut setup = large();
        setup.log_bytes = 64 * MIB;
        setup.config.destagers = 1;
        let node = Node::start(&world.env(), &setup, &store, Plan::default()).await;
        let (first, second) = (node.open(1).await.unwrap(), node.open(2).await.unwrap());
        write_much(&first, 12).await;
        destaged(&node, &first).await;
        // The only destager is busy with a batch that does not end.
        node.faults.set("gone=600s".parse().unwrap());
        write(&second, 0, 1).await;
        node.env.sleep(Duration::from_secs(2)).await;
        assert!(second.is_in_hand());
        assert_eq!(segments(&node), 2, "it is kept");
        let begun = node.env.now();
        write_much(&second, 55).await;
        assert!(node.env.now().since(begun) < Duration::from_secs(50));
        assert!(second.backlog().stalled.is_none());
        assert_eq!(segments(&node), 8, "the whole log");
    });
}
