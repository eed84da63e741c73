//! Tests of the fingerprint that tells a sweep whether there is anything to do.

use super::bed::{Bed, Small, spec, write};
use crate::manage::roots::fingerprint;
use rekindle_datastore::Store;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::Vault;
use std::time::Duration;

async fn commit(bed: &Bed, name: &str, byte: u8) {
    let handle = bed.volumes.attach(name).await.unwrap();
    write(&handle, 0, &[byte]).await.unwrap();
    handle.staged().drain().await.unwrap();
}

#[test]
fn a_commit_that_the_list_does_not_show_yet_changes_the_fingerprint() {
    let (world, small) = (World::new(1, Faults::none()), Small::store());
    let store: Store = small.clone();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let info = bed.volumes.create(spec("vm1")).await.unwrap();
        commit(&bed, "vm1", 1).await;
        *small.unindexed.lock() = Some(Vault::key(info.vault.id));
        let print = async || fingerprint(&bed.volumes.inner).await.unwrap();
        let before = print().await;
        assert!(before.is_some() && print().await == before);
        commit(&bed, "vm1", 2).await;
        assert_ne!(print().await, before);
    });
}

#[test]
fn a_full_store_has_no_fingerprint_because_its_sweep_drops_earlier_contents() {
    let (world, small) = (World::new(2, Faults::none()), Small::store());
    let store: Store = small.clone();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        commit(&bed, "vm1", 1).await;
        assert!(fingerprint(&bed.volumes.inner).await.unwrap().is_some());
        small.fill(true);
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, &[2]).await.unwrap();
        bed.env.sleep(Duration::from_secs(60)).await;
        assert_eq!(fingerprint(&bed.volumes.inner).await.unwrap(), None);
        small.fill(false);
    });
}
