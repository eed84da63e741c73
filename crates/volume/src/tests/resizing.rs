//! Tests of another size, and of other settings, for a volume.

use super::bed::{Bed, SIZE, kind, read, spec, write};
use crate::*;
use rekindle_base::Kind;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Policy};

#[test]
fn a_volume_grows_in_service_and_clients_see_it_when_they_come_anew() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(Spec { size: SIZE / 2, ..spec("vm1") }).await.unwrap();
        let one = bed.volumes.attach("vm1").await.unwrap();
        write(&one, 0, b"data").await.unwrap();
        assert_eq!(bed.volumes.resize("vm1", SIZE, false).await.unwrap().vault.size, SIZE);
        let other = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!((one.vault().size, other.vault().size), (SIZE / 2, SIZE));
        write(&other, SIZE - 4, b"more").await.unwrap();
        other.staged().drain().await.unwrap();
        assert_eq!(bed.vault("vm1").await.size, SIZE, "no commit takes it back");
        drop((one, other));
        bed.volumes.stop(false).await.unwrap();
    });
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(handle.vault().size, SIZE);
        assert_eq!(read(&handle, SIZE - 4, 4).await, b"more");
        assert_eq!(read(&handle, 0, 4).await, b"data");
        drop(handle);
        // A volume grows out of service, too.
        bed.volumes.detach("vm1").await.unwrap();
        bed.volumes.resize("vm1", 2 * SIZE, false).await.unwrap();
        assert_eq!(bed.volumes.attach("vm1").await.unwrap().vault().size, 2 * SIZE);
    });
}

#[test]
fn a_volume_shrinks_only_when_told_so_and_what_was_cut_off_is_an_earlier_version() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"data").await.unwrap();
        write(&handle, SIZE - 4, b"tail").await.unwrap();
        handle.staged().drain().await.unwrap();
        let refused = bed.volumes.resize("vm1", SIZE / 2, false).await.unwrap_err();
        assert!(refused.to_string().contains("--shrink"), "{refused}");
        assert_eq!(kind(bed.volumes.resize("vm1", SIZE / 2, true).await), Kind::Conflict, "held");
        drop(handle);
        assert_eq!(kind(bed.volumes.resize("vm1", 777, true).await), Kind::Invalid);
        assert_eq!(bed.volumes.resize("vm1", SIZE / 2, true).await.unwrap().vault.size, SIZE / 2);
        // The bytes that growing adds are zeros, as on a new disk.
        bed.volumes.resize("vm1", SIZE, false).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(
            (read(&handle, 0, 4).await, read(&handle, SIZE - 4, 4).await),
            (b"data".into(), vec![0; 4])
        );
        drop(handle);
        let versions = bed.volumes.versions("vm1").await.unwrap();
        bed.volumes.rollback("vm1", &versions[0].version, false).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, SIZE - 4, 4).await, b"tail");
    });
}

#[test]
fn other_settings_come_with_a_generation_and_after_all_that_was_acknowledged() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    let copies = |copies| WriteSettings { copies: Some(copies), ..WriteSettings::default() };
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"data").await.unwrap();
        for (settings, why) in [
            (WriteSettings::default(), "no setting"),
            (copies(9), "too many"),
            (WriteSettings { policy: Some(Policy::Through), ..copies(1) }, "leave them out"),
            (
                WriteSettings {
                    policy: Some(Policy::Through),
                    ack: Some(Ack::Memory),
                    ..WriteSettings::default()
                },
                "leave it out",
            ),
        ] {
            let refused = bed.volumes.set("vm1", settings).await.unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let before = bed.vault("vm1").await;
        bed.volumes.set("vm1", copies(0)).await.unwrap();
        assert_eq!(bed.vault("vm1").await.generation, before.generation, "nothing has changed");
        let through = WriteSettings { policy: Some(Policy::Through), ..WriteSettings::default() };
        assert_eq!(bed.volumes.set("vm1", through).await.unwrap().vault.policy, Policy::Through);
        let after = bed.vault("vm1").await;
        assert_eq!(after.generation, before.generation.next());
        assert_eq!((after.owner, after.incarnation), (before.owner, before.incarnation));
        assert_eq!((after.begins, after.leaves), (after.checkpoint, None));
        assert!(after.checkpoint > before.checkpoint, "the store has the write");
        let late = write(&handle, 0, b"late").await.unwrap_err();
        assert!(matches!(late, rekindle_staging::Error::Moved(_)), "{late}");
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 0, 4).await, b"data");
        write(&handle, 4, b"more").await.unwrap();
    });
    // The log of the dead process has nothing that counts under the new settings.
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(handle.vault().policy, Policy::Through);
        assert_eq!(read(&handle, 0, 8).await, b"datamore");
    });
}

#[test]
fn settings_of_a_volume_whose_changes_the_store_does_not_take_stay_as_they_are() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"data").await.unwrap();
        bed.faults.set("gone=1h".parse().unwrap());
        let through = WriteSettings { policy: Some(Policy::Through), ..WriteSettings::default() };
        assert!(bed.volumes.set("vm1", through).await.is_err());
        write(&handle, 4, b"more").await.expect("the client goes on");
        bed.faults.set(Plan::default());
        assert_eq!(read(&handle, 0, 8).await, b"datamore");
        drop(handle);
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(handle.vault().policy, Policy::Back);
        assert_eq!(read(&handle, 0, 4).await, b"data");
    });
}

#[test]
fn settings_that_come_at_once_are_valid_together() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        drop(bed.volumes.attach("vm1").await.unwrap());
        bed.faults.set("latency=20ms".parse().unwrap());
        let through = WriteSettings { policy: Some(Policy::Through), ..WriteSettings::default() };
        let copies = WriteSettings { copies: Some(1), ..WriteSettings::default() };
        let (one, other) =
            futures_util::join!(bed.volumes.set("vm1", through), bed.volumes.set("vm1", copies));
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        let vault = bed.vault("vm1").await;
        assert_eq!(vault.policy == Policy::Through, vault.copies == 0);
        bed.volumes.attach("vm1").await.unwrap();
    });
}
