//! Two kinds of volumes for tests, one of byte ranges and one of records, and tests of the door for
//! kinds.

use super::bed::{Bed, SIZE, kind, read, spec, write};
use super::blocks::Blocks;
use super::map::{self, Map, Op, Values};
use crate::registry::machine::State;
use crate::{Error, Handle, Kind, Kinds, OpenedHome, Outcome, Sizes, Spec, Volumes};
use bytes::Bytes;
use futures_util::future::join;
use rekindle_content::Content;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::Written;
use rekindle_staging::{Vault, VaultBody};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A kind without settings. Its whole volume is one chunk.
struct Plain;

/// Bytes that no plain volume has.
const TOO_LARGE: u64 = 1 << 30;

impl Kind for Plain {
    fn name(&self) -> &'static str {
        "block"
    }
    fn create(&self, _size: u64, settings: &VaultBody) -> Result<VaultBody, String> {
        Ok(settings.clone())
    }
    fn check(&self, vault: &Vault) -> Result<(), String> {
        match vault.size < TOO_LARGE {
            true => Ok(()),
            false => Err(format!("no plain volume has {} bytes", vault.size)),
        }
    }
    fn open(&self, content: &Content, _vault: &Vault) -> Result<OpenedHome, String> {
        Ok(OpenedHome::Range(Arc::new(Blocks { content: content.clone(), block: SIZE })))
    }
    fn describe_damage(&self, _vault: &Vault, _keys: &[Range<u64>]) -> Option<String> {
        None
    }
    fn numbers<'a>(&'a self, _: &'a Content, _: &'a Vault) -> rekindle_env::BoxFuture<'a, u64> {
        Box::pin(std::future::ready(0))
    }

    fn sizes(&self) -> Sizes {
        Sizes::Any { cut: |volume, end| volume.clear(end.start, end.end - end.start, true, true) }
    }
}

/// A kind with a body of its own, whose changes are records.
struct Maps;

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

impl Kind for Maps {
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
        Ok(OpenedHome::Record(Map::new(content, vault)))
    }
    fn describe_damage(&self, _vault: &Vault, keys: &[Range<u64>]) -> Option<String> {
        Some(format!("{} range(s) of keys", keys.len()))
    }
    fn numbers<'a>(&'a self, _: &'a Content, _: &'a Vault) -> rekindle_env::BoxFuture<'a, u64> {
        Box::pin(std::future::ready(0))
    }

    fn sizes(&self) -> Sizes {
        Sizes::Fixed
    }
}

pub(super) fn kinds() -> Kinds {
    Kinds::new(vec![Box::new(Plain), Box::new(Maps)])
}

fn put(key: u64, value: &'static str) -> Op {
    Op::Put(key, Bytes::from_static(value.as_bytes()))
}

/// Writes a group of records.
async fn change_map(handle: &Handle, ops: &[Op]) {
    match map::submit(handle.staged(), ops, false) {
        Written::Acked => {}
        Written::NeedsSync(ticket) => handle.staged().sync(ticket).await.unwrap(),
        Written::Pending(later) => later.await.unwrap(),
    }
}

/// Attaches a map, and reads it.
async fn values(bed: &Bed, name: &str) -> Values {
    let handle = bed.volumes.attach_as(name, "map").await.unwrap();
    map::read(handle.staged()).await.unwrap()
}

/// The values of a map after these changes.
fn after(ops: &[Op]) -> Values {
    let mut values = Values::new();
    ops.iter().for_each(|op| op.apply(&mut values));
    values
}

fn spec_of_map(name: &str, settings: serde_json::Value) -> Spec {
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
        let refused = bed.volumes.create(spec_of_map("m", json!({"keys_max": 1u64 << 60}))).await;
        assert_eq!(refused.unwrap_err().to_string(), format!("{} keys need more room", 1u64 << 60));
        let made = bed.volumes.create(spec_of_map("m", json!({}))).await.unwrap();
        assert_eq!(serde_json::to_value(&made.vault.body).unwrap(), json!({"keys_max": 10}));
        bed.volumes.create(spec("plain")).await.unwrap();
        let all = bed.volumes.list().await.unwrap();
        let kinds: Vec<_> = all.iter().map(|info| info.vault.kind.as_str()).collect();
        assert_eq!(kinds, ["map", "block"]);
        let handle = bed.volumes.attach("m").await.unwrap();
        let group = [put(3, "a"), Op::Delete(3), put(4, "a")];
        change_map(&handle, &group).await;
        assert_eq!(map::read(handle.staged()).await.unwrap(), after(&group));
        assert_eq!(state(&bed.volumes, "m").await, (State::Attached, String::new()));
        assert_eq!(
            bed.volumes.kinds().describe_damage(handle.vault(), &[0..1, 3..4]),
            "2 range(s) of keys"
        );
        drop(handle);
        bed.volumes.trash("m", false).await.unwrap();
        bed.volumes.restore("m", None).await.unwrap();
        assert_eq!(values(&bed, "m").await, after(&group));
        bed.volumes.remove("m", true).await.unwrap();
        assert_eq!(bed.volumes.list().await.unwrap().len(), 1);
    });
}

#[test]
fn the_kind_decides_about_a_size_and_whether_there_is_another_one() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec_of_map("m", json!({}))).await.unwrap();
        bed.volumes.create(spec("plain")).await.unwrap();
        let before = bed.vault("m").await;
        let handle = bed.volumes.attach("m").await.unwrap();
        for size in [512, before.size, 1 << 20] {
            let refused = bed.volumes.resize("m", size, true).await.unwrap_err();
            assert_eq!(
                (refused.kind(), refused.to_string()),
                (
                    rekindle_base::Kind::Invalid,
                    "volume 'm' keeps its size: volumes of kind 'map' cannot be resized".to_owned()
                )
            );
        }
        drop(handle);
        assert_eq!(bed.vault("m").await.size, before.size);
        let refused = bed.volumes.resize("plain", TOO_LARGE, false).await.unwrap_err();
        assert_eq!(refused.to_string(), format!("no plain volume has {TOO_LARGE} bytes"));
    });
}

#[test]
fn a_map_goes_back_to_an_earlier_content_and_from_there_back_again() {
    let (world, store) = (World::new(6, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec_of_map("m", json!({}))).await.unwrap();
        let handle = bed.volumes.attach("m").await.unwrap();
        let ops = [put(1, "one"), Op::Delete(1), put(2, "one"), put(3, "three")];
        for group in [&ops[..1], &ops[1..3]] {
            change_map(&handle, group).await;
            handle.staged().drain().await.unwrap();
            bed.env.sleep(Duration::from_secs(60)).await;
        }
        // The log has the last one only.
        change_map(&handle, &ops[3..]).await;
        drop(handle);
        let versions = bed.volumes.versions("m").await.unwrap();
        let oldest = versions.last().unwrap().version.clone();
        bed.volumes.rollback("m", &oldest, false).await.unwrap();
        assert_eq!(values(&bed, "m").await, after(&ops[..1]));
        let newest = bed.volumes.versions("m").await.unwrap()[0].version.clone();
        bed.volumes.rollback("m", &newest, false).await.unwrap();
        assert_eq!(values(&bed, "m").await, after(&ops));
        let handle = bed.volumes.attach("m").await.unwrap();
        change_map(&handle, &[put(9, "nine")]).await;
        assert_eq!(map::read(handle.staged()).await.unwrap().len(), 3);
    });
}

#[test]
fn a_damaged_map_gives_nothing_up_and_says_so_in_its_kinds_words() {
    let (world, store) = (World::new(7, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store).await;
        bed.volumes.create(spec_of_map("m", json!({}))).await.unwrap();
        let handle = bed.volumes.attach("m").await.unwrap();
        for value in ["the older", "the newer"] {
            change_map(&handle, &[put(1, value)]).await;
            handle.staged().drain().await.unwrap();
            bed.env.sleep(Duration::from_secs(120)).await;
        }
        drop(handle);
        bed.volumes.stop(true).await.unwrap();
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store).await;
        let root = bed.vault("m").await.root;
        for key in bed.keys("packs/data/").await {
            let mut object = bed.store.get(&key).await.unwrap().0.to_vec();
            if let Some(at) = object.windows(9).position(|bytes| bytes == b"the newer") {
                object[at] ^= 1;
                bed.store.put(&key, Bytes::from(object)).await.unwrap();
            }
        }
        let version = bed.volumes.versions("m").await.unwrap()[0].version.clone();
        for accept_losses in [false, true] {
            let said = bed.volumes.salvage("m", accept_losses).await.unwrap().told;
            assert!(said.contains("1 range(s) of keys cannot be read"), "{said}");
            assert!(said.contains("no part of a 'map' volume is ever given up"), "{said}");
            assert!(said.contains(&format!("rollback m --to {version}")), "{said}");
            assert!(!said.contains("accept-losses") && !said.contains("would be lost"), "{said}");
            assert_eq!(bed.outcome_of_last("m").await, Some(Outcome::Waiting));
            assert_eq!(bed.vault("m").await.root, root);
        }
        bed.volumes.rollback("m", &version, false).await.unwrap();
        assert_eq!(values(&bed, "m").await, after(&[put(1, "the older")]));
    });
}

#[test]
fn a_volume_of_another_kind_than_wanted_is_refused_before_it_is_attached() {
    let (world, store) = (World::new(8, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec_of_map("m", json!({}))).await.unwrap();
        let before = bed.vault("m").await;
        let is_refused = |result: Result<Handle, Error>| match result.err() {
            Some(Error::OtherKind { name, kind, wanted }) => {
                assert_eq!((name.as_str(), kind.as_str(), wanted), ("m", "map", "block"));
            }
            other => panic!("{other:?}"),
        };
        is_refused(bed.volumes.attach_as("m", "block").await);
        assert_eq!(bed.vault("m").await, before, "nothing became its owner");
        assert_eq!(state(&bed.volumes, "m").await, (State::Unattached, String::new()));
        // A client that comes meanwhile and serves its kind is not told the same.
        let plan = Plan { latency: Duration::from_secs(1), ..Plan::default() };
        bed.faults.set(plan);
        let (wrong, right) = (bed.volumes.attach_as("m", "block"), bed.volumes.attach("m"));
        let (wrong, right) = join(wrong, right).await;
        bed.faults.set(Plan::default());
        is_refused(wrong);
        let right = right.unwrap();
        is_refused(bed.volumes.attach_as("m", "block").await);
        assert_eq!(bed.volumes.show("m").await.unwrap().clients, 1);
        drop(right);
        bed.volumes.detach("m").await.unwrap();
        // The record cache has the vault now.
        is_refused(bed.volumes.attach_as("m", "block").await);
        assert_eq!(state(&bed.volumes, "m").await.0, State::Unattached);
        // A volume in state `error` stays there.
        let body = VaultBody::of(&json!({"keys_max": "many"})).unwrap();
        let sound = bed.vault("m").await.body;
        change(&bed, "m", |vault| Vault { body, ..vault.clone() }).await;
        assert_eq!(kind(bed.volumes.attach("m").await), rekindle_base::Kind::Damaged);
        let told = state(&bed.volumes, "m").await;
        assert_eq!(told.0, State::Error);
        change(&bed, "m", |vault| Vault { body: sound, ..vault.clone() }).await;
        is_refused(bed.volumes.attach_as("m", "block").await);
        assert_eq!(state(&bed.volumes, "m").await, told);
        assert_eq!(values(&bed, "m").await, Values::new());
    });
}

#[test]
fn fields_of_a_body_that_this_binary_does_not_know_survive_a_commit() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec_of_map("m", json!({}))).await.unwrap();
        let strange = json!({"keys_max": 7, "of_another_binary": {"list": [1, null, "x"]}});
        let body = VaultBody::of(&strange).unwrap();
        change(&bed, "m", |vault| Vault { body: body.clone(), ..vault.clone() }).await;
        let handle = bed.volumes.attach("m").await.unwrap();
        change_map(&handle, &[put(1, "a")]).await;
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
        bed.volumes.create(spec_of_map("m", json!({}))).await.unwrap();
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
