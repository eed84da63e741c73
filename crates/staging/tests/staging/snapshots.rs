//! Snapshots hold exactly what their serials say, whatever becomes of the log and of other lives.

use crate::bed::{BLOCK, MIB, Node, Setup, done, read};
use futures_util::future::{Either, select};
use rekindle_base::Serial;
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Error, Home, Policy, RangeHome, Staged};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

fn run(policy: Policy, test: impl AsyncFnOnce(&Env, Setup, Store)) {
    let world = World::new(1, Faults::none());
    let env = world.env();
    let mut setup = Setup::new(policy, Ack::Flash);
    // Nothing is destaged unless the test drains.
    setup.config.destage_age = Duration::from_secs(3600);
    setup.config.age_deadline = Duration::from_secs(7200);
    world.block_on(test(&env, setup, Mem::store()));
}

async fn start(env: &Env, setup: &Setup, store: &Store) -> Node {
    Node::start(env, setup, store, Plan::default()).await
}

/// The same node in another folder, which has none of the first one's log.
fn elsewhere(setup: &Setup) -> Setup {
    Setup { folder: PathBuf::from("/copy"), ..setup.clone() }
}

async fn write(volume: &Arc<Staged>, byte: u8) {
    done(volume, volume.write(0, &[byte; 4096], false)).await.expect("acknowledged");
}

#[test]
fn a_snapshot_whose_changes_the_log_has_not_is_a_loss_and_never_gets_later_changes() {
    for index_at_once in [0, 8] {
        run(Policy::Back, async |env, mut setup, store| {
            setup.config.index_at_once = index_at_once;
            let node = start(env, &setup, &store).await;
            let volume = node.open(1).await.unwrap();
            write(&volume, 1).await;
            write(&volume, 2).await;
            let taken = volume.take_snapshot("s").await.unwrap();
            assert_eq!((taken.checkpoint, taken.content), (Serial(2), None));
            // A node whose log is lost without a trace.
            let bare = start(env, &elsewhere(&setup), &store).await;
            let error = bare.open(1).await.err().expect("two changes are missing");
            assert!(matches!(error, Error::Lost { .. }), "{error}");
            assert!(error.to_string().contains("serials 1-2 "), "{error}");
            let held = bare.held(setup.vault(1)).await;
            let (held, told) = bare.staging.accept_losses(held, 0).await.unwrap();
            assert!(!told.is_empty() && held.value.snapshots.is_empty(), "{told:?}");
            let volume = bare.staging.open(held, Home::Range(bare.home())).await.unwrap();
            for byte in 7..10 {
                write(&volume, byte).await;
            }
            volume.drain().await.unwrap();
            assert_eq!(read(&volume, 0, 4096).await, [9; 4096]);
            assert!(bare.vault(1).await.snapshots.is_empty());
        });
    }
}

#[test]
fn a_life_that_was_replaced_gives_no_content_to_a_snapshot_of_its_successor() {
    run(Policy::Back, async |env, setup, store| {
        let old = start(env, &setup, &store).await;
        let theirs = old.open(1).await.unwrap();
        let new = start(env, &elsewhere(&setup), &store).await;
        let ours = new.open(1).await.unwrap();
        write(&ours, 1).await;
        ours.take_snapshot("s").await.unwrap();
        // The older life does not know of the newer one, and has logged the same serial.
        write(&theirs, 9).await;
        assert!(matches!(theirs.drain().await, Err(Error::Deposed(_))));
        write(&ours, 2).await;
        ours.drain().await.unwrap();
        let vault = new.vault(1).await;
        let content = vault.snapshots[0].content.as_ref().expect("it was reached");
        let mut bytes = [0; 4096];
        new.home().read(&content.root, 0, &mut bytes, false).await.unwrap();
        assert_eq!(bytes, [1; 4096]);
    });
}

#[test]
fn a_snapshot_amid_writes_and_batches_shows_what_its_serial_says() {
    for seed in 0..100 {
        let policy = [Policy::Back, Policy::Through][seed as usize % 2];
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        let env = world.env();
        let mut setup = Setup::new(policy, Ack::Flash);
        setup.config.destage_age = Duration::from_millis(1);
        world.block_on(async {
            let node = start(&env, &setup, &store).await;
            let volume = node.open(1).await.unwrap();
            node.faults.set("latency=2ms".parse().unwrap());
            let next = AtomicU8::new(1);
            let writer = async || {
                for _ in 0..15 {
                    // Serials begin with 1, too.
                    write(&volume, next.fetch_add(1, Ordering::Relaxed)).await;
                    env.sleep(Duration::from_micros(env.random_u64() % 3000)).await;
                }
            };
            let taker = async {
                for number in 0..8 {
                    env.sleep(Duration::from_micros(env.random_u64() % 4000)).await;
                    let taken = volume.take_snapshot(&format!("s{number}")).await.unwrap();
                    let is_stored = taken.content.is_some();
                    assert!(is_stored || policy == Policy::Back, "seed {seed}: writes are");
                }
            };
            futures_util::join!(writer(), writer(), writer(), taker);
            volume.drain().await.unwrap();
            let snapshots = node.vault(1).await.snapshots;
            assert_eq!(snapshots.len(), 8);
            for one in snapshots {
                let (content, mut bytes) = (one.content.expect("it was reached"), [0; 1]);
                node.home().read(&content.root, 0, &mut bytes, false).await.unwrap();
                assert_eq!(u64::from(bytes[0]), one.checkpoint.0, "seed {seed}, {}", one.name);
            }
        });
    }
}

#[test]
fn a_snapshot_waits_for_one_batch_of_a_stream_and_not_for_its_end() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    let mut setup = Setup::new(Policy::Back, Ack::Memory);
    setup.size = 32 * MIB;
    (setup.config.destage_bytes, setup.config.batch_bytes) = (MIB, 2 * MIB);
    world.block_on(async {
        let node = start(&env, &setup, &Mem::store()).await;
        let volume = node.open(1).await.unwrap();
        let stream = async {
            for at in 0..100_000 {
                let bytes = [at as u8; BLOCK as usize];
                let written = volume.write(at * BLOCK % setup.size, &bytes, false);
                done(&volume, written).await.unwrap();
                env.sleep(Duration::from_millis(1)).await;
            }
        };
        let snapshots = async {
            env.sleep(Duration::from_secs(10)).await;
            node.faults.set("latency=500ms".parse().unwrap());
            for number in 0..5 {
                env.sleep(Duration::from_secs(7)).await;
                let begun = env.now();
                volume.take_snapshot(&number.to_string()).await.unwrap();
                let time = env.now().since(begun);
                // The packs of a batch, its commit, the snapshot.
                assert!(time < Duration::from_secs(4), "{time:?}");
            }
        };
        let is_over = matches!(select(pin!(stream), pin!(snapshots)).await, Either::Right(_));
        assert!(is_over, "the stream ends later");
    });
}
