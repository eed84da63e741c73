//! Tests of the record cache: when an attach uses a cached vault, and when not.

use super::bed::{Bed, NODE, kind, read, spec, write};
use crate::*;
use rekindle_base::Kind;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_datastore::record::RecordCache;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::Vault;
use std::path::Path;

fn away() -> Plan {
    Plan { fail_percent: 100.0, ..Plan::default() }
}

/// Kills a node that has a volume with destaged and unfinished changes.
fn killed(world: &World, store: &rekindle_datastore::Store, era: Option<u64>) {
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start_as(Path::new("/node"), NODE, &env, store, era).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"destaged").await.unwrap();
        handle.staged().drain().await.unwrap();
        write(&handle, 100, b"unfinished").await.unwrap();
    });
    world.crash_process();
}

async fn examine(bed: &Bed) {
    let handle = bed.volumes.attach("vm1").await.unwrap();
    bed.faults.set(Plan::default());
    assert_eq!(read(&handle, 0, 8).await, b"destaged");
    assert_eq!(read(&handle, 100, 10).await, b"unfinished");
    // The volume takes writes, and its vault can be written.
    write(&handle, 200, b"more").await.unwrap();
    handle.staged().drain().await.unwrap();
}

#[test]
fn after_a_kill_a_volume_is_attached_while_the_store_is_away() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    killed(&world, &store, Some(1));
    for _ in 0..3 {
        let env = world.env();
        world.block_on(async {
            let bed = Bed::start(&env, &store).await;
            bed.faults.set(away());
            examine(&bed).await;
        });
        world.crash_process();
    }
}

#[test]
fn copies_of_another_era_or_of_no_life_before_are_not_used() {
    for (era, then) in [(Some(1), Some(2)), (None, Some(1)), (Some(1), None)] {
        let (world, store) = (World::new(2, Faults::none()), Mem::store());
        killed(&world, &store, era);
        let env = world.env();
        world.block_on(async {
            let bed = Bed::start_as(Path::new("/node"), NODE, &env, &store, then).await;
            bed.faults.set(away());
            assert_eq!(kind(bed.volumes.attach("vm1").await), Kind::Unavailable);
            bed.faults.set(Plan::default());
            examine(&bed).await;
        });
    }
}

#[test]
fn a_removed_volume_does_not_come_back_by_its_copy() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    killed(&world, &store, Some(1));
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store).await;
        bed.volumes.remove("vm1", false).await.unwrap();
        assert_eq!(kind(bed.volumes.attach("vm1").await), Kind::NotFound);
        // A new volume of that name is not the old one.
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 0, 8).await, [0; 8]);
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store).await;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 0, 8).await, [0; 8]);
    });
}

/// The record is put back from an earlier time, so that the log lacks changes after its checkpoint.
#[test]
fn a_copy_that_does_not_fit_the_log_gives_way_to_the_store() {
    let (world, store) = (World::new(6, Faults::none()), Mem::store());
    killed(&world, &store, Some(1));
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store).await;
        let cache = bed.cache.clone().unwrap();
        let key = Vault::key(bed.vault("vm1").await.id);
        let old = cache.find(&key).unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        for position in 0..20 {
            write(&handle, position * 16, b"newer").await.unwrap();
        }
        handle.staged().drain().await.unwrap();
        write(&handle, 400, b"newest").await.unwrap();
        cache.keep(&key, &old);
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store).await;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 304, 5).await, b"newer");
        assert_eq!(read(&handle, 400, 6).await, b"newest");
    });
}

#[test]
fn volumes_whose_clients_were_there_come_back_before_them() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store).await;
        for name in ["stays", "goes", "later"] {
            bed.volumes.create(spec(name)).await.unwrap();
        }
        let stays = bed.volumes.attach("stays").await.unwrap();
        write(&stays, 0, b"unfinished").await.unwrap();
        drop(bed.volumes.attach("goes").await.unwrap());
        // A killed client never lets go.
        std::mem::forget((stays.clone(), bed.volumes.attach("later").await.unwrap()));
        drop(stays);
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store).await;
        bed.faults.set(away());
        bed.volumes.welcome().await;
        let (views, _) = bed.volumes.view("", 10);
        let attached: Vec<_> = views.iter().map(|view| view.volume.as_str()).collect();
        assert_eq!(attached, ["later", "stays"], "without a word from the store");
        let stays = bed.volumes.attach("stays").await.unwrap();
        assert_eq!(read(&stays, 0, 10).await, b"unfinished");
        // The list of the last life is taken once.
        bed.volumes.detach("later").await.unwrap();
        bed.volumes.welcome().await;
        let (views, _) = bed.volumes.view("later", 10);
        assert!(views.iter().all(|view| view.state != machine::State::Attached), "{views:?}");
    });
}
