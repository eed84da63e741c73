//! Tests of losses of the log, and of a store that was set back.

use super::bed::{Bed, kind, read, spec, write};
use crate::registry::machine::State;
use rekindle_base::Kind;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::record::RecordCache;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::Vault;

/// The head of the second life of the log.
const HEAD: &str = "/node/log/00000002.seg";

/// Makes three volumes with destaged content. A later change of one of them is in the head that is
/// lost.
async fn begun(world: &World, store: &rekindle_datastore::Store) {
    let bed = Bed::start(&world.env(), store).await;
    for name in ["v1", "v2", "v3"] {
        bed.volumes.create(spec(name)).await.unwrap();
        let handle = bed.volumes.attach(name).await.unwrap();
        write(&handle, 0, b"old").await.unwrap();
        handle.staged().drain().await.unwrap();
    }
    bed.volumes.stop(false).await.unwrap();
    bed.log.close().await.unwrap();
}

fn with_a_lost_head() -> (World, rekindle_datastore::Store) {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(begun(&world, &store));
    world.cut_power();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = bed.volumes.attach("v1").await.unwrap();
        write(&handle, 0, b"new").await.unwrap();
    });
    world.cut_power();
    assert!(world.flip_bit(HEAD, 40));
    (world, store)
}

#[test]
fn a_loss_leaves_the_log_when_every_volume_goes_on_without_it() {
    let (world, store) = with_a_lost_head();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        assert!(bed.log.has_losses());
        for name in ["v1", "v2", "v3"] {
            assert_eq!(kind(bed.volumes.attach(name).await), Kind::Damaged, "{name}");
        }
        // A volume created afterwards has lost nothing, in this life and in the next ones.
        bed.volumes.create(spec("new")).await.unwrap();
        let handle = bed.volumes.attach("new").await.unwrap();
        write(&handle, 0, b"x").await.unwrap();
        drop(handle);
        bed.volumes.salvage("v1", true).await.unwrap();
        bed.volumes.salvage("v2", true).await.unwrap();
        assert!(bed.log.has_losses(), "the third waits for a person");
        bed.volumes.stop(false).await.unwrap();
    });
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        assert!(bed.log.has_losses(), "no restart ends it");
        let handle = bed.volumes.attach("new").await.unwrap();
        assert_eq!(read(&handle, 0, 1).await, b"x");
        drop(handle);
        // The acceptance survives the trash, which begins another generation.
        bed.volumes.trash("v2", false).await.unwrap();
        bed.volumes.restore("v2", None).await.unwrap();
        let handle = bed.volumes.attach("v2").await.unwrap();
        assert_eq!(read(&handle, 0, 3).await, b"old");
        drop(handle);
        assert_eq!(kind(bed.volumes.attach("v3").await), Kind::Damaged);
        bed.volumes.salvage("v3", true).await.unwrap();
        assert!(!bed.log.has_losses(), "all have accepted it");
        bed.env.sleep(std::time::Duration::from_secs(1)).await;
    });
    for _ in 0..2 {
        world.crash_process();
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            assert!(!bed.log.has_losses(), "no later start speaks of it");
            for name in ["v1", "v2", "v3", "new"] {
                bed.volumes.attach(name).await.unwrap();
            }
        });
    }
}

#[test]
fn a_vault_that_is_older_than_the_log_knows_is_not_served() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    let (key, old, new) = world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let key = Vault::key(bed.vault("vm1").await.id);
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"A").await.unwrap();
        handle.staged().drain().await.unwrap();
        let old = store.get(&key).await.unwrap().0;
        write(&handle, 0, b"B").await.unwrap();
        handle.staged().drain().await.unwrap();
        drop(handle);
        bed.volumes.stop(false).await.unwrap();
        bed.log.close().await.unwrap();
        let new = store.get(&key).await.unwrap().0;
        (key, old, new)
    });
    let put = async |bytes: &bytes::Bytes| {
        let (_, version) = store.get(&key).await.unwrap();
        store.replace(&key, bytes.clone(), &version).await.unwrap();
    };
    world.cut_power();
    world.block_on(async {
        put(&old).await;
        let bed = Bed::start(&world.env(), &store).await;
        let refused = bed.volumes.attach("vm1").await.err().unwrap();
        assert!(refused.to_string().contains("set back"), "{refused}");
        assert_eq!(kind(bed.volumes.rollback("vm1", "x", false).await), Kind::Invalid);
        assert!(bed.volumes.salvage("vm1", false).await.is_err(), "nobody has accepted anything");
        assert_eq!(store.get(&key).await.unwrap().0, old, "nothing is written over it");
        put(&new).await;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 0, 1).await, b"B");
        drop(handle);
        bed.volumes.detach("vm1").await.unwrap();
        // A set-back in the same life is met as well.
        put(&old).await;
        bed.cache.as_ref().unwrap().forget(&key);
        assert!(bed.volumes.attach("vm1").await.is_err());
        // An operator goes on from what there is.
        bed.volumes.salvage("vm1", true).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 0, 1).await, b"A");
        write(&handle, 1, b"C").await.unwrap();
        handle.staged().drain().await.unwrap();
        drop(handle);
        bed.volumes.stop(false).await.unwrap();
    });
    world.cut_power();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 0, 2).await, b"AC");
    });
}

#[test]
fn a_salvage_of_a_healthy_volume_leaves_it_in_service_and_one_of_none_leaves_nothing() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        bed.volumes.salvage("vm1", false).await.unwrap();
        bed.volumes.detach("vm1").await.unwrap();
        bed.volumes.salvage("vm1", true).await.unwrap();
        let history = bed.volumes.history("vm1").unwrap();
        assert!(history.iter().all(|change| change.to != State::Salvaging), "{history:?}");
        for accept_losses in [false, true] {
            let outcome = bed.volumes.salvage("nope", accept_losses).await;
            assert_eq!(kind(outcome), Kind::NotFound);
        }
        assert_eq!(bed.volumes.history("nope"), None);
        assert_eq!(bed.volumes.states().get(&State::Error).copied().unwrap_or_default(), 0);
    });
}

#[test]
fn a_stray_file_among_the_vaults_hides_no_volume_and_lets_no_sweep_go_on() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let key = format!("{}.bak", Vault::key(bed.vault("vm1").await.id));
        store.create(&key, bytes::Bytes::from_static(b"a copy")).await.unwrap();
        assert_eq!(bed.volumes.list().await.unwrap().len(), 1);
        assert_eq!(bed.volumes.trashed().await.unwrap().len(), 0);
        let refused = bed.roots().await.unwrap_err();
        assert!(refused.to_string().contains(&key), "{refused}");
    });
}
