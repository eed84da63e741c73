//! Tests of lists for users: what is read again, and what many clients share.

use super::bed::{Bed, spec, write};
use crate::*;
use rekindle_base::NodeId;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::meter::{self, Call, Meter, StorePart};
use rekindle_env::sim::{Faults, World};
use std::path::Path;

fn gets(meter: &Meter) -> u64 {
    meter.requests(StorePart::Records, Call::Get)
}

#[test]
fn a_list_for_a_user_reads_the_vaults_that_have_changed_and_no_others() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let (store, meter) = meter::wrap(&world.env(), store);
        let bed = Bed::start(&world.env(), &store).await;
        let there = world.host("there").env();
        let there = Bed::start_in(Path::new("/node"), NodeId([9; 16]), &there, &store).await;
        for number in 0..20 {
            bed.volumes.create(spec(&format!("vm{number:02}"))).await.unwrap();
        }
        let first = bed.volumes.glance().await.unwrap();
        assert_eq!(first.len(), 20);
        let before = gets(&meter);
        assert_eq!(bed.volumes.glance().await.unwrap().len(), 20);
        assert_eq!(gets(&meter), before, "nothing has changed");

        there.volumes.rename("vm03", "other").await.unwrap();
        there.volumes.remove("vm04", true).await.unwrap();
        there.volumes.create(spec("new")).await.unwrap();
        let before = gets(&meter);
        let seen = bed.volumes.glance().await.unwrap();
        // Of two volumes the name and the vault, perhaps the vault that is gone.
        assert!((4..=5).contains(&(gets(&meter) - before)), "{}", gets(&meter) - before);
        let exact = bed.volumes.list().await.unwrap();
        let names = |infos: &[Info]| infos.iter().map(|i| i.vault.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&seen), names(&exact));
        assert!(names(&seen).contains(&"other".to_owned()));
    });
}

#[test]
fn names_are_those_of_one_kind_and_clients_at_once_share_a_list() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let (store, meter) = meter::wrap(&world.env(), store);
        let bed = Bed::start(&world.env(), &store).await;
        for name in ["b", "a"] {
            bed.volumes.create(spec(name)).await.unwrap();
        }
        let map = Spec { kind: "map".into(), ..spec("m") };
        bed.volumes.create(map).await.unwrap();
        assert_eq!(*bed.volumes.names("block").await.unwrap(), ["a", "b"]);
        assert_eq!(*bed.volumes.names("map").await.unwrap(), ["m"]);

        let lists = || meter.requests(StorePart::Records, Call::List);
        let before = lists();
        let one = bed.volumes.names("block").await.unwrap();
        let cost = lists() - before;
        let many =
            futures_util::future::join_all((0..50).map(|_| bed.volumes.names("block"))).await;
        assert!(lists() - before <= 3 * cost, "clients that wait share the next list");
        for names in many {
            assert!(Arc::ptr_eq(&one, &names.unwrap()), "equal lists are one");
        }
        // A list begun after a creation shows it.
        bed.volumes.create(spec("c")).await.unwrap();
        assert_eq!(*bed.volumes.names("block").await.unwrap(), ["a", "b", "c"]);
        let handle = bed.volumes.attach("c").await.unwrap();
        write(&handle, 0, b"x").await.unwrap();
        assert_eq!(bed.volumes.names("block").await.unwrap().len(), 3);
    });
}
