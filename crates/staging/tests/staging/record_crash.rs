//! A map of records, crashed at random steps, life after life: groups count as a whole or not at
//! all, and no acknowledged record is lost.

use crate::bed::{Node, Setup, done};
use crate::map::{self, KEYS, Map, Op, Values};
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, Stop, World};
use rekindle_staging::{Ack, Policy, Staged};
use std::sync::Arc;
use std::time::Duration;

/// The submitted groups in serial order: the judge of a recovery.
#[derive(Default)]
struct History {
    groups: Vec<Vec<Op>>,
    /// The map after all groups.
    values: Values,
    /// Highest serial that was acknowledged, and that was acknowledged as durable.
    acknowledged: u64,
    flushed: u64,
    power_was_cut: bool,
    /// Groups of more than one record, over all lives.
    moves: u64,
}

impl History {
    fn serial(&self) -> u64 {
        self.groups.iter().map(|group| group.len() as u64).sum()
    }

    /// The map after the first `serial` records, which are whole groups.
    fn state(&self, serial: u64) -> Values {
        let (mut values, mut count) = (Values::new(), 0);
        for group in &self.groups {
            if count >= serial {
                break;
            }
            group.iter().for_each(|op| op.apply(&mut values));
            count += group.len() as u64;
        }
        assert_eq!(count, serial, "the end of a group");
        values
    }

    fn restart_at(&mut self, serial: u64) {
        self.values = self.state(serial);
        while self.serial() > serial {
            self.groups.pop();
        }
        self.acknowledged = serial;
        self.flushed = self.flushed.min(serial);
        self.power_was_cut = false;
    }

    /// A put, a delete, a move to a key without a value, or several moves.
    fn next(&mut self, env: &Env) -> Vec<Op> {
        let mut group = Vec::new();
        let moves = [0, 0, 1, 1 + env.random_u64() % 5][(env.random_u64() % 4) as usize];
        for _ in 0..moves {
            let taken: Vec<u64> = self.values.keys().copied().collect();
            let free: Vec<u64> = (0..KEYS).filter(|key| !self.values.contains_key(key)).collect();
            if taken.is_empty() || free.is_empty() {
                break;
            }
            let from = taken[env.random_u64() as usize % taken.len()];
            let to = free[env.random_u64() as usize % free.len()];
            let value = self.values.remove(&from).unwrap();
            self.values.insert(to, value.clone());
            group.extend([Op::Delete(from), Op::Put(to, value)]);
        }
        if group.is_empty() {
            let key = env.random_u64() % KEYS;
            let op = match self.values.contains_key(&key) && env.random_u64().is_multiple_of(3) {
                true => Op::Delete(key),
                false => {
                    let value = vec![env.random_u64() as u8; 1 + (env.random_u64() % 600) as usize];
                    Op::Put(key, Bytes::from(value))
                }
            };
            op.apply(&mut self.values);
            group.push(op);
        }
        self.moves += u64::from(group.len() > 1);
        self.groups.push(group.clone());
        group
    }
}

struct Story {
    setup: Setup,
    store: Store,
    history: Mutex<History>,
}

async fn client(env: &Env, volume: &Arc<Staged>, map: &Map, story: &Story) {
    for _ in 0..400 {
        let durable = env.random_u64().is_multiple_of(7);
        let (written, serial) = {
            // No other task runs between these calls: there is one thread.
            let mut history = story.history.lock();
            let group = history.next(env);
            let written = map::submit(volume, &group, durable);
            assert_eq!(volume.backlog().serial, history.serial(), "none takes the slow way here");
            (written, history.serial())
        };
        done(volume, written).await.expect("no client sees an error");
        assert!(map.last().0 >= serial, "what is acknowledged is visible");
        {
            let mut history = story.history.lock();
            history.acknowledged = history.acknowledged.max(serial);
            if durable {
                history.flushed = history.flushed.max(serial);
            }
        }
        if env.random_u64().is_multiple_of(16) {
            env.sleep(Duration::from_millis(env.random_u64() % 50)).await;
        }
    }
}

async fn live(env: Env, story: &Story, plan: Plan) {
    let node = Node::start(&env, &story.setup, &story.store, Plan::default()).await;
    assert_eq!(node.damage, Vec::<String>::new());
    let (volume, map) = node.open_map(1).await.expect("it comes back");
    check(&node, &volume, &map, story).await;
    node.faults.set(plan);
    let clients = (0..3).map(|_| client(&env, &volume, &map, story));
    futures_util::future::join_all(clients).await;
}

async fn check(node: &Node, volume: &Staged, map: &Map, story: &Story) {
    let serial = volume.backlog().serial;
    let vault = volume.vault();
    let (at_root, at_end) = {
        let history = story.history.lock();
        let survives_power = story.setup.ack == Ack::Flash || story.setup.policy != Policy::Back;
        let promised = match history.power_was_cut && !survives_power {
            true => history.flushed,
            false => history.acknowledged,
        };
        assert!(serial >= promised, "serial {serial} came back, {promised} was promised");
        (history.state(vault.checkpoint.0), history.state(serial))
    };
    assert_eq!(map.last().0, serial);
    assert!(
        map::read(volume).await.unwrap() == at_end,
        "the map is the state after serial {serial}"
    );
    assert!(map.stored() == (vault.root, vault.checkpoint));
    assert!(Map::load(&node.content, &vault.root).await.unwrap() == at_root, "so is the root");
    story.history.lock().restart_at(serial);
}

fn tell(seed: u64, policy: Policy, ack: Ack, plan: &Plan) {
    let world = World::new(seed, Faults::none());
    let mut setup = Setup::new(policy, ack);
    // Small batches, so that there are many commits to crash in, and groups to part.
    setup.config.batch_bytes = 1500;
    setup.config.destage_bytes = 3000;
    setup.log_bytes = 128 << 20;
    // With more changes than this, they are listed while the volume takes records already.
    setup.config.index_at_once = if seed.is_multiple_of(2) { 4 } else { 1000 };
    let story = Story { setup, store: Mem::store(), history: Mutex::default() };
    for life in 0..6 {
        let env = world.env();
        let steps = 1 + env.random_u64() % [200, 3000, 12_000][(life % 3) as usize];
        world.block_on_until(Stop::Step(steps), live(env, &story, plan.clone()));
        if world.env().random_u64().is_multiple_of(2) {
            story.history.lock().power_was_cut = true;
            world.cut_power();
        } else {
            world.crash_process();
        }
    }
    let env = world.env();
    world.block_on(async {
        let node = Node::start(&env, &story.setup, &story.store, Plan::default()).await;
        let (volume, map) = node.open_map(1).await.expect("it comes back");
        check(&node, &volume, &map, &story).await;
        let serial = volume.backlog().serial;
        assert_eq!(volume.drain().await.unwrap().0, serial);
        let vault = node.vault(1).await;
        assert!(map.stored() == (vault.root, vault.checkpoint));
        let history = story.history.lock().state(serial);
        assert!(
            Map::load(&node.content, &vault.root).await.unwrap() == history,
            "all is in the store"
        );
        node.staging.stop().await;
    });
    assert!(story.history.lock().moves > 10, "groups were written");
}

fn seeds() -> std::ops::Range<u64> {
    let count =
        std::env::var("REKINDLE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    0..count
}

#[test]
fn records_with_flash() {
    seeds().for_each(|seed| tell(seed, Policy::Back, Ack::Flash, &Plan::default()));
}

#[test]
fn records_with_memory() {
    seeds().for_each(|seed| tell(1000 + seed, Policy::Back, Ack::Memory, &Plan::default()));
}

#[test]
fn records_through() {
    seeds().for_each(|seed| tell(2000 + seed, Policy::Through, Ack::Flash, &Plan::default()));
    seeds().for_each(|seed| tell(3000 + seed, Policy::Uncached, Ack::Flash, &Plan::default()));
}

#[test]
fn records_with_a_store_that_fails_and_lies() {
    let plan: Plan = "latency=5ms,fail=20%,lie=10%".parse().unwrap();
    seeds().for_each(|seed| tell(4000 + seed, Policy::Back, Ack::Flash, &plan));
    seeds().for_each(|seed| tell(5000 + seed, Policy::Through, Ack::Flash, &plan));
}
