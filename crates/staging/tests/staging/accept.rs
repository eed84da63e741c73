//! Acknowledged changes that are lost: the volume stays out of service until the user accepts that.
//! Then it shows the longest whole prefix, in this life and all later ones.

use crate::bed::{BLOCK, Node, Setup, done, read};
use crate::damage::find;
use rekindle_base::{Generation, Incarnation, Serial, VolumeId};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Error, Policy, Staged, Vault};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn setup() -> Setup {
    let mut setup = Setup::new(Policy::Back, Ack::Flash);
    setup.config.destage_age = Duration::from_secs(3600);
    setup.config.destage_bytes = 1 << 40;
    setup
}

async fn write(volume: &Arc<Staged>, block: u64, byte: u8) {
    let bytes = [byte; BLOCK as usize];
    done(volume, volume.write(block * BLOCK, &bytes, false)).await.unwrap();
}

async fn accept(node: &Node, tag: u8) -> Vec<String> {
    let held = node.writer.read::<Vault>(&Vault::key(VolumeId([tag; 16]))).await.unwrap().unwrap();
    node.staging.accept_losses(held, 0).await.unwrap().1
}

async fn start(env: &Env, store: &Store) -> Node {
    Node::start(env, &setup(), store, Plan::default()).await
}

#[test]
fn a_lost_segment_costs_what_came_after_it_and_no_other_volume() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let last = world.block_on(async {
        let node = start(&env, &store).await;
        let (volume, other) = (node.open(1).await.unwrap(), node.open(2).await.unwrap());
        write(&other, 0, 9).await;
        let mut serial = 0_u64;
        while node.log.usage().segments < 4 {
            // Serial n is in block n - 1 of a round, with the number of the round.
            write(&volume, serial % 64, (serial / 64) as u8).await;
            serial += 1;
        }
        // The log's statistics say that the other volume had no more changes.
        serial
    });
    world.cut_power();
    let env = world.env();
    let kept = world.block_on(async {
        env.disk().remove(Path::new("/node/log/00000002.seg")).await.unwrap();
        let node = start(&env, &store).await;
        let Err(Error::Lost { reason, .. }) = node.open(1).await else { panic!("it is lost") };
        assert!(reason.contains("rekindle salvage run volume1 --accept-losses"), "{reason}");
        assert!(reason.contains("were in segment 2"), "{reason}");
        assert_eq!(read(&node.open(2).await.unwrap(), 0, 1).await, [9], "others serve");
        let lines = accept(&node, 1).await;
        assert!(
            lines[0].contains("segment 2") && lines[1].contains("given up: serials"),
            "{lines:?}"
        );
        let vault = node.vault(1).await;
        let accepted = vault.accepted.unwrap();
        assert_eq!((vault.generation, accepted.generation), (Generation(2), Generation(2)));
        assert!(accepted.through.0 > 500 && accepted.through.0 < last, "{accepted:?} of {last}");
        assert_eq!(accept(&node, 1).await, Vec::<String>::new(), "there is nothing left to accept");
        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.backlog().changes, accepted.through.0);
        accepted.through.0
    });
    // The volume shows exactly the prefix. Later writes lie behind it, however often the process
    // dies.
    for life in 0..3_u64 {
        world.crash_process();
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store).await;
            let volume = node.open(1).await.unwrap();
            assert_eq!(volume.backlog().changes, kept + life);
            for block in life..64 {
                let expected = (kept - 1 - block) / 64;
                let found = read(&volume, block * BLOCK, 1).await;
                assert_eq!(u64::from(found[0]), expected, "block {block} of {kept}");
            }
            write(&volume, life, 0xf0 + life as u8).await;
            assert_eq!(read(&volume, life * BLOCK, 1).await, [0xf0 + life as u8]);
        });
    }
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        let volume = node.open(1).await.unwrap();
        volume.drain().await.unwrap();
        assert_eq!(volume.backlog().checkpoint, kept + 3);
        assert_eq!(read(&volume, 2 * BLOCK, 1).await, [0xf2]);
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.backlog().changes, 0, "nothing of what was given up comes back");
        assert_eq!(read(&volume, 2 * BLOCK, 1).await, [0xf2]);
    });
}

#[test]
fn a_damaged_change_can_be_given_up_with_what_came_after_it() {
    for in_service_before in [false, true] {
        let (world, store) = (World::new(2, Faults::none()), Mem::store());
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store).await;
            let volume = node.open(1).await.unwrap();
            for block in 0..4 {
                write(&volume, block, 0xa0 + block as u8).await;
            }
        });
        world.cut_power();
        let (path, at) = find(&world, &[0xa2; BLOCK as usize]);
        assert!(world.flip_bit(&path, at + 1000));
        let env = world.env();
        world.block_on(async {
            let node = start(&env, &store).await;
            if in_service_before {
                let volume = node.open(1).await.unwrap();
                write(&volume, 7, 0xb7).await;
                let error = volume.drain().await.unwrap_err().to_string();
                assert!(error.contains("salvage run volume1 --accept-losses"), "{error}");
                volume.close().await.unwrap();
            }
            let lines = accept(&node, 1).await;
            assert!(lines[0].contains("serial 3 is damaged"), "{lines:?}");
            assert!(
                lines.iter().any(|line| line == "given up: serial 4, bytes 12288..16384"),
                "{lines:?}"
            );
            assert_eq!(node.vault(1).await.accepted.unwrap().through.0, 2);
            let volume = node.open(1).await.unwrap();
            assert_eq!(volume.backlog().changes, 2);
            assert_eq!(read(&volume, 2 * BLOCK, 1).await, [0], "as it was before");
            volume.drain().await.unwrap();
            assert_eq!(read(&volume, BLOCK, 1).await, [0xa1]);
        });
        world.crash_process();
        let env = world.env();
        world.block_on(async {
            let volume = start(&env, &store).await.open(1).await.unwrap();
            assert_eq!(volume.backlog().changes, 0);
            assert_eq!(read(&volume, 3 * BLOCK, 1).await, [0]);
        });
    }
}

#[test]
fn what_is_written_after_losses_were_accepted_counts_also_where_the_life_had_found_more() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        let volume = node.open(1).await.unwrap();
        for block in 0..4 {
            write(&volume, block, 0xa0 + block as u8).await;
        }
    });
    world.cut_power();
    let (path, at) = find(&world, &[0xa2; BLOCK as usize]);
    assert!(world.flip_bit(&path, at + 1000));
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        // The vault says that this life found four changes, and which lives logged them.
        node.staging.taken(Incarnation(2));
        let volume = node.open(1).await.unwrap();
        volume.close().await.unwrap();
        accept(&node, 1).await;
        let vault = node.vault(1).await;
        assert_eq!((vault.begins, vault.logged.len()), (Serial(2), 1));
        let volume = node.open(1).await.unwrap();
        for block in [2, 3] {
            write(&volume, block, 0xb0 + block as u8).await;
        }
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let volume = start(&env, &store).await.open(1).await.unwrap();
        assert_eq!(volume.backlog().changes, 4);
        for (block, byte) in [(0, 0xa0), (1, 0xa1), (2, 0xb2), (3, 0xb3)] {
            assert_eq!(read(&volume, block * BLOCK, 1).await, [byte]);
        }
    });
}

#[test]
fn a_second_loss_before_the_accepted_one_is_told_and_refused_again() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        let volume = node.open(1).await.unwrap();
        let mut serial = 0_u64;
        while node.log.usage().segments < 5 {
            write(&volume, serial % 64, (serial / 64) as u8).await;
            serial += 1;
        }
    });
    let mut kept = u64::MAX;
    for lost in [4, 3] {
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let segment = format!("/node/log/{lost:08}.seg");
            env.disk().remove(Path::new(&segment)).await.unwrap();
            let node = start(&env, &store).await;
            let Err(Error::Lost { reason, .. }) = node.open(1).await else {
                panic!("segment {lost} is lost")
            };
            assert!(reason.contains(&format!("were in segment {lost}")), "{reason}");
            let lines = accept(&node, 1).await;
            assert!(lines.iter().any(|line| line.contains("kept: the changes up to")), "{lines:?}");
            let through = node.vault(1).await.accepted.unwrap().through.0;
            assert!(through > 0 && through < kept, "{through} of {kept}");
            kept = through;
            let volume = node.open(1).await.unwrap();
            assert_eq!(volume.backlog().changes, kept, "what was accepted is not told again");
        });
    }
}

/// Writes blocks 0, 1, 2, ... of volume 1 until the log has four segments. Returns their count.
async fn fill(node: &Node) -> u64 {
    let volume = node.open(1).await.unwrap();
    let mut serial = 0_u64;
    while node.log.usage().segments < 4 {
        write(&volume, serial, 1 + serial as u8 % 200).await;
        serial += 1;
    }
    serial
}

fn refuse(world: &World, share: f64) {
    world.change_faults(|faults| {
        faults.read_error = share;
        faults.only = Some("00000002.seg".to_owned());
    });
}

/// The medium of a sealed segment goes bad after its table was read: only payloads can be refused.
#[test]
fn changes_that_the_device_refuses_are_named_and_can_be_given_up() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    let env = world.env();
    let last = world.block_on(async { fill(&start(&env, &store).await).await });
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        let mut setup = setup();
        setup.config.index_at_once = 1 << 20;
        let node = Node::start(&env, &setup, &store, Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.backlog().changes as u64, last);
        refuse(&world, 1.0);
        let error = volume.drain().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        assert!(error.to_string().contains("cannot be read"), "{error}");
        assert!(error.to_string().contains("salvage run volume1 --accept-losses"), "{error}");
        assert!(volume.has_lost_changes());
        let would = volume.examine_unfinished().await.unwrap();
        assert_eq!(node.vault(1).await.accepted, None, "that was only a look");
        volume.close().await.unwrap();
        let lines = accept(&node, 1).await;
        assert_eq!(lines, would);
        assert!(lines[0].contains("cannot be read"), "{lines:?}");
        let through = node.vault(1).await.accepted.unwrap().through.0;
        assert!(through > 0 && through < last);
        assert!(lines[0].starts_with(&format!("serial {} is damaged", through + 1)), "{lines:?}");
        let volume = node.open(1).await.unwrap();
        for serial in 0..last {
            let expected = if serial < through { 1 + serial as u8 % 200 } else { 0 };
            assert_eq!(read(&volume, serial * BLOCK, 1).await, [expected], "{serial} of {through}");
        }
        volume.drain().await.unwrap();
        refuse(&world, 0.0);
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let volume = start(&env, &store).await.open(1).await.unwrap();
        assert_eq!(volume.backlog().changes, 0, "nothing of it comes back");
    });
}

#[test]
fn a_look_finds_damage_before_a_batch_meets_it_and_none_where_it_was_written_over() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.examine_unfinished().await.unwrap(), [""; 0]);
        for block in 0..4 {
            write(&volume, block, 0xa0 + block as u8).await;
        }
        assert_eq!(volume.examine_unfinished().await.unwrap(), [""; 0]);
    });
    world.cut_power();
    let (path, at) = find(&world, &[0xa2; BLOCK as usize]);
    assert!(world.flip_bit(&path, at + 1000));
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        let volume = node.open(1).await.unwrap();
        assert!(!volume.has_lost_changes());
        let lines = volume.examine_unfinished().await.unwrap();
        assert!(lines[0].contains("serial 3 is damaged"), "{lines:?}");
        assert!(lines[1].contains("kept: the changes up to serial 2"), "{lines:?}");
        assert_eq!(lines[3], "given up: serial 4, bytes 12288..16384");
        assert!(volume.has_lost_changes());
        assert!(matches!(volume.drain().await, Err(Error::Lost { .. })));
        write(&volume, 2, 0xb2).await;
        assert_eq!(volume.examine_unfinished().await.unwrap(), [""; 0], "it is whole again");
        volume.close().await.unwrap();
        assert_eq!(accept(&node, 1).await, [""; 0], "nothing needs to be given up");
        let volume = node.open(1).await.unwrap();
        for _ in 0..1000 {
            if volume.drain().await.is_ok() {
                break;
            }
            env.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(volume.backlog().checkpoint, 5);
        for (block, byte) in [0xa0, 0xa1, 0xb2, 0xa3].into_iter().enumerate() {
            assert_eq!(read(&volume, block as u64 * BLOCK, 1).await, [byte]);
        }
    });
}

/// A lost change behind the whole prefix may have made older damage harmless.
#[test]
fn damage_that_only_a_lost_change_had_written_over_ends_the_prefix_too() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        let volume = node.open(1).await.unwrap();
        for (block, byte) in [(0, 0xa0), (1, 0xa1), (2, 0xa2), (1, 0xb1), (3, 0xa3)] {
            write(&volume, block, byte).await;
        }
    });
    world.cut_power();
    for byte in [0xa1, 0xa2] {
        let (path, at) = find(&world, &[byte; BLOCK as usize]);
        assert!(world.flip_bit(&path, at + 7));
    }
    let env = world.env();
    world.block_on(async {
        let node = start(&env, &store).await;
        let lines = accept(&node, 1).await;
        assert!(lines[0].contains("serial 2 is damaged"), "{lines:?}");
        assert!(lines[1].contains("serial 3 is damaged"), "{lines:?}");
        assert_eq!(node.vault(1).await.accepted.unwrap().through.0, 1);
        let volume = node.open(1).await.unwrap();
        assert_eq!(read(&volume, 0, 1).await, [0xa0]);
        assert_eq!(read(&volume, BLOCK, 3 * BLOCK as usize).await, [0; 3 * BLOCK as usize]);
        volume.drain().await.unwrap();
    });
}
