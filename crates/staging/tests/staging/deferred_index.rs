//! A volume that comes back with many unfinished changes takes writes before they are listed.

use crate::bed::{BLOCK, Node, Setup, done, read, until};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Error, Policy, Staged, Written};
use std::sync::Arc;
use std::time::Duration;

const CHANGES: u64 = 100;

async fn start(env: &Env, store: &Store, ack: Ack) -> Node {
    let mut setup = Setup::new(Policy::Back, ack);
    setup.size = CHANGES * BLOCK;
    setup.config.destage_age = Duration::from_secs(3600);
    setup.config.destage_bytes = 1 << 40;
    Node::start(env, &setup, store, Plan::default()).await
}

async fn write(volume: &Arc<Staged>, block: u64, byte: u8) {
    let bytes = [byte; BLOCK as usize];
    done(volume, volume.write(block * BLOCK, &bytes, false)).await.unwrap();
}

/// The first byte of each block.
async fn firsts(volume: &Staged) -> Vec<u8> {
    let all = read(volume, 0, (CHANGES * BLOCK) as usize).await;
    all.iter().step_by(BLOCK as usize).copied().collect()
}

/// The blocks after the first life, and after `newer` wrote over some.
fn expected(newer: &[(u64, u8)]) -> Vec<u8> {
    let mut all: Vec<u8> = (0..CHANGES).map(|block| block as u8 + 1).collect();
    newer.iter().for_each(|&(block, byte)| all[block as usize] = byte);
    all
}

/// A world in which the process has died with every block written once and nothing destaged.
fn crashed(seed: u64, ack: Ack) -> (World, Store) {
    let (world, store) = (World::new(seed, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store, ack).await;
        let volume = node.open(1).await.unwrap();
        for block in 0..CHANGES {
            write(&volume, block, block as u8 + 1).await;
        }
    });
    world.crash_process();
    (world, store)
}

#[test]
fn writes_are_taken_at_once_and_reads_wait() {
    for (seed, ack) in [(1, Ack::Flash), (2, Ack::Memory)] {
        let (world, store) = crashed(seed, ack);
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store, ack).await;
            let volume = node.open(1).await.unwrap();
            // Plain calls from here on: no other task runs.
            let written = volume.write(7 * BLOCK, &[0xaa; BLOCK as usize], false);
            let part = volume.write(8 * BLOCK + 512, &[0xbb; 512], false);
            let view = volume.view();
            assert_eq!(view.unindexed, CHANGES);
            assert_eq!((view.backlog.changes, view.backlog.serial), (CHANGES + 2, CHANGES + 2));
            assert!(view.backlog.bytes > CHANGES * BLOCK, "they count before they are listed");
            let mut out = [0; 16];
            assert!(!volume.read_now(7 * BLOCK, &mut out).unwrap(), "a read has to wait");
            done(&volume, written).await.unwrap();
            done(&volume, part).await.unwrap();
            assert_eq!(firsts(&volume).await, expected(&[(7, 0xaa)]));
            let eighth = read(&volume, 8 * BLOCK, BLOCK as usize).await;
            assert_eq!((eighth[511], eighth[512], eighth[1023], eighth[1024]), (9, 0xbb, 0xbb, 9));
            let view = volume.view();
            assert_eq!((view.unindexed, view.backlog.changes), (0, CHANGES + 2));
            // The budget counts just these changes, and gets their bytes back.
            assert_eq!(view.flash_bytes, view.backlog.bytes);
            volume.drain().await.unwrap();
            assert_eq!((volume.view().flash_bytes, volume.backlog().changes), (0, 0));
            assert_eq!(firsts(&volume).await, expected(&[(7, 0xaa)]));
        });
    }
}

#[test]
fn a_drain_and_extents_wait_for_the_list_too() {
    let (world, store) = crashed(3, Ack::Flash);
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store, Ack::Flash).await;
        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.view().unindexed, CHANGES);
        let extents = volume.extents(0, CHANGES * BLOCK).await.unwrap();
        assert!(extents.iter().all(|extent| extent.data), "{extents:?}");
        volume.drain().await.unwrap();
        assert_eq!(node.vault(1).await.checkpoint.0, CHANGES);
    });
}

#[test]
fn what_was_closed_before_it_was_listed_comes_back_whole() {
    let (world, store) = crashed(4, Ack::Flash);
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store, Ack::Flash).await;
        let volume = node.open(1).await.unwrap();
        let written = volume.write(3 * BLOCK, &[0xcc; BLOCK as usize], false);
        assert_eq!(volume.view().unindexed, CHANGES, "not listed yet");
        volume.close().await.unwrap();
        done(&volume, written).await.unwrap();
        assert!(volume.kept_bytes() > CHANGES * BLOCK);
        let mut out = [0; 16];
        assert!(matches!(volume.read(0, &mut out).await, Err(Error::Closed(_))));

        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.backlog().changes, CHANGES + 1);
        assert_eq!(firsts(&volume).await, expected(&[(3, 0xcc)]));
        volume.drain().await.unwrap();
        volume.close().await.unwrap();
        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.backlog().changes, 0);
        assert_eq!(firsts(&volume).await, expected(&[(3, 0xcc)]));
    });
}

#[test]
fn deaths_one_after_the_other_before_anything_is_listed_lose_nothing() {
    let (world, store) = crashed(5, Ack::Flash);
    let mut newer = Vec::new();
    for life in 0..6 {
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store, Ack::Flash).await;
            let volume = node.open(1).await.unwrap();
            assert_eq!(volume.view().unindexed, CHANGES + life);
            let written = volume.write(life * BLOCK, &[0xd0 + life as u8; BLOCK as usize], false);
            done(&volume, written).await.unwrap();
        });
        newer.push((life, 0xd0 + life as u8));
        world.crash_process();
    }
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store, Ack::Flash).await;
        let volume = node.open(1).await.unwrap();
        assert_eq!(firsts(&volume).await, expected(&newer));
        until(&env, &volume, |backlog| backlog.changes == CHANGES + 6).await;
    });
}

/// Opens a volume of some segments whose tables are on flash only. `harm` hits the second segment
/// before the volume's changes are listed; then one write is made, and `check` runs.
fn harmed_before_listing(harm: impl Fn(&World), check: impl AsyncFnOnce(&Node, &Arc<Staged>)) {
    let (world, store) = (World::new(6, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store, Ack::Flash).await;
        let volume = node.open(1).await.unwrap();
        let mut block = 0;
        while node.log.usage().segments < 4 {
            write(&volume, block % CHANGES, 1).await;
            block += 1;
        }
    });
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store, Ack::Flash).await;
        let volume = node.open(1).await.unwrap();
        assert!(volume.view().unindexed > 500);
        let written = volume.write(0, &[2; BLOCK as usize], false);
        harm(&world);
        check(&node, &volume).await;
        done(&volume, written).await.unwrap();
    });
}

#[test]
fn a_table_that_is_damaged_before_it_is_listed_costs_nothing() {
    let harm = |world: &World| {
        let path = "/node/log/00000002.seg";
        let bytes = world.peek(path).unwrap();
        let last = bytes.windows(16).rposition(|window| window == [1; 16]).unwrap();
        assert!(world.flip_bit(path, last as u64 + 16), "the serial of a descriptor");
    };
    harmed_before_listing(harm, async |_, volume| {
        let mut out = [0; 2];
        volume.read(BLOCK - 1, &mut out).await.unwrap();
        assert_eq!(out, [1, 1], "what nobody was told of is not shown");
        assert_eq!(volume.view().unindexed, 0);
    });
}

#[test]
fn damage_that_shows_only_while_listing_takes_the_volume_out_of_service() {
    let harm = |world: &World| {
        world.change_faults(|faults| {
            faults.read_error = 1.0;
            faults.only = Some("00000002.seg".to_owned());
        });
    };
    harmed_before_listing(harm, async |node, volume| {
        let mut out = [0; 16];
        let failed = volume.read(0, &mut out).await.unwrap_err();
        assert_eq!(failed.kind(), rekindle_base::Kind::Damaged, "{failed}");
        assert!(matches!(volume.write(0, &[3], false), Written::Pending(_)), "out of service");
        // The next attach reports it too, and goes on from the whole changes once the user accepts
        // the loss.
        let Err(failed) = node.open(1).await else { panic!("it is damaged") };
        assert_eq!(failed.kind(), rekindle_base::Kind::Damaged, "{failed}");
        assert!(failed.to_string().contains("--accept-losses"), "{failed}");
        let key = rekindle_staging::Vault::key(rekindle_base::VolumeId([1; 16]));
        let held = node.writer.read(&key).await.unwrap().unwrap();
        let (held, lines) = node.staging.accept_losses(held, 0).await.unwrap();
        assert!(lines[0].contains("segment 2") && held.value.accepted.is_some(), "{lines:?}");
        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.backlog().changes as u64, held.value.accepted.unwrap().through.0);
    });
}
