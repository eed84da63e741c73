//! Tests of rollbacks.

use super::bed::{Bed, SIZE, Small, kind, read, spec, write};
use rekindle_base::Kind;
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, Stop, World};
use rekindle_staging::Vault;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Makes a volume with the content A, then B.
async fn planted(bed: &Bed) {
    bed.volumes.create(spec("vm1")).await.unwrap();
    let handle = bed.volumes.attach("vm1").await.unwrap();
    for content in [b"A", b"B"] {
        write(&handle, 0, content).await.unwrap();
        handle.staged().drain().await.unwrap();
        bed.env.sleep(MINUTE).await;
    }
}

async fn content(bed: &Bed) -> Vec<u8> {
    let handle = bed.volumes.attach("vm1").await.unwrap();
    read(&handle, 0, 1).await
}

#[test]
fn a_volume_goes_back_to_an_earlier_content_and_from_there_back_again() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        planted(&bed).await;
        let versions = bed.volumes.versions("vm1").await.unwrap();
        assert_eq!((versions.len(), versions[0].size, versions[0].lost), (1, SIZE, 0));
        let a = versions[0].version.clone();
        // A rollback does not lose changes that are not in the store yet, either.
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"C").await.unwrap();
        assert_eq!(kind(bed.volumes.rollback("vm1", &a, false).await), Kind::Conflict, "held");
        drop(handle);
        assert_eq!(kind(bed.volumes.rollback("vm1", "1-nonsense", false).await), Kind::Invalid);
        let before = bed.vault("vm1").await;
        bed.volumes.rollback("vm1", &a, false).await.unwrap();
        assert_eq!(content(&bed).await, b"A");
        let after = bed.vault("vm1").await;
        assert!(after.generation > before.generation && after.checkpoint >= before.checkpoint);
        assert_eq!(after.begins, after.checkpoint);
        // The newest version is the content before the rollback.
        let c = bed.volumes.versions("vm1").await.unwrap()[0].version.clone();
        bed.volumes.rollback("vm1", &c, false).await.unwrap();
        assert_eq!(content(&bed).await, b"C");
        // The sweep keeps the content of all versions.
        let roots = bed.roots().await.unwrap();
        let vault = bed.vault("vm1").await;
        assert!(vault.versions.iter().all(|version| roots.contains(&version.root)));
        assert!(vault.versions.len() >= 3);
    });
}

#[test]
fn versions_older_than_a_day_are_nobodys_any_more() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        planted(&bed).await;
        let version = bed.volumes.versions("vm1").await.unwrap()[0].version.clone();
        bed.volumes.detach("vm1").await.unwrap();
        let key = Vault::key(bed.vault("vm1").await.id);
        let age = |hours: u64| {
            let (bed, key) = (&bed, &key);
            async move {
                let held = bed.writer.read::<Vault>(key).await.unwrap().unwrap();
                let mut old = held.value.clone();
                let now = bed.env.wall_clock().0;
                old.versions[0].committed = now - hours * 3600 * 1_000_000;
                bed.writer.replace(&held, old).await.unwrap();
            }
        };
        bed.env.sleep(rekindle_staging::versions::CLOCK_SURE).await;
        for (hours, listed, roots) in [(23, 1, 2), (24, 1, 2), (25, 0, 2), (26, 0, 1)] {
            age(hours).await;
            if hours == 25 {
                // The version is not listed any more, but the sweep still keeps it.
                bed.env.sleep(Duration::ZERO).await;
            }
            let (versions, reached) =
                (bed.volumes.versions("vm1").await.unwrap(), bed.roots().await.unwrap());
            assert_eq!((versions.len(), reached.len()), (listed, roots), "{hours}");
        }
        assert_eq!(kind(bed.volumes.rollback("vm1", &version, false).await), Kind::Invalid);
    });
}

#[test]
fn what_the_log_still_has_is_never_replayed_onto_what_a_volume_went_back_to() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    let a = world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        planted(&bed).await;
        let a = bed.volumes.versions("vm1").await.unwrap()[0].version.clone();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, &[b'C'; 4096]).await.unwrap();
        write(&handle, 4096, &[b'D'; 4096]).await.unwrap();
        drop(handle);
        bed.volumes.stop(false).await.unwrap();
        a
    });
    world.cut_power();
    // A change is damaged in the log, so the unfinished changes cannot reach the store.
    let path = "/node/log/00000001.seg";
    let bytes = world.peek(path).unwrap();
    let at = bytes.windows(4096).position(|window| window == [b'C'; 4096]).unwrap();
    assert!(world.flip_bit(path, at as u64 + 99));
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        assert!(
            bed.volumes.rollback("vm1", &a, false).await.is_err(),
            "nothing is given up unasked"
        );
        bed.volumes.rollback("vm1", &a, true).await.unwrap();
        assert_eq!(content(&bed).await, b"A");
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 4096, 1).await, [0]);
        write(&handle, 1, b"new").await.unwrap();
        drop(handle);
        bed.volumes.stop(false).await.unwrap();
    });
    world.cut_power();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 0, 4).await, b"Anew");
        assert_eq!(read(&handle, 4096, 1).await, [0]);
        handle.staged().drain().await.unwrap();
    });
}

#[test]
fn a_crash_at_any_step_of_going_back_leaves_the_one_or_the_other() {
    for steps in 1..600 {
        let (world, store) = (World::new(steps, Faults::none()), Mem::store());
        let (bed, a) = world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            planted(&bed).await;
            let a = bed.volumes.versions("vm1").await.unwrap()[0].version.clone();
            let handle = bed.volumes.attach("vm1").await.unwrap();
            write(&handle, 0, b"C").await.unwrap();
            drop(handle);
            bed.faults.set(Plan { latency: Duration::from_millis(1), ..Plan::default() });
            (bed, a)
        });
        let back = bed.volumes.rollback("vm1", &a, false);
        let done = world.block_on_until(Stop::Step(steps), back).is_some();
        drop(bed);
        world.crash_process();
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            let found = content(&bed).await;
            let expected: &[&[u8]] = if done { &[b"A"] } else { &[b"A", b"C"] };
            assert!(expected.contains(&found.as_slice()), "step {steps}: {found:?}");
        });
        if done {
            return;
        }
    }
    panic!("too many steps");
}

#[test]
fn earlier_contents_do_not_keep_a_full_store_full() {
    let (world, small) = (World::new(4, Faults::none()), Small::store());
    let store: Store = small.clone();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("idle")).await.unwrap();
        for content in 0..4u8 {
            let handle = bed.volumes.attach("idle").await.unwrap();
            write(&handle, 0, &[content + 1]).await.unwrap();
            handle.staged().drain().await.unwrap();
        }
        bed.volumes.create(spec("busy")).await.unwrap();
        let busy = bed.volumes.attach("busy").await.unwrap();
        let kept = async || bed.volumes.versions("idle").await.unwrap().len();
        let mut known = bed.sources(None).await.unwrap();
        assert!(kept().await == 3 && known.roots().count() > 3, "there is room");
        known = bed.sources(Some(&known)).await.unwrap();
        assert!(kept().await == 3 && known.roots().count() > 3, "there is room");
        small.fill(true);
        write(&busy, 0, b"x").await.unwrap();
        let newest = bed.volumes.versions("idle").await.unwrap().remove(0);
        bed.env.sleep(MINUTE).await;
        // Each look of a sweep drops the older half, also of a volume in service, and of one whose
        // vault is as the sweep before has read it.
        let attached = bed.volumes.attach("idle").await.unwrap();
        for (left, marked) in [(1, 2), (0, 1), (0, 1)] {
            known = bed.sources(Some(&known)).await.unwrap();
            assert_eq!((known.roots().count(), kept().await), (marked, left));
            if left == 1 {
                assert_eq!(bed.volumes.versions("idle").await.unwrap()[0], newest);
            }
        }
        small.fill(false);
        busy.staged().drain().await.unwrap();
        write(&attached, 0, b"y").await.unwrap();
        attached.staged().drain().await.unwrap();
        assert_eq!((kept().await, read(&attached, 0, 1).await), (1, b"y".to_vec()), "from now on");
    });
}

#[test]
fn the_version_that_a_volume_goes_back_to_outlives_what_that_commits() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        // All commits fall into one slice of time, which the next commit thins out.
        for content in [b"1", b"2", b"3", b"4", b"5"] {
            write(&handle, 0, content).await.unwrap();
            handle.staged().drain().await.unwrap();
        }
        let listed = bed.volumes.versions("vm1").await.unwrap();
        let oldest = listed.iter().rev().nth(1).unwrap().version.clone();
        write(&handle, 0, b"bad").await.unwrap();
        drop(handle);
        bed.volumes.rollback("vm1", &oldest, false).await.unwrap();
        let found = content(&bed).await;
        assert!([b"1", b"2", b"3"].contains(&&[found[0]]), "{found:?}");
        // All other listed versions are still there.
        let left = bed.volumes.versions("vm1").await.unwrap();
        for version in &listed {
            assert!(left.iter().any(|one| one.version == version.version), "{version:?}");
            bed.volumes.rollback("vm1", &version.version, false).await.unwrap();
        }
    });
}

#[test]
fn a_version_whose_packs_are_gone_is_refused_before_anything_changes() {
    let (world, store) = (World::new(6, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        planted(&bed).await;
        let a = bed.volumes.versions("vm1").await.unwrap()[0].version.clone();
        bed.volumes.stop(false).await.unwrap();
        let root = bed.vault("vm1").await.versions[0].root.unwrap();
        let keys = bed.keys("packs/").await;
        let pack = keys.iter().find(|key| key.contains(&root.pack.to_string())).unwrap();
        bed.writer.store.delete(pack).await.unwrap();
        drop(bed);
        let bed = Bed::start(&world.env(), &store).await;
        let before = bed.vault("vm1").await;
        let refused = bed.volumes.rollback("vm1", &a, false).await.unwrap_err();
        assert!(refused.to_string().contains("the volume stays as it is"), "{refused}");
        assert_eq!(bed.vault("vm1").await, before);
        assert_eq!(content(&bed).await, b"B");
    });
}
