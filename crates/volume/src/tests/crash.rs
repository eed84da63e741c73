//! Tests in which the daemon dies at any step of a creation or a removal.

use super::bed::{Bed, read, spec, write};
use crate::*;
use rekindle_base::Kind;
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, Stop, World};
use std::time::Duration;

/// Checks that the crash left a whole volume or none, and after reaping no trace of anything else.
async fn examine(bed: &Bed, seed: u64) {
    let listed = bed.volumes.list().await.unwrap();
    let shown = bed.volumes.show("vm1").await;
    match listed.as_slice() {
        [] => assert_eq!(shown.unwrap_err().kind(), Kind::NotFound, "seed {seed}"),
        [info] => {
            assert_eq!(info.state, State::Unattached, "seed {seed}: {:?}", info.reason);
            assert_eq!(shown.unwrap().vault.id, info.vault.id);
            let handle = bed.volumes.attach("vm1").await.unwrap();
            assert_eq!(
                read(&handle, 0, 4).await,
                if info.vault.generation.0 > 0 { *b"data" } else { [0; 4] }
            );
            drop(handle);
            bed.volumes.remove("vm1", false).await.unwrap();
        }
        more => panic!("seed {seed}: {more:?}"),
    }
    // The name is free either way.
    bed.volumes.create(spec("vm1")).await.unwrap();
    bed.reap_all().await;
    assert_eq!(bed.keys("volumes/").await.len(), 1, "seed {seed}");
    assert_eq!(bed.keys("names/").await, ["names/vm1"], "seed {seed}");
    drop(bed.volumes.attach("vm1").await.unwrap());
}

/// Delays each call of the store, so that there are steps between the calls.
fn slow() -> Plan {
    Plan { latency: Duration::from_millis(1), ..Plan::default() }
}

#[test]
fn a_crash_at_any_step_of_a_creation() {
    for steps in 1..80 {
        let (world, store) = (World::new(steps, Faults::none()), Mem::store());
        let bed = world.block_on(Bed::start(&world.env(), &store));
        bed.faults.set(slow());
        let done =
            world.block_on_until(Stop::Step(steps), bed.volumes.create(spec("vm1"))).is_some();
        drop(bed);
        restart_and_examine(&world, &store, steps);
        if done {
            return;
        }
    }
    panic!("a creation has too many steps");
}

#[test]
fn a_crash_at_any_step_of_a_removal() {
    for steps in 1..200 {
        let (world, store) = (World::new(steps, Faults::none()), Mem::store());
        let bed = world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            bed.volumes.create(spec("vm1")).await.unwrap();
            let handle = bed.volumes.attach("vm1").await.unwrap();
            write(&handle, 0, b"data").await.unwrap();
            bed.faults.set(slow());
            bed
        });
        let done =
            world.block_on_until(Stop::Step(steps), bed.volumes.remove("vm1", false)).is_some();
        drop(bed);
        restart_and_examine(&world, &store, steps);
        if done {
            return;
        }
    }
    panic!("a removal has too many steps");
}

fn restart_and_examine(world: &World, store: &Store, seed: u64) {
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), store).await;
        examine(&bed, seed).await;
    });
}

#[test]
fn a_client_that_a_kill_cut_off_keeps_its_volume_from_removal_for_a_minute() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        for name in ["held", "free", "late"] {
            bed.volumes.create(spec(name)).await.unwrap();
        }
        drop(bed.volumes.attach("free").await.unwrap());
        // A killed client never lets go.
        std::mem::forget(bed.volumes.attach("held").await.unwrap());
        std::mem::forget(bed.volumes.attach("late").await.unwrap());
    });
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.remove("free", false).await.unwrap();
        bed.volumes.welcome().await;
        for removed in
            [bed.volumes.remove("held", false).await, bed.volumes.trash("held", false).await]
        {
            assert!(matches!(removed, Err(Error::Awaited(_))), "{removed:?}");
        }
        // The client comes back, and goes.
        bed.volumes.client_is_back("held");
        bed.volumes.remove("held", false).await.unwrap();
        bed.env.sleep(limits::CLIENT_RETURN).await;
        bed.volumes.remove("late", false).await.expect("nobody came");
    });
}
