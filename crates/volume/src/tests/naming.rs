//! Creating, listing and removing by name.

use super::bed::{Bed, SIZE, Small, kind, read, spec, write};
use crate::format::Name;
use crate::*;
use base::{Generation, Kind, NodeId, Serial, VolumeId};
use datastore::backend::mem::Mem;
use datastore::key;
use datastore::layer::fault::Plan;
use env::sim::{Faults, World};
use futures_util::future::join_all;
use std::path::Path;

#[test]
fn a_wrong_wish_is_refused_with_what_to_do() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let wrong = [
            (Spec { name: "a/b".into(), ..spec("x") }, "must not contain"),
            (Spec { name: String::new(), ..spec("x") }, "must not be empty"),
            (Spec { kind: "tape".into(), ..spec("x") }, "use 'block'"),
            (Spec { kind: "Bl\nock".into(), ..spec("x") }, "use 'block'"),
            (Spec { size: 0, ..spec("x") }, "must have a size"),
            (Spec { size: 513, ..spec("x") }, "use 1024"),
            (Spec { size: u64::MAX - 511, ..spec("x") }, "at most"),
            (Spec { size: u64::MAX, ..spec("x") }, "multiple of 512"),
            (Spec { block_size: 5000, ..spec("x") }, "power of two"),
            (Spec { block_size: 2048, ..spec("x") }, "from 4 KiB to 1 MiB"),
            (Spec { block_size: 2 << 20, ..spec("x") }, "from 4 KiB to 1 MiB"),
        ];
        for (spec, advice) in wrong {
            let refused = bed.volumes.create(spec.clone()).await.unwrap_err();
            assert_eq!(refused.kind(), Kind::Invalid, "{spec:?}");
            assert!(refused.to_string().contains(advice), "{refused}");
        }
        assert_eq!(kind(bed.volumes.attach("../x").await), Kind::Invalid);
        assert_eq!(kind(bed.volumes.show("nobody").await), Kind::NotFound);
        assert_eq!(kind(bed.volumes.remove("nobody", true).await), Kind::NotFound);
        assert!(bed.keys("volumes/").await.is_empty());
        assert!(bed.volumes.list().await.unwrap().is_empty());
    });
}

#[test]
fn of_many_creators_of_one_name_one_wins() {
    for seed in 0..20 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        world.block_on(async {
            let here = Bed::start(&world.env(), &store).await;
            let there = world.host("there").env();
            let there = Bed::start_in(Path::new("/node"), NodeId([9; 16]), &there, &store).await;
            let wishes = (0..5).flat_map(|_| {
                [here.volumes.create(spec("vm1")), there.volumes.create(spec("vm1"))]
            });
            let outcomes = join_all(wishes).await;
            let (won, lost): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
            assert_eq!(won.len(), 1, "seed {seed}");
            assert!(lost.into_iter().all(|lost| kind(lost) == Kind::Exists));
            assert_eq!(here.keys("volumes/").await.len(), 1, "the vaults of the others are gone");
            assert_eq!(there.volumes.list().await.unwrap().len(), 1);
        });
    }
}

#[test]
fn a_removed_volume_is_gone_and_its_name_is_free() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("größe 1")).await.unwrap();
        let handle = bed.volumes.attach("größe 1").await.unwrap();
        write(&handle, 0, b"old").await.unwrap();
        match bed.volumes.remove("größe 1", false).await {
            Err(Error::Busy { clients: 1, .. }) => {}
            other => panic!("{other:?}"),
        }
        write(&handle, 0, b"still").await.unwrap();
        bed.volumes.remove("größe 1", true).await.unwrap();
        assert!(write(&handle, 0, b"late").await.is_err(), "the client is let go");
        assert!(bed.keys("names/").await.is_empty() && bed.keys("volumes/").await.is_empty());
        assert_eq!(kind(bed.volumes.attach("größe 1").await), Kind::NotFound);

        bed.volumes.create(spec("größe 1")).await.unwrap();
        let handle = bed.volumes.attach("größe 1").await.unwrap();
        assert_eq!(read(&handle, 0, 5).await, [0; 5]);
        assert_eq!(bed.volumes.show("größe 1").await.unwrap().clients, 1);
    });
}

#[test]
fn the_log_has_nothing_of_a_removed_volume_after_any_restart() {
    for drains in [true, false] {
        let (world, store) = (World::new(3, Faults::none()), Mem::store());
        for round in 0..5 {
            world.block_on(async {
                let bed = Bed::start(&world.env(), &store).await;
                assert_eq!(bed.log.unfinished_volumes().await.unwrap(), [], "round {round}");
                bed.volumes.create(spec("vm1")).await.unwrap();
                let handle = bed.volumes.attach("vm1").await.unwrap();
                for _ in 0..200 {
                    write(&handle, 0, &[7; SIZE as usize]).await.unwrap();
                }
                if drains {
                    handle.staged().drain().await.unwrap();
                }
                drop(handle);
                bed.volumes.remove("vm1", true).await.unwrap();
            });
            world.crash_process();
        }
    }
}

#[test]
fn what_the_log_has_of_a_volume_without_vault_and_name_is_forgotten_for_good_and_of_a_lost_one_kept()
 {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    let id = world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"data").await.unwrap();
        let id = bed.vault("vm1").await.id;
        assert!(!bed.volumes.forget_if_gone(id).await.unwrap(), "it lives");
        store.delete(&Vault::key(id)).await.unwrap();
        id
    });
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        // Lost, not removed: the name leads to it.
        assert_eq!(kind(bed.volumes.forget_if_gone(id).await), Kind::Damaged);
        assert_eq!(bed.log.unfinished_volumes().await.unwrap().len(), 1);
        store.delete(&key::name_key("vm1")).await.unwrap();
        // A store that does not answer says nothing.
        bed.faults.set(Plan { fail_percent: 100.0, ..Plan::default() });
        assert_eq!(kind(bed.volumes.forget_if_gone(id).await), Kind::Unavailable);
        bed.faults.set(Plan::default());
        assert!(bed.volumes.forget_if_gone(id).await.unwrap());
    });
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        assert_eq!(bed.log.unfinished_volumes().await.unwrap(), []);
    });
}

#[test]
fn attach_and_remove_at_once_end_well() {
    for seed in 0..60 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            bed.volumes.create(spec("vm1")).await.unwrap();
            let (attached, removed, made) = futures_util::future::join3(
                bed.volumes.attach("vm1"),
                bed.volumes.remove("vm1", seed % 2 == 0),
                bed.volumes.create(spec("vm1")),
            )
            .await;
            // Whatever came first, what is said is so.
            let shown = bed.volumes.show("vm1").await;
            match (&removed, &made) {
                (Ok(()), Err(Error::Exists(_))) => assert_eq!(kind(shown), Kind::NotFound),
                (Ok(()), Ok(made)) => assert_eq!(shown.unwrap().vault.id, made.vault.id),
                (Err(Error::Busy { .. }), Err(Error::Exists(_))) => {
                    assert!(shown.is_ok() && attached.is_ok())
                }
                other => panic!("seed {seed}: {other:?}"),
            }
            assert_eq!(bed.keys("names/").await.len(), bed.keys("volumes/").await.len());
        });
    }
}

#[test]
fn thousands_are_listed_by_name_with_their_state() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let template = bed.volumes.create(spec("template")).await.unwrap().vault;
        for number in 0..3000u32 {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&number.to_be_bytes());
            let name = format!("volume {number:04}");
            let vault = Vault { id: VolumeId(id), name: name.clone(), ..template.clone() };
            bed.writer.create(&Vault::key(vault.id), vault).await.unwrap();
            let record = Name { name: name.clone(), id: VolumeId(id) };
            bed.writer.create(&key::name_key(&name), record).await.unwrap();
        }
        let _one = bed.volumes.attach("volume 1234").await.unwrap();
        let all = bed.volumes.list().await.unwrap();
        assert_eq!(all.len(), 3001);
        assert!(all.is_sorted_by(|one, other| one.vault.name < other.vault.name));
        for info in all {
            let is_attached = info.vault.name == "volume 1234";
            assert_eq!(info.state, if is_attached { State::Attached } else { State::Unattached });
            assert_eq!(info.backlog.is_some(), is_attached);
        }
    });
}

#[test]
fn of_two_vaults_with_one_name_the_name_says_which() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let vault = bed.volumes.create(spec("vm1")).await.unwrap().vault;
        let rest = Vault { id: VolumeId([1; 16]), size: 2 * SIZE, ..vault.clone() };
        bed.writer.create(&Vault::key(rest.id), rest).await.unwrap();
        let all = bed.volumes.list().await.unwrap();
        assert_eq!(all.iter().map(|info| info.vault.id).collect::<Vec<_>>(), [vault.id]);
        assert_eq!(bed.volumes.show("vm1").await.unwrap().vault.id, vault.id);
    });
}

#[test]
fn the_reaper_ends_removals_clears_failed_creations_and_gives_names_back() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let template = bed.volumes.create(spec("good")).await.unwrap().vault;
        let make = async |tag: u8, change: &dyn Fn(&mut Vault)| {
            let mut vault =
                Vault { id: VolumeId([tag; 16]), name: format!("v{tag}"), ..template.clone() };
            change(&mut vault);
            bed.writer.create(&Vault::key(vault.id), vault).await.unwrap();
        };
        // A creation that failed, a removal that was cut short, a volume whose name got lost.
        make(1, &|_| {}).await;
        make(2, &|vault| vault.state = VaultState::Deleted).await;
        let record = Name { name: "v2".into(), id: VolumeId([2; 16]) };
        bed.writer.create(&key::name_key("v2"), record).await.unwrap();
        make(3, &|vault| {
            (vault.owner, vault.generation, vault.checkpoint) =
                (Some(bed.writer.node), Generation(4), Serial(9));
        })
        .await;

        assert_eq!(kind(bed.volumes.attach("v2").await), Kind::NotFound);
        assert_eq!(bed.volumes.list().await.unwrap().len(), 1);
        let reaped = bed.volumes.reap_orphans().await.unwrap();
        assert_eq!(reaped, Reaped { removed: 1, ..Reaped::default() }, "others may be young");
        let reaped = bed.reap_all().await;
        assert_eq!(reaped, Reaped { orphans: 1, renamed: 1, ..Reaped::default() });
        assert_eq!(bed.reap_all().await, Reaped::default());
        let names: Vec<String> =
            bed.volumes.list().await.unwrap().into_iter().map(|info| info.vault.name).collect();
        assert_eq!(names, ["good", "v3"]);
        assert_eq!(bed.keys("volumes/").await.len(), 2);
    });
}

#[test]
fn a_name_of_a_removed_volume_can_be_had_again_before_reaping() {
    let (world, store) = (World::new(6, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let old = bed.volumes.create(spec("vm1")).await.unwrap().vault;
        let held = bed.writer.read::<Vault>(&Vault::key(old.id)).await.unwrap().unwrap();
        bed.writer
            .replace(&held, Vault { state: VaultState::Deleted, ..old.clone() })
            .await
            .unwrap();
        let new = bed.volumes.create(spec("vm1")).await.unwrap().vault;
        assert_ne!(new.id, old.id);
        assert_eq!(bed.volumes.reap_orphans().await.unwrap().removed, 1);
        assert_eq!(bed.vault("vm1").await.id, new.id, "the reaper leaves the new one its name");
    });
}

#[test]
fn roots_are_those_of_all_volumes_and_the_newest() {
    let (world, store) = (World::new(7, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        for name in ["a", "b", "c"] {
            bed.volumes.create(spec(name)).await.unwrap();
            let handle = bed.volumes.attach(name).await.unwrap();
            write(&handle, 0, name.as_bytes()).await.unwrap();
            handle.staged().drain().await.unwrap();
        }
        bed.volumes.detach("a").await.unwrap();
        let mut expected = Vec::new();
        for name in ["a", "b", "c"] {
            expected.push(bed.vault(name).await.root);
        }
        let roots = bed.volumes.roots().await.unwrap();
        assert!(expected.iter().all(|root| root.is_some() && roots.contains(root)));
        assert!(roots.iter().all(|root| expected.contains(root)));
    });
}

#[test]
fn a_listing_that_leaves_out_the_vault_of_a_name_gives_no_roots() {
    let (world, small) = (World::new(8, Faults::none()), Small::store());
    world.block_on(async {
        let store: datastore::Store = small.clone();
        let bed = Bed::start(&world.env(), &store).await;
        for name in ["a", "b", "c"] {
            bed.volumes.create(spec(name)).await.unwrap();
        }
        bed.volumes.roots().await.unwrap();
        *small.unlisted.lock() = Some(Vault::key(bed.vault("b").await.id));
        let error = bed.volumes.roots().await.unwrap_err();
        assert!(error.to_string().contains("the name b"), "{error}");
        assert_eq!(error.kind(), Kind::Unavailable);
        // A name that leads nowhere is no reason to keep everything for ever.
        *small.unlisted.lock() = None;
        small.inner.delete(&Vault::key(bed.vault("b").await.id)).await.unwrap();
        bed.volumes.roots().await.unwrap();
    });
}
