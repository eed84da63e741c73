//! Groups of changes: recovered as wholes, and given up as wholes.

use crate::bed::{BLOCK, NODE, Node, Setup, done, read};
use crate::damage::find;
use rekindle_base::{Generation, SegmentId, Serial, VolumeId};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_log::{Append, Change, Position};
use rekindle_staging::{Accepted, Ack, Home, Policy, Vault};
use std::time::Duration;

async fn start(env: &Env, store: &Store) -> Node {
    let mut setup = Setup::new(Policy::Back, Ack::Flash);
    setup.config.destage_age = Duration::from_secs(3600);
    setup.config.destage_bytes = 1 << 40;
    Node::start(env, &setup, store, Plan::default()).await
}

/// Appends writes of whole blocks to the log of a volume that is out of service, one group at a
/// time. Serial n is in block n - 1.
async fn append(node: &Node, groups: &[std::ops::RangeInclusive<u64>]) {
    for group in groups {
        let bytes: Vec<_> = group.clone().map(|serial| [serial as u8; BLOCK as usize]).collect();
        let changes: Vec<_> = group
            .clone()
            .zip(&bytes)
            .map(|(serial, payload)| Append {
                volume: VolumeId([1; 16]),
                generation: Generation(1),
                serial: Serial(serial),
                change: Change::Write,
                joined: serial < *group.end(),
                position: (serial - 1) * BLOCK,
                span: BLOCK,
                payload,
            })
            .collect();
        node.log.append(&changes).expect("room");
        node.log.commit(Position(u64::MAX)).await.unwrap();
    }
}

#[test]
fn half_a_group_at_the_end_does_not_count() {
    // The volume goes on from serial 3, which is in the middle of a group.
    for (through, kept) in [(1, 1), (2, 1), (3, 1), (4, 4)] {
        let (world, store) = (World::new(1, Faults::none()), Mem::store());
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store).await;
            append(&node, &[1..=1, 2..=4, 5..=6]).await;
        });
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store).await;
            let generation = Generation(2);
            let accepted = Accepted { generation, through: Serial(through), segment: SegmentId(0) };
            let accepted = Some(accepted);
            let vault = Vault { generation, accepted, ..node.setup.vault(1) };
            node.writer.create(&Vault::key(vault.id), vault).await.unwrap();
            let volume = node.open(1).await.unwrap();
            assert_eq!(volume.backlog().changes, kept, "through {through}");
            let seen: Vec<u8> =
                futures_util::future::join_all((0..6).map(|block| read(&volume, block * BLOCK, 1)))
                    .await
                    .concat();
            let expected: Vec<u8> = (1..7).map(|n| if n <= kept as u8 { n } else { 0 }).collect();
            assert_eq!(seen, expected, "through {through}");
            done(&volume, volume.write(0, &[9; 512], false)).await.unwrap();
            assert_eq!(volume.backlog().serial, kept + 1, "serials go on behind the whole groups");
        });
    }
}

#[test]
fn a_damaged_change_is_given_up_with_all_of_its_group() {
    for damaged in [2, 3, 4_u8] {
        let (world, store) = (World::new(1, Faults::none()), Mem::store());
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store).await;
            append(&node, &[1..=1, 2..=4, 5..=5, 6..=6]).await;
        });
        world.cut_power();
        let (path, at) = find(&world, &[damaged; BLOCK as usize]);
        assert!(world.flip_bit(&path, at + 1000));
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store).await;
            let volume = node.open(1).await.unwrap();
            assert_eq!(volume.backlog().changes, 6, "no change is missing");
            volume.close().await.unwrap();
            let held = volume.held();
            assert_eq!(held.value.owner, Some(NODE));
            let (held, lines) = node.staging.accept_losses(held, 0).await.unwrap();
            assert_eq!(held.value.accepted.unwrap().through, Serial(1), "{lines:?}");
            assert!(lines[1].contains("given up: serials 2 to 6"), "{lines:?}");
            let volume = node.staging.open(held, Home::Range(node.home())).await.unwrap();
            assert_eq!(volume.backlog().changes, 1);
        });
        world.crash_process();
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store).await;
            let volume = node.open(1).await.unwrap();
            assert_eq!(volume.backlog().changes, 1);
            assert_eq!(read(&volume, 0, 1).await, [1]);
            assert_eq!(read(&volume, BLOCK, 1).await, [0]);
        });
    }
}
