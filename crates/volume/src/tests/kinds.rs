//! Two kinds of volumes for tests, and tests of the door for kinds.

use super::bed::{Bed, OneChunk, kind, read, spec, write};
use crate::registry::machine::State;
use crate::{Error, Kind, Kinds, OpenedHome, Spec, Volumes};
use rekindle_content::Content;
use rekindle_datastore::backend::mem::Mem;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Vault, VaultBody};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ops::Range;
use std::sync::Arc;

/// A kind without settings. Its whole volume is one chunk.
struct Plain;

impl Kind for Plain {
    fn name(&self) -> &'static str {
        "block"
    }
    fn create(&self, _size: u64, settings: &VaultBody) -> Result<VaultBody, String> {
        Ok(settings.clone())
    }
    fn check(&self, _vault: &Vault) -> Result<(), String> {
        Ok(())
    }
    fn open(&self, content: &Content, _vault: &Vault) -> Result<OpenedHome, String> {
        Ok(OpenedHome::Range(Arc::new(OneChunk { content: content.clone() })))
    }
    fn describe_damage(&self, _vault: &Vault, _keys: &[Range<u64>]) -> Option<String> {
        None
    }
}

/// A kind with a body of its own.
struct Map;

#[derive(Serialize, Deserialize)]
#[serde(default)]
struct MapBody {
    keys_max: u64,
}

impl Default for MapBody {
    fn default() -> Self {
        Self { keys_max: 10 }
    }
}

impl Kind for Map {
    fn name(&self) -> &'static str {
        "map"
    }
    fn create(&self, size: u64, settings: &VaultBody) -> Result<VaultBody, String> {
        let body: MapBody = settings.read()?;
        match body.keys_max.saturating_mul(512) <= size {
            true => VaultBody::of(&body),
            false => Err(format!("{} keys need more room", body.keys_max)),
        }
    }
    fn check(&self, vault: &Vault) -> Result<(), String> {
        self.create(vault.size, &vault.body).map(drop)
    }
    fn open(&self, content: &Content, vault: &Vault) -> Result<OpenedHome, String> {
        self.check(vault)?;
        Plain.open(content, vault)
    }
    fn describe_damage(&self, _vault: &Vault, keys: &[Range<u64>]) -> Option<String> {
        Some(format!("{} range(s) of keys", keys.len()))
    }
}

pub(super) fn kinds() -> Kinds {
    Kinds::new(vec![Box::new(Plain), Box::new(Map)])
}

fn map(name: &str, settings: serde_json::Value) -> Spec {
    let settings = VaultBody::of(&settings).unwrap();
    Spec { kind: "map".into(), settings, ..spec(name) }
}

/// Changes a volume's vault in the store.
async fn change(bed: &Bed, name: &str, change: impl FnOnce(&Vault) -> Vault) {
    let id = bed.vault(name).await.id;
    let held = bed.writer.read::<Vault>(&Vault::key(id)).await.unwrap().unwrap();
    let changed = change(&held.value);
    bed.writer.replace(&held, changed).await.unwrap();
}

async fn state(volumes: &Volumes, name: &str) -> (State, String) {
    let shown = volumes.show(name).await.unwrap();
    (shown.state, shown.reason.unwrap_or_default())
}

#[test]
fn a_second_kind_is_created_listed_opened_and_removed_like_the_first() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let refused = bed.volumes.create(map("m", json!({"keys_max": 1u64 << 60}))).await;
        assert_eq!(refused.unwrap_err().to_string(), format!("{} keys need more room", 1u64 << 60));
        let made = bed.volumes.create(map("m", json!({}))).await.unwrap();
        assert_eq!(serde_json::to_value(&made.vault.body).unwrap(), json!({"keys_max": 10}));
        bed.volumes.create(spec("plain")).await.unwrap();
        let all = bed.volumes.list().await.unwrap();
        let kinds: Vec<_> = all.iter().map(|info| info.vault.kind.as_str()).collect();
        assert_eq!(kinds, ["map", "block"]);
        let handle = bed.volumes.attach("m").await.unwrap();
        write(&handle, 0, b"a record").await.unwrap();
        assert_eq!(read(&handle, 0, 8).await, b"a record");
        assert_eq!(
            bed.volumes.kinds().describe_damage(handle.vault(), &[0..1, 3..4]),
            "2 range(s) of keys"
        );
        drop(handle);
        // The kind decides about a size, too.
        let small = bed.volumes.resize("m", 512, true).await.unwrap_err();
        assert_eq!(
            (small.kind(), small.to_string()),
            (rekindle_base::Kind::Invalid, "10 keys need more room".to_owned())
        );
        bed.volumes.trash("m", false).await.unwrap();
        bed.volumes.restore("m", None).await.unwrap();
        assert_eq!(read(&bed.volumes.attach("m").await.unwrap(), 0, 8).await, b"a record");
        bed.volumes.remove("m", true).await.unwrap();
        assert_eq!(bed.volumes.list().await.unwrap().len(), 1);
    });
}

#[test]
fn fields_of_a_body_that_this_binary_does_not_know_survive_a_commit() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(map("m", json!({}))).await.unwrap();
        let strange = json!({"keys_max": 7, "of_another_binary": {"list": [1, null, "x"]}});
        let body = VaultBody::of(&strange).unwrap();
        change(&bed, "m", |vault| Vault { body: body.clone(), ..vault.clone() }).await;
        let handle = bed.volumes.attach("m").await.unwrap();
        write(&handle, 0, b"a record").await.unwrap();
        handle.staged().drain().await.unwrap();
        drop(handle);
        bed.volumes.rename("m", "n").await.unwrap();
        let vault = bed.vault("n").await;
        assert!(vault.root.is_some() && vault.body == body, "{:?}", vault.body);
    });
}

#[test]
fn a_body_that_its_kind_refuses_is_shown_and_neither_served_nor_changed() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(map("m", json!({}))).await.unwrap();
        let body = VaultBody::of(&json!({"keys_max": "many"})).unwrap();
        change(&bed, "m", |vault| Vault { body: body.clone(), ..vault.clone() }).await;
        let before = bed.vault("m").await;
        let (state, reason) = state(&bed.volumes, "m").await;
        assert_eq!(state, State::Error);
        assert!(reason.contains("many"), "{reason}");
        assert_eq!(kind(bed.volumes.attach("m").await), rekindle_base::Kind::Damaged);
        assert_eq!(kind(bed.volumes.salvage("m", true).await), rekindle_base::Kind::Damaged);
        assert_eq!(bed.vault("m").await, before);
        assert_eq!(
            bed.volumes
                .kinds()
                .describe_damage(&Vault { kind: "tape".into(), ..before }, &[0..1, 3..4]),
            "part of its content"
        );
    });
}

#[test]
fn a_volume_of_an_unknown_kind_is_listed_and_goes_to_the_trash_once_the_log_owes_nothing_of_it() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        for name in ["new", "drained", "owing"] {
            bed.volumes.create(spec(name)).await.unwrap();
        }
        for name in ["drained", "owing"] {
            let handle = bed.volumes.attach(name).await.unwrap();
            write(&handle, 0, b"a change").await.unwrap();
            if name == "drained" {
                handle.staged().drain().await.unwrap();
            }
            drop(handle);
            bed.volumes.detach(name).await.unwrap();
        }
        for name in ["new", "drained", "owing"] {
            change(&bed, name, |vault| Vault { kind: "tape".into(), ..vault.clone() }).await;
        }
        let all = bed.volumes.list().await.unwrap();
        assert!(all.iter().all(|info| info.state == State::Error && info.vault.kind == "tape"));
        for name in ["new", "drained", "owing"] {
            let (_, reason) = state(&bed.volumes, name).await;
            assert!(reason.contains("'tape'") && reason.contains("upgrade"), "{reason}");
            for refused in [
                bed.volumes.attach(name).await.err(),
                bed.volumes.salvage(name, true).await.err(),
                bed.volumes.resize(name, 1 << 20, false).await.err(),
            ] {
                assert!(matches!(refused, Some(Error::UnknownKind { .. })), "{refused:?}");
            }
        }
        assert!(matches!(bed.volumes.trash("owing", false).await, Err(Error::UnknownKind { .. })));
        bed.volumes.trash("new", false).await.unwrap();
        bed.volumes.trash("drained", false).await.unwrap();
        assert_eq!(bed.volumes.trashed().await.unwrap().len(), 2);
        bed.volumes.restore("drained", None).await.unwrap();
        // Another binary knows the kind: nothing is lost.
        for (name, content) in [("drained", b"a change"), ("owing", b"a change")] {
            change(&bed, name, |vault| Vault { kind: "block".into(), ..vault.clone() }).await;
            assert_eq!(&read(&bed.volumes.attach(name).await.unwrap(), 0, 8).await, content);
        }
        bed.volumes.remove("owing", true).await.unwrap();
    });
}
