//! Tests of transitional states: a task's wait is noted, a dropped task leaves its state, and the
//! watchdog reports the rest.

use super::bed::{Bed, spec, write};
use crate::*;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use std::time::Duration;

#[test]
fn the_watchdog_names_a_stuck_volume_and_what_it_waits_for() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.env.spawn("watchdog", bed.volumes.watchdog(Duration::from_secs(10)));
        bed.volumes.create(spec("vm1")).await.unwrap();
        bed.volumes.create(spec("vm2")).await.unwrap();
        let handle = bed.volumes.attach("vm2").await.unwrap();
        write(&handle, 0, b"bytes").await.unwrap();
        bed.faults.set(Plan { latency: Duration::from_secs(25), ..Plan::default() });
        let volumes = bed.volumes.clone();
        bed.env.spawn("client", async move { drop(volumes.attach("vm1").await) });
        bed.env.sleep(Duration::from_secs(5)).await;
        let (transitional, total) = bed.volumes.transitional();
        assert_eq!((total, transitional[0].volume.as_str()), (1, "vm1"));
        assert_eq!(bed.volumes.stuck(), Stuck::default(), "it is not late yet");
        bed.env.sleep(Duration::from_secs(10)).await;
        let stuck = bed.volumes.stuck();
        assert_eq!((stuck.total, stuck.volumes.len()), (1, 1));
        let found = &stuck.volumes[0];
        assert_eq!((found.volume.as_str(), found.state), ("vm1", State::Attaching));
        assert_eq!(found.waits_for, "the store: reading the name and the vault");
        assert_eq!((found.cause.as_str(), found.waiting), ("first use", 1));
        assert!(found.age_ms >= 10_000 && found.step_ms >= 10_000, "{found:?}");
        bed.faults.set(Plan::default());
        bed.env.sleep(Duration::from_secs(60)).await;
        assert_eq!(bed.volumes.stuck(), Stuck::default());
        assert_eq!(bed.volumes.transitional(), (Vec::new(), 0));
        assert_eq!(bed.volumes.show("vm1").await.unwrap().state, State::Attached);
    });
}

#[test]
fn a_task_that_is_dropped_leaves_its_step_and_its_state() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        drop(bed.volumes.attach("vm1").await.unwrap());
        let inner = &bed.volumes.inner;
        let claimed = offline::claim(inner, "vm1", false, "test").await.unwrap();
        {
            let _step = claimed.step("the outer thing");
            let inside =
                |claimed: &registry::Claim| claimed.entry.inside.lock().step.map(|step| step.what);
            {
                let _step = claimed.step("the inner thing");
                assert_eq!(inside(&claimed), Some("the inner thing"));
            }
            assert_eq!(inside(&claimed), Some("the outer thing"));
        }
        assert_eq!(bed.volumes.transitional().0[0].waits_for, "its task to go on");
        drop(claimed);
        assert_eq!(bed.volumes.transitional(), (Vec::new(), 0));
        let shown = bed.volumes.show("vm1").await.unwrap();
        assert_eq!(shown.state, State::Error);
        assert!(shown.reason.unwrap().contains("interrupted"));
        drop(bed.volumes.attach("vm1").await.unwrap());
        let counts = bed.volumes.transitions();
        let failed = counts.iter().find(|row| row.event == machine::Event::OfflineFailed).unwrap();
        assert_eq!((failed.from, failed.to, failed.count), (State::Offlining, State::Error, 1));
        assert_eq!(counts.iter().map(|row| row.count).sum::<u64>(), 6);
    });
}
