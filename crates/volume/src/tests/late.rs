//! Tests of writes of the vault that end a generation, and land late: under a later life, or after
//! the next client has come.

use super::bed::{Bed, NODE, SIZE, read, spec, write};
use super::held::Held;
use crate::*;
use rekindle_base::Kind;
use rekindle_datastore::Store;
use rekindle_env::sim::{Faults, World};
use std::sync::atomic::Ordering;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// What a person asks for.
#[derive(Debug, Clone, Copy)]
enum Asked {
    GoBack,
    Remove,
    Shrink,
}

impl Asked {
    /// What the write has that carries it out.
    fn named(self) -> String {
        match self {
            Self::GoBack => "\"accepted\":{".to_owned(),
            Self::Remove => "\"state\":\"trashed\"".to_owned(),
            Self::Shrink => format!("\"size\":{},\n\"body\"", SIZE / 2),
        }
    }

    async fn ask(self, bed: &Bed) {
        match self {
            Self::GoBack => {
                let version = bed.volumes.versions("vm1").await.unwrap()[0].version.clone();
                drop(bed.volumes.rollback("vm1", &version, false).await);
            }
            Self::Remove => drop(bed.volumes.trash("vm1", false).await),
            Self::Shrink => drop(bed.volumes.resize("vm1", SIZE / 2, true).await),
        }
    }
}

/// Has a write of the vault land after a client has come: in a later life, or in this one.
fn lands_late(asked: Asked, dies: bool) {
    // A life that hears nothing waits on.
    let held = Held::new(asked.named(), !dies);
    let store: Store = held.clone();
    let world = World::new(1, Faults::none());
    let of = format!("{asked:?}, {dies}");
    let serve_on = async |bed: &Bed| {
        held.is_slow.store(false, Ordering::Relaxed);
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, SIZE - 3, b"new").await.unwrap();
        let late = std::mem::take(&mut *held.held.lock());
        assert_eq!(late.len(), 1, "{of}");
        for (key, data, version) in late {
            let landed = held.inner.replace(&key, data, &version).await;
            assert_eq!(landed.map_err(|error| error.kind()), Err(Kind::Conflict), "{of}");
        }
        handle.staged().drain().await.unwrap();
        let vault = bed.vault("vm1").await;
        assert_eq!((vault.owner, vault.leaves, vault.size), (Some(NODE), None, SIZE), "{of}");
    };
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handle = bed.volumes.attach("vm1").await.unwrap();
        for content in [b"A", b"B"] {
            write(&handle, 0, content).await.unwrap();
            handle.staged().drain().await.unwrap();
            bed.env.sleep(MINUTE).await;
        }
        drop(handle);
        let asked = bed.env.timeout(MINUTE, asked.ask(&bed)).await;
        assert_eq!(asked.is_err(), dies, "{of}");
        if !dies {
            serve_on(&bed).await;
        }
    });
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        if dies {
            serve_on(&bed).await;
        }
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 0, 1).await, b"B", "{of}");
        assert_eq!(read(&handle, SIZE - 3, 3).await, b"new", "{of}");
        let id = handle.vault().id;
        drop(handle);
        // Asked for anew, it is done.
        asked.ask(&bed).await;
        let vault = records::vault(&bed.writer, id).await.unwrap().unwrap().value;
        assert!(vault.leaves.is_none() && vault.size <= SIZE, "{of}");
        let is_done = match asked {
            Asked::GoBack => vault.accepted.is_some(),
            Asked::Remove => vault.state == rekindle_staging::VaultState::Trashed,
            Asked::Shrink => vault.size == SIZE / 2,
        };
        assert!(is_done, "{of}");
    });
}

#[test]
fn what_ends_a_generation_does_not_land_under_what_was_acknowledged_since() {
    for asked in [Asked::GoBack, Asked::Remove, Asked::Shrink] {
        lands_late(asked, true);
        lands_late(asked, false);
    }
}
