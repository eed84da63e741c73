//! Many volumes with little to write: their commits share packs.

use crate::bed::{Node, Setup, done, read};
use rekindle_base::VolumeId;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Policy, Vault};
use std::time::Duration;

const ROUNDS: u64 = 10;

/// The writes into the store, and the age of the oldest change that was ever met.
struct Cost {
    commits: u64,
    packs: u64,
    age: Duration,
}

#[test]
fn commits_of_many_volumes_that_trickle_share_packs_and_keep_a_pace() {
    let seconds = 6 * ROUNDS;
    let trickle = |writes_per_minute, deadline| {
        trickle(200, Duration::from_secs(6), writes_per_minute, deadline)
    };
    let Cost { commits, packs, .. } = trickle(0, Duration::from_secs(300));
    assert!(packs <= 2 * seconds, "a pack of each class a second: {packs}");
    assert!(commits > 5 * seconds, "{commits}");
    let paced = trickle(60, Duration::from_secs(300));
    let writes = paced.commits + paced.packs;
    assert!(writes <= seconds + 66, "a write a second, and one company: {writes}");
    // With the pace alone each volume would wait for 206 s.
    let hurried = trickle(60, Duration::from_secs(40));
    assert!(hurried.age < Duration::from_secs(40), "{:?}", hurried.age);
    assert!(hurried.commits > paced.commits && hurried.packs < hurried.commits / 10);
}

/// With the default, sweeps and a node's own records have the rest of one write a second.
#[test]
fn a_thousand_volumes_that_trickle_cost_less_than_a_write_a_second() {
    let (each, per_minute) = (Duration::from_secs(360), 50);
    let hour = trickle(1000, each, per_minute, Duration::from_secs(1800));
    let (writes, seconds) = (hour.commits + hour.packs, 360 * ROUNDS);
    assert!(writes <= seconds * u64::from(per_minute) / 60, "{writes} in {seconds} s");
    assert!(hour.commits >= 2000, "each volume is committed all the same: {}", hour.commits);
    assert!(hour.age < Duration::from_secs(1800), "{:?}", hour.age);
}

/// So many volumes write 4 KiB each so often, and never two of them at once.
fn trickle(volumes: u16, each: Duration, writes_per_minute: u32, deadline: Duration) -> Cost {
    let count = volumes;
    let mut setup = Setup::new(Policy::Back, Ack::Memory);
    setup.config.destage_age = Duration::from_secs(5);
    setup.config.destage_writes_per_minute = writes_per_minute;
    setup.config.age_deadline = deadline;
    let mut cost = Cost { commits: 0, packs: 0, age: Duration::ZERO };
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, plan) = (Mem::store(), "latency=20ms".parse::<Plan>().unwrap());
        let node = Node::start(&env, &setup, &store, plan).await;
        let mut volumes = Vec::new();
        for tag in 0..count {
            let id = VolumeId(u128::from(tag).to_be_bytes());
            let vault = Vault { id, name: format!("volume{tag}"), ..setup.vault(0) };
            volumes.push(node.open_as(vault).await.unwrap());
        }
        let bytes = |tag: usize, round: u64| {
            (0..4096).map(|at| (tag as u64 * 31 + round * 7 + at / 256) as u8).collect::<Vec<_>>()
        };
        let mut checkpoints = vec![0; volumes.len()];
        for round in 0..ROUNDS {
            for (tag, volume) in volumes.iter().enumerate() {
                let written = volume.write(round * 4096, &bytes(tag, round), false);
                done(volume, written).await.unwrap();
                env.sleep(each / u32::from(count)).await;
                for (volume, checkpoint) in volumes.iter().zip(&mut checkpoints) {
                    let backlog = volume.backlog();
                    cost.commits += u64::from(backlog.checkpoint > *checkpoint);
                    *checkpoint = backlog.checkpoint;
                    cost.age = cost.age.max(Duration::from_millis(backlog.age_ms));
                }
            }
        }
        cost.packs = node.content.stats().packs_written;
        if writes_per_minute == 0 {
            env.sleep(Duration::from_secs(10)).await;
        }
        for (tag, volume) in volumes.iter().enumerate() {
            if writes_per_minute == 0 {
                assert_eq!(volume.backlog().changes, 0, "no volume is left out");
            }
            for round in 0..ROUNDS {
                assert_eq!(read(volume, round * 4096, 4096).await, bytes(tag, round));
            }
        }
    });
    println!("{} commits, {} packs, {:?}", cost.commits, cost.packs, cost.age);
    cost
}
