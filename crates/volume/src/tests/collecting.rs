//! Tests of the collector against clients that come and go, on a simulated machine and on real
//! threads.

use super::bed::{Bed, NODE, read, spec, write};
use crate::attach::collect::{Outcome, pass, take};
use crate::attach::collector::{Decision, Pace, Settings};
use crate::registry::machine::Event;
use crate::*;
use futures_util::future::join_all;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

async fn collect(bed: &Bed, idle: Duration) -> u64 {
    pass(&bed.volumes.inner, &Settings::default(), idle, &mut Pace::default()).await
}

fn decision(bed: &Bed, name: &str) -> Option<Decision> {
    bed.volumes.inner.find(name).and_then(|entry| entry.inside.lock().aging.decision)
}

async fn state(bed: &Bed, name: &str) -> State {
    bed.volumes.show(name).await.unwrap().state
}

#[test]
fn an_idle_volume_goes_and_the_next_client_finds_everything() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 7, b"bytes").await.unwrap();
        bed.env.sleep(2 * HOUR).await;
        assert_eq!(collect(&bed, HOUR).await, 0);
        assert_eq!(decision(&bed, "vm1"), Some(Decision::InUse), "however silent its client is");
        drop(handle);
        bed.env.sleep(HOUR / 2).await;
        assert_eq!(collect(&bed, HOUR).await, 0);
        assert_eq!(decision(&bed, "vm1"), Some(Decision::NotYet));
        bed.env.sleep(HOUR / 2).await;
        assert_eq!(collect(&bed, HOUR).await, 1);
        assert_eq!(state(&bed, "vm1").await, State::Preattached);
        let history = bed.volumes.history("vm1").unwrap();
        assert_eq!(history.last().unwrap().event, Event::Collected);
        assert_eq!(history[history.len() - 2].cause, "collector: idle for 3600 s");
        assert!(bed.volumes.inner.staging.volumes().is_empty(), "nothing of it is in memory");
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 6, 7).await, b"\0bytes\0");
        assert_eq!(bed.volumes.collected().detached, 1);
    });
}

#[test]
fn what_owes_changes_stays_until_the_store_has_them() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        bed.faults.set(Plan { fail_percent: 100.0, ..Plan::default() });
        write(&handle, 7, b"bytes").await.unwrap();
        drop(handle);
        bed.env.sleep(HOUR).await;
        assert_eq!(collect(&bed, HOUR).await, 0);
        assert_eq!(decision(&bed, "vm1"), Some(Decision::Owes));
        bed.faults.set(Plan::default());
        bed.env.sleep(HOUR).await;
        assert_eq!(collect(&bed, HOUR).await, 1);
        assert_eq!(bed.vault("vm1").await.checkpoint.0, 1);
    });
}

#[test]
fn a_pin_holds_a_volume_in_service_over_commits_and_restarts() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert!(bed.volumes.pin("vm1", true).await.unwrap().vault.pinned);
        write(&handle, 7, b"bytes").await.unwrap();
        handle.staged().drain().await.unwrap();
        assert!(bed.vault("vm1").await.pinned, "a commit keeps it");
        drop(handle);
        bed.env.sleep(3 * HOUR).await;
        assert_eq!(collect(&bed, HOUR).await, 0);
        assert_eq!(decision(&bed, "vm1"), Some(Decision::Pinned));
        assert!(matches!(bed.volumes.pin("none", true).await, Err(Error::NotFound(_))));
    });
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        assert!(bed.volumes.show("vm1").await.unwrap().vault.pinned);
        drop(bed.volumes.attach("vm1").await.unwrap());
        bed.env.sleep(HOUR).await;
        assert_eq!(collect(&bed, HOUR).await, 0);
        assert!(!bed.volumes.pin("vm1", false).await.unwrap().vault.pinned);
        assert_eq!(collect(&bed, HOUR).await, 1, "it is looked at at once");
        assert!(bed.volumes.pin("vm1", true).await.unwrap().vault.pinned, "out of service as well");
        assert_eq!(state(&bed, "vm1").await, State::Preattached);
    });
}

#[test]
fn a_pass_takes_what_the_pace_allows_the_longest_idle_first() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        for number in 0..10 {
            let name = format!("v{number}");
            bed.volumes.create(spec(&name)).await.unwrap();
            drop(bed.volumes.attach(&name).await.unwrap());
            bed.env.sleep(Duration::from_secs(1)).await;
        }
        bed.env.sleep(HOUR).await;
        let settings = Settings { batch: 4, ..Settings::default() };
        let mut pace = Pace::default();
        let mut left = Vec::new();
        for _ in 0..4 {
            left.push(pass(&bed.volumes.inner, &settings, HOUR, &mut pace).await);
            if left.len() == 1 {
                assert_eq!(state(&bed, "v3").await, State::Preattached);
                assert_eq!(decision(&bed, "v4"), Some(Decision::NextPass));
            }
        }
        assert_eq!(left, [4, 4, 2, 0]);
    });
}

#[test]
fn who_comes_between_the_look_and_the_taking_rescues_the_volume() {
    let (world, store) = (World::new(6, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        drop(bed.volumes.attach("vm1").await.unwrap());
        bed.env.sleep(HOUR).await;
        let entry = bed.volumes.inner.find("vm1").unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(take(&bed.volumes.inner, &entry, HOUR).await, Outcome::Rescued);
        drop(handle);
        assert_eq!(take(&bed.volumes.inner, &entry, HOUR).await, Outcome::Rescued, "used just now");
        bed.env.sleep(HOUR).await;
        assert_eq!(take(&bed.volumes.inner, &entry, HOUR).await, Outcome::Detached);
        assert_eq!(take(&bed.volumes.inner, &entry, HOUR).await, Outcome::Rescued, "gone already");
        let (views, total) = bed.volumes.view("vm", 10);
        assert_eq!((total, views[0].state, views[0].sessions), (1, State::Preattached, 0));
        assert!(views[0].staged.is_none() && bed.volumes.view("x", 10).0.is_empty());
    });
}

#[test]
fn the_task_collects_by_itself_unless_it_is_off() {
    for idle in [Some(HOUR), None] {
        let (world, store) = (World::new(5, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            let settings = Settings { idle, ..Settings::default() };
            bed.env.spawn("collector", bed.volumes.collector(settings));
            bed.volumes.create(spec("vm1")).await.unwrap();
            drop(bed.volumes.attach("vm1").await.unwrap());
            bed.env.sleep(2 * HOUR).await;
            let expected = if idle.is_some() { State::Preattached } else { State::Attached };
            assert_eq!(state(&bed, "vm1").await, expected);
        });
    }
}

/// Attaches, writes to a place of its own, reads it back and lets go; never sees an error.
async fn visitor(bed: &Bed, number: u64, visits: u64, name: &str, pause_us: u64) {
    for visit in 0..visits {
        let handle = bed.volumes.attach(name).await.expect("a client sees no collector");
        let position = number * 8;
        if visit > 0 {
            let before = (visit - 1).to_le_bytes();
            assert_eq!(read(&handle, position, 8).await, before, "visit {visit}");
        }
        let written = write(&handle, position, &visit.to_le_bytes()).await;
        written.expect("who holds a volume is served");
        if visit % 4 > 0 {
            handle.staged().drain().await.expect("the store is well");
        }
        drop(handle);
        let pause = Duration::from_micros(bed.env.random_u64() % pause_us.max(1));
        bed.env.sleep(pause).await;
    }
}

/// Runs visitors, and passes until the visitors are done. Returns the visits and the collections.
async fn race(bed: &Bed, visitors: u64, visits: u64, pause_us: u64) -> (u64, u64) {
    let names = ["a", "b", "c"];
    for name in names {
        bed.volumes.create(spec(name)).await.unwrap();
    }
    let done = AtomicBool::new(false);
    let collected = AtomicU64::new(0);
    let passes = async {
        while !done.load(Ordering::Relaxed) {
            let went = collect(bed, Duration::from_nanos(1)).await;
            collected.fetch_add(went, Ordering::Relaxed);
            bed.env.sleep(Duration::from_micros(bed.env.random_u64() % pause_us.max(1))).await;
        }
    };
    let clients = async {
        let name = |number: u64| names[number as usize % names.len()];
        let all = (0..visitors).map(|number| visitor(bed, number, visits, name(number), pause_us));
        join_all(all).await;
        done.store(true, Ordering::Relaxed);
    };
    futures_util::future::join(passes, clients).await;
    assert_eq!(bed.volumes.transitional(), (Vec::new(), 0), "nothing is stuck");
    (visitors * visits, collected.load(Ordering::Relaxed))
}

#[test]
fn a_client_that_comes_back_in_the_middle_never_sees_an_error() {
    let (mut visits, mut collected) = (0, 0);
    for seed in 0..60 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            // The store answers late, so that attaches, detaches and passes overlap.
            let latency = Duration::from_micros(seed % 4 * 50);
            bed.faults.set(Plan { latency, ..Plan::default() });
            let (came, went) = race(&bed, 4, 60, 2000).await;
            visits += came;
            collected += went;
        });
    }
    println!("{visits} visits, {collected} collections");
    assert!(visits >= 10_000 && collected >= 5_000, "{visits} visits, {collected} collections");
}

/// The same on real threads.
#[test]
fn nor_on_real_threads() {
    let (env, runtime) = rekindle_env::real::env().unwrap();
    let folder = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let bed = Arc::new(Bed::start_in(folder.path(), NODE, &env, &Mem::store()).await);
        let names = ["a", "b", "c", "d"];
        for name in names {
            bed.volumes.create(spec(name)).await.unwrap();
        }
        let clients = (0..6u64).map(|number| {
            let (ended, end) = tokio::sync::oneshot::channel();
            let bed = bed.clone();
            env.spawn_session("client", async move {
                visitor(&bed, number, 100, names[number as usize % names.len()], 3000).await;
                let _ = ended.send(());
            });
            end
        });
        let mut clients = join_all(clients.collect::<Vec<_>>());
        let mut collected = 0;
        let ended = loop {
            tokio::select! {
                ended = &mut clients => break ended,
                went = collect(&bed, Duration::from_nanos(1)) => collected += went,
            }
        };
        assert!(ended.into_iter().all(|end| end.is_ok()), "no client saw an error");
        println!("{collected} collections");
    });
}
