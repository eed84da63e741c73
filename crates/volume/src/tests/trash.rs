//! Tests of the trash and of renaming: after any crash no content of a volume is lost, and every
//! name is right.

use super::bed::{Bed, Small, kind, read, spec, write};
use crate::*;
use rekindle_base::Kind;
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, Stop, World};
use rekindle_staging::Vault;
use std::time::Duration;

/// Makes a volume with four bytes that only the log has.
async fn begun(world: &World, store: &Store) -> Bed {
    let bed = Bed::start(&world.env(), store).await;
    bed.volumes.create(spec("vm1")).await.unwrap();
    let handle = bed.volumes.attach("vm1").await.unwrap();
    write(&handle, 0, b"data").await.unwrap();
    drop(handle);
    bed
}

async fn content(bed: &Bed, name: &str) -> Vec<u8> {
    let handle = bed.volumes.attach(name).await.unwrap();
    read(&handle, 0, 4).await
}

fn slow() -> Plan {
    Plan { latency: Duration::from_millis(1), ..Plan::default() }
}

#[test]
fn a_removed_volume_comes_back_out_of_the_trash_with_all_that_it_had() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = begun(&world, &store).await;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(kind(bed.volumes.trash("vm1", false).await), Kind::Conflict, "it is held");
        drop(handle);
        bed.volumes.trash("vm1", false).await.unwrap();
        assert_eq!(kind(bed.volumes.attach("vm1").await), Kind::NotFound);
        assert!(bed.volumes.list().await.unwrap().is_empty());
        let row = bed.volumes.trashed().await.unwrap().remove(0);
        assert_eq!((row.name.as_str(), row.until - row.since), ("vm1", 7 * 24 * 3600 * 1_000_000));
        let roots = bed.roots().await.unwrap();
        assert_eq!(roots.len(), 1, "the sweep leaves it what it has");
        assert_eq!(bed.reap_all().await, Reaped::default());
        // The name is free, and a new volume takes it.
        bed.volumes.create(spec("vm1")).await.unwrap();
        assert_eq!(kind(bed.volumes.restore("vm1", None).await), Kind::Exists);
        assert_eq!(bed.volumes.restore("vm1", Some("vm2")).await.unwrap().vault.name, "vm2");
        assert_eq!(
            (content(&bed, "vm2").await, content(&bed, "vm1").await),
            (b"data".into(), vec![0; 4])
        );
        assert_eq!(kind(bed.volumes.restore("vm1", None).await), Kind::NotFound);
        assert!(bed.volumes.trashed().await.unwrap().is_empty());
    });
}

#[test]
fn what_clients_wrote_until_a_removal_by_force_let_them_go_comes_back_with_the_volume() {
    for seed in 0..20 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = begun(&world, &store).await;
            bed.faults.set(slow());
            let handle = bed.volumes.attach("vm1").await.unwrap();
            let writing = async {
                for count in 1_u32.. {
                    if write(&handle, 0, &count.to_le_bytes()).await.is_err() {
                        return count - 1;
                    }
                    bed.env.sleep(Duration::from_micros(100)).await;
                }
                unreachable!("a removal ends it");
            };
            let removing = async {
                bed.env.sleep(Duration::from_millis(5)).await;
                bed.volumes.trash("vm1", true).await.unwrap();
            };
            let (last, ()) = futures_util::future::join(writing, removing).await;
            drop(handle);
            assert!(bed.log.holds_nothing(), "seed {seed}: all of it is in the store");
            bed.volumes.restore("vm1", None).await.unwrap();
            let found = u32::from_le_bytes(content(&bed, "vm1").await.try_into().unwrap());
            assert!(last > 20 && found >= last, "seed {seed}: {last} acknowledged, {found} there");
        });
    }
}

#[test]
fn the_trash_is_emptied_after_a_week_or_by_a_person() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = begun(&world, &store).await;
        bed.volumes.create(spec("vm2")).await.unwrap();
        bed.volumes.trash("vm1", false).await.unwrap();
        bed.volumes.trash("vm2", false).await.unwrap();
        assert_eq!(bed.volumes.purge("vm2").await.unwrap(), 1);
        assert_eq!(bed.keys("volumes/").await.len(), 1);
        let row = bed.volumes.trashed().await.unwrap().remove(0);
        let key = Vault::key(row.id.parse().unwrap());
        let held = bed.writer.read::<Vault>(&key).await.unwrap().unwrap();
        let week = u64::try_from(limits::TRASH_AGE.as_micros()).unwrap();
        let old = Vault { trashed: Some(row.since.saturating_sub(week)), ..held.value.clone() };
        // A wall clock that is ahead makes nothing old.
        world.set_wall_clock_ahead(2 * limits::TRASH_AGE);
        world.env().sleep(rekindle_staging::versions::CLOCK_SURE).await;
        assert_eq!(bed.reap_all().await, Reaped::default());
        world.set_wall_clock_ahead(Duration::ZERO);
        bed.writer.replace(&held, old).await.unwrap();
        assert_eq!(bed.reap_all().await, Reaped { purged: 1, ..Reaped::default() });
        assert!(bed.keys("volumes/").await.is_empty() && bed.keys("names/").await.is_empty());
    });
}

#[test]
fn what_cannot_reach_the_store_does_not_go_to_the_trash_and_says_how_to_remove_it() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = begun(&world, &store).await;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 4096, &[b'C'; 4096]).await.unwrap();
        write(&handle, 8192, b"the last batch may be torn, this one not").await.unwrap();
        drop(handle);
        bed.volumes.stop(false).await.unwrap();
    });
    world.cut_power();
    let path = "/node/log/00000001.seg";
    let bytes = world.peek(path).unwrap();
    let at = bytes.windows(4096).position(|window| window == [b'C'; 4096]).unwrap();
    assert!(world.flip_bit(path, at as u64 + 99));
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let refused = bed.volumes.trash("vm1", false).await.unwrap_err();
        assert!(refused.to_string().contains("rekindle volume rm vm1 --now"), "{refused}");
        assert_eq!(content(&bed, "vm1").await, b"data");
        bed.volumes.remove("vm1", false).await.unwrap();
        assert!(bed.keys("volumes/").await.is_empty());
    });
}

#[test]
fn a_crash_at_any_step_of_a_way_to_the_trash_and_back_loses_nothing() {
    for steps in 1..600 {
        let (world, store) = (World::new(steps, Faults::none()), Mem::store());
        let bed = world.block_on(async {
            let bed = begun(&world, &store).await;
            bed.faults.set(slow());
            bed
        });
        let there_and_back = async {
            bed.volumes.trash("vm1", false).await.unwrap();
            bed.volumes.restore("vm1", Some("vm2")).await.unwrap();
        };
        let done = world.block_on_until(Stop::Step(steps), there_and_back).is_some();
        drop(bed);
        world.crash_process();
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            let trashed = bed.volumes.trashed().await.unwrap();
            let listed = bed.volumes.list().await.unwrap();
            // A restored volume may lack its name, which comes last: the reaper gives it.
            bed.reap_all().await;
            let listed = if listed.is_empty() { bed.volumes.list().await.unwrap() } else { listed };
            assert_eq!(trashed.len() + listed.len(), 1, "step {steps}: {trashed:?} {listed:?}");
            if !trashed.is_empty() {
                bed.volumes.restore("vm1", Some("vm3")).await.unwrap();
            }
            let name = listed.first().map_or("vm3", |info| info.vault.name.as_str());
            assert_eq!(content(&bed, name).await, b"data", "step {steps}");
            assert_eq!(bed.keys("names/").await.len(), 1, "step {steps}");
        });
        if done {
            return;
        }
    }
    panic!("too many steps");
}

#[test]
fn a_volume_has_its_new_name_with_all_that_it_had_and_the_old_one_is_free() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = begun(&world, &store).await;
        bed.volumes.create(spec("taken")).await.unwrap();
        assert_eq!(kind(bed.volumes.rename("vm1", "taken").await), Kind::Exists);
        assert_eq!(kind(bed.volumes.rename("nobody", "vm2").await), Kind::NotFound);
        assert_eq!(kind(bed.volumes.rename("vm1", "vm1").await), Kind::Invalid);
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(kind(bed.volumes.rename("vm1", "vm2").await), Kind::Conflict, "it is held");
        drop(handle);
        assert_eq!(bed.volumes.rename("vm1", "vm2").await.unwrap().vault.name, "vm2");
        assert_eq!(content(&bed, "vm2").await, b"data", "also what only the log has");
        assert_eq!(kind(bed.volumes.attach("vm1").await), Kind::NotFound);
        bed.volumes.create(spec("vm1")).await.unwrap();
        assert_eq!(content(&bed, "vm1").await, [0; 4]);
        assert_eq!(bed.keys("names/").await.len(), 3);
    });
}

#[test]
fn a_crash_at_any_step_of_a_renaming_leaves_one_of_the_two_names() {
    for steps in 1..400 {
        let (world, store) = (World::new(steps, Faults::none()), Mem::store());
        let bed = world.block_on(async {
            let bed = begun(&world, &store).await;
            bed.faults.set(slow());
            bed
        });
        let done =
            world.block_on_until(Stop::Step(steps), bed.volumes.rename("vm1", "vm2")).is_some();
        drop(bed);
        world.crash_process();
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            let listed = bed.volumes.list().await.unwrap();
            assert_eq!(listed.len(), 1, "step {steps}: {listed:?}");
            let name = listed[0].vault.name.as_str();
            assert_eq!(content(&bed, name).await, b"data", "step {steps}");
            let other = if name == "vm1" { "vm2" } else { "vm1" };
            assert_eq!(kind(bed.volumes.attach(other).await), Kind::NotFound, "step {steps}");
            bed.reap_all().await;
            assert_eq!(bed.keys("names/").await, [format!("names/{name}")], "step {steps}");
            // The other name is free for a new volume.
            bed.volumes.create(spec(other)).await.unwrap();
        });
        if done {
            return;
        }
    }
    panic!("too many steps");
}

#[test]
fn a_volume_goes_to_the_trash_of_a_full_store_with_all_that_the_log_has_of_it() {
    for restarts in [false, true] {
        let (world, small) = (World::new(7, Faults::none()), Small::store());
        let store: Store = small.clone();
        let mut bed = world.block_on(async {
            let bed = begun(&world, &store).await;
            let handle = bed.volumes.attach("vm1").await.unwrap();
            handle.staged().drain().await.unwrap();
            write(&handle, 4, b"more").await.unwrap();
            drop(handle);
            small.fill(true);
            bed.volumes.trash("vm1", false).await.unwrap();
            assert_eq!(kind(bed.volumes.attach("vm1").await), Kind::NotFound);
            bed.volumes.create(spec("vm1")).await.unwrap();
            bed
        });
        if restarts {
            drop(bed);
            world.cut_power();
            bed = world.block_on(async { Bed::start(&world.env(), &store).await });
        }
        world.block_on(async {
            small.fill(false);
            bed.volumes.restore("vm1", Some("vm2")).await.unwrap();
            let handle = bed.volumes.attach("vm2").await.unwrap();
            assert_eq!(read(&handle, 0, 8).await, b"datamore");
            write(&handle, 8, b"most").await.unwrap();
            handle.staged().drain().await.unwrap();
            assert_eq!(read(&handle, 0, 12).await, b"datamoremost");
        });
    }
}

#[test]
fn what_a_volume_in_the_trash_of_a_full_store_owes_goes_with_it() {
    let (world, small) = (World::new(8, Faults::none()), Small::store());
    let store: Store = small.clone();
    world.block_on(async {
        let bed = begun(&world, &store).await;
        small.fill(true);
        bed.volumes.trash("vm1", false).await.unwrap();
        assert_eq!(bed.volumes.purge("vm1").await.unwrap(), 1);
        assert!(bed.keys("volumes/").await.is_empty());
        bed.volumes.stop(false).await.unwrap();
        drop(bed);
        let bed = Bed::start(&world.env(), &store).await;
        assert!(bed.log.unfinished_volumes().await.unwrap().is_empty());
    });
}
