//! Segments that cannot be read, or not to their end: damage of these segments, and an obstacle for nobody else.

use super::*;
use crate::Recovered;
use base::SegmentId;

fn serials(list: &[Recovered]) -> Vec<u64> {
    list.iter().map(|one| one.serial.0).collect()
}

/// Volume 1 in every segment but the last, volume 2 in the last only. The last serial of volume 1.
async fn fill(env: &Env) -> u64 {
    let (log, _) = open_with(env, 3, 20).await.unwrap();
    let mut serial = 0;
    while log.usage().segments < 6 {
        serial += 1;
        append(&log, volume(1), serial, 1000).await.unwrap();
    }
    append(&log, volume(2), 1, 300).await.unwrap();
    log.commit(Position(u64::MAX)).await.unwrap();
    serial
}

async fn cut(env: &Env, file: u64, length: u64) {
    let path = PathBuf::from(format!("/flash/{file:08}.seg"));
    let file = env.disk().open(&path, env::Open::Write).await.unwrap();
    file.set_length(length).await.unwrap();
    file.sync_data().await.unwrap();
}

#[test]
fn a_segment_cut_short_costs_only_what_was_behind_the_cut() {
    // The newest is file 6: its opening is at its front.
    for (file, length) in (1..=6).flat_map(|file| [0, 100, 700, 5000, 20_000].map(|at| (file, at)))
    {
        for power in [true, false] {
            let world = world(1);
            let env = world.env();
            let last = world.block_on(async {
                let last = fill(&env).await;
                cut(&env, file, length).await;
                last
            });
            if power {
                world.cut_power()
            } else {
                world.crash_process()
            }
            for life in 0..3 {
                let env = world.env();
                world.block_on(async {
                    let (log, opened) = open_with(&env, 3, 20).await.unwrap();
                    let (list, losses) = log.salvage(volume(1)).await.unwrap();
                    let found = serials(&list);
                    assert!(found.is_sorted(), "{found:?}");
                    let complete = found == (1..=last).collect::<Vec<_>>();
                    assert!(complete || !losses.is_empty(), "{file} {length}: {found:?}");
                    // Whatever is missing lies in what is said to be lost.
                    for serial in (1..=last).filter(|serial| !found.contains(serial)) {
                        let is_said = losses.iter().any(|loss| {
                            loss.after.0 < serial && loss.before.is_none_or(|b| b.0 > serial)
                        });
                        assert!(is_said, "{file} {length} life {life}: {serial}, {losses:?}");
                    }
                    if power && file < 6 {
                        assert!(!complete, "{file} {length}");
                        assert_eq!(losses[0].segment, SegmentId(file));
                        assert_eq!(losses.len(), 1, "{file} {length} life {life}: {losses:?}");
                        assert_eq!(recovered(&log, volume(2)).await, [1]);
                    }
                    // Others go on, new ones too.
                    if file < 6 {
                        assert_eq!(log.unfinished(volume(7)).await.unwrap().len(), 0);
                    }
                    // What memory had sealed behind the cut is seen to be damaged at its first use.
                    for one in list.iter().filter(|_| power || file < 6) {
                        check(volume(1), one.serial.0, &one.place).await;
                    }
                    append(&log, volume(9), 1 + life, 100).await.unwrap();
                    log.commit(Position(u64::MAX)).await.unwrap();
                    drop(opened);
                });
                world.crash_process();
            }
            let env = world.env();
            world.block_on(async {
                let (log, _) = open_with(&env, 3, 20).await.unwrap();
                log.accept_losses().await.unwrap();
                log.unfinished(volume(1)).await.unwrap();
                log.forget(volume(1));
                log.forget(volume(2));
                for serial in 10..80 {
                    append(&log, volume(9), serial, 2000).await.unwrap();
                    log.release(volume(9), Serial(serial));
                }
                log.commit(Position(u64::MAX)).await.unwrap();
            });
            world.crash_process();
            let env = world.env();
            world.block_on(async {
                let (log, opened) = open_with(&env, 3, 20).await.unwrap();
                assert_eq!(opened.damage, Vec::<String>::new(), "{file} {length} {power}");
                assert!(log.usage().segments < 10, "{:?}", log.usage());
            });
        }
    }
}

async fn files(env: &Env) -> Vec<String> {
    let list = env.disk().list(Path::new(FOLDER)).await.unwrap();
    list.into_iter().map(|(name, _)| name).filter(|name| name.ends_with(".seg")).collect()
}

#[test]
fn flash_of_lost_segments_comes_back_when_the_loss_is_accepted() {
    let world = world(2);
    let env = world.env();
    world.block_on(async { fill(&env).await });
    world.cut_power();
    // A member's header, and a file that no digest names.
    assert!(world.flip_bit("/flash/00000003.seg", 40));
    let env = world.env();
    world.block_on(async {
        let stray = PathBuf::from("/flash/00000090.seg");
        let file = env.disk().open(&stray, env::Open::Create).await.unwrap();
        file.write_durable(b"RKNDLseg, but no more of it is right", 0).await.unwrap();
        file.set_length(u64::from(SEGMENT)).await.unwrap();
        let (log, opened) = open_with(&env, 3, 6).await.unwrap();
        assert_eq!(opened.damage.len(), 2, "{:?}", opened.damage);
        assert!(matches!(log.unfinished(volume(1)).await, Err(Error::Lost { .. })));
        let before = files(&env).await;
        assert!(before.contains(&"00000003.seg".to_owned()) && before.len() > 6);
        log.accept_losses().await.unwrap();
        let after = files(&env).await;
        assert!(after.iter().all(|name| name != "00000003.seg" && name != "00000090.seg"));
        log.forget(volume(1));
        log.forget(volume(2));
        for serial in 1..100 {
            append(&log, volume(3), serial, 1000).await.unwrap();
            log.release(volume(3), Serial(serial));
        }
        log.commit(Position(u64::MAX)).await.unwrap();
    });
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open_with(&env, 3, 6).await.unwrap();
        assert_eq!(opened.damage, Vec::<String>::new());
        assert_eq!(log.unfinished_volumes().await.unwrap(), []);
        assert!(
            files(&env).await.len() <= 6 + crate::limits::RESERVE_FILES as usize,
            "{:?}",
            files(&env).await
        );
    });
}

#[test]
fn a_segment_that_the_device_does_not_give_is_no_obstacle_for_others() {
    for file in 1..=6u64 {
        let world = world(file);
        let env = world.env();
        world.block_on(async { fill(&env).await });
        world.cut_power();
        world.change_faults(|faults| {
            faults.only = Some(format!("{file:08}.seg"));
            faults.read_error = 1.0;
        });
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open_with(&env, 3, 20).await.unwrap();
            assert!(!opened.damage.is_empty());
            let (list, losses) = log.salvage(volume(1)).await.unwrap();
            assert!(!list.is_empty() && losses.len() == 1, "{file}: {losses:?}");
            if file < 6 {
                assert_eq!(recovered(&log, volume(2)).await, [1]);
                assert_eq!(recovered(&log, volume(8)).await, Vec::<u64>::new());
            }
            append(&log, volume(8), 1, 1000).await.unwrap();
            log.commit(Position(u64::MAX)).await.unwrap();
            log.accept_losses().await.unwrap();
            log.unfinished(volume(1)).await.unwrap();
        });
    }
}

/// The places of volume 1 in the second segment, which is sealed and not in memory any more.
async fn places_on_flash(log: &Log) -> Vec<Recovered> {
    let mut list = log.unfinished(volume(1)).await.unwrap();
    list.retain(|one| one.place.segment_id() == SegmentId(2));
    assert!(list.iter().all(|one| one.place.segment.with_memory(|_| ()).is_none()));
    list
}

fn refuse(world: &World, share: f64) {
    world.change_faults(|faults| {
        faults.read_error = share;
        faults.only = Some("00000002.seg".to_owned());
    });
}

#[test]
fn a_change_that_the_device_refuses_for_good_is_damaged() {
    let world = world(3);
    let env = world.env();
    world.block_on(async { fill(&env).await });
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 3, 20).await.unwrap();
        let list = places_on_flash(&log).await;
        // One was read before: what was verified once can be refused, too.
        check(volume(1), list[0].serial.0, &list[0].place).await;
        refuse(&world, 1.0);
        for one in &list {
            let error = one.place.read(0, &mut [0; 100]).await.unwrap_err();
            let Error::Damaged { segment, offset, reason } = &error else { panic!("{error}") };
            assert_eq!((*segment, *offset), (SegmentId(2), one.place.offset));
            assert!(reason.contains("cannot be read"), "{reason}");
        }
        // It may change its mind.
        refuse(&world, 0.0);
        for one in &list {
            check(volume(1), one.serial.0, &one.place).await;
        }
        log.commit(Position(u64::MAX)).await.unwrap();
        assert!(log.failure().is_none(), "others go on");
    });
}

#[test]
fn a_change_that_the_device_refuses_once_is_read_again() {
    for operation in 1..4 {
        let world = world(3);
        let env = world.env();
        world.block_on(async { fill(&env).await });
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let (log, _) = open_with(&env, 3, 20).await.unwrap();
            let list = places_on_flash(&log).await;
            let next = world.disk_operations() + operation;
            world.change_faults(|faults| {
                faults.fail_operation = Some(next);
                faults.only = Some("00000002.seg".to_owned());
            });
            for one in &list {
                check(volume(1), one.serial.0, &one.place).await;
            }
        });
    }
}

#[test]
fn a_file_that_cannot_be_read_outlives_the_log_that_needs_it_and_goes_when_it_is_released() {
    for released in [false, true] {
        let world = world(3);
        let env = world.env();
        let last = world.block_on(async { fill(&env).await });
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let (log, _) = open_with(&env, 3, 20).await.unwrap();
            let list = places_on_flash(&log).await;
            refuse(&world, 1.0);
            assert!(list[0].place.read(0, &mut []).await.is_err());
            drop(list);
            if released {
                log.release(volume(1), Serial(last));
                for serial in 2..100 {
                    append(&log, volume(2), serial, 1000).await.unwrap();
                }
            }
            log.close().await.unwrap();
            drop(log);
            env.sleep(Duration::from_secs(10)).await;
        });
        assert_eq!(world.peek("/flash/00000002.seg").is_none(), released);
    }
}

/// The table was read at the start; nobody has asked for this volume's changes before the medium went bad.
#[test]
fn a_table_that_cannot_be_read_again_is_a_loss_of_what_was_in_that_segment_only() {
    for (share, flip) in [(1.0, false), (0.0, true), (0.0, false)] {
        let world = world(3);
        let env = world.env();
        let last = world.block_on(async { fill(&env).await });
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let (log, _) = open_with(&env, 3, 20).await.unwrap();
            let list = places_on_flash(&log).await;
            let (first, end) = (list[0].serial, list.last().unwrap().serial);
            drop(list);
            refuse(&world, share);
            if flip {
                // In the descriptors: the entries have it all.
                assert!(world.flip_bit("/flash/00000002.seg", u64::from(SEGMENT) - 600));
            }
            let (list, losses) = log.salvage(volume(1)).await.unwrap();
            let expected: Vec<_> =
                (1..=last).filter(|&s| share == 0.0 || s < first.0 || s > end.0).collect();
            assert_eq!(serials(&list), expected);
            let said: Vec<_> = losses.iter().map(|l| (l.segment, l.after.0, l.before)).collect();
            let lost = [(SegmentId(2), first.0 - 1, Some(end.next()))];
            assert_eq!(said, if share == 0.0 { &lost[..0] } else { &lost[..] });
            assert_eq!(recovered(&log, volume(2)).await, [1]);
            assert_eq!(log.unfinished(volume(7)).await.unwrap().len(), 0);
            refuse(&world, 0.0);
            assert_eq!(recovered(&log, volume(1)).await, (1..=last).collect::<Vec<_>>());
        });
    }
}
