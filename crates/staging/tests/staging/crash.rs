//! Crashes at random steps, life after life: every acknowledged change is there, and the volume is
//! a prefix by serial.

use crate::bed::{Node, Setup, read};
use crate::history::{History, Shared, change};
use parking_lot::Mutex;
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, Stop, World};
use rekindle_staging::{Ack, Policy, RangeHome};
use std::sync::Arc;
use std::time::Duration;

struct Story {
    setup: Setup,
    store: Store,
    history: Shared,
}

/// Opens the volume, checks everything, then works until the crash.
async fn live(env: Env, story: &Story, plan: Plan) {
    let setup = &story.setup;
    let node = Node::start(&env, setup, &story.store, Plan::default()).await;
    assert_eq!(node.damage, Vec::<String>::new());
    let volume = node.open(1).await.expect("it comes back");
    check(&node, &volume, story).await;
    node.faults.set(plan);
    for _ in 0..4 {
        let (task_env, volume, history, size) =
            (env.clone(), volume.clone(), story.history.clone(), setup.size);
        env.spawn("client", async move {
            // A new head of the log would make serials uncertain; see the rolling test.
            while history.lock().bytes < 6 << 20 {
                change(&task_env, &volume, &history, size).await.expect("no client sees an error");
                if task_env.random_u64().is_multiple_of(16) {
                    task_env.sleep(Duration::from_millis(task_env.random_u64() % 50)).await;
                }
            }
        });
    }
    loop {
        env.sleep(Duration::from_millis(env.random_u64() % 100)).await;
        let acknowledged = story.history.lock().acknowledged;
        volume.flush().await.expect("flash works");
        let mut history = story.history.lock();
        history.flushed = history.flushed.max(acknowledged);
    }
}

async fn check(node: &Node, volume: &rekindle_staging::Staged, story: &Story) {
    let size = story.setup.size;
    let (serial, vault) = (volume.backlog().serial, volume.vault());
    let checkpoint = vault.checkpoint.0;
    let (state, at_checkpoint) = {
        let history = story.history.lock();
        let survives_power = story.setup.ack == Ack::Flash || story.setup.policy != Policy::Back;
        let promised = if history.power_was_cut && !survives_power {
            history.flushed
        } else {
            history.acknowledged
        };
        assert!(serial >= promised, "serial {serial} came back, {promised} was promised");
        assert!(serial <= history.ops.len() as u64, "nothing was made up");
        (history.state(serial, size), history.state(checkpoint, size))
    };
    assert!(
        read(volume, 0, size as usize).await == state,
        "the volume is the state after serial {serial}"
    );
    let mut home = vec![0; size as usize];
    node.home().read(&vault.root, 0, &mut home, true).await.unwrap();
    assert!(home == at_checkpoint, "the root has exactly the changes up to its checkpoint");
    story.history.lock().restart_at(serial);
}

fn tell(seed: u64, policy: Policy, ack: Ack, plan: &Plan) {
    let world = World::new(seed, Faults::none());
    let mut setup = Setup::new(policy, ack);
    // Small batches, so that there are many commits to crash in.
    setup.config.batch_bytes = 64 * 1024;
    setup.config.destage_bytes = 32 * 1024;
    setup.log_bytes = 128 << 20;
    let story =
        Story { setup, store: Mem::store(), history: Arc::new(Mutex::new(History::default())) };
    for life in 0..6 {
        let env = world.env();
        // Every third life is short: crashes at the start of a life, too.
        let steps = 1 + env.random_u64() % [200, 3000, 12_000][(life % 3) as usize];
        let ended = world.block_on_until(Stop::Step(steps), live(env, &story, plan.clone()));
        assert!(ended.is_none());
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
        let volume = node.open(1).await.expect("it comes back");
        check(&node, &volume, &story).await;
        let serial = volume.backlog().serial;
        assert_eq!(volume.drain().await.unwrap().0, serial);
        let history = story.history.lock().state(serial, story.setup.size);
        let mut home = vec![0; story.setup.size as usize];
        let root = node.vault(1).await.root;
        node.home().read(&root, 0, &mut home, true).await.unwrap();
        assert!(home == history, "all is in the store");
        assert_eq!(volume.backlog().changes, 0);
        node.staging.stop().await;
    });
}

fn seeds() -> std::ops::Range<u64> {
    if let Some(seed) = std::env::var("REKINDLE_SEED").ok().and_then(|text| text.parse().ok()) {
        return seed..seed + 1;
    }
    let count =
        std::env::var("REKINDLE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    0..count
}

#[test]
fn back_with_flash() {
    seeds().for_each(|seed| tell(seed, Policy::Back, Ack::Flash, &Plan::default()));
}

#[test]
fn back_with_memory() {
    seeds().for_each(|seed| tell(1000 + seed, Policy::Back, Ack::Memory, &Plan::default()));
}

#[test]
fn through() {
    seeds().for_each(|seed| tell(2000 + seed, Policy::Through, Ack::Flash, &Plan::default()));
}

#[test]
fn uncached() {
    seeds().for_each(|seed| tell(3000 + seed, Policy::Uncached, Ack::Flash, &Plan::default()));
}

#[test]
fn back_with_a_store_that_fails_and_lies() {
    let plan: Plan = "latency=5ms,fail=20%,lie=10%".parse().unwrap();
    seeds().for_each(|seed| tell(4000 + seed, Policy::Back, Ack::Flash, &plan));
    seeds().for_each(|seed| tell(5000 + seed, Policy::Back, Ack::Memory, &plan));
}

#[test]
fn through_with_a_store_that_fails_and_lies() {
    let plan: Plan = "latency=5ms,fail=20%,lie=10%".parse().unwrap();
    seeds().for_each(|seed| tell(6000 + seed, Policy::Through, Ack::Flash, &plan));
}
