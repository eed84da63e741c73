//! Tests of what a sweep is told of the roots.

use super::bed::{Bed, Small, spec, write};
use crate::manage::roots::{Looked, look, written};
use crate::records;
use rekindle_content::sweep::{SourceId, Sources};
use rekindle_datastore::{Store, key};
use rekindle_env::sim::{Faults, World};
use rekindle_env::{Env, Timestamp};
use rekindle_staging::Vault;
use std::sync::Arc;
use std::time::Duration;

async fn commit(bed: &Bed, name: &str, byte: u8) {
    let handle = bed.volumes.attach(name).await.unwrap();
    write(&handle, 0, &[byte]).await.unwrap();
    handle.staged().drain().await.unwrap();
}

/// Commits, and takes the volume out of service: only the store has its root then.
async fn commit_idle(bed: &Bed, name: &str, byte: u8) {
    commit(bed, name, byte).await;
    bed.volumes.detach(name).await.unwrap();
}

fn with_small(seed: u64, test: impl AsyncFnOnce(Env, Arc<Small>, Bed)) {
    let (world, small) = (World::new(seed, Faults::none()), Small::store());
    let store: Store = small.clone();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        test(world.env(), small, bed).await;
    });
}

async fn looked(bed: &Bed, known: &Sources, how: Looked) -> Sources {
    look(&bed.volumes.inner, known, &how).await.unwrap()
}

fn has(sources: &Sources, vault: &Vault) -> bool {
    sources.roots().any(|root| Some(*root) == vault.root)
}

#[test]
fn a_vault_behind_a_stale_tag_is_read_when_its_writer_names_it() {
    with_small(1, async |_, small, bed| {
        bed.volumes.create(spec("vm1")).await.unwrap();
        commit_idle(&bed, "vm1", 1).await;
        let known = looked(&bed, &Sources::default(), Looked::All).await;
        let upto = written(&bed.volumes.inner, 0).unwrap().upto;
        let listed = small.inner.list(key::VOLUMES, None).await.unwrap();
        *small.stale.lock() = Some(listed[0].clone());
        commit_idle(&bed, "vm1", 2).await;
        let vault = bed.vault("vm1").await;
        assert!(!has(&looked(&bed, &known, Looked::Listed).await, &vault), "the tag is believed");
        let told = written(&bed.volumes.inner, upto).unwrap();
        assert_eq!(told.sources, [SourceId(vault.id.0)]);
        let told = Looked::Told(told.sources.into_iter().collect());
        assert!(has(&looked(&bed, &known, told).await, &vault));
        assert!(has(&looked(&bed, &known, Looked::All).await, &vault));
        let none = written(&bed.volumes.inner, written(&bed.volumes.inner, 0).unwrap().upto);
        assert_eq!(none.unwrap().sources, []);
    });
}

#[test]
fn a_vault_that_is_not_listed_is_gone_only_if_a_read_says_so() {
    with_small(2, async |_, small, bed| {
        bed.volumes.create(spec("vm1")).await.unwrap();
        commit_idle(&bed, "vm1", 1).await;
        let known = looked(&bed, &Sources::default(), Looked::All).await;
        let vault = bed.vault("vm1").await;
        *small.unindexed.lock() = Some(Vault::key(vault.id));
        assert!(has(&looked(&bed, &known, Looked::Listed).await, &vault));
        // One that no look has met yet is known by the word of its writer.
        let told = written(&bed.volumes.inner, 0).unwrap().sources.into_iter().collect();
        let found = looked(&bed, &Sources::default(), Looked::Told(told)).await;
        assert!(has(&found, &vault));
        small.inner.delete(&Vault::key(vault.id)).await.unwrap();
        assert_eq!(looked(&bed, &known, Looked::Listed).await.roots().count(), 0);
    });
}

#[test]
fn a_commit_that_no_record_has_yet_counts_as_a_root_of_a_volume_in_service() {
    with_small(3, async |_, small, bed| {
        bed.volumes.create(spec("vm1")).await.unwrap();
        commit(&bed, "vm1", 1).await;
        let known = looked(&bed, &Sources::default(), Looked::All).await;
        assert_eq!(known.live, [], "the record has it");
        let listed = small.inner.list(key::VOLUMES, None).await.unwrap();
        *small.stale.lock() = Some(listed[0].clone());
        commit(&bed, "vm1", 2).await;
        let found = looked(&bed, &known, Looked::Listed).await;
        assert!(has(&found, &bed.vault("vm1").await) && found.live.len() == 1, "{found:?}");
    });
}

#[test]
fn an_earlier_content_that_a_sure_clock_has_left_out_is_not_counted_again_after_a_restart() {
    with_small(4, async |env, _, bed| {
        bed.volumes.create(spec("vm1")).await.unwrap();
        commit_idle(&bed, "vm1", 1).await;
        commit_idle(&bed, "vm1", 2).await;
        let held = records::find(&bed.writer, "vm1").await.unwrap();
        let mut old = held.value.clone();
        old.versions[0].committed -= 26 * 3_600_000_000;
        bed.writer.replace(&held, old).await.unwrap();
        // The clock of a young process tells nothing.
        let unsure = looked(&bed, &Sources::default(), Looked::All).await;
        assert_eq!((unsure.roots().count(), unsure.aged), (2, Timestamp(0)));
        // What an earlier process knew for sure goes on.
        let known = Sources { aged: env.aging_clock(), ..Sources::default() };
        let sure = looked(&bed, &known, Looked::All).await;
        assert_eq!((sure.roots().count(), sure.aged), (1, known.aged));
    });
}

#[test]
fn a_full_store_has_every_vault_read_because_its_sweep_drops_earlier_contents() {
    with_small(5, async |env, small, bed| {
        bed.volumes.create(spec("vm1")).await.unwrap();
        for byte in 1..4 {
            commit(&bed, "vm1", byte).await;
        }
        let known = looked(&bed, &Sources::default(), Looked::All).await;
        small.fill(true);
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, &[9]).await.unwrap();
        env.sleep(Duration::from_secs(60)).await;
        let found = looked(&bed, &known, Looked::Listed).await;
        assert!(found.roots().count() < known.roots().count(), "{found:?}");
        small.fill(false);
    });
}
