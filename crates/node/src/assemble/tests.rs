//! Tests of starting a whole node on a simulated machine.

use super::attempt::choose;
use super::*;
use crate::service::Service;
use bytes::Bytes;
use rekindle_base::{Generation, Serial, VolumeId};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::{self, fault};
use rekindle_datastore::{Datastore, Error as StoreError, Listed, Version};
use rekindle_env::BoxFuture;
use rekindle_env::sim::{Faults, World};
use rekindle_front::conn::Connections;
use rekindle_front::http::api::Api;
use rekindle_front::nbd::Exports;
use rekindle_log::{Append, Change, Position};
use rekindle_staging::Vault;
use serde_json::json;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const DIR: &str = "/node";
const VOLUME: VolumeId = VolumeId([3; 16]);

fn config() -> Config {
    Config {
        flash_bytes: Some(64 << 20),
        warm: Some("/memory/warm".into()),
        warm_bytes: Some(32 << 20),
        ..Config::new(DIR.into())
    }
}

fn url(store: &TempDir) -> String {
    format!("file://{}", store.path().display())
}

/// Starts a node. `store` is a folder of the real machine: stores in folders are not simulated.
async fn start(env: &Env, store: &TempDir) -> Node {
    let config = Config { store: Some(url(store)), ..config() };
    Node::assemble(env, config).await.expect("it starts")
}

async fn node_file(env: &Env) -> NodeFile {
    NodeFile::read(env, Path::new(DIR)).await.expect("readable").expect("it is there")
}

/// Appends a change, and waits until it is durable.
async fn write(node: &Node, serial: u64) {
    let append = Append {
        volume: VOLUME,
        generation: Generation(1),
        serial: Serial(serial),
        change: Change::Write,
        joined: false,
        position: 0,
        span: 512,
        payload: &[7; 512],
    };
    while node.log.append(&[append]).is_err() {
        node.log.roll(512).await.expect("the log takes it");
    }
    node.log.commit(Position(u64::MAX)).await.expect("durable");
}

async fn clear_flash(env: &Env) {
    let folder = Path::new(DIR).join("flash");
    for (name, _) in env.disk().list(&folder).await.expect("a folder") {
        env.disk().remove(&folder.join(name)).await.expect("removed");
    }
    env.disk().sync_folder(&folder).await.expect("durable");
}

#[test]
fn what_a_start_asks_for_counts_for_that_start_only() {
    let world = World::new(1, Faults::none());
    let store = TempDir::new().expect("a folder");
    let env = world.env();
    world.block_on(async {
        let chosen = choose(&env, &Config::new(DIR.into())).await;
        let node = start(&env, &store).await;
        assert_ne!(chosen.flash_bytes, 64 << 20);
        assert_eq!(node.log.usage().flash_bytes_max, 64 << 20);
        assert_eq!(node_file(&env).await.sizes, chosen);
    });
}

const FAR: Duration = Duration::from_millis(300);

/// A bucket that is far away: each request takes as long as any other.
struct Far {
    env: Env,
    inner: Store,
    /// Each request, with the time at which it was sent.
    asked: Mutex<Vec<(Moment, String)>>,
    /// The requests that the bucket is too busy for, by their place in `asked`.
    refuses: Range<usize>,
    /// Whether it carries these out all the same.
    carries_out: bool,
}

impl Far {
    fn new(env: &Env, refuses: Range<usize>, carries_out: bool) -> Arc<Self> {
        let (inner, asked) = (Mem::store(), Mutex::default());
        Arc::new(Self { env: env.clone(), inner, asked, refuses, carries_out })
    }

    /// The node's parts, over this bucket.
    fn kit(self: &Arc<Self>) -> Kit {
        let (ground, bucket) = (self.env.clone(), self.clone());
        let open: Opener = Arc::new(move |_, _| {
            let plan = fault::Plan::default();
            let layers = layer::usual(&ground, bucket.clone(), plan.clone());
            let layer::Layers { store, meter, marks, faults } = layers;
            let open = OpenStore { url: "far".to_owned(), store, meter, marks, faults, plan };
            Box::pin(async { Ok(open) })
        });
        Kit { open, ..Kit::of_daemon(&self.env) }
    }

    fn later<'a, T: 'a>(
        &'a self,
        what: &str,
        work: BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let number = {
            let mut asked = self.asked.lock().unwrap();
            asked.push((self.env.now(), what.to_owned()));
            asked.len() - 1
        };
        Box::pin(async move {
            self.env.sleep(FAR).await;
            if !self.refuses.contains(&number) {
                return work.await;
            }
            if self.carries_out {
                let _ = work.await;
            }
            Err(StoreError::Unavailable("SlowDown: Slow down. (HTTP 503)".to_owned()))
        })
    }
}

impl Datastore for Far {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        self.later(key, self.inner.put(key, data))
    }
    fn create<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        self.later(key, self.inner.create(key, data))
    }
    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        self.later(key, self.inner.replace(key, data, version))
    }
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), StoreError>> {
        self.later(key, self.inner.get(key))
    }
    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.later(key, self.inner.get_range(key, range))
    }
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, StoreError>> {
        self.later(prefix, self.inner.list(prefix, after))
    }
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.later(key, self.inner.delete(key))
    }
    fn may_be_covered(&self) -> bool {
        false
    }
    fn describe(&self) -> String {
        "far".to_owned()
    }
}

#[test]
fn a_start_waits_for_few_requests_to_the_store_one_after_the_other() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let far = Far::new(&env, 0..0, false);
        // The first one: is there an identity; is the place empty, which is believed after a look
        // at the markers; the probe, and the markers meanwhile; the marker before this start's
        // record, and the record. Any other: identity and record; the next record.
        for most in [1 + 3 + 5 + 3, 1 + 1] {
            let begin = env.now();
            let node = Node::assemble_with(&env, config(), far.kit()).await;
            let node = node.expect("it starts");
            let rounds = (env.now() - begin).as_secs_f64() / FAR.as_secs_f64();
            let asked = std::mem::take(&mut *far.asked.lock().unwrap());
            let asked = asked.iter().map(|(at, key)| format!("{:?} {key}", *at - begin));
            let asked = asked.collect::<Vec<_>>().join("\n");
            assert_eq!(rounds.round() as u64, most, "{asked}");
            node.log.close().await.expect("closed");
        }
    });
}

/// Starts a node twice. Returns how many requests it made.
fn starts_though_refused(refuses: Range<usize>, carries_out: bool) -> usize {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let far = Far::new(&env, refuses.clone(), carries_out);
        for start in ["first", "second"] {
            let node = Node::assemble_with(&env, config(), far.kit()).await;
            let node = node.unwrap_or_else(|error| {
                let asked = far.asked.lock().unwrap();
                let refused: Vec<_> =
                    asked.iter().skip(refuses.start).take(refuses.len()).collect();
                panic!("{start} start, requests {refuses:?} refused ({refused:?}): {error}")
            });
            node.log.close().await.expect("closed");
        }
        far.asked.lock().unwrap().len()
    })
}

#[test]
fn a_start_survives_a_store_that_is_too_busy_for_any_of_its_requests() {
    let requests = starts_though_refused(0..0, false);
    assert!(requests > 40, "{requests}");
    // One of them, as many as a race has, and more than any moment has.
    for span in [1, 6, 12] {
        for first in 0..requests {
            for carries_out in [false, true] {
                starts_though_refused(first..first + span, carries_out);
            }
        }
    }
}

#[test]
fn a_node_whose_log_is_gone_misses_it_until_somebody_goes_on() {
    let world = World::new(1, Faults::none());
    let store = TempDir::new().expect("a folder");
    let env = world.env();
    let noted = world.block_on(async {
        let node = start(&env, &store).await;
        assert!(!node.opened.is_absent && node.opened.damage.is_empty(), "{:?}", node.opened);
        write(&node, 1).await;
        // The note precedes the first acknowledgement.
        node_file(&env).await.log.expect("noted before the first acknowledgement")
    });
    assert_eq!((noted.incarnation, noted.drained), (Incarnation(1), false));
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        clear_flash(&env).await;
        let node = start(&env, &store).await;
        assert!(node.opened.is_absent && node.opened.damage[0].contains("mount"));
        assert!(matches!(node.log.unfinished(VOLUME).await, Err(rekindle_log::Error::Lost { .. })));
        env.sleep(Duration::from_secs(10)).await;
        let log = node_file(&env).await.log.expect("still noted");
        assert_eq!((log.newest, log.incarnation), (noted.newest, noted.incarnation));
        assert_eq!(log.stand_in, Some(Incarnation(2)));
        // The operator goes on without the old log.
        write(&node, 2).await;
        let log = node_file(&env).await.log.expect("noted");
        assert_eq!((log.incarnation, log.stand_in), (Incarnation(2), None));
    });
}

#[test]
fn a_folder_of_a_time_that_noted_no_log_is_believed_once() {
    let world = World::new(2, Faults::none());
    let store = TempDir::new().expect("a folder");
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        write(&node, 1).await;
        let mut old = node_file(&env).await;
        old.log = None;
        old.write(&env, Path::new(DIR)).await.expect("written");
    });
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        clear_flash(&env).await;
        let node = start(&env, &store).await;
        assert!(!node.opened.is_absent, "{:?}", node.opened);
        write(&node, 2).await;
        assert!(node_file(&env).await.log.is_some());
    });
}

#[test]
fn a_log_from_which_all_was_drained_may_be_cleared() {
    let world = World::new(3, Faults::none());
    let store = TempDir::new().expect("a folder");
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        write(&node, 1).await;
        node.note_drained().await;
        assert!(!node_file(&env).await.log.expect("noted").drained, "it holds a change");
        node.log.release(VOLUME, Serial(1));
        node.log.close().await.expect("closed");
        node.note_drained().await;
        assert!(node_file(&env).await.log.expect("noted").drained);
    });
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        clear_flash(&env).await;
        let node = start(&env, &store).await;
        assert!(!node.opened.is_absent && node.opened.damage.is_empty(), "{:?}", node.opened);
    });
}

#[test]
fn a_full_disk_keeps_no_node_down() {
    let world = World::new(4, Faults::none());
    let store = TempDir::new().expect("a folder");
    let env = world.env();
    world.block_on(async {
        write(&start(&env, &store).await, 1).await;
        env.sleep(Duration::from_secs(1)).await;
    });
    world.crash_process();
    // The disk is full, apart from the room that the file before the next one gives back.
    let env = world.env();
    world.block_on(async {
        let free = env.disk().free_bytes(Path::new(DIR)).await.expect("known");
        world.set_disk_bytes((1 << 40) - free);
        let node = start(&env, &store).await;
        assert!(node.opened.damage.is_empty(), "{:?}", node.opened);
        write(&node, 2).await;
    });
}

#[test]
fn a_volume_of_another_kind_is_no_export() {
    let world = World::new(5, Faults::none());
    let store = TempDir::new().expect("a folder");
    let env = world.env();
    world.block_on(async {
        let node = Arc::new(start(&env, &store).await);
        let service = Service::new(env.clone(), Vec::new(), Vec::new(), Connections::new("nbd", 1));
        service.serve(node.clone());
        let create = async |asked: serde_json::Value| {
            let request = serde_json::from_value(asked).expect("a request");
            service.create_volume(request).await
        };
        let disk = create(json!({"name": "disk", "size": "1M", "block_size": "4K"})).await;
        let disk = serde_json::to_value(disk.expect("created")).expect("an answer");
        assert_eq!((&disk["kind"], &disk["block_size"]), (&json!("block"), &json!(4096)));
        let unknown = create(json!({"name": "m", "kind": "map", "size": "1M"})).await;
        let told = unknown.expect_err("no such kind").message;
        assert_eq!(told, "'map' is not a kind of volume: use 'block' or 'file'");
        let misspelt = create(json!({"name": "m", "size": "1M", "polcy": "back"})).await;
        assert!(misspelt.expect_err("no such setting").message.contains("`polcy`"));

        // Another binary has made a map.
        create(json!({"name": "m", "size": "1M"})).await.expect("created");
        let vault = node.volumes.show("m").await.expect("shown").vault;
        let key = Vault::key(vault.id);
        let held = node.writer.read::<Vault>(&key).await.expect("readable").expect("there");
        let map = Vault { kind: "map".into(), ..held.value.clone() };
        node.writer.replace(&held, map).await.expect("written");
        assert_eq!(*Exports::names(&service).await.expect("listed"), ["disk"]);
        let refused = Exports::attach(&service, "m").await.err().expect("refused").message;
        assert!(refused.contains("'map'") && refused.contains("upgrade"), "{refused}");
        let shown = service.volume("m").await.expect("shown");
        assert_eq!((shown.kind.as_str(), shown.state.as_str()), ("map", "error"));
    });
}

#[test]
fn a_start_that_finds_its_node_taken_over_leaves_log_and_memory_as_they_are() {
    let world = World::new(2, Faults::none());
    let store = TempDir::new().expect("a folder");
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        let read = crate::record::read(&node.writer).await.expect("readable");
        let record = read.expect("it has one");
        let taken = NodeRecord {
            incarnation: record.value.incarnation.next(),
            nonce: Some(9),
            arena: Some(9),
            host: Some(NodeId([9; 16])),
            ..record.value.clone()
        };
        node.writer.replace(&record, taken).await.expect("nothing else writes it");
        // The start is written down in the background.
        env.sleep(Duration::from_secs(1)).await;
        drop(node);
        let memory = || env.memory().head(Path::new("/memory/warm"), 64 << 20).expect("readable");
        let (before, config) = (memory(), Config { store: Some(url(&store)), ..config() });
        let refused = Node::assemble(&env, config).await.err().expect("it is another host's");
        assert!(refused.to_string().contains("taken over"), "{refused}");
        assert!(before.is_some() && memory() == before, "the memory is touched");
        // The host's next node has a memory beside it, and keeps that one when the other has gone.
        let file = node_file(&env).await;
        crate::cluster::left::set_aside(&env, Path::new(DIR), file.node).await.expect("set aside");
        let next = start(&env, &store).await;
        let beside = next.warm.path.clone().expect("it outlives the process");
        assert_ne!(beside, Path::new("/memory/warm"));
        env.sleep(Duration::from_secs(1)).await;
        drop(next);
        env.memory().unmap(Path::new("/memory/warm")).expect("removed");
        assert_eq!(start(&env, &store).await.warm.path, Some(beside));
    });
}
