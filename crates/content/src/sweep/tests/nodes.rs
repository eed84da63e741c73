//! Several nodes on one store: one sweeps, and none is left out.

use super::*;
use rekindle_base::Incarnation;
use serde::{Deserialize, Serialize};

/// The part of a node's record that the sweep looks at.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    incarnation: Incarnation,
    #[serde(default)]
    fenced: Option<bool>,
}

impl rekindle_datastore::record::Body for Record {
    const WHAT: &'static str = "node";
    const FORMAT: u32 = 1;
}

/// A node with its own content, on a store that others use too.
pub(super) struct Node {
    pub(super) writer: Writer,
    pub(super) content: Content,
    pub(super) sweeper: Arc<Sweeper>,
}

/// Starts a node: its record first, as a real one does.
pub(super) async fn start(
    env: &Env,
    store: &Store,
    vaults: &Arc<Vaults>,
    id: u8,
    life: u64,
) -> Node {
    let node = NodeId([id; 16]);
    let writer = Writer::new(env.clone(), store.clone(), node).with_incarnation(Incarnation(life));
    let key = rekindle_datastore::key::node_key(node);
    let record = Record { incarnation: Incarnation(life), fenced: None };
    match writer.read::<Record>(&key).await.unwrap() {
        Some(held) => drop(writer.replace(&held, record).await.unwrap()),
        None => drop(writer.create(&key, record).await.unwrap()),
    }
    let content = Content::open(env.clone(), store.clone(), small());
    let roots = SlowRoots { env: env.clone(), content: content.clone(), vaults: vaults.clone() };
    let options = Options {
        budget: Budget::Unlimited,
        compacts: true,
        grace: Duration::ZERO,
        young: Duration::ZERO,
        patience: Duration::from_secs(20),
        condemned_max: 3,
        ..Options::default()
    };
    let folder = format!("{FOLDER}-{id}");
    let sweeper =
        Sweeper::new(content.clone(), writer.clone(), Arc::new(roots), Path::new(&folder));
    let sweeper = sweeper.with_options(options);
    Node { writer, content, sweeper: Arc::new(sweeper) }
}

/// Writes packs that nothing reaches; returns them.
async fn garbage(content: &Content) -> BTreeSet<PackId> {
    let before: BTreeSet<_> = packs_of(content).await.unwrap().into_keys().collect();
    let mut batch = content.batch();
    batch.write(Class::Data, random(4242, 5000), &[]).await.unwrap();
    batch.flush().await.unwrap();
    drop(batch);
    let after: BTreeSet<_> = packs_of(content).await.unwrap().into_keys().collect();
    after.difference(&before).copied().collect()
}

#[test]
fn nothing_is_deleted_before_every_live_node_has_agreed() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, vaults) = (Mem::store(), Arc::new(Vaults::default()));
        let one = start(&env, &store, &vaults, 1, 1).await;
        let two = start(&env, &store, &vaults, 2, 1).await;
        // The other node has flushed a chunk, and has no root for it yet.
        let mut batch = two.content.batch();
        let kept = batch.write(Class::Data, bytes_of(3), &[]).await.unwrap();
        batch.flush().await.unwrap();
        let error = one.sweeper.run().await.unwrap_err();
        assert!(error.to_string().contains("has not agreed"), "{error}");
        assert!(one.sweeper.progress().failure.is_some());
        two.content.read_uncached(&kept, Class::Data).await.unwrap();
        // The other node agrees as soon as its batch has come to its end.
        let agreeing = two.sweeper.clone();
        env.spawn("agree", async move {
            loop {
                let _ = agreeing.acknowledge().await;
                agreeing.writer.env.sleep(Duration::from_secs(1)).await;
            }
        });
        assert!(one.sweeper.run().await.is_err(), "the batch is not at its end");
        two.content.read_uncached(&kept, Class::Data).await.unwrap();
        let changes = [(1, Some(kept))];
        let root = tree::update(&two.content, &mut batch, &None, &changes).await.unwrap();
        batch.flush().await.unwrap();
        vaults.put(&two.content, 0, (root, Model::from([(1, 3)])));
        batch.committed();
        let dead = garbage(&two.content).await;
        env.sleep(Duration::from_secs(3)).await;
        let status = one.sweeper.run().await.unwrap();
        assert!(status.packs_deleted >= dead.len() as u64, "{status:?}");
        check(&env, &store, &vaults).await;
    });
}

#[test]
fn whoever_is_fenced_has_left_or_was_dismissed_is_not_waited_for_and_a_new_start_is() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, vaults) = (Mem::store(), Arc::new(Vaults::default()));
        let one = start(&env, &store, &vaults, 1, 1).await;
        garbage(&one.content).await;
        let two = start(&env, &store, &vaults, 2, 7).await;
        assert!(one.sweeper.run().await.is_err());
        two.sweeper.leave().await.unwrap();
        assert!(one.sweeper.run().await.unwrap().packs_deleted > 0);
        // The same node, started again.
        start(&env, &store, &vaults, 2, 8).await;
        garbage(&one.content).await;
        assert!(one.sweeper.run().await.is_err());
        let failure = one.sweeper.progress().failure.unwrap();
        let command = format!("`rekindle sweep dismiss {}`", NodeId([2; 16]));
        assert!(failure.contains(&command), "{failure}");
        assert_eq!(one.sweeper.dismiss(NodeId([2; 16])).await.unwrap(), Incarnation(8));
        // The word of an earlier start that arrives late changes nothing.
        two.sweeper.leave().await.unwrap();
        assert!(one.sweeper.run().await.unwrap().packs_deleted > 0);
        start(&env, &store, &vaults, 2, 9).await;
        garbage(&one.content).await;
        assert!(one.sweeper.run().await.is_err(), "it came back");
        one.sweeper.dismiss(NodeId([2; 16])).await.unwrap();
        assert!(one.sweeper.run().await.unwrap().packs_deleted > 0);
        assert!(one.sweeper.dismiss(NodeId([1; 16])).await.is_err(), "the node itself");
        assert!(one.sweeper.dismiss(NodeId([9; 16])).await.is_err(), "a node that never was");
        let three = start(&env, &store, &vaults, 3, 1).await;
        garbage(&one.content).await;
        assert!(one.sweeper.run().await.is_err());
        let key = rekindle_datastore::key::node_key(NodeId([3; 16]));
        let held = three.writer.read::<Record>(&key).await.unwrap().unwrap();
        let fenced = Record { fenced: Some(true), ..held.value.clone() };
        three.writer.replace(&held, fenced).await.unwrap();
        assert!(one.sweeper.run().await.unwrap().packs_deleted > 0);
        // A node whose record cannot be understood counts as alive.
        store.put(&rekindle_datastore::key::node_key(NodeId([4; 16])), "?".into()).await.unwrap();
        garbage(&one.content).await;
        assert!(one.sweeper.run().await.is_err());
    });
}

#[test]
fn a_start_that_a_newer_one_of_its_node_has_replaced_deletes_nothing() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, vaults) = (Mem::store(), Arc::new(Vaults::default()));
        let old = start(&env, &store, &vaults, 1, 1).await;
        let dead = garbage(&old.content).await;
        // A copy of the node's folder was started, and has not swept yet: the lease is free.
        let new = start(&env, &store, &vaults, 1, 2).await;
        let error = old.sweeper.run().await.unwrap_err();
        assert!(error.to_string().contains("start 2 of this node"), "{error}");
        let there: BTreeSet<_> = packs_of(&new.content).await.unwrap().into_keys().collect();
        assert!(dead.is_subset(&there));
        assert_eq!(new.sweeper.run().await.unwrap().packs_deleted, dead.len() as u64);
    });
}

#[test]
fn a_node_that_has_left_acknowledges_nothing_more() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, vaults) = (Mem::store(), Arc::new(Vaults::default()));
        let one = start(&env, &store, &vaults, 1, 1).await;
        let two = start(&env, &store, &vaults, 2, 1).await;
        garbage(&one.content).await;
        // The other node is asked to acknowledge while it ends its last batch; it leaves before
        // that.
        let batch = two.content.batch();
        let sweeping = one.sweeper.clone();
        env.spawn("sweep", async move { drop(sweeping.run().await) });
        env.sleep(Duration::from_secs(2)).await;
        let (asked, asking) = (Arc::new(Mutex::new(None)), two.sweeper.clone());
        let answer = asked.clone();
        env.spawn("agree", async move { *answer.lock() = asking.acknowledge().await.ok() });
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(*asked.lock(), None, "it waits for the batch");
        two.sweeper.leave().await.unwrap();
        batch.committed();
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(*asked.lock(), Some(false));
        let held = one.writer.read::<Ack>(&format!("{}{}", acks::PREFIX, NodeId([2; 16]))).await;
        assert!(held.unwrap().unwrap().value.left);
    });
}

#[test]
fn one_node_sweeps_and_another_takes_over_only_when_that_shows_no_sign_of_life() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, vaults) = (Mem::store(), Arc::new(Vaults::default()));
        let one = start(&env, &store, &vaults, 1, 1).await;
        let two = start(&env, &store, &vaults, 2, 1).await;
        let tenure = lease::take(&one.writer, &Seen::default()).await.unwrap();
        let refused = two.sweeper.run().await.unwrap_err();
        let reason = format!("node {} sweeps this store", NodeId([1; 16]));
        assert!(refused.to_string().contains(&reason), "{refused}");
        // The holder lives: the record has changed since the other node saw it.
        env.sleep(EXPIRY).await;
        tenure.prove().await.unwrap();
        assert!(two.sweeper.run().await.is_err());
        env.sleep(EXPIRY / 2).await;
        assert!(two.sweeper.run().await.is_err());
        // The holder does not show that it lives any more.
        env.sleep(EXPIRY).await;
        let mut world_of_two = lease::take(&two.writer, &two.sweeper.seen).await;
        assert!(tenure.prove().await.is_err(), "before each deletion it finds out");
        let lease = two.writer.read::<Lease>(lease::KEY).await.unwrap().unwrap().value;
        assert_eq!((lease.holder, lease.epoch), (Some(NodeId([2; 16])), 2));
        world_of_two.as_mut().unwrap().prove().await.unwrap();
        world_of_two.unwrap().release().await;
        // A lease that was given back is free at once; and a later start of a node does not wait
        // for the one before.
        let again = lease::take(&one.writer, &Seen::default()).await.unwrap();
        let later = one.writer.clone().with_incarnation(Incarnation(2));
        lease::take(&later, &Seen::default()).await.unwrap();
        assert!(again.prove().await.is_err());
        assert!(lease::take(&one.writer, &Seen::default()).await.is_err(), "the earlier start");
    });
}

#[test]
fn young_packs_are_left_alone_where_others_write() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, vaults) = (Mem::store(), Arc::new(Vaults::default()));
        let one = start(&env, &store, &vaults, 1, 1).await;
        let options = Options { young: Duration::from_secs(600), ..one.sweeper.options };
        let (env, content, vaults) = (env.clone(), one.content.clone(), vaults.clone());
        let roots = Arc::new(SlowRoots { env: env.clone(), content, vaults: vaults.clone() });
        let folder = Path::new(FOLDER);
        let sweeper = Sweeper::new(one.content.clone(), one.writer.clone(), roots, folder);
        let sweeper = sweeper.with_options(options);
        let two = start(&env, &store, &vaults, 2, 1).await;
        let dead = garbage(&two.content).await;
        assert_eq!(sweeper.run().await.unwrap().packs_condemned, 0);
        env.sleep(Duration::from_secs(601)).await;
        let acking = two.sweeper.clone();
        env.spawn("agree", async move {
            loop {
                let _ = acking.acknowledge().await;
                acking.writer.env.sleep(Duration::from_secs(1)).await;
            }
        });
        assert_eq!(sweeper.run().await.unwrap().packs_deleted, dead.len() as u64);
    });
}

/// Commits changes, with a pause when everything is in the store already.
async fn write_slowly(env: &Env, content: &Content, vaults: &Vaults, volume: u64) {
    let (root, mut model) = vaults.volumes.lock().get(&volume).cloned().unwrap_or_default();
    let changes = some_changes(env, &model);
    let mut batch = content.batch();
    let mut written = Vec::new();
    for (key, seed) in changes {
        let Some(seed) = seed else {
            model.remove(&key);
            written.push((key, None));
            continue;
        };
        model.insert(key, seed);
        let chunk = batch.write(Class::Data, bytes_of(seed), &[]).await.unwrap();
        written.push((key, Some(chunk)));
    }
    let root = tree::update(content, &mut batch, &root, &written).await.unwrap();
    batch.flush().await.unwrap();
    env.sleep(Duration::from_millis(env.random_u64() % 600)).await;
    vaults.put(content, volume, (root, model));
    batch.committed();
}

/// Two nodes write and sweep at once, each with its own index, on a slow store; neither deletes
/// what the other one flushed.
#[test]
fn two_nodes_that_write_and_sweep_at_once_lose_nothing() {
    let (mut deleted, mut refused, mut deduplicated) = (0, 0, 0);
    for seed in seeds() {
        let world = World::new(seed, Faults::none());
        let store: Store = Arc::new(Remote::new(world.host("store").env(), Mem::store()));
        let vaults = Arc::new(Vaults::default());
        let env = world.env();
        world.block_on(async {
            let writers = Arc::new(Mutex::new(0));
            let mut nodes = Vec::new();
            for id in 1..3u8 {
                nodes.push(Arc::new(start(&env, &store, &vaults, id, 1).await));
            }
            for (volume, node) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
                *writers.lock() += 1;
                let (env, vaults, writers) = (env.clone(), vaults.clone(), writers.clone());
                let node = nodes[node].clone();
                env.clone().spawn("writer", async move {
                    let _ = node.content.warm_index().await;
                    for _ in 0..10 {
                        write_slowly(&env, &node.content, &vaults, volume).await;
                    }
                    *writers.lock() -= 1;
                });
            }
            for node in &nodes {
                let (env, node) = (env.clone(), node.clone());
                env.clone().spawn("agree", async move {
                    loop {
                        let _ = node.sweeper.acknowledge().await;
                        env.sleep(Duration::from_millis(100)).await;
                    }
                });
            }
            while *writers.lock() > 0 {
                let (one, two) =
                    futures_util::join!(nodes[0].sweeper.run(), nodes[1].sweeper.run());
                for result in [one, two] {
                    match result {
                        Ok(status) => deleted += status.packs_deleted,
                        Err(_) => refused += 1,
                    }
                }
                env.sleep(Duration::from_millis(20)).await;
            }
            for node in &nodes {
                deduplicated += node.content.stats().chunks_deduplicated;
            }
        });
        let env = world.env();
        world.block_on(check(&env, &store, &vaults));
    }
    assert!(deleted > 0 && refused > 0 && deduplicated > 0, "{deleted} {refused} {deduplicated}");
}
