//! Tests of creating, listing and removing by name.

use super::bed::{Bed, SIZE, Small, kind, read, spec, write};
use crate::format::Name;
use crate::*;
use futures_util::future::join_all;
use rekindle_base::{Generation, Kind, NodeId, Serial, VolumeId};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::key;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Vault, VaultState};
use std::path::Path;
use std::time::Duration;

#[test]
fn a_wrong_wish_is_refused_with_what_to_do() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let wrong = [
            (Spec { name: "a/b".into(), ..spec("x") }, "must not contain"),
            (Spec { name: String::new(), ..spec("x") }, "must not be empty"),
            (Spec { kind: "tape".into(), ..spec("x") }, "use 'block' or 'map'"),
            (Spec { kind: "Bl\nock".into(), ..spec("x") }, "use 'block' or 'map'"),
            (Spec { size: 0, ..spec("x") }, "must have a size"),
            (Spec { size: 513, ..spec("x") }, "use 1024"),
            (Spec { size: u64::MAX - 511, ..spec("x") }, "at most"),
            (Spec { size: u64::MAX, ..spec("x") }, "multiple of 512"),
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
        // The vault is lost, not removed: the name leads to it.
        assert_eq!(kind(bed.volumes.forget_if_gone(id).await), Kind::Damaged);
        assert_eq!(bed.log.unfinished_volumes().await.unwrap().len(), 1);
        store.delete(&key::name_key("vm1")).await.unwrap();
        // A store that does not answer proves nothing.
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
            // In any order, the volume shown agrees with the answers.
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

/// Leaves the name `left` as a renaming from it to `to` does that breaks off after the vault has
/// its new name.
async fn break_off_a_renaming(bed: &Bed, left: &str, to: &str) -> Vault {
    bed.volumes.create(spec(left)).await.unwrap();
    bed.volumes.rename(left, to).await.unwrap();
    let held = records::find(&bed.writer, to).await.unwrap();
    let record = Name { name: left.to_owned(), id: held.value.id };
    bed.writer.create(&key::name_key(left), record).await.unwrap();
    let half = Vault { also: Some(left.to_owned()), ..held.value.clone() };
    bed.writer.replace(&held, half).await.unwrap().value
}

/// Makes the vault of a creation that broke off before it gave the name.
async fn break_off_a_creation(bed: &Bed, of: &Vault, name: &str, id: u8) -> VolumeId {
    let fresh = Vault { also: None, name: name.to_owned(), id: VolumeId([id; 16]), ..of.clone() };
    bed.writer.create(&Vault::key(fresh.id), fresh).await.unwrap().value.id
}

#[test]
fn a_vault_whose_name_leads_to_another_is_listed_by_nobody_however_often_they_look() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let there = world.host("there").env();
        let there = Bed::start_in(Path::new("/node"), NodeId([9; 16]), &there, &store).await;
        let vault = break_off_a_renaming(&bed, "mine", "other").await;
        let nameless = break_off_a_creation(&bed, &vault, "mine", 1).await;
        for round in 0..3 {
            for bed in [&bed, &there] {
                for listed in [bed.volumes.list().await, bed.volumes.glance().await] {
                    let ids: Vec<_> = listed.unwrap().iter().map(|info| info.vault.id).collect();
                    assert_eq!(ids, [vault.id], "round {round}");
                }
                assert_eq!(*bed.volumes.names("block").await.unwrap(), ["other"]);
            }
            assert_eq!(kind(bed.volumes.attach("mine").await), Kind::NotFound);
        }
        // Once the name leads there, the volume is listed, by those that have looked before, too.
        let held = records::name(&bed.writer, "mine").await.unwrap().unwrap();
        let record = Name { name: "mine".to_owned(), id: nameless };
        bed.writer.replace(&held, record).await.unwrap();
        for bed in [&bed, &there] {
            for listed in [bed.volumes.list().await, bed.volumes.glance().await] {
                let ids: Vec<_> = listed.unwrap().iter().map(|info| info.vault.id).collect();
                assert_eq!(ids, [nameless, vault.id]);
            }
        }
    });
}

#[test]
fn a_creation_a_renaming_and_a_restore_end_a_renaming_of_their_node_that_left_the_name() {
    for way in 0..3 {
        let (world, store) = (World::new(4, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            let there = world.host("there").env();
            let there = Bed::start_in(Path::new("/node"), NodeId([9; 16]), &there, &store).await;
            for name in ["else", "gone"] {
                bed.volumes.create(spec(name)).await.unwrap();
                there.volumes.create(spec(&format!("{name} there"))).await.unwrap();
            }
            bed.volumes.trash("gone", false).await.unwrap();
            there.volumes.trash("gone there", false).await.unwrap();
            let vault = break_off_a_renaming(&bed, "mine", "other").await;
            break_off_a_creation(&bed, &vault, "mine", 1).await;
            let give = async |bed: &Bed, suffix: &str| match way {
                0 => bed.volumes.create(spec("mine")).await,
                1 => bed.volumes.rename(&format!("else{suffix}"), "mine").await,
                _ => bed.volumes.restore(&format!("gone{suffix}"), Some("mine")).await,
            };
            // Another node cannot know that the renaming is over.
            assert_eq!(kind(give(&there, " there").await), Kind::Exists, "way {way}");
            let given = give(&bed, "").await.unwrap().vault;
            assert_eq!(bed.vault("mine").await.id, given.id, "way {way}");
            let other = bed.vault("other").await;
            assert_eq!((other.id, other.also), (vault.id, None), "way {way}");
            let all = bed.volumes.list().await.unwrap();
            let shown = all.iter().filter(|info| info.vault.name == "mine");
            assert_eq!(shown.map(|info| info.vault.id).collect::<Vec<_>>(), [given.id]);
            for info in all {
                bed.volumes.attach(&info.vault.name).await.unwrap();
            }
            bed.reap_all().await;
            all_have_their_names(&bed, &format!("way {way}")).await;
        });
    }
}

#[test]
fn a_name_whose_record_is_damaged_is_listed_as_damaged() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        store.put(&key::name_key("vm1"), bytes::Bytes::from_static(b"{")).await.unwrap();
        for listed in [bed.volumes.list().await, bed.volumes.glance().await] {
            let listed = listed.unwrap();
            let found: Vec<_> = listed.iter().map(|one| (&*one.vault.name, one.state)).collect();
            assert_eq!(found, [("vm1", State::Error)]);
        }
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
        // A failed creation, an interrupted removal, and a volume that lost its name.
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
        let roots = bed.roots().await.unwrap();
        assert!(expected.iter().all(|root| root.is_some() && roots.contains(root)));
        assert!(roots.iter().all(|root| expected.contains(root)));
    });
}

#[test]
fn a_listing_that_leaves_out_the_vault_of_a_name_gives_no_roots() {
    let (world, small) = (World::new(8, Faults::none()), Small::store());
    world.block_on(async {
        let store: rekindle_datastore::Store = small.clone();
        let bed = Bed::start(&world.env(), &store).await;
        for name in ["a", "b", "c"] {
            bed.volumes.create(spec(name)).await.unwrap();
        }
        bed.roots().await.unwrap();
        *small.unindexed.lock() = Some(Vault::key(bed.vault("b").await.id));
        let error = bed.roots().await.unwrap_err();
        assert!(error.to_string().contains("the name b"), "{error}");
        assert_eq!(error.kind(), Kind::Unavailable);
        // A name that leads nowhere must not keep everything for ever.
        *small.unindexed.lock() = None;
        small.inner.delete(&Vault::key(bed.vault("b").await.id)).await.unwrap();
        bed.roots().await.unwrap();
    });
}

/// Checks that every name leads to a volume that has it, and that every live volume has its name.
async fn all_have_their_names(bed: &Bed, context: &str) {
    let mut named = Vec::new();
    for key in bed.keys("names/").await {
        let name = key::name_of_key(&key).expect("the key of a name");
        let vault = records::find(&bed.writer, &name).await;
        named.push(vault.unwrap_or_else(|error| panic!("{context}: '{name}': {error}")).value.id);
    }
    for id in records::vault_ids(&bed.writer).await.unwrap() {
        let vault = records::vault(&bed.writer, id).await.unwrap().expect("listed").value;
        let is_live = vault.state == VaultState::Live;
        assert!(!is_live || named.contains(&id), "{context}: '{}' has no name", vault.name);
    }
}

#[test]
fn a_renaming_or_a_restore_that_is_killed_anywhere_leaves_no_name_that_leads_nowhere() {
    for (cut, is_restore, is_owned) in (0..40).flat_map(|cut| {
        [(cut, false, false), (cut, false, true), (cut, true, false), (cut, true, true)]
    }) {
        let context = format!("killed after {cut} ms, restore: {is_restore}, owned: {is_owned}");
        let (world, store) = (World::new(cut, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            bed.volumes.create(spec("old")).await.unwrap();
            if is_owned {
                let handle = bed.volumes.attach("old").await.unwrap();
                write(&handle, 0, b"kept").await.unwrap();
                handle.staged().drain().await.unwrap();
            }
            if is_restore {
                bed.volumes.trash("old", true).await.unwrap();
            }
            bed.faults.set("latency=2ms".parse().unwrap());
            let work = async {
                match is_restore {
                    true => bed.volumes.restore("old", Some("new")).await.map(drop),
                    false => bed.volumes.rename("old", "new").await.map(drop),
                }
            };
            let _ = bed.env.timeout(Duration::from_millis(cut), work).await;
        });
        world.crash_process();
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            // The volume, in whatever state, can be removed before the reaper has looked.
            let mut removed = 0;
            for name in ["old", "new"] {
                removed += usize::from(bed.volumes.remove(name, true).await.is_ok());
            }
            removed += usize::from(bed.volumes.purge("old").await.is_ok());
            assert_eq!(removed, 1, "{context}");
            for name in ["old", "new"] {
                bed.volumes
                    .create(spec(name))
                    .await
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
            }
            all_have_their_names(&bed, &context).await;
        });
    }
}

#[test]
fn what_a_killed_renaming_left_is_reaped() {
    for cut in 0..40 {
        let (world, store) = (World::new(cut, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            bed.volumes.create(spec("old")).await.unwrap();
            let handle = bed.volumes.attach("old").await.unwrap();
            write(&handle, 0, b"kept").await.unwrap();
            handle.staged().drain().await.unwrap();
            drop(handle);
            bed.faults.set("latency=2ms".parse().unwrap());
            let work = bed.volumes.rename("old", "new");
            let _ = bed.env.timeout(Duration::from_millis(cut), work).await;
        });
        world.crash_process();
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            bed.reap_all().await;
            assert_eq!(bed.keys("names/").await.len(), 1, "{cut}");
            all_have_their_names(&bed, &cut.to_string()).await;
            let name = bed.volumes.list().await.unwrap().remove(0).vault.name;
            assert_eq!(bed.vault(&name).await.also, None);
            let handle = bed.volumes.attach(&name).await.unwrap();
            assert_eq!(read(&handle, 0, 4).await, *b"kept");
        });
    }
}

#[test]
fn nobody_gets_the_name_that_another_node_is_about_to_give() {
    let mut won_by_both = [0, 0];
    for seed in 0..200u64 {
        let context = format!("seed {seed}");
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        world.block_on(async {
            let here = Bed::start(&world.env(), &store).await;
            let there = world.host("there").env();
            let there = Bed::start_in(Path::new("/node"), NodeId([9; 16]), &there, &store).await;
            here.volumes.create(spec("old")).await.unwrap();
            let is_owned = seed % 2 == 0;
            if is_owned {
                let handle = here.volumes.attach("old").await.unwrap();
                write(&handle, 0, b"kept").await.unwrap();
                handle.staged().drain().await.unwrap();
            }
            let is_restore = seed % 4 >= 2;
            if is_restore {
                here.volumes.trash("old", true).await.unwrap();
            }
            here.faults.set("latency=5ms".parse().unwrap());
            there.faults.set("latency=1ms".parse().unwrap());
            let renaming = async {
                match is_restore {
                    true => here.volumes.restore("old", Some("new")).await,
                    false => here.volumes.rename("old", "new").await,
                }
            };
            let taking = async {
                there.env.sleep(Duration::from_millis(seed % 50)).await;
                let created = there.volumes.create(spec("new")).await;
                if seed % 3 == 0 {
                    there.reap_all().await;
                }
                created
            };
            let (renamed, created) = futures_util::future::join(renaming, taking).await;
            won_by_both[usize::from(renamed.is_ok())] += 1;
            assert!(renamed.is_err() || created.is_err(), "{context}: both have it");
            here.faults.set(Plan::default());
            there.faults.set(Plan::default());
            for _ in 0..2 {
                here.reap_all().await;
                there.reap_all().await;
            }
            all_have_their_names(&here, &context).await;
        });
    }
    assert!(won_by_both.iter().all(|&count| count > 10), "{won_by_both:?}");
}

#[test]
fn a_restored_volume_gets_a_name_that_a_new_one_could_have() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm")).await.unwrap();
        bed.volumes.trash("vm", true).await.unwrap();
        let refused = bed.volumes.restore("vm", Some("vm\u{200b}")).await;
        assert_eq!(kind(refused), Kind::Invalid);
        bed.volumes.restore("vm", None).await.unwrap();
    });
}

#[test]
fn a_volume_that_another_node_removes_at_this_moment_is_not_called_damaged() {
    for (delay, is_trashed) in (0..100).flat_map(|delay| [(delay, false), (delay, true)]) {
        let (world, store) = (World::new(delay, Faults::none()), Mem::store());
        world.block_on(async {
            let here = Bed::start(&world.env(), &store).await;
            let there = world.host("there").env();
            let there = Bed::start_in(Path::new("/node"), NodeId([9; 16]), &there, &store).await;
            here.volumes.create(spec("v")).await.unwrap();
            here.faults.set("latency=1ms".parse().unwrap());
            // The other node removes the volume between this node's looks at the name and at the
            // vault.
            there.faults.set("latency=20ms".parse().unwrap());
            let removing = async {
                here.env.sleep(Duration::from_millis(delay)).await;
                here.volumes.remove("v", true).await
            };
            let also = async {
                match is_trashed {
                    true => there.volumes.trash("v", false).await,
                    false => there.volumes.remove("v", false).await,
                }
            };
            let (_, also) = futures_util::future::join(removing, also).await;
            if let Err(error) = also {
                assert_ne!(error.kind(), Kind::Damaged, "after {delay} ms: {error}");
            }
        });
    }
}
