//! Volumes whose writes wait for copies on other nodes, beside volumes whose writes do not.

use crate::bed::{NODE, Node, Setup, done, read, until};
use parking_lot::Mutex;
use rekindle_base::{Incarnation, Kind, Life, SegmentId};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_env::{BoxFuture, Env};
use rekindle_log::{NewSegment, Replica};
use rekindle_staging::{Ack, Error, Lease, MissingCopy, Policy, Staged, Vault};
use std::sync::Arc;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(500);

/// A holder that keeps nothing, and answers while it is there.
struct Holder {
    env: Env,
    is_there: Mutex<bool>,
}

impl Holder {
    fn answer<T: Send + 'static>(&self, reply: T) -> BoxFuture<'_, Result<T, String>> {
        Box::pin(async {
            while !*self.is_there.lock() {
                self.env.sleep(Duration::from_millis(10)).await;
            }
            Ok(reply)
        })
    }
}

impl Replica for Holder {
    fn name(&self) -> String {
        "holder".to_owned()
    }

    fn begin(&self) -> BoxFuture<'_, Result<(), String>> {
        self.answer(())
    }

    fn open<'a>(&'a self, _: &'a NewSegment) -> BoxFuture<'a, Result<u32, String>> {
        self.answer(0)
    }

    fn copy<'a>(&'a self, _: SegmentId, _: u32, _: &'a [u8]) -> BoxFuture<'a, Result<(), String>> {
        self.answer(())
    }

    fn seal<'a>(&'a self, _: SegmentId, _: &'a [u8]) -> BoxFuture<'a, Result<(), String>> {
        self.answer(())
    }

    fn keep<'a>(&'a self, _: SegmentId, _: &'a [SegmentId]) -> BoxFuture<'a, Result<(), String>> {
        self.answer(())
    }

    fn free(&self, _: SegmentId) -> BoxFuture<'_, Result<(), String>> {
        self.answer(())
    }
}

async fn write(volume: &Arc<Staged>, byte: u8, durable: bool) -> Result<(), Error> {
    let written = volume.write(0, &[byte; 4096], durable);
    done(volume, written).await
}

#[test]
fn a_write_waits_for_copies_exactly_when_its_volume_asks_for_them() {
    for ack in [Ack::Flash, Ack::Memory] {
        let world = World::new(1, Faults::none());
        let env = world.env();
        world.block_on(async {
            let holder = Arc::new(Holder { env: env.clone(), is_there: Mutex::new(false) });
            let mut setup = Setup::new(Policy::Back, ack);
            setup.replicas = vec![holder.clone()];
            let node = Node::start(&env, &setup, &Mem::store(), Plan::default()).await;
            let plain = node.open(1).await.unwrap();
            let copied = Vault { copies: 1, ..setup.vault(2) };
            let copied = node.open_as(copied).await.unwrap();
            for durable in [false, true] {
                let written = env.timeout(SHORT, write(&plain, 1, durable)).await;
                written.expect("it asks for no copy").unwrap();
                let written = env.timeout(SHORT, write(&copied, 1, durable)).await;
                assert!(written.is_err(), "its copy is not there");
            }
            assert_eq!(read(&copied, 0, 4096).await, [0; 4096], "what may vanish is not shown");
            assert!(env.timeout(SHORT, copied.flush()).await.is_err(), "nor is it flushed");
            *holder.is_there.lock() = true;
            write(&copied, 2, false).await.unwrap();
            copied.flush().await.unwrap();
            assert_eq!(read(&copied, 0, 4096).await, [2; 4096]);
            copied.drain().await.unwrap();
            until(&env, &copied, |backlog| backlog.changes == 0).await;
        });
    }
}

#[test]
fn a_write_whose_copies_are_missing_waits_for_the_store_or_for_copies() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let holder = Arc::new(Holder { env: env.clone(), is_there: Mutex::new(true) });
        let mut setup = Setup::new(Policy::Back, Ack::Flash);
        setup.config.destage_age = Duration::from_secs(3600);
        setup.config.age_deadline = Duration::from_secs(7200);
        setup.replicas = vec![holder.clone()];
        let node = Node::start(&env, &setup, &Mem::store(), Plan::default()).await;
        let vault = Vault { copies: 1, ..setup.vault(1) };
        let stalls = Vault { on_missing_copy: MissingCopy::Stall, copies: 1, ..setup.vault(2) };
        let volume = node.open_as(vault.clone()).await.unwrap();
        let stalling = node.open_as(stalls.clone()).await.unwrap();
        let checkpoint = async || node.vault(1).await.checkpoint.0;
        let short = |done| env.timeout(SHORT, done);
        short(write(&volume, 1, false)).await.expect("the copy is there").unwrap();
        assert_eq!(checkpoint().await, 0, "only the log and its copy have it");
        *holder.is_there.lock() = false;
        env.sleep(Duration::from_secs(1)).await;
        for volume in [&volume, &stalling] {
            let waits = env.timeout(Duration::from_secs(20), write(volume, 2, true)).await;
            assert!(waits.is_err(), "any holder may be all that is found: it is waited for");
            assert_ne!(read(volume, 0, 4096).await, [2; 4096], "what may vanish is not shown");
        }
        node.log.followers()[0].dismiss();
        let told = node.staging.downgrade(&vault).expect("the user is told");
        assert!(told.contains("policy through"), "{told}");
        short(write(&volume, 3, true)).await.expect("the store is there").unwrap();
        assert_eq!(checkpoint().await, 3, "the store has it, and what came before");
        assert_eq!(read(&volume, 0, 4096).await, [3; 4096]);
        assert!(short(write(&stalling, 3, true)).await.is_err(), "it does not want the store");
        // What the store has needs no copies.
        env.timeout(SHORT, stalling.drain()).await.expect("the store is there").unwrap();
        assert_eq!(node.vault(2).await.checkpoint.0, 2, "the store has both");
        let taken = env.timeout(SHORT, stalling.take_snapshot("now")).await;
        taken.expect("the store is there").unwrap();
        // Under other settings, the next generation begins with the write that waits.
        let freed = Vault { on_missing_copy: MissingCopy::Stall, copies: 1, ..setup.vault(4) };
        let freed = node.open_as(freed).await.unwrap();
        let (freeing, life) = (freed.clone(), Life { node: NODE, incarnation: Incarnation(1) });
        let given = async {
            env.sleep(SHORT).await;
            let hand_over = freeing.hand_over().await.unwrap();
            hand_over.settle().await.unwrap();
            hand_over.give(life, &|vault| vault).await.unwrap();
        };
        let waits = futures_util::future::join(write(&freed, 7, true), given);
        env.timeout(SHORT * 10, waits).await.expect("the store is there").0.unwrap();
        assert_eq!(node.vault(4).await.checkpoint.0, 1, "the next owner has it");
        let told = node.staging.downgrade(&stalls).expect("the user is told");
        assert!(told.contains("writes wait"), "{told}");
        // Another holder comes.
        let other = Arc::new(Holder { env: env.clone(), is_there: Mutex::new(true) });
        let follower = node.log.follow(other.clone());
        short(write(&volume, 4, false)).await.expect("the store is there").unwrap();
        env.sleep(SHORT).await;
        assert!(follower.is_following());
        follower.require();
        let stored = checkpoint().await;
        for volume in [&volume, &stalling] {
            short(write(volume, 5, true)).await.expect("the copy is there").unwrap();
        }
        assert_eq!(checkpoint().await, stored, "the store is not waited for any more");
        assert_eq!(node.staging.downgrade(&vault), None);
        volume.drain().await.unwrap();
    });
}

#[test]
fn reads_wait_for_the_lease_but_those_of_volumes_that_no_successor_serves() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let holder = Arc::new(Holder { env: env.clone(), is_there: Mutex::new(true) });
        let mut setup = Setup::new(Policy::Back, Ack::Flash);
        setup.config.lease = Lease::not_yet();
        setup.replicas = vec![holder];
        let node = Node::start(&env, &setup, &Mem::store(), Plan::default()).await;
        let named = |number, policy, copies| Vault { policy, copies, ..setup.vault(number) };
        let alone = node.open_as(named(1, Policy::Back, 0)).await.unwrap();
        let copied = node.open_as(named(2, Policy::Back, 1)).await.unwrap();
        let stored = node.open_as(named(3, Policy::Through, 0)).await.unwrap();
        setup.config.lease.stand(env.now() + SHORT * 1000);
        for volume in [&alone, &copied, &stored] {
            write(volume, 1, true).await.unwrap();
        }
        let refused = async |volume: &Arc<Staged>| {
            let mut out = vec![0; 100_000];
            assert!(!volume.read_now(0, &mut out[..4096]).unwrap());
            assert!(!volume.read_now(0, &mut out).unwrap());
            let waits = env.timeout(SHORT, volume.read(0, &mut out)).await;
            assert!(waits.is_err(), "it waits");
            assert!(env.timeout(SHORT, volume.extents(0, 4096)).await.is_err(), "it waits");
            assert!(matches!(volume.check_read(), Err(Error::Unleased(_))));
        };
        assert_eq!(read(&alone, 0, 4096).await, [1; 4096]);
        refused(&copied).await;
        refused(&stored).await;
        setup.config.lease.set(Some(env.now() + SHORT));
        for volume in [&copied, &stored] {
            assert_eq!(read(volume, 0, 4096).await, [1; 4096]);
        }
        env.sleep(SHORT).await;
        refused(&copied).await;
        refused(&stored).await;
        let late = async {
            env.sleep(SHORT).await;
            setup.config.lease.set(None);
        };
        let (found, ()) = futures_util::join!(read(&copied, 0, 4096), late);
        assert_eq!(found, [1; 4096], "it has waited");
        assert_eq!(read(&stored, 0, 4096).await, [1; 4096]);
        // A read that waits ends with its volume.
        setup.config.lease.set(Some(env.now()));
        let ends = async {
            env.sleep(SHORT).await;
            node.staging.fence("another life");
        };
        let mut out = [0; 4096];
        let (found, ()) = futures_util::join!(copied.read(0, &mut out), ends);
        assert!(found.is_err());
    });
}

#[test]
fn a_volume_without_copies_goes_on_only_while_its_life_stands() {
    for ack in [Ack::Flash, Ack::Memory] {
        let world = World::new(1, Faults::none());
        let env = world.env();
        world.block_on(async {
            let mut setup = Setup::new(Policy::Back, ack);
            setup.config.lease = Lease::not_yet();
            let lease = setup.config.lease.clone();
            let node = Node::start(&env, &setup, &Mem::store(), Plan::default()).await;
            let alone = node.open_as(setup.vault(1)).await.unwrap();
            let mut out = [0; 4096];
            // Nothing is known of other lives: it neither acknowledges nor reads.
            assert!(env.timeout(SHORT, write(&alone, 1, false)).await.is_err(), "it waits");
            assert!(env.timeout(SHORT, write(&alone, 1, true)).await.is_err(), "it waits");
            assert!(env.timeout(SHORT, alone.read(0, &mut out)).await.is_err(), "it waits");
            // While it stands, and again with a lease.
            lease.stand(env.now() + SHORT);
            write(&alone, 2, false).await.unwrap();
            write(&alone, 3, true).await.unwrap();
            assert_eq!(read(&alone, 0, 4096).await, [3; 4096]);
            env.sleep(SHORT).await;
            assert!(env.timeout(SHORT, write(&alone, 4, true)).await.is_err(), "it is over");
            assert!(!alone.read_now(0, &mut out).unwrap());
            let again = async {
                env.sleep(SHORT).await;
                lease.set(None);
            };
            let (written, ()) = futures_util::join!(write(&alone, 5, true), again);
            written.unwrap();
            assert_eq!(read(&alone, 0, 4096).await, [5; 4096]);
            let (lapsed, ()) =
                futures_util::join!(env.timeout(SHORT * 3, lease.lapses(&env)), async {
                    env.sleep(SHORT).await;
                    lease.set(Some(env.now() + SHORT));
                });
            assert!(lapsed.is_ok() && !lease.holds(&env), "it has lapsed");
        });
    }
}

#[test]
fn a_node_made_of_copies_serves_the_volumes_that_asked_for_copies() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let store = Mem::store();
        let mut setup = Setup::new(Policy::Back, Ack::Flash);
        let holder = Holder { env: env.clone(), is_there: Mutex::new(true) };
        setup.replicas = vec![Arc::new(holder)];
        let named = |number, policy, copies| Vault { policy, copies, ..setup.vault(number) };
        let vaults = [
            (named(1, Policy::Back, 0), false),
            (named(2, Policy::Back, 1), true),
            (named(3, Policy::Through, 0), true),
        ];
        {
            let node = Node::start(&env, &setup, &store, Plan::default()).await;
            for (vault, _) in &vaults {
                write(&node.open_as(vault.clone()).await.unwrap(), 1, true).await.unwrap();
            }
            node.log.close().await.unwrap();
        }
        setup.replicas.clear();
        setup.config.copied_from = Incarnation(1);
        let node = Node::start(&env, &setup, &store, Plan::default()).await;
        for (vault, is_served) in vaults {
            match node.open_as(vault.clone()).await {
                Ok(volume) => {
                    assert!(is_served, "{}", vault.name);
                    assert_eq!(read(&volume, 0, 4096).await, [1; 4096]);
                }
                Err(refused) => {
                    assert!(
                        !is_served && refused.to_string().contains("lost machine"),
                        "{refused}"
                    );
                    assert_eq!(refused.kind(), Kind::Refused, "waiting alone does not help");
                    // A person goes on with what the copies have.
                    let losses = node.staging.losses(&vault).await.unwrap();
                    assert!(losses[0].contains("lost machine"), "{losses:?}");
                    assert!(node.open_as(vault.clone()).await.is_err(), "asked, and not decided");
                    let held = node.held(vault.clone()).await;
                    let (held, told) = node.staging.accept_losses(held, 0).await.unwrap();
                    assert_eq!(told, losses);
                    let volume = node.open_as(held.value).await.unwrap();
                    assert_eq!(read(&volume, 0, 4096).await, [1; 4096]);
                }
            }
        }
        // A volume that this node has begun itself is all here. The log alone keeps nothing.
        let new = Vault { incarnation: Incarnation(2), ..setup.vault(4) };
        write(&node.open_as(new).await.unwrap(), 1, true).await.unwrap();
        assert_eq!(node.vault(4).await.checkpoint.0, 1, "the store has it");
    });
}

#[test]
fn a_snapshot_leaves_its_place_to_the_batches_that_it_waits_for() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let holder = Arc::new(Holder { env: env.clone(), is_there: Mutex::new(true) });
        let mut setup = Setup::new(Policy::Back, Ack::Flash);
        setup.replicas = vec![holder.clone()];
        let node = Node::start(&env, &setup, &Mem::store(), Plan::default()).await;
        let vault = Vault { copies: 1, ..setup.vault(1) };
        let volume = node.open_as(vault).await.unwrap();
        write(&volume, 1, false).await.unwrap();
        // The last holder goes, and none comes: writes wait for the store.
        *holder.is_there.lock() = false;
        node.log.followers()[0].dismiss();
        let writing = async {
            for byte in 2..6 {
                write(&volume, byte, false).await.unwrap();
            }
        };
        let both = async { futures_util::join!(volume.take_snapshot("s"), writing) };
        let (taken, ()) = env.timeout(Duration::from_secs(60), both).await.expect("no stall");
        assert!(taken.unwrap().content.is_some(), "nothing else has its changes for sure");
        volume.drain().await.unwrap();
    });
}
