//! Lives of one node over one store: a folder that was copied, started beside the original, and put
//! back. A deposed life acknowledges nothing more; the right one loses nothing.

use crate::bed::{MIB, NODE, Node, Setup, done, read, until};
use rekindle_base::{Generation, Incarnation, Kind, Serial};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Error, Logged, Policy, Staged, Vault};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The same node in another folder, which has none of the first one's log yet.
fn elsewhere(setup: &Setup) -> Setup {
    Setup { folder: PathBuf::from("/copy"), ..setup.clone() }
}

fn run(policy: Policy, ack: Ack, test: impl AsyncFnOnce(&Env, Setup, Store)) {
    let world = World::new(1, Faults::none());
    let env = world.env();
    let mut setup = Setup::new(policy, ack);
    // Nothing is destaged unless the test drains.
    setup.config.destage_age = Duration::from_secs(3600);
    world.block_on(test(&env, setup, Mem::store()));
}

async fn start(env: &Env, setup: &Setup, store: &Store) -> Node {
    Node::start(env, setup, store, Plan::default()).await
}

async fn write(volume: &Arc<Staged>, byte: u8) {
    let at = u64::from(byte) * 4096;
    done(volume, volume.write(at, &[byte; 4096], false)).await.expect("acknowledged");
}

fn deposed<T>(outcome: Result<T, Error>) {
    let error = outcome.err().expect("an error");
    assert!(matches!(error, Error::Deposed(_)) && error.kind() == Kind::Fenced, "{error}");
}

#[test]
fn a_commit_says_which_life_it_is_of_and_where_that_began() {
    run(Policy::Back, Ack::Flash, async |env, setup, store| {
        let node = start(env, &setup, &store).await;
        let volume = node.open(1).await.unwrap();
        write(&volume, 1).await;
        write(&volume, 2).await;
        volume.close().await.unwrap();
        node.staging.stop().await;
        node.log.close().await.unwrap();
        drop((volume, node));
        let node = start(env, &setup, &store).await;
        let volume = node.open(1).await.unwrap();
        write(&volume, 3).await;
        volume.close().await.unwrap();
        // The volume is opened again in the same life: it began where it did.
        let volume = node.open(1).await.unwrap();
        write(&volume, 4).await;
        volume.drain().await.unwrap();
        let vault = node.vault(1).await;
        let life = (vault.incarnation, vault.begins, vault.checkpoint);
        assert_eq!(life, (Incarnation(2), Serial(2), Serial(4)));
    });
}

#[test]
fn whoever_meets_a_newer_life_in_a_vault_stops_and_what_it_wrote_is_not_of_the_volume() {
    for (policy, ack) in
        [(Policy::Back, Ack::Flash), (Policy::Back, Ack::Memory), (Policy::Through, Ack::Flash)]
    {
        run(policy, ack, async |env, setup, store| {
            let old = start(env, &setup, &store).await;
            let theirs = old.open(1).await.unwrap();
            let new = start(env, &elsewhere(&setup), &store).await;
            let ours = new.open(1).await.unwrap();
            write(&ours, 1).await;
            ours.drain().await.unwrap();
            let mut met = old.staging.met();
            if policy == Policy::Back {
                // The older life does not know of the newer one yet.
                write(&theirs, 9).await;
                deposed(theirs.drain().await);
            } else {
                deposed(done(&theirs, theirs.write(0, &[9; 4096], false)).await);
            }
            assert!(met.has_changed().unwrap(), "the node hears of it");
            assert_eq!(*met.borrow_and_update(), Incarnation(2));
            deposed(done(&theirs, theirs.write(0, &[9; 4096], false)).await);
            deposed(theirs.flush().await);
            deposed(theirs.read(0, &mut [0; 1]).await);
            deposed(theirs.read_now(0, &mut [0; 1]));
            write(&ours, 2).await;
            ours.drain().await.unwrap();
            for byte in [1, 2] {
                assert_eq!(read(&ours, u64::from(byte) * 4096, 4096).await, [byte; 4096]);
            }
            deposed(old.open(2).await.and(old.open(1).await));
        });
    }
}

#[test]
fn a_node_that_is_fenced_acknowledges_nothing_from_one_moment_on() {
    run(Policy::Back, Ack::Flash, async |env, setup, store| {
        let node = start(env, &setup, &store).await;
        let volume = node.open(1).await.unwrap();
        let rekindle_staging::Written::NeedsSync(ticket) = volume.write(0, &[1; 4096], false)
        else {
            panic!("it is to be synced");
        };
        let closed = node.open(2).await.unwrap();
        let rekindle_staging::Written::NeedsSync(of_closed) = closed.write(0, &[1; 4096], false)
        else {
            panic!("it is to be synced");
        };
        closed.close().await.unwrap();
        assert!(node.staging.fenced().is_none());
        node.staging.fence("another copy of the folder was started");
        deposed(volume.sync(ticket).await);
        deposed(closed.sync(of_closed).await);
        deposed(volume.flush().await);
        deposed(volume.drain().await);
        deposed(node.open(3).await);
        assert!(node.staging.fenced().unwrap().to_string().contains("another copy"));
        assert_eq!(node.vault(1).await.checkpoint, Serial(0), "and nothing is committed");
    });
}

#[test]
fn an_acknowledgement_that_is_held_back_is_not_given_once_the_node_is_fenced() {
    run(Policy::Back, Ack::Memory, async |env, mut setup, store| {
        setup.config.flash_bytes = 1 << 20;
        let node = start(env, &setup, &store).await;
        let volume = node.open(1).await.unwrap();
        node.faults.set("latency=10s".parse().unwrap());
        let delayed = loop {
            match volume.write(0, &[1; 64 * 1024], false) {
                rekindle_staging::Written::Pending(later) => break later,
                written => done(&volume, written).await.unwrap(),
            }
        };
        node.staging.fence("another copy of the folder was started");
        deposed(delayed.await);
    });
}

#[test]
fn a_write_that_waits_for_the_full_log_is_told_once_the_node_is_fenced() {
    run(Policy::Back, Ack::Flash, async |env, mut setup, store| {
        // The log has less room than staging would give.
        (setup.log_bytes, setup.size) = (32 * MIB, 64 * MIB);
        let node = start(env, &setup, &store).await;
        let volume = node.open(1).await.unwrap();
        node.faults.set("gone=1h".parse().unwrap());
        let writes = async {
            for block in 0..256_u64 {
                let bytes = [1; 256 * 1024];
                done(&volume, volume.write(block * 256 * 1024, &bytes, false)).await?;
            }
            Ok(())
        };
        let fence = async {
            until(env, &volume, |backlog| backlog.stalled.is_some()).await;
            let reason = volume.backlog().stalled.unwrap();
            assert!(reason.contains("the log is full"), "{reason}");
            node.staging.fence("another copy of the folder was started");
        };
        let both = futures_util::future::join(writes, fence);
        let (written, ()) =
            env.timeout(Duration::from_secs(600), both).await.expect("nobody waits for ever");
        deposed(written);
        assert_eq!(volume.backlog().stalled, None);
    });
}

#[test]
fn a_write_that_waits_for_ram_is_told_once_the_node_is_fenced() {
    run(Policy::Through, Ack::Flash, async |env, mut setup, store| {
        setup.config.memory_bytes = 64 * 1024;
        let node = start(env, &setup, &store).await;
        let volume = node.open(1).await.unwrap();
        node.faults.set("gone=1h".parse().unwrap());
        let writes = (0..4_u64).map(|block| {
            let written = volume.write(block * 32 * 1024, &[1; 32 * 1024], false);
            done(&volume, written)
        });
        let fence = async {
            until(env, &volume, |backlog| backlog.stalled.is_some()).await;
            node.staging.fence("another copy of the folder was started");
        };
        let both = futures_util::future::join(futures_util::future::join_all(writes), fence);
        let (written, ()) =
            env.timeout(Duration::from_secs(600), both).await.expect("nobody waits for ever");
        written.into_iter().for_each(deposed);
    });
}

#[test]
fn changes_of_an_older_life_behind_where_the_vaults_began_are_not_replayed() {
    run(Policy::Back, Ack::Flash, async |env, setup, store| {
        let node = start(env, &setup, &store).await;
        let volume = node.open(1).await.unwrap();
        write(&volume, 1).await;
        write(&volume, 2).await;
        volume.close().await.unwrap();
        node.staging.stop().await;
        node.log.close().await.unwrap();
        drop((volume, node));
        // Another copy goes on: it has none of these changes, commits its own, and one stays in its
        // log.
        let other = start(env, &elsewhere(&setup), &store).await;
        let volume = other.open(1).await.unwrap();
        write(&volume, 5).await;
        volume.drain().await.unwrap();
        other.staging.stop().await;
        // The first folder goes on: serial 2 of its first life lies behind the checkpoint, and is
        // not of this volume any more.
        let node = start(env, &setup, &store).await;
        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.backlog().serial, 1);
        assert_eq!(read(&volume, 5 * 4096, 4096).await, [5; 4096]);
        for byte in [1, 2] {
            assert_eq!(read(&volume, byte * 4096, 4096).await, [0; 4096]);
        }
    });
}

#[test]
fn changes_of_an_older_generation_behind_where_the_vaults_began_are_not_replayed() {
    run(Policy::Back, Ack::Flash, async |env, setup, store| {
        let node = start(env, &setup, &store).await;
        let volume = node.open(1).await.unwrap();
        write(&volume, 1).await;
        write(&volume, 2).await;
        volume.close().await.unwrap();
        node.staging.stop().await;
        node.log.close().await.unwrap();
        drop((volume, node));
        let node = start(env, &setup, &store).await;
        // Owners A, B, A: the last one began behind serial 1.
        let key = Vault::key(setup.vault(1).id);
        let held = node.writer.read::<Vault>(&key).await.unwrap().unwrap();
        let value = Vault {
            generation: Generation(3),
            checkpoint: Serial(1),
            begins: Serial(1),
            // By its life alone, the change might count.
            incarnation: Incarnation(1),
            ..held.value.clone()
        };
        node.writer.replace(&held, value).await.unwrap();
        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.backlog().serial, 1, "what generation 1 has behind it does not count");
        write(&volume, 3).await;
        assert_eq!(volume.drain().await.unwrap(), Serial(2));
        assert_eq!(read(&volume, 2 * 4096, 4096).await, [0; 4096]);
        assert_eq!(read(&volume, 3 * 4096, 4096).await, [3; 4096]);
    });
}

#[test]
fn acknowledged_changes_that_a_deposed_life_wrote_over_are_missed_not_forgotten() {
    run(Policy::Back, Ack::Flash, async |env, setup, store| {
        let old = start(env, &setup, &store).await;
        let theirs = old.open(1).await.unwrap();
        let copy = elsewhere(&setup);
        let new = start(env, &copy, &store).await;
        let ours = new.open(1).await.unwrap();
        write(&ours, 1).await;
        ours.close().await.unwrap();
        // The deposed life commits before ours does.
        write(&theirs, 9).await;
        theirs.drain().await.unwrap();
        let error = new.open(1).await.err().expect("refused");
        assert!(
            matches!(&error, Error::Lost { reason, .. } if reason.contains("had been replaced")),
            "{error}"
        );
        new.staging.stop().await;
        new.log.close().await.unwrap();
        drop((ours, new));
        let new = start(env, &copy, &store).await;
        let error = new.open(1).await.err().expect("refused");
        assert!(
            matches!(&error, Error::Lost { reason, .. } if reason.contains("had been replaced")),
            "{error}"
        );
    });
}

#[test]
fn a_node_taken_from_a_copy_writes_each_vault_before_it_serves_the_volume() {
    run(Policy::Back, Ack::Flash, async |env, setup, store| {
        let old = start(env, &setup, &store).await;
        let theirs = old.open(1).await.unwrap();
        write(&theirs, 9).await;
        let new = start(env, &elsewhere(&setup), &store).await;
        new.staging.taken(Incarnation(2));
        let ours = new.open(1).await.unwrap();
        deposed(theirs.drain().await);
        write(&ours, 1).await;
        ours.drain().await.unwrap();
        let vault = new.vault(1).await;
        let life = (vault.incarnation, vault.begins, vault.checkpoint);
        assert_eq!(life, (Incarnation(2), Serial(0), Serial(1)));
    });
}

#[test]
fn a_vault_says_who_logged_what_its_life_found_however_many_changes_it_was() {
    for writes in [2u64, 12] {
        run(Policy::Back, Ack::Flash, async |env, setup, store| {
            for life in 1..=2u64 {
                let node = start(env, &setup, &store).await;
                let volume = node.open(1).await.unwrap();
                for _ in 0..writes {
                    write(&volume, life as u8).await;
                }
                volume.close().await.unwrap();
                node.staging.stop().await;
                node.log.close().await.unwrap();
            }
            let node = start(env, &setup, &store).await;
            node.staging.taken(Incarnation(3));
            let volume = node.open(1).await.unwrap();
            let run = |life, begins| Logged {
                node: NODE,
                incarnation: Incarnation(life),
                begins: Serial(begins),
            };
            let vault = node.vault(1).await;
            assert_eq!(vault.logged, [run(1, 0), run(2, writes)]);
            assert_eq!((vault.incarnation, vault.begins), (Incarnation(3), Serial(2 * writes)));
            volume.drain().await.unwrap();
            assert_eq!(node.vault(1).await.logged, [], "all of it is in the root");
        });
    }
}

#[test]
fn changes_of_another_copy_under_the_same_serials_are_not_replayed() {
    run(Policy::Back, Ack::Flash, async |env, setup, store| {
        let copy = elsewhere(&setup);
        // Each has serials 1 and 2 of its own, and no commit; then the second copy goes on.
        for (life, folder) in [(1, &setup), (2, &copy), (3, &copy)] {
            let node = start(env, folder, &store).await;
            node.staging.taken(Incarnation(life));
            let volume = node.open(1).await.unwrap();
            if life < 3 {
                write(&volume, life as u8).await;
                write(&volume, 7).await;
            }
            assert_eq!(volume.backlog().serial, 2);
            volume.close().await.unwrap();
            node.staging.stop().await;
            node.log.close().await.unwrap();
        }
        let node = start(env, &setup, &store).await;
        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.backlog().serial, 0, "what the first has is no part of it");
        assert_eq!(read(&volume, 4096, 4096).await, [0; 4096]);
    });
}

#[test]
fn a_flush_after_a_restart_waits_until_what_only_memory_had_is_on_flash() {
    for writes in [2u64, 12] {
        let world = World::new(1, Faults::none());
        let mut setup = Setup::new(Policy::Back, Ack::Memory);
        setup.config.destage_age = Duration::from_secs(3600);
        setup.flush_interval = Duration::from_secs(3600);
        let store = Mem::store();
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &setup, &store).await;
            let volume = node.open(1).await.unwrap();
            for index in 0..writes {
                done(&volume, volume.write(index * 4096, &[7; 4096], false)).await.unwrap();
            }
        });
        world.crash_process();
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &setup, &store).await;
            let volume = node.open(1).await.unwrap();
            volume.flush().await.unwrap();
        });
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &setup, &store).await;
            let volume = node.open(1).await.unwrap();
            assert_eq!(volume.backlog().serial, writes, "flushed, hence on flash");
        });
    }
}

#[test]
fn no_vault_is_written_whose_checkpoint_is_beyond_what_the_log_has_on_flash() {
    let world = World::new(1, Faults::none());
    let mut setup = Setup::new(Policy::Back, Ack::Memory);
    setup.config.destage_age = Duration::from_millis(10);
    setup.flush_interval = Duration::from_secs(3600);
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &setup, &Mem::store()).await;
        let volume = node.open(1).await.unwrap();
        write(&volume, 1).await;
        assert_eq!(node.log.committed(), node.log.begins(), "only memory has it");
        until(&env, &volume, |backlog| backlog.checkpoint == 1).await;
        assert!(node.log.committed() > node.log.begins(), "flash came first");
    });
}
