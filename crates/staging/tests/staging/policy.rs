//! The moment when a write is acknowledged, and the moment when it is visible.

use crate::bed::{MIB, Node, Setup, done, read, until};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Error, Extent, Policy, Written};
use std::time::Duration;

/// Runs a test on a fresh simulated machine.
fn run(setup: &Setup, test: impl AsyncFnOnce(&Env, Node)) {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let node = Node::start(&env, setup, &Mem::store(), Plan::default()).await;
        test(&env, node).await;
    });
}

#[test]
fn back_with_flash_is_acknowledged_by_the_log_and_visible_then() {
    let mut setup = Setup::new(Policy::Back, Ack::Flash);
    setup.config.destage_age = Duration::from_secs(3600);
    run(&setup, async |_, node| {
        let volume = node.open(1).await.unwrap();
        let Written::NeedsSync(first) = volume.write(0, &[1; 4096], false) else {
            panic!("staged")
        };
        let Written::NeedsSync(second) = volume.write(2048, &[2; 4096], true) else {
            panic!("staged")
        };
        assert!(first < second);
        assert_eq!(read(&volume, 0, 4096).await, [0; 4096], "not before flash has it");
        assert!(node.log.committed() < first.0);
        volume.sync(second).await.unwrap();
        assert!(node.log.committed() >= second.0, "one sync for both");
        volume.sync(first).await.unwrap();
        assert_eq!(read(&volume, 0, 6144).await, [[1; 2048].as_slice(), &[2; 4096]].concat());
        assert_eq!(volume.backlog().changes, 2);
        assert_eq!(node.vault(1).await.checkpoint.0, 0, "the datastore has nothing yet");
        assert_eq!(volume.drain().await.unwrap().0, 2);
        assert_eq!(node.vault(1).await.checkpoint.0, 2);
        assert_eq!(volume.backlog().changes, 0);
        assert_eq!(read(&volume, 0, 6144).await, [[1; 2048].as_slice(), &[2; 4096]].concat());
    });
}

#[test]
fn back_with_memory_is_acknowledged_at_once_but_flush_and_fua_reach_flash() {
    run(&Setup::new(Policy::Back, Ack::Memory), async |_, node| {
        let volume = node.open(1).await.unwrap();
        assert!(matches!(volume.write(0, &[1; 4096], false), Written::Acked));
        assert_eq!(read(&volume, 0, 4096).await, [1; 4096]);
        let Written::NeedsSync(fua) = volume.write(0, &[2; 4096], true) else { panic!("staged") };
        assert!(matches!(volume.write(0, &[3; 4096], false), Written::Acked));
        volume.sync(fua).await.unwrap();
        assert!(node.log.committed() >= fua.0);
        assert_eq!(
            read(&volume, 0, 4096).await,
            [3; 4096],
            "serial order, also among FUA and others"
        );
        assert!(matches!(volume.clear(0, 4096, true, false), Written::Acked));
        let committed = node.log.committed();
        volume.flush().await.unwrap();
        assert!(node.log.committed() > committed);
        assert_eq!(read(&volume, 0, 4096).await, [0; 4096]);
    });
}

#[test]
fn memory_that_dies_with_the_process_acknowledges_nothing() {
    let mut setup = Setup::new(Policy::Back, Ack::Memory);
    setup.config.memory_outlives_process = false;
    run(&setup, async |_, node| {
        let volume = node.open(1).await.unwrap();
        assert!(matches!(volume.write(0, &[1; 4096], false), Written::NeedsSync(_)));
        let told = node.staging.downgrade(&volume.vault()).expect("the user is told");
        assert!(told.contains("ack flash"), "{told}");
    });
}

#[test]
fn through_is_acknowledged_by_the_datastore_and_stays_cached() {
    run(&Setup::new(Policy::Through, Ack::Flash), async |_, node| {
        let volume = node.open(1).await.unwrap();
        let appended = node.log.usage().appended_bytes;
        done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
        assert_eq!(node.vault(1).await.checkpoint.0, 1);
        assert_eq!(node.log.usage().appended_bytes, appended, "the log is not used");
        let mut out = [0; 4096];
        assert!(volume.read_now(0, &mut out).unwrap(), "what was written stays cached");
        assert_eq!(out, [1; 4096]);
    });
}

#[test]
fn writes_through_that_wait_share_a_batch() {
    run(&Setup::new(Policy::Through, Ack::Flash), async |env, node| {
        node.faults.set("latency=50ms".parse().unwrap());
        let volume = node.open(1).await.unwrap();
        let begun = env.now();
        let waits: Vec<_> = (0..32)
            .map(|block| done(&volume, volume.write(block * 4096, &[1; 4096], false)))
            .collect();
        for outcome in futures_util::future::join_all(waits).await {
            outcome.unwrap();
        }
        assert!(env.now().since(begun) < Duration::from_secs(1), "{:?}", env.now().since(begun));
        volume.flush().await.unwrap();
    });
}

#[test]
fn uncached_leaves_nothing_in_the_cache() {
    run(&Setup::new(Policy::Uncached, Ack::Flash), async |_, node| {
        let volume = node.open(1).await.unwrap();
        done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
        let mut out = [0; 4096];
        assert!(!volume.read_now(0, &mut out).unwrap(), "not after the write");
        assert_eq!(read(&volume, 0, 4096).await, [1; 4096]);
        assert!(!volume.read_now(0, &mut out).unwrap(), "not after the read");
    });
}

#[test]
fn payloads_in_ram_keep_their_budget_first_come_first_served() {
    let mut setup = Setup::new(Policy::Through, Ack::Flash);
    setup.config.memory_bytes = 3 * (4096 + 64);
    run(&setup, async |env, node| {
        node.faults.set("latency=20ms".parse().unwrap());
        let volume = node.open(1).await.unwrap();
        let waits: Vec<_> = (0..20)
            .map(|block| done(&volume, volume.write(block * 4096, &[1; 4096], false)))
            .collect();
        let all = futures_util::future::join_all(waits);
        let watch = async {
            env.sleep(Duration::from_millis(5)).await;
            let backlog = volume.backlog();
            assert_eq!(backlog.changes, 3, "as many as the budget holds");
            assert!(backlog.stalled.unwrap().contains("RAM"));
        };
        let (outcomes, ()) = futures_util::future::join(all, watch).await;
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        assert_eq!(read(&volume, 0, 20 * 4096).await, [1; 20 * 4096]);
        // A change larger than the budget does not wait for ever.
        done(&volume, volume.write(0, &[2; 64 * 1024], false)).await.unwrap();
    });
}

#[test]
fn changes_nobody_waits_for_become_visible_and_are_destaged() {
    run(&Setup::new(Policy::Back, Ack::Flash), async |env, node| {
        let volume = node.open(1).await.unwrap();
        let Written::NeedsSync(_) = volume.write(0, &[1; 4096], false) else { panic!("staged") };
        until(env, &volume, |backlog| backlog.checkpoint == 1).await;
        assert_eq!(read(&volume, 0, 4096).await, [1; 4096]);
    });
}

#[test]
fn a_volume_closed_and_opened_again_in_one_run_keeps_its_unfinished_changes() {
    let mut setup = Setup::new(Policy::Back, Ack::Flash);
    setup.config.destage_age = Duration::from_secs(3600);
    run(&setup, async |env, node| {
        let volume = node.open(1).await.unwrap();
        done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
        let Written::NeedsSync(late) = volume.write(4096, &[2; 4096], false) else {
            panic!("staged")
        };
        volume.close().await.unwrap();
        assert!(matches!(volume.read(0, &mut [0; 1]).await, Err(Error::Closed(_))));
        assert!(matches!(
            done(&volume, volume.write(0, &[3; 1], false)).await,
            Err(Error::Closed(_))
        ));
        assert!(node.staging.volumes().is_empty());
        volume.sync(late).await.expect("the log has it, and keeps it for the next time");
        let again = node.open(1).await.unwrap();
        assert_eq!(again.backlog().changes, 2);
        assert_eq!(read(&again, 0, 8192).await, [[1; 4096], [2; 4096]].concat());
        assert_eq!(again.drain().await.unwrap().0, 2);
        again.close().await.unwrap();
        let third = node.open(1).await.unwrap();
        assert_eq!(third.backlog().changes, 0);
        done(&third, third.write(0, &[4; 512], false)).await.unwrap();
        assert_eq!(third.backlog().serial, 3);
        let _ = env;
    });
}

#[test]
fn extents_join_what_is_unfinished_and_what_is_home() {
    let mut setup = Setup::new(Policy::Back, Ack::Memory);
    setup.config.destage_age = Duration::from_secs(3600);
    run(&setup, async |_, node| {
        let volume = node.open(1).await.unwrap();
        done(&volume, volume.write(0, &[1; 16384], false)).await.unwrap();
        volume.drain().await.unwrap();
        done(&volume, volume.clear(4096, 4096, true, false)).await.unwrap();
        done(&volume, volume.write(20480, &[1; 512], false)).await.unwrap();
        let extents = volume.extents(0, 32768).await.unwrap();
        let want = [
            (0, 4096, true),
            (4096, 4096, false),
            (8192, 8192, true),
            (16384, 4096, false),
            (20480, 512, true),
        ];
        let mut want: Vec<_> = want
            .into_iter()
            .map(|(position, span, data)| Extent { position, span, data })
            .collect();
        want.push(Extent { position: 20992, span: 32768 - 20992, data: false });
        assert_eq!(extents, want);
        // A trim of more than any log entry could hold.
        assert!(matches!(volume.clear(0, setup_size(), true, false), Written::Acked));
        volume.drain().await.unwrap();
        assert_eq!(node.vault(1).await.root, None, "an empty volume has an empty tree");
    });
}

#[test]
fn a_list_of_extents_ends_early_and_goes_on_where_it_ended() {
    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = 16 * 1024;
    let mut setup = Setup::new(Policy::Back, Ack::Memory);
    setup.config.destage_age = Duration::from_secs(3600);
    setup.size = 2 * BLOCKS * BLOCK;
    // A part of each second block is written, and is unfinished first, then home.
    for (home, most) in [(false, 4096), (true, 16 * 1024)] {
        run(&setup, async |_, node| {
            let volume = node.open(1).await.unwrap();
            for block in 0..BLOCKS {
                let written = volume.write(2 * block * BLOCK, &[1; 256], false);
                done(&volume, written).await.unwrap();
            }
            if home {
                volume.drain().await.unwrap();
            }
            let (mut at, mut asked) = (0, 0);
            while at < setup.size {
                let found = volume.extents(at, setup.size - at).await.unwrap();
                assert!(found.len() <= most + 1, "{} at once", found.len());
                for extent in found {
                    assert_eq!((extent.position, extent.data), (at, at % (2 * BLOCK) == 0));
                    at += extent.span;
                }
                asked += 1;
            }
            assert_eq!((at, asked), (setup.size, 2 * BLOCKS.div_ceil(most as u64)));
        });
    }
}

#[test]
fn a_list_of_extents_looks_at_as_many_changes_as_an_answer_has_extents() {
    let mut setup = Setup::new(Policy::Back, Ack::Memory);
    setup.config.destage_age = Duration::from_secs(3600);
    setup.size = 5000 * 256;
    run(&setup, async |_, node| {
        let volume = node.open(1).await.unwrap();
        for position in (0..setup.size).step_by(256) {
            done(&volume, volume.write(position, &[1; 256], false)).await.unwrap();
        }
        // Neighbours are one extent, of no more changes than that.
        let (first, rest) = (4096 * 256, 904 * 256);
        let found = volume.extents(0, setup.size).await.unwrap();
        assert_eq!(found, [Extent { position: 0, span: first, data: true }]);
        let found = volume.extents(first, rest).await.unwrap();
        assert_eq!(found, [Extent { position: first, span: rest, data: true }]);
    });
}

fn setup_size() -> u64 {
    256 * 1024
}

#[test]
fn requests_that_no_volume_could_fulfil_are_refused() {
    run(&Setup::new(Policy::Back, Ack::Memory), async |_, node| {
        let volume = node.open(1).await.unwrap();
        let large = vec![1; (rekindle_base::limits::CHANGE_BYTES_MAX + 1) as usize];
        assert!(matches!(
            done(&volume, volume.write(0, &large, false)).await,
            Err(Error::Invalid(_))
        ));
        assert!(matches!(
            done(&volume, volume.write(u64::MAX, &[1; 2], false)).await,
            Err(Error::Invalid(_))
        ));
        assert!(matches!(
            done(&volume, volume.clear(1, u64::MAX, false, false)).await,
            Err(Error::Invalid(_))
        ));
        assert!(matches!(volume.read_now(u64::MAX, &mut [0; 2]), Err(Error::Invalid(_))));
        assert!(matches!(volume.write(0, &[], false), Written::Acked));
        assert_eq!(volume.backlog().serial, 0);
    });
}

#[test]
fn rolling_to_a_new_segment_loses_and_reorders_nothing_that_was_acknowledged() {
    let mut setup = Setup::new(Policy::Back, Ack::Flash);
    setup.size = 64 * MIB;
    setup.config.destage_age = Duration::from_secs(1);
    run(&setup, async |env, node| {
        let volume = node.open(1).await.unwrap();
        let (length, rounds) = (64 * 1024, 40_u64);
        // Each of 16 clients writes its own range again and again: 40 MiB, five segments.
        let clients = (0..16_u64).map(|client| {
            let volume = volume.clone();
            async move {
                for round in 0..rounds {
                    let bytes = vec![(round + client) as u8 + 1; length];
                    done(&volume, volume.write(client * length as u64, &bytes, false))
                        .await
                        .unwrap();
                    let mut out = vec![0; length];
                    volume.read(client * length as u64, &mut out).await.unwrap();
                    assert!(out == bytes, "what was acknowledged is read");
                }
            }
        });
        futures_util::future::join_all(clients).await;
        assert_eq!(volume.backlog().serial, 16 * rounds);
        volume.drain().await.unwrap();
        for client in 0..16_u64 {
            let bytes = read(&volume, client * length as u64, length).await;
            assert!(bytes == vec![(rounds - 1 + client) as u8 + 1; length]);
        }
        let _ = env;
    });
}

#[test]
fn what_nobody_holds_any_more_is_gone() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    let store = Mem::store();
    world.block_on(async {
        let node =
            Node::start(&env, &Setup::new(Policy::Back, Ack::Flash), &store, Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
        let seen = std::sync::Arc::downgrade(&volume);
        drop((volume, node));
        env.sleep(Duration::from_secs(5)).await;
        assert!(seen.upgrade().is_none(), "volumes and staging do not hold one another for ever");
    });
}
