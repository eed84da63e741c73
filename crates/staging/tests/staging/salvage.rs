//! Salvage of a volume in service: lost bytes are quarantined exactly, everything else goes on.

use crate::bed::{BLOCK, MIB, Node, Setup, done, read};
use bytes::Bytes;
use rekindle_base::Kind;
use rekindle_content::tree;
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Allowance, Error, Lost, Policy, Staged};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub fn block(tag: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| tag.wrapping_mul(31).wrapping_add((at % 251) as u8) | 1).collect()
}

/// Makes a volume whose data is not cached, with four blocks.
async fn planted(node: &Node) -> Arc<Staged> {
    let volume = node.open(1).await.unwrap();
    for tag in 0..4u8 {
        done(&volume, volume.write(u64::from(tag) * BLOCK, &block(tag), false)).await.unwrap();
    }
    volume
}

/// Flips a byte of the chunk that holds a block.
pub async fn damage(node: &Node, store: &Store, key: u64) {
    let root = node.vault(1).await.root;
    let pointer = tree::get(&node.content, &root, key).await.unwrap().unwrap();
    let key = rekindle_content::pack::key(pointer.pack);
    let (object, _) = store.get(&key).await.unwrap();
    let mut object = object.to_vec();
    object[pointer.offset as usize + 100] ^= 1;
    store.put(&key, Bytes::from(object)).await.unwrap();
}

pub async fn refusal(volume: &Staged, position: u64, span: u64) -> Error {
    let mut out = vec![0; span as usize];
    volume.read(position, &mut out).await.unwrap_err()
}

#[test]
fn what_is_lost_is_named_until_it_is_written_over() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let setup = Setup::new(Policy::Uncached, Ack::Flash);
        let node = Node::start(&world.env(), &setup, &store, Plan::default()).await;
        let volume = planted(&node).await;
        let mut damage_reports = node.staging.damage_reports().unwrap();
        damage(&node, &store, 2).await;
        assert_eq!(refusal(&volume, 2 * BLOCK, BLOCK).await.kind(), Kind::Damaged);
        assert_eq!(refusal(&volume, 2 * BLOCK, BLOCK).await.kind(), Kind::Damaged);
        assert_eq!(damage_reports.try_recv().unwrap().volume, "volume1");
        assert!(damage_reports.try_recv().is_err(), "once until it is salvaged");

        let salvaged = volume.salvage(Allowance::ALL, &AtomicU64::new(0)).await.unwrap();
        let lost = Lost { position: 2 * BLOCK, span: BLOCK };
        assert_eq!((&salvaged.lost[..], salvaged.quarantined_bytes), (&[lost][..], BLOCK));
        assert_eq!(node.vault(1).await.lost, [lost]);
        let refused = refusal(&volume, BLOCK, 2 * BLOCK).await.to_string();
        assert!(refused.contains(&format!("bytes {}..{}", 2 * BLOCK, 3 * BLOCK)), "{refused}");
        assert!(volume.read_now(2 * BLOCK, &mut [0; 1]).is_err());
        for tag in [0, 1, 3u8] {
            assert_eq!(read(&volume, u64::from(tag) * BLOCK, BLOCK as usize).await, block(tag));
        }
        let extents = volume.extents(0, 6 * BLOCK).await.unwrap();
        assert_eq!((extents[0].span, extents[0].data), (4 * BLOCK, true), "a loss is no hole");

        // Writes over a part of the loss, then all of it.
        let again = volume.salvage(Allowance::ALL, &AtomicU64::new(0)).await.unwrap();
        assert_eq!((again.damages, again.quarantined_bytes), (0, BLOCK), "it is sound now");
        done(&volume, volume.write(2 * BLOCK + 50, &[7; 100], false)).await.unwrap();
        assert_eq!(read(&volume, 2 * BLOCK + 50, 100).await, [7; 100]);
        assert_eq!(refusal(&volume, 2 * BLOCK + 49, 1).await.kind(), Kind::Damaged);
        assert_eq!(refusal(&volume, 2 * BLOCK + 150, 1).await.kind(), Kind::Damaged);
        assert_eq!(node.vault(1).await.lost.len(), 2);
        done(&volume, volume.write(2 * BLOCK, &block(2), false)).await.unwrap();
        assert_eq!(read(&volume, 0, 4 * BLOCK as usize).await.len(), 4 * BLOCK as usize);
        assert_eq!(read(&volume, 2 * BLOCK, BLOCK as usize).await, block(2));
        assert!(node.vault(1).await.lost.is_empty());
    });
}

#[test]
fn what_is_lost_stays_so_while_batches_follow_each_other() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let mut setup = Setup::new(Policy::Back, Ack::Memory);
        (setup.size, setup.cache_bytes) = (32 * MIB, 0);
        (setup.config.destage_bytes, setup.config.batch_bytes) = (MIB, 2 * MIB);
        let node = Node::start(&world.env(), &setup, &store, Plan::default()).await;
        let volume = planted(&node).await;
        volume.drain().await.unwrap();
        damage(&node, &store, 2).await;
        damage(&node, &store, 3).await;
        volume.salvage(Allowance::ALL, &AtomicU64::new(0)).await.unwrap();
        assert_eq!(node.vault(1).await.lost, [Lost { position: 2 * BLOCK, span: 2 * BLOCK }]);
        node.faults.set("latency=100ms".parse().unwrap());
        let blocks = (4..2048).chain([3]);
        for at in blocks {
            done(&volume, volume.write(at * BLOCK, &block(at as u8), false)).await.unwrap();
        }
        volume.drain().await.unwrap();
        assert_eq!(node.vault(1).await.lost, [Lost { position: 2 * BLOCK, span: BLOCK }]);
        assert_eq!(refusal(&volume, 2 * BLOCK, BLOCK).await.kind(), Kind::Damaged);
        assert_eq!(read(&volume, 3 * BLOCK, BLOCK as usize).await, block(3));
    });
}

#[test]
fn a_partial_write_over_damage_reaches_the_store_once_the_volume_is_salvaged() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let setup = Setup::new(Policy::Uncached, Ack::Flash);
        let node = Node::start(&world.env(), &setup, &store, Plan::default()).await;
        let volume = planted(&node).await;
        let mut damage_reports = node.staging.damage_reports().unwrap();
        damage(&node, &store, 1).await;
        let (writing, env) = (volume.clone(), node.env.clone());
        let written = env.run("write", async move {
            done(&writing, writing.write(BLOCK + 5, b"bytes", false)).await
        });
        let mending = async {
            assert_eq!(
                damage_reports.recv().await.unwrap().volume,
                "volume1",
                "the destager tells"
            );
            volume.salvage(Allowance::ALL, &AtomicU64::new(0)).await.unwrap()
        };
        let (written, salvaged) = futures_util::future::join(written, mending).await;
        written.unwrap();
        assert_eq!(salvaged.lost, [Lost { position: BLOCK, span: BLOCK }]);
        assert_eq!(read(&volume, BLOCK + 5, 5).await, b"bytes");
        assert_eq!(refusal(&volume, BLOCK, 10).await.kind(), Kind::Damaged);
    });
}

#[test]
fn what_nobody_has_accepted_is_not_given_up_and_all_else_is_served_and_repaired() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    world.block_on(async {
        let setup = Setup::new(Policy::Uncached, Ack::Flash);
        let node = Node::start(&world.env(), &setup, &store, Plan::default()).await;
        let volume = planted(&node).await;
        let root = node.vault(1).await.root;
        let sound = {
            let pointer = tree::get(&node.content, &root, 2).await.unwrap().unwrap();
            store.get(&rekindle_content::pack::key(pointer.pack)).await.unwrap().0
        };
        damage(&node, &store, 2).await;
        let below = Allowance { bytes: BLOCK - 1, absent: true };
        for allowance in [Allowance::NOTHING, below] {
            let salvaged = volume.salvage(allowance, &AtomicU64::new(0)).await.unwrap();
            let lost = Lost { position: 2 * BLOCK, span: BLOCK };
            assert_eq!((&salvaged.withheld[..], salvaged.withheld_bytes()), (&[lost][..], BLOCK));
            assert_eq!((salvaged.lost.len(), salvaged.absent, salvaged.footers), (0, 0, 0));
        }
        assert_eq!((node.vault(1).await.root, node.vault(1).await.lost.len()), (root, 0));
        assert_eq!(read(&volume, 3 * BLOCK, BLOCK as usize).await, block(3));
        assert_eq!(refusal(&volume, 2 * BLOCK, 1).await.kind(), Kind::Damaged);
        // The store misread before, and is right again: nothing has happened.
        let pointer = tree::get(&node.content, &root, 2).await.unwrap().unwrap();
        store.put(&rekindle_content::pack::key(pointer.pack), sound).await.unwrap();
        assert_eq!(read(&volume, 2 * BLOCK, BLOCK as usize).await, block(2));
    });
}

#[test]
fn what_is_absent_is_not_given_up_however_little_it_is() {
    let (world, store) = (World::new(6, Faults::none()), Mem::store());
    world.block_on(async {
        let setup = Setup::new(Policy::Uncached, Ack::Flash);
        let node = Node::start(&world.env(), &setup, &store, Plan::default()).await;
        let volume = planted(&node).await;
        let root = node.vault(1).await.root;
        let pointer = tree::get(&node.content, &root, 2).await.unwrap().unwrap();
        let key = rekindle_content::pack::key(pointer.pack);
        let (object, _) = store.get(&key).await.unwrap();
        store.delete(&key).await.unwrap();
        let little = Allowance { bytes: u64::MAX, absent: false };
        // Either the salvage cannot tell yet that bytes are lost, or it withholds them.
        if let Ok(salvaged) = volume.salvage(little, &AtomicU64::new(0)).await {
            assert!(
                salvaged.absent > 0 && !salvaged.withheld.is_empty() && salvaged.lost.is_empty()
            );
        }
        assert_eq!(node.vault(1).await.root, root);
        store.put(&key, object).await.unwrap();
        assert_eq!(volume.salvage(little, &AtomicU64::new(0)).await.unwrap().damages, 0);
        assert_eq!(read(&volume, 2 * BLOCK, BLOCK as usize).await, block(2));
    });
}

#[test]
fn a_chunk_in_the_cache_costs_nothing() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let setup = Setup::new(Policy::Through, Ack::Flash);
        let node = Node::start(&world.env(), &setup, &store, Plan::default()).await;
        let volume = planted(&node).await;
        damage(&node, &store, 3).await;
        let salvaged = volume.salvage(Allowance::ALL, &AtomicU64::new(0)).await.unwrap();
        assert_eq!((salvaged.refetched, salvaged.lost.len()), (1, 0));
        assert_eq!(read(&volume, 3 * BLOCK, BLOCK as usize).await, block(3));
        assert_eq!(volume.salvage(Allowance::ALL, &AtomicU64::new(0)).await.unwrap().damages, 0);
    });
}

#[test]
fn a_volume_that_closes_breaks_its_salvage_off() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let setup = Setup::new(Policy::Uncached, Ack::Flash);
        let node = Node::start(&world.env(), &setup, &store, Plan::default()).await;
        let volume = planted(&node).await;
        damage(&node, &store, 3).await;
        node.faults.set(Plan { latency: std::time::Duration::from_secs(5), ..Plan::default() });
        let chunks = AtomicU64::new(0);
        let closing = async {
            node.env.sleep(std::time::Duration::from_secs(1)).await;
            volume.close().await
        };
        let (broken, closed) =
            futures_util::future::join(volume.salvage(Allowance::ALL, &chunks), closing).await;
        assert!(matches!(broken, Err(Error::Closed(_))), "{broken:?}");
        closed.unwrap();
        node.faults.set(Plan::default());
        let volume = node.open(1).await.unwrap();
        let salvaged = volume.salvage(Allowance::ALL, &AtomicU64::new(0)).await.unwrap();
        assert_eq!(salvaged.lost, [Lost { position: 3 * BLOCK, span: BLOCK }]);
    });
}

#[test]
fn what_would_be_lost_is_told_with_the_newest_version_that_is_whole_and_loses_less() {
    for (damaged, expected) in [(0, Some(BLOCK)), (1, Some(2 * BLOCK)), (2, None)] {
        let (world, store) = (World::new(1, Faults::none()), Mem::store());
        world.block_on(async {
            let setup = Setup::new(Policy::Back, Ack::Flash);
            let node = Node::start(&world.env(), &setup, &store, Plan::default()).await;
            let volume = planted(&node).await;
            volume.drain().await.unwrap();
            for tag in 10..12 {
                done(&volume, volume.write(0, &block(tag), false)).await.unwrap();
                volume.drain().await.unwrap();
            }
            volume.close().await.unwrap();
            drop((volume, node));
            // Another life: nothing is cached.
            let node = Node::start(&world.env(), &setup, &store, Plan::default()).await;
            let vault = node.vault(1).await;
            assert_eq!(vault.versions.len(), 2);
            let roots = [vault.root].into_iter().chain(vault.versions.iter().map(|one| one.root));
            for root in roots.take(damaged + 1) {
                let pointer = root.unwrap();
                let key = rekindle_content::pack::key(pointer.pack);
                let mut object = store.get(&key).await.unwrap().0.to_vec();
                object[pointer.offset as usize + 40] ^= 1;
                store.put(&key, Bytes::from(object)).await.unwrap();
            }
            let volume = node.open(1).await.unwrap();
            let told = volume.salvage(Allowance::NOTHING, &AtomicU64::new(0)).await.unwrap();
            assert!(told.withheld_bytes() > 2 * BLOCK && told.lost.is_empty());
            let label = |index: usize| vault.versions[index].label();
            let found = told.back.map(|back| (back.version, back.bytes));
            assert_eq!(found, expected.map(|bytes| (label(damaged), bytes)));
            assert_eq!(node.vault(1).await.root, vault.root, "nobody goes there by himself");
        });
    }
}
