//! Snapshots hold exactly what their serials say, whatever becomes of the log and of other lives.

use crate::bed::{Node, Setup, done, read};
use rekindle_base::Serial;
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Error, Home, Policy, RangeHome, Staged};
use std::path::PathBuf;
use std::sync::Arc;
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
            let (held, told) = bare.staging.accept_losses(held).await.unwrap();
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
        assert_eq!(new.vault(1).await.incarnation, new.writer.life().incarnation);
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
fn a_snapshot_waits_for_the_store_where_writes_do() {
    for policy in [Policy::Through, Policy::Uncached] {
        run(policy, async |env, setup, store| {
            let node = start(env, &setup, &store).await;
            let volume = node.open(1).await.unwrap();
            write(&volume, 1).await;
            // A write that is under way: no later owner need have it.
            node.faults.set("latency=50ms".parse().unwrap());
            let (taken, ()) = futures_util::join!(
                async {
                    env.sleep(Duration::from_millis(1)).await;
                    volume.take_snapshot("s").await.unwrap()
                },
                write(&volume, 2)
            );
            assert!(taken.content.is_some(), "{taken:?}");
        });
    }
}
