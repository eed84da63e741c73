//! Tests of snapshots and clones.

use super::bed::{Bed, SIZE, kind, read, spec, write};
use crate::{Handle, records};
use rekindle_base::{Kind, NodeId};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_datastore::record::Writer;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Policy, Vault};
use std::time::Duration;

/// Makes the volume `vm1`, and a client of it.
async fn made(bed: &Bed) -> Handle {
    bed.volumes.create(spec("vm1")).await.unwrap();
    bed.volumes.attach("vm1").await.unwrap()
}

async fn content(bed: &Bed, name: &str) -> Vec<u8> {
    let handle = bed.volumes.attach(name).await.unwrap();
    read(&handle, 0, 1).await
}

#[test]
fn a_snapshot_has_what_was_acknowledged_before_and_nothing_of_later() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = made(&bed).await;
        write(&handle, 0, b"A").await.unwrap();
        let taken = bed.volumes.take_snapshot("vm1", "monday").await.unwrap();
        assert_eq!((taken.stored, taken.size), (false, SIZE), "only the log has it so far");
        // The later change is in the same backlog, over the same bytes.
        write(&handle, 0, b"B").await.unwrap();
        handle.staged().drain().await.unwrap();
        let listed = bed.volumes.snapshots("vm1").await.unwrap();
        assert_eq!((listed.len(), listed[0].stored), (1, true));
        bed.volumes.clone_of("vm1", "monday", "vm2").await.unwrap();
        assert_eq!(
            (content(&bed, "vm1").await, content(&bed, "vm2").await),
            (b"B".into(), b"A".into())
        );
        // Each goes its own way.
        let clone = bed.volumes.attach("vm2").await.unwrap();
        write(&clone, 0, b"C").await.unwrap();
        clone.staged().drain().await.unwrap();
        drop((clone, handle));
        assert_eq!(
            (content(&bed, "vm1").await, content(&bed, "vm2").await),
            (b"B".into(), b"C".into())
        );
        bed.volumes.rollback("vm1", "monday", false).await.unwrap();
        assert_eq!(content(&bed, "vm1").await, b"A");
        assert_eq!(bed.volumes.snapshots("vm1").await.unwrap().len(), 1, "it is kept");
    });
}

#[test]
fn a_volume_goes_back_also_when_it_has_not_heard_yet_of_the_commit_with_the_snapshot() {
    let (world, store) = (World::new(8, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = made(&bed).await;
        let onlooker = Writer::new(bed.env.clone(), store.clone(), NodeId([9; 16]));
        let is_stored = |vault: &Vault| vault.snapshots.iter().all(|one| one.content.is_some());
        for number in 0.. {
            assert!(number < 50, "no commit whose answer did not come");
            let name = format!("s{number}");
            write(&handle, 0, name.as_bytes()).await.unwrap();
            bed.volumes.take_snapshot("vm1", &name).await.unwrap();
            bed.faults.set("latency=5ms,silent=30%".parse().unwrap());
            let staged = handle.staged().clone();
            let drained = staged.clone();
            bed.env.spawn("drain", async move { drop(drained.drain().await) });
            while !is_stored(&records::find(&onlooker, "vm1").await.unwrap().value) {
                bed.env.sleep(Duration::from_millis(100)).await;
            }
            bed.faults.set(Plan::default());
            if is_stored(&staged.vault()) {
                continue;
            }
            // The store has carried the commit out, and its answer has not come.
            drop((staged, handle));
            bed.volumes.rollback("vm1", &name, false).await.unwrap();
            let handle = bed.volumes.attach("vm1").await.unwrap();
            assert_eq!(read(&handle, 0, name.len()).await, name.as_bytes());
            break;
        }
    });
}

#[test]
fn a_snapshot_of_what_only_the_log_has_outlives_a_kill() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = made(&bed).await;
        for (at, byte) in [(0, b"A"), (1, b"A")] {
            write(&handle, at * 4096, byte).await.unwrap();
        }
        assert!(!bed.volumes.take_snapshot("vm1", "s").await.unwrap().stored);
        write(&handle, 0, b"B").await.unwrap();
        handle.staged().flush().await.unwrap();
    });
    world.cut_power();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        // It is brought into the store when it is asked for.
        bed.volumes.clone_of("vm1", "s", "vm2").await.unwrap();
        let clone = bed.volumes.attach("vm2").await.unwrap();
        assert_eq!(read(&clone, 0, 1).await, b"A");
        assert_eq!(read(&clone, 4096, 1).await, b"A");
        assert_eq!(content(&bed, "vm1").await, b"B");
    });
}

#[test]
fn a_snapshot_outlives_a_power_cut_also_where_writes_need_not() {
    let (world, store) = (World::new(6, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(crate::Spec { ack: Ack::Memory, ..spec("vm1") }).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"A").await.unwrap();
        assert!(!bed.volumes.take_snapshot("vm1", "s").await.unwrap().stored);
        write(&handle, 0, b"B").await.unwrap();
    });
    world.cut_power();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"C").await.unwrap();
        bed.volumes.clone_of("vm1", "s", "vm2").await.unwrap();
        assert_eq!(content(&bed, "vm2").await, b"A");
    });
}

#[test]
fn a_snapshot_has_what_the_log_had_before_a_start_however_soon_it_is_taken() {
    for seed in 0..20 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            let handle = made(&bed).await;
            // More than a start lists at once.
            for at in 0..10 {
                write(&handle, at * 4096, b"A").await.unwrap();
            }
        });
        world.crash_process();
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            bed.volumes.take_snapshot("vm1", "s").await.unwrap();
            bed.volumes.clone_of("vm1", "s", "vm2").await.unwrap();
            let clone = bed.volumes.attach("vm2").await.unwrap();
            for at in 0..10 {
                assert_eq!(read(&clone, at * 4096, 1).await, b"A", "seed {seed}, block {at}");
            }
        });
    }
}

#[test]
fn a_volume_whose_writes_wait_for_the_store_has_snapshots_too() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let through = with_policy(Policy::Through);
        bed.volumes.create(through).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert!(bed.volumes.take_snapshot("vm1", "empty").await.unwrap().stored);
        write(&handle, 0, b"A").await.unwrap();
        assert!(bed.volumes.take_snapshot("vm1", "a").await.unwrap().stored);
        write(&handle, 0, b"B").await.unwrap();
        bed.volumes.clone_of("vm1", "a", "vm2").await.unwrap();
        bed.volumes.clone_of("vm1", "empty", "vm3").await.unwrap();
        assert_eq!(content(&bed, "vm2").await, b"A");
        assert_eq!(content(&bed, "vm3").await, b"\0");
    });
}

fn with_policy(policy: Policy) -> crate::Spec {
    crate::Spec { policy, ..spec("vm1") }
}

#[test]
fn a_snapshot_keeps_its_content_from_the_sweep_until_it_is_removed() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = made(&bed).await;
        write(&handle, 0, b"A").await.unwrap();
        bed.volumes.take_snapshot("vm1", "s").await.unwrap();
        handle.staged().drain().await.unwrap();
        let vault = bed.vault("vm1").await;
        let root = vault.snapshots[0].content.as_ref().unwrap().root;
        assert!(root.is_some() && root == vault.root);
        write(&handle, 0, b"B").await.unwrap();
        handle.staged().drain().await.unwrap();
        drop(handle);
        bed.volumes.detach("vm1").await.unwrap();
        // Versions end after a day; a snapshot does not.
        let held = bed.writer.read::<Vault>(&Vault::key(vault.id)).await.unwrap().unwrap();
        let old = Vault { versions: Vec::new(), ..held.value.clone() };
        bed.writer.replace(&held, old).await.unwrap();
        assert!(bed.roots().await.unwrap().contains(&root));
        bed.volumes.remove_snapshot("vm1", "s").await.unwrap();
        assert!(!bed.roots().await.unwrap().contains(&root));
        let vault: Vault = bed.vault("vm1").await;
        assert_eq!((vault.snapshots.len(), vault.snapshots_taken), (0, 1));
        // No number is given twice.
        bed.volumes.take_snapshot("vm1", "s").await.unwrap();
        assert_eq!(bed.vault("vm1").await.snapshots[0].number, 2);
    });
}

#[test]
fn what_cannot_be_a_snapshot_or_a_clone_is_refused() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        for bad in ["", ".", "a/b", "a@b", "x\u{200b}"] {
            assert_eq!(kind(bed.volumes.take_snapshot("vm1", bad).await), Kind::Invalid, "{bad:?}");
        }
        bed.volumes.take_snapshot("vm1", "s").await.unwrap();
        assert_eq!(kind(bed.volumes.take_snapshot("vm1", "s").await), Kind::Exists);
        assert_eq!(kind(bed.volumes.take_snapshot("vm9", "s").await), Kind::NotFound);
        assert_eq!(kind(bed.volumes.remove_snapshot("vm1", "t").await), Kind::NotFound);
        assert_eq!(kind(bed.volumes.clone_of("vm1", "t", "vm2").await), Kind::NotFound);
        bed.volumes.create(spec("vm2")).await.unwrap();
        let taken = bed.volumes.clone_of("vm1", "s", "vm2").await;
        assert_eq!(kind(taken), Kind::Exists);
        let vaults = bed.keys("volumes/").await.len();
        assert_eq!(vaults, 2, "nothing is left of the clone");
    });
}

#[test]
fn a_snapshot_is_taken_or_not_when_the_store_loses_replies() {
    for seed in 0..40 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        let taken = world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            let handle = made(&bed).await;
            write(&handle, 0, b"A").await.unwrap();
            bed.faults.set(Plan { lie_percent: 50.0, fail_percent: 20.0, ..Plan::default() });
            let taken = bed.volumes.take_snapshot("vm1", "s").await;
            let is_retryable = taken.as_ref().err().is_none_or(|error| error.kind().is_retryable());
            assert!(is_retryable, "seed {seed}: one that landed is not tried again: {taken:?}");
            write(&handle, 0, b"B").await.unwrap();
            if seed % 2 == 0 {
                let _ = bed.env.timeout(Duration::from_secs(20), handle.staged().drain()).await;
            }
            taken.is_ok()
        });
        world.crash_process();
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            assert_eq!(content(&bed, "vm1").await, b"B");
            let listed = bed.volumes.snapshots("vm1").await.unwrap();
            assert!(!taken || listed.len() == 1, "seed {seed}: one that was taken is there");
            if listed.len() == 1 {
                bed.volumes.clone_of("vm1", "s", "vm2").await.unwrap();
                assert_eq!(content(&bed, "vm2").await, b"A", "seed {seed}");
            }
        });
    }
}

#[test]
fn a_clone_has_no_name_if_its_snapshot_went_meanwhile() {
    let mut outcomes = std::collections::BTreeMap::new();
    for tenths in 0..120 {
        let (world, store) = (World::new(tenths, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            let handle = made(&bed).await;
            write(&handle, 0, b"A").await.unwrap();
            bed.volumes.take_snapshot("vm1", "s").await.unwrap();
            handle.staged().drain().await.unwrap();
            bed.faults.set(Plan { latency: Duration::from_millis(1), ..Plan::default() });
            let remove = async {
                bed.env.sleep(Duration::from_micros(100 * tenths)).await;
                bed.volumes.remove_snapshot("vm1", "s").await.unwrap();
            };
            let (made, ()) = futures_util::join!(bed.volumes.clone_of("vm1", "s", "vm2"), remove);
            let vaults = bed.keys("volumes/").await.len();
            let outcome = made.map(drop).map_err(|error| error.to_string());
            assert_eq!(vaults, if outcome.is_ok() { 2 } else { 1 }, "{outcome:?}");
            *outcomes.entry(outcome).or_insert(0) += 1;
        });
    }
    // Before it was read, after it was read, and after the name was given.
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
}

#[test]
fn a_clone_whose_outcome_the_store_does_not_say_has_no_name_that_leads_nowhere() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..1200 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        let tenths = seed % 120;
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            let handle = made(&bed).await;
            write(&handle, 0, b"A").await.unwrap();
            bed.volumes.take_snapshot("vm1", "s").await.unwrap();
            handle.staged().drain().await.unwrap();
            // For a moment the answers to writes are lost, and then the store hardly answers.
            let well = Plan { latency: Duration::from_millis(1), ..Plan::default() };
            bed.faults.set(well.clone());
            let troubles = async {
                let moment = Duration::from_micros(1000);
                bed.env.sleep(Duration::from_micros(100 * tenths)).await;
                bed.faults.set(Plan { lie_percent: 100.0, ..well.clone() });
                bed.env.sleep(moment).await;
                bed.faults.set(Plan { fail_percent: 95.0, ..well.clone() });
            };
            let (cloned, ()) =
                futures_util::join!(bed.volumes.clone_of("vm1", "s", "vm2"), troubles);
            bed.faults.set(Plan::default());
            let names = bed.keys("names/").await.len();
            let vaults = bed.keys("volumes/").await.len();
            assert!(names <= vaults, "seed {seed}: {cloned:?}");
            outcomes.insert((cloned.is_ok(), names, vaults));
        });
    }
    for wanted in [(true, 2, 2), (false, 1, 1), (false, 1, 2), (false, 2, 2)] {
        assert!(outcomes.contains(&wanted), "{outcomes:?}");
    }
}
