//! Tests of damage: a damaged volume does not affect the others.

use super::bed::{Bed, kind, read, spec, write};
use crate::*;
use bytes::Bytes;
use rekindle_base::Kind;
use rekindle_datastore::backend::mem::Mem;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::Vault;

async fn damage(bed: &Bed, key: &str) {
    bed.store.put(key, Bytes::from_static(b"{ not a record")).await.unwrap();
}

#[test]
fn a_damaged_vault_affects_that_volume_only() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        for name in ["a", "b", "c"] {
            bed.volumes.create(spec(name)).await.unwrap();
        }
        let id = bed.vault("b").await.id;
        damage(&bed, &Vault::key(id)).await;

        assert_eq!(kind(bed.volumes.attach("b").await), Kind::Damaged);
        assert_eq!(
            kind(bed.volumes.attach("b").await),
            Kind::Damaged,
            "the next client tries again"
        );
        for name in ["a", "c"] {
            let handle = bed.volumes.attach(name).await.unwrap();
            write(&handle, 0, b"fine").await.unwrap();
            assert_eq!(read(&handle, 0, 4).await, b"fine");
        }
        let all = bed.volumes.list().await.unwrap();
        let states: Vec<_> =
            all.iter().map(|info| (info.vault.name.as_str(), info.state)).collect();
        assert_eq!(states, [("a", State::Attached), ("b", State::Error), ("c", State::Attached)]);
        assert_eq!(all[1].vault.id, id);
        assert!(all[1].reason.as_deref().unwrap().contains("damaged"), "{:?}", all[1].reason);
        assert_eq!(bed.volumes.show("b").await.unwrap().state, State::Error);
        assert_eq!(bed.volumes.states()[&State::Error], 1);
        assert_eq!(kind(bed.roots().await), Kind::Damaged, "what it reaches must not be swept");
        assert_eq!(kind(bed.volumes.create(spec("b")).await), Kind::Exists);

        let refused = bed.volumes.remove("b", false).await.unwrap_err();
        assert!(refused.to_string().contains("--force"), "{refused}");
        bed.volumes.remove("b", true).await.unwrap();
        assert_eq!(bed.volumes.list().await.unwrap().len(), 2);
        assert!(bed.roots().await.is_ok());
        bed.volumes.create(spec("b")).await.unwrap();
        drop(bed.volumes.attach("b").await.unwrap());
    });
}

#[test]
fn a_volume_in_service_outlives_the_damage_of_its_name() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start_without_cache(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        damage(&bed, "names/vm1").await;
        write(&handle, 0, b"fine").await.unwrap();
        assert_eq!(bed.volumes.list().await.unwrap()[0].state, State::Attached);
        drop(handle);
        bed.volumes.detach("vm1").await.unwrap();
        assert_eq!(kind(bed.volumes.attach("vm1").await), Kind::Damaged);
        let listed = bed.volumes.list().await.unwrap();
        assert_eq!((listed.len(), listed[0].state), (1, State::Error), "no client can use it");
        assert_eq!(kind(bed.volumes.remove("vm1", false).await), Kind::Damaged);
        bed.volumes.remove("vm1", true).await.unwrap();
        assert!(bed.volumes.list().await.unwrap().is_empty());
        assert_eq!(bed.volumes.reap_orphans().await.unwrap().removed, 1, "it does not come back");
        assert!(bed.keys("volumes/").await.is_empty());
    });
}

#[test]
fn a_name_that_leads_nowhere_is_shown_and_can_be_removed() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let id = bed.vault("vm1").await.id;
        bed.store.delete(&Vault::key(id)).await.unwrap();
        let all = bed.volumes.list().await.unwrap();
        assert_eq!((all.len(), all[0].state, all[0].vault.id), (1, State::Error, id));
        assert_eq!(kind(bed.volumes.attach("vm1").await), Kind::Damaged);
        bed.volumes.remove("vm1", true).await.unwrap();
        assert!(bed.volumes.list().await.unwrap().is_empty());
    });
}

#[test]
fn strange_keys_are_no_reason_to_hide_a_volume() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        damage(&bed, "names/%zz").await;
        let all = bed.volumes.list().await.unwrap();
        assert_eq!(
            all.iter().map(|info| info.state).collect::<Vec<_>>(),
            [State::Error, State::Unattached]
        );
        damage(&bed, "volumes/what is this").await;
        assert_eq!(kind(bed.roots().await), Kind::Damaged);
    });
}
