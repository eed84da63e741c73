//! Tests of moves: two nodes on one store, of which one hands a volume over to the other.

use super::bed::{Bed, NODE, kind, read, spec, write};
use super::held::Held;
use crate::registry::machine::{Event, State};
use crate::*;
use parking_lot::Mutex;
use rekindle_base::{Incarnation, Kind, Life, NodeId};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, Stop, World};
use rekindle_staging::{Error as StagingError, Vault};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const OTHER: NodeId = NodeId([9; 16]);

async fn start_other(world: &World, store: &Store) -> Bed {
    let there = world.host("there").env();
    Bed::start_in(Path::new("/node"), OTHER, &there, store).await
}

/// A node that may have every volume.
fn to(node: NodeId) -> Confirm {
    Box::new(move || {
        let life = Life { node, incarnation: Incarnation(0) };
        Box::pin(async move { Ok(life) })
    })
}

async fn move_to(bed: &Bed, name: &str, node: NodeId) -> Result<Moved, Error> {
    bed.volumes.move_to(name, to(node), |_, _| {}).await
}

fn events(bed: &Bed, name: &str) -> Vec<Event> {
    let history = bed.volumes.history(name).unwrap_or_default();
    history.into_iter().map(|change| change.event).collect()
}

fn is_moved(error: &StagingError) -> bool {
    matches!(error, StagingError::Moved(_)) && error.kind() == Kind::Fenced
}

#[test]
fn a_volume_moves_with_all_that_was_acknowledged_and_comes_back() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let (bed, there) =
            (Bed::start(&world.env(), &store).await, start_other(&world, &store).await);
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, &[1; 40_000]).await.unwrap();
        let before = bed.vault("vm1").await;
        let moved = move_to(&bed, "vm1", OTHER).await.unwrap();
        assert_eq!(moved.owner, OTHER.to_string());
        let vault = bed.vault("vm1").await;
        assert_eq!(vault.owner, Some(OTHER));
        assert_eq!(vault.generation, before.generation.next());
        assert_eq!((vault.begins, vault.logged.len()), (vault.checkpoint, 0));
        use Event::*;
        assert_eq!(events(&bed, "vm1"), [Attach, AttachDone, HandOver, HandedOver]);
        // The clients of the old owner are hung up on, and never get an error.
        let refused = write(&handle, 0, b"late").await.unwrap_err();
        assert!(is_moved(&refused), "{refused}");
        let refused = handle.staged().read(0, &mut [0; 4]).await.unwrap_err();
        assert!(is_moved(&refused), "{refused}");
        drop(handle);
        let elsewhere = bed.volumes.attach("vm1").await.err().expect("it is not here");
        assert!(matches!(elsewhere, Error::Elsewhere(_, OTHER)), "{elsewhere}");
        assert_eq!(bed.volumes.show("vm1").await.unwrap().state, State::Unattached);

        let handle = there.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 0, 40_000).await, [1; 40_000]);
        write(&handle, 4, b"there").await.unwrap();
        drop(handle);
        move_to(&there, "vm1", NODE).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 0, 10).await, *b"\x01\x01\x01\x01there\x01");
        write(&handle, 0, b"here").await.unwrap();
        drop(handle);
        // Another time around, out of service.
        bed.volumes.detach("vm1").await.unwrap();
        move_to(&bed, "vm1", OTHER).await.unwrap();
        let handle = there.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 0, 9).await, *b"herethere");
        assert_eq!(there.vault("vm1").await.generation.0, before.generation.0 + 3);
    });
}

#[test]
fn requests_wait_while_a_volume_is_handed_over() {
    for policy in [Policy::Back, Policy::Through, Policy::Uncached] {
        requests_wait(policy);
    }
}

fn requests_wait(policy: Policy) {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let (bed, there) =
            (Bed::start(&world.env(), &store).await, start_other(&world, &store).await);
        bed.volumes.create(Spec { policy, ..spec("vm1") }).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"old").await.unwrap();
        bed.faults.set("latency=300ms".parse::<Plan>().unwrap());
        let (volumes, moving) = (bed.volumes.clone(), bed.env.clone());
        let moved =
            moving.run("move", async move { volumes.move_to("vm1", to(OTHER), |_, _| {}).await });
        let client = async {
            while bed.volumes.show("vm1").await.unwrap().state != State::HandingOver {
                bed.env.sleep(Duration::from_millis(1)).await;
            }
            // A notice comes first. A read goes on until the vault is written; a change waits.
            bed.env.sleep(Duration::from_millis(5)).await;
            if policy == Policy::Back {
                assert_eq!(read(&handle, 0, 3).await, *b"old");
            }
            let late = write(&handle, 0, b"new").await.unwrap_err();
            assert!(is_moved(&late), "{late}");
            // A new client waits with it.
            assert_eq!(kind(bed.volumes.attach("vm1").await), Kind::Conflict);
        };
        let (moved, ()) = futures_util::join!(moved, client);
        assert!(moved.unwrap().paused_ms > 100);
        let there = there.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&there, 0, 3).await, *b"old", "it was never acknowledged");
    });
}

#[test]
fn no_read_begins_at_the_old_owner_once_the_vault_names_another() {
    let mut met = 0;
    for seed in 0..40 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        world.block_on(async {
            let (bed, there) =
                (Bed::start(&world.env(), &store).await, start_other(&world, &store).await);
            bed.volumes.create(spec("vm1")).await.unwrap();
            let handle = bed.volumes.attach("vm1").await.unwrap();
            write(&handle, 0, b"old").await.unwrap();
            handle.staged().drain().await.unwrap();
            // The write of the vault lands, and is reported as failed.
            bed.faults.set("latency=20ms,lie=100%".parse::<Plan>().unwrap());
            let client = async {
                while there.vault("vm1").await.owner != Some(OTHER) {
                    bed.env.sleep(Duration::from_millis(1)).await;
                }
                met += u32::from(handle.staged().serves().is_ok());
                let mut found = [0; 3];
                assert_ne!(handle.staged().read_now(0, &mut found).ok(), Some(true), "{seed}");
                let refused = handle.staged().read(0, &mut found).await.unwrap_err();
                assert!(is_moved(&refused), "{seed}: {refused}");
                bed.faults.set(Plan::default());
            };
            let (moved, ()) = futures_util::join!(move_to(&bed, "vm1", OTHER), client);
            moved.unwrap();
        });
    }
    assert!(met > 10, "{met}");
}

#[test]
fn a_move_that_fails_goes_on_where_it_was() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"old").await.unwrap();
        let client = async {
            while bed.volumes.show("vm1").await.unwrap().state != State::HandingOver {
                bed.env.sleep(Duration::from_millis(1)).await;
            }
            bed.faults.set("gone=30s".parse::<Plan>().unwrap());
            bed.env.sleep(Duration::from_millis(5)).await;
            write(&handle, 0, b"new").await.expect("it waits, and goes on");
        };
        let (moved, ()) = futures_util::join!(move_to(&bed, "vm1", OTHER), client);
        assert_eq!(moved.unwrap_err().kind(), Kind::Unavailable);
        assert_eq!(events(&bed, "vm1")[2..], [Event::HandOver, Event::HandOverFailed]);
        assert_eq!(read(&handle, 0, 3).await, *b"new");
        bed.env.sleep(Duration::from_secs(30)).await;
        assert_eq!(bed.vault("vm1").await.owner, Some(NODE));
        move_to(&bed, "vm1", OTHER).await.expect("the store is back");
    });
}

#[test]
fn what_cannot_move_says_why() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        for name in ["vm1", "gone"] {
            bed.volumes.create(spec(name)).await.unwrap();
            drop(bed.volumes.attach(name).await.unwrap());
        }
        let told = async |name: &str, node| move_to(&bed, name, node).await.unwrap_err();
        assert!(told("vm1", NODE).await.to_string().contains("already"));
        assert_eq!(told("nothing", OTHER).await.kind(), Kind::NotFound);
        bed.volumes.trash("gone", false).await.unwrap();
        let trashed = told("gone", OTHER).await.to_string();
        assert!(trashed.contains("is in the trash"), "{trashed}");
        let unfit: Confirm = Box::new(|| {
            let reason = "node two is draining".to_owned();
            Box::pin(async move { Err(Error::NoTarget { kind: Kind::Conflict, reason }) })
        });
        let refused = bed.volumes.move_to("vm1", unfit, |_, _| {}).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Conflict);
        assert!(refused.to_string().contains("draining"), "{refused}");
        bed.faults.set("latency=1s".parse::<Plan>().unwrap());
        bed.volumes.ask_salvage("vm1", "a test").await.unwrap();
        let salvaged = told("vm1", OTHER).await.to_string();
        assert!(salvaged.contains("is being salvaged"), "{salvaged}");
    });
}

/// The last write that was acknowledged, and the last one that was begun.
#[derive(Clone, Copy, Default)]
struct Written {
    acked: u64,
    begun: u64,
}

/// Writes one number after the other into a volume, until it is hung up on.
async fn client(handle: Handle, written: Arc<Mutex<Written>>) {
    for number in 1.. {
        written.lock().begun = number;
        if write(&handle, 0, &u64::to_le_bytes(number)).await.is_err() {
            return;
        }
        written.lock().acked = number;
        handle.staged().check_read().ok();
    }
}

/// Checks that one of the two nodes owns the volume and has all that was acknowledged.
async fn one_owner_has_all(beds: [&Bed; 2], written: &Written, seed: u64) -> bool {
    let vault: Vault = beds[0].vault("vm1").await;
    let is_moved = vault.owner == Some(OTHER);
    let (owner, other) = if is_moved { (beds[1], beds[0]) } else { (beds[0], beds[1]) };
    let elsewhere = other.volumes.attach("vm1").await.err().expect("it is elsewhere");
    assert!(matches!(elsewhere, Error::Elsewhere(..)), "seed {seed}: {elsewhere}");
    let handle = owner.volumes.attach("vm1").await.expect("it is here");
    let found = read(&handle, 0, 8).await.try_into().expect("eight bytes");
    let found = u64::from_le_bytes(found);
    assert!(
        (written.acked..=written.begun).contains(&found),
        "seed {seed}: {found}, acknowledged {}, begun {}",
        written.acked,
        written.begun
    );
    write(&handle, 0, b"goes on").await.unwrap();
    handle.staged().drain().await.unwrap();
    is_moved
}

#[test]
fn a_crash_at_any_step_of_a_move_leaves_one_owner_who_has_all() {
    let (mut stayed, mut moved) = (0, 0);
    for steps in 1..2000 {
        let (world, store) = (World::new(steps, Faults::none()), Mem::store());
        let written = Arc::<Mutex<Written>>::default();
        let bed = world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            bed.volumes.create(spec("vm1")).await.unwrap();
            let handle = bed.volumes.attach("vm1").await.unwrap();
            write(&handle, 0, &[0; 8]).await.unwrap();
            bed.faults.set("latency=1ms".parse::<Plan>().unwrap());
            bed.env.spawn("client", client(handle, written.clone()));
            bed
        });
        let step = Stop::Step(steps * 2);
        let done = world.block_on_until(step, move_to(&bed, "vm1", OTHER)).is_some();
        drop(bed);
        world.crash_process();
        let is_moved = world.block_on(async {
            let (bed, there) =
                (Bed::start(&world.env(), &store).await, start_other(&world, &store).await);
            let written = *written.lock();
            one_owner_has_all([&bed, &there], &written, steps).await
        });
        assert!(is_moved || !done, "step {steps}");
        (stayed, moved) = (stayed + u32::from(!is_moved), moved + u32::from(is_moved));
        if done {
            assert!(stayed > 5 && moved > 1, "{stayed} {moved}");
            return;
        }
    }
    panic!("a move has too many steps");
}

/// What a write has that names the other node.
fn named() -> String {
    format!("\"owner\":\"{OTHER}\"")
}

#[test]
fn a_write_of_the_vault_without_an_answer_is_found_out() {
    let held = Held::new(named(), true);
    let (store, world): (Store, _) = (held.clone(), World::new(1, Faults::none()));
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"old").await.unwrap();
        let (volumes, env) = (bed.volumes.clone(), bed.env.clone());
        let moving =
            env.run("move", async move { volumes.move_to("vm1", to(OTHER), |_, _| {}).await });
        let client = async {
            while held.held.lock().is_empty() {
                bed.env.sleep(Duration::from_millis(1)).await;
            }
            // The write may land at any time: nothing is acknowledged, for however long.
            let minute = Duration::from_secs(60);
            let waiting = bed.env.timeout(minute, write(&handle, 0, b"new")).await;
            assert!(waiting.is_err(), "{waiting:?}");
            held.is_slow.store(false, Ordering::Relaxed);
            let (key, data, version) = held.held.lock().remove(0);
            held.inner.replace(&key, data, &version).await.expect("the vault is as it was");
            held.held.lock().clear();
            let refused = write(&handle, 0, b"new").await.unwrap_err();
            assert!(is_moved(&refused), "{refused}");
        };
        let (moved, ()) = futures_util::join!(moving, client);
        moved.unwrap();
        let there = start_other(&world, &store).await;
        assert_eq!(read(&there.volumes.attach("vm1").await.unwrap(), 0, 3).await, *b"old");
    });
}

#[test]
fn a_move_that_lands_after_the_death_of_its_process_takes_no_later_change_along() {
    let held = Held::new(named(), false);
    let store: Store = held.clone();
    let world = World::new(1, Faults::none());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"old").await.unwrap();
        let moving = move_to(&bed, "vm1", OTHER);
        assert!(bed.env.timeout(Duration::from_secs(60), moving).await.is_err(), "no answer");
        assert_eq!(bed.volumes.show("vm1").await.unwrap().state, State::HandingOver);
    });
    world.crash_process();
    held.is_slow.store(false, Ordering::Relaxed);
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"new").await.unwrap();
        let late = std::mem::take(&mut *held.held.lock());
        assert_eq!(late.len(), 1);
        for (key, data, version) in late {
            let landed = held.inner.replace(&key, data, &version).await;
            assert_eq!(landed.unwrap_err().kind(), Kind::Conflict);
        }
        handle.staged().drain().await.unwrap();
        assert_eq!(bed.vault("vm1").await.owner, Some(NODE));
        assert_eq!(bed.vault("vm1").await.leaves, None);
        drop(handle);
        let there = start_other(&world, &store).await;
        move_to(&bed, "vm1", OTHER).await.unwrap();
        assert_eq!(read(&there.volumes.attach("vm1").await.unwrap(), 0, 3).await, *b"new");
    });
}

#[test]
fn a_store_that_lies_leaves_one_owner_who_has_all() {
    let (mut failed, mut moved) = (0, 0);
    for seed in 0..80 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        let written = Arc::<Mutex<Written>>::default();
        world.block_on(async {
            let (bed, there) =
                (Bed::start(&world.env(), &store).await, start_other(&world, &store).await);
            bed.volumes.create(spec("vm1")).await.unwrap();
            let handle = bed.volumes.attach("vm1").await.unwrap();
            write(&handle, 0, &[0; 8]).await.unwrap();
            let faults = ["lie=40%,latency=2ms", "late=30%,fail=10%", "gone=8s", "silent=20%"];
            bed.faults.set(faults[(seed % 4) as usize].parse::<Plan>().unwrap());
            bed.env.spawn("client", client(handle, written.clone()));
            let done = move_to(&bed, "vm1", OTHER).await;
            failed += u32::from(done.is_err());
            // What was under way may land still, and the client goes on if the volume has stayed.
            bed.env.sleep(Duration::from_secs(20)).await;
            bed.faults.set(Plan::default());
            bed.env.sleep(Duration::from_secs(20)).await;
            let served = bed.volumes.attach("vm1").await.is_ok();
            assert_eq!(served, done.is_err(), "seed {seed}: {done:?}");
            bed.volumes.stop(false).await.unwrap();
            moved += u32::from(bed.vault("vm1").await.owner == Some(OTHER));
            drop((bed, there));
        });
        world.crash_process();
        world.host("there").crash_process();
        world.block_on(async {
            let (bed, there) =
                (Bed::start(&world.env(), &store).await, start_other(&world, &store).await);
            let written = *written.lock();
            one_owner_has_all([&bed, &there], &written, seed).await;
        });
    }
    assert!(moved > 20, "{failed} failed, {moved} moved");
}
