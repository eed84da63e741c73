//! Tests of stopping all volumes.

use super::bed::{Bed, kind, spec, write};
use crate::*;
use rekindle_base::Kind;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use std::time::Duration;

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
            assert_eq!((progress.volumes, progress.done, progress.draining), (3, 3, false));
            assert_eq!(progress.kept_bytes > 0, !drain, "{progress:?}");
            assert_eq!((progress.backlog_bytes, &progress.waits_for[..]), (0, ""));
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

#[test]
fn a_quick_stop_asks_the_store_for_nothing() {
    let (world, store) = (World::new(7, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let _handles = three_with_changes(&bed).await;
        // Any call of the store would take a day.
        bed.faults.set(Plan { latency: Duration::from_secs(24 * 3600), ..Plan::default() });
        let began = bed.env.now();
        bed.volumes.stop(false).await.unwrap();
        assert!(bed.env.now().since(began) < Duration::from_secs(1));
        assert_eq!(bed.volumes.states()[&State::Unattached], 3);
    });
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = bed.volumes.attach("b").await.unwrap();
        assert_eq!(super::bed::read(&handle, 0, 1).await, b"b");
    });
}

#[test]
fn a_draining_stop_tells_how_far_it_is_and_can_be_hurried() {
    let (world, store) = (World::new(8, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let _handles = three_with_changes(&bed).await;
        bed.faults.set(Plan { fail_percent: 100.0, ..Plan::default() });
        let volumes = bed.volumes.clone();
        let (ended, end) = tokio::sync::oneshot::channel();
        bed.env.spawn("stop", async move {
            let _ = ended.send(volumes.stop(true).await);
        });
        bed.env.sleep(Duration::from_secs(30)).await;
        let progress = bed.volumes.stop_progress().unwrap();
        assert_eq!((progress.volumes, progress.done, progress.draining), (3, 0, true));
        assert!(progress.backlog_bytes > 0, "{progress:?}");
        assert!(progress.waits_for.contains("3 volume(s) to reach the store"));
        let asked = bed.env.now();
        bed.volumes.abort_drain();
        end.await.unwrap().unwrap();
        assert!(bed.env.now().since(asked) < Duration::from_secs(10));
        let progress = bed.volumes.stop_progress().unwrap();
        assert_eq!((progress.done, progress.draining, progress.backlog_bytes), (3, false, 0));
        assert!(progress.kept_bytes > 0, "they are in the log");
    });
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        for name in ["a", "b", "c"] {
            let handle = bed.volumes.attach(name).await.unwrap();
            assert_eq!(super::bed::read(&handle, 0, 1).await, name.as_bytes());
        }
    });
}
