//! Many volumes with little to write: their commits share packs.

use crate::bed::{Node, Setup, done, read};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Policy};
use std::time::Duration;

const VOLUMES: u8 = 200;
const ROUNDS: u64 = 10;

#[test]
fn commits_of_many_volumes_that_trickle_share_packs() {
    let mut setup = Setup::new(Policy::Back, Ack::Memory);
    setup.config.destage_age = Duration::from_secs(5);
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, plan) = (Mem::store(), "latency=20ms".parse::<Plan>().unwrap());
        let node = Node::start(&env, &setup, &store, plan).await;
        let mut volumes = Vec::new();
        for tag in 0..VOLUMES {
            volumes.push(node.open(tag).await.unwrap());
        }
        let bytes = |tag: usize, round: u64| {
            (0..4096).map(|at| (tag as u64 * 31 + round * 7 + at / 256) as u8).collect::<Vec<_>>()
        };
        // Each volume writes 4 KiB every six seconds, and never with another.
        for round in 0..ROUNDS {
            for (tag, volume) in volumes.iter().enumerate() {
                let written = volume.write(round * 4096, &bytes(tag, round), false);
                done(volume, written).await.unwrap();
                env.sleep(Duration::from_secs(6) / u32::from(VOLUMES)).await;
            }
        }
        env.sleep(Duration::from_secs(10)).await;
        let commits = u64::from(VOLUMES) * ROUNDS;
        let packs = node.content.stats().packs_written;
        let seconds = 6 * ROUNDS + 10;
        println!("{packs} packs for {commits} writes in {seconds} s");
        assert!(packs <= 2 * seconds, "a pack of each class a second: {packs}");
        for (tag, volume) in volumes.iter().enumerate() {
            assert_eq!(volume.backlog().changes, 0, "no volume is left out");
            for round in 0..ROUNDS {
                assert_eq!(read(volume, round * 4096, 4096).await, bytes(tag, round));
            }
        }
    });
}
