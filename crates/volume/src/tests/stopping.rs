//! Stopping all volumes.

use super::bed::{Bed, kind, spec, write};
use crate::*;
use base::Kind;
use datastore::backend::mem::Mem;
use datastore::layer::fault::Plan;
use env::sim::{Faults, World};

async fn three_with_changes(bed: &Bed) -> Vec<Handle> {
    let mut handles = Vec::new();
    for name in ["a", "b", "c"] {
        bed.volumes.create(spec(name)).await.unwrap();
        let handle = bed.volumes.attach(name).await.unwrap();
        write(&handle, 0, name.as_bytes()).await.unwrap();
        handles.push(handle);
    }
    handles
}

#[test]
fn a_stop_leaves_changes_in_the_log_and_a_drain_brings_them_home() {
    for drain in [false, true] {
        let (world, store) = (World::new(1, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            let handles = three_with_changes(&bed).await;
            assert_eq!(bed.volumes.stop_progress(), None);
            bed.volumes.stop(drain).await.unwrap();
            let progress = bed.volumes.stop_progress().unwrap();
            assert_eq!((progress.volumes, progress.done, progress.draining), (3, 3, drain));
            assert!(write(&handles[0], 0, b"late").await.is_err());
            assert_eq!(kind(bed.volumes.attach("a").await), Kind::Unavailable);
            assert_eq!(kind(bed.volumes.create(spec("d")).await), Kind::Unavailable);
            assert_eq!(bed.vault("b").await.checkpoint.0, u64::from(drain));
            assert_eq!(bed.volumes.states()[&State::Unattached], 3);
        });
    }
}

#[test]
fn a_drain_that_cannot_end_is_given_up_and_says_so() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let _handles = three_with_changes(&bed).await;
        bed.faults.set(Plan { fail_percent: 100.0, ..Plan::default() });
        let began = bed.env.now();
        match bed.volumes.stop(true).await {
            Err(Error::Undrained { volumes: 3, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(bed.env.now().since(began) < limits::DRAIN_TIME_MAX + 2 * limits::CLOSE_TIME_MAX);
        assert_eq!(bed.volumes.states()[&State::Unattached], 3, "out of service nevertheless");
    });
}

#[test]
fn an_attach_under_way_ends_before_the_stop_does() {
    for seed in 0..30 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            bed.volumes.create(spec("a")).await.unwrap();
            let (attached, stopped) =
                futures_util::future::join(bed.volumes.attach("a"), bed.volumes.stop(false)).await;
            stopped.unwrap();
            if let Ok(handle) = attached {
                assert!(write(&handle, 0, b"late").await.is_err(), "seed {seed}");
            }
            let states = bed.volumes.states();
            assert_eq!(states[&State::Attached] + states[&State::Attaching], 0, "seed {seed}");
        });
    }
}
