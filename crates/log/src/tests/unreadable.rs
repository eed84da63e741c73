//! Segments that cannot be read, or not to their end: damage of these segments, and no obstacle for
//! other volumes.

use super::*;
use crate::Recovered;
use rekindle_base::SegmentId;

fn serials(list: &[Recovered]) -> Vec<u64> {
    list.iter().map(|one| one.serial.0).collect()
}

/// Gives volume 1 changes in every segment but the last, volume 2 in the last only. Returns the
/// last serial of volume 1.
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
    let file = env.disk().open(&path, rekindle_env::Open::Write).await.unwrap();
    file.set_length(length).await.unwrap();
    file.sync_data().await.unwrap();
}

#[test]
fn a_segment_cut_short_costs_only_what_was_behind_the_cut() {
    // The newest is file 6: a cut there hits its opening, at the front.
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
                    // Each missing serial lies in a reported loss.
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
                    // Other volumes go on, new ones too.
                    if file < 6 {
                        assert_eq!(log.unfinished(volume(7)).await.unwrap().len(), 0);
                    }
                    // The damage of a segment that memory had sealed behind the cut shows at the
                    // first use.
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
    // Damages a member's header, and makes a file that no digest names.
    assert!(world.flip_bit("/flash/00000003.seg", 40));
    let env = world.env();
    world.block_on(async {
        let stray = PathBuf::from("/flash/00000090.seg");
        let file = env.disk().open(&stray, rekindle_env::Open::Create).await.unwrap();
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

/// The places of volume 1 in the second segment, which is sealed and no longer in memory.
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
        // Read once before: a payload that was verified can be refused later, too.
        check(volume(1), list[0].serial.0, &list[0].place).await;
        refuse(&world, 1.0);
        for one in &list {
            let error = one.place.read(0, &mut [0; 100]).await.unwrap_err();
            let Error::Damaged { segment, offset, reason } = &error else { panic!("{error}") };
            assert_eq!((*segment, *offset), (SegmentId(2), one.place.offset));
            assert!(reason.contains("cannot be read"), "{reason}");
        }
        // The device may recover.
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

/// The table was read at the start; this volume's changes were not asked for before the medium went
/// bad.
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
                // In the descriptors: the entries still have every change.
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

#[test]
fn changes_that_are_done_still_show_that_a_lost_head_had_nothing_of_their_volume() {
    let world = world(12);
    let env = world.env();
    world.block_on(async {
        fill(&env).await;
        // The newest: no statistics count its changes.
        cut(&env, 6, 100).await;
    });
    world.cut_power();
    for life in 0..4 {
        let env = world.env();
        world.block_on(async {
            let (log, _) = open_with(&env, 3, 20).await.unwrap();
            let lost = log.unfinished(volume(1)).await.err();
            assert!(matches!(lost, Some(Error::Lost { .. })), "life {life}: {lost:?}");
            match life {
                // A volume that begins behind the loss.
                0 => {
                    for serial in 1..=3 {
                        append(&log, volume(9), serial, 100).await.unwrap();
                    }
                }
                1 => {
                    assert_eq!(recovered(&log, volume(9)).await, [1, 2, 3]);
                    log.release(volume(9), Serial(3));
                }
                _ => assert_eq!(recovered(&log, volume(9)).await, Vec::<u64>::new(), "life {life}"),
            }
            log.commit(Position(u64::MAX)).await.unwrap();
        });
        world.cut_power();
    }
}

#[test]
fn a_segment_that_only_memory_had_gives_up_its_slot_when_its_changes_are_done() {
    let world = world(13);
    let env = world.env();
    let last = world.block_on(async {
        let (log, _) = open_with(&env, 2, 20).await.unwrap();
        let mut serial = 0;
        while log.usage().segments < 3 {
            serial += 1;
            append(&log, volume(1), serial, 1000).await.unwrap();
        }
        log.commit(Position(u64::MAX)).await.unwrap();
        env.disk().remove(Path::new("/flash/00000003.seg")).await.unwrap();
        serial
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open_with(&env, 2, 20).await.unwrap();
        assert!(opened.damage[0].contains("only in memory"), "{:?}", opened.damage);
        assert_eq!(recovered(&log, volume(1)).await, (1..=last).collect::<Vec<_>>());
        log.release(volume(1), Serial(last));
        for serial in 1..200 {
            let work = append(&log, volume(2), serial, 1000);
            let done = env.timeout(Duration::from_secs(60), work).await;
            assert!(done.is_ok_and(|done| done.is_ok()), "change {serial} waits for ever");
            log.release(volume(2), Serial(serial));
        }
    });
}

/// A device that gives a wrong bit in one of twenty reads, and is right when it is read again.
#[test]
fn a_bit_that_is_wrong_on_its_way_costs_nothing_at_a_start() {
    (0..60).for_each(|seed| start_over_bad_reads(seed, 0.05, 0.0));
}

/// A device that refuses one of thirty reads, and not the next.
#[test]
fn a_read_that_is_refused_once_costs_nothing_at_a_start() {
    (0..60).for_each(|seed| start_over_bad_reads(seed, 0.0, 0.03));
}

/// A world in which the power failed after 30 changes of 2,000 bytes were committed.
fn cut_after_thirty_changes(seed: u64) -> World {
    let world = world(seed);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 3, 20).await.unwrap();
        for serial in 1..=30 {
            let (position, _) = append(&log, volume(1), serial, 2000).await.unwrap();
            log.commit(position).await.unwrap();
        }
    });
    world.cut_power();
    world
}

/// Makes reads of flash give wrong bits and errors, as often as that.
fn misread(world: &World, flips: f64, refusals: f64) {
    world.change_faults(|faults| {
        (faults.read_flip, faults.read_error) = (flips, refusals);
        faults.only = Some("flash".to_owned());
    });
}

fn start_over_bad_reads(seed: u64, flips: f64, refusals: f64) {
    let world = cut_after_thirty_changes(seed);
    let env = world.env();
    world.block_on(async {
        misread(&world, flips, refusals);
        let (log, opened) = loop {
            match open_with(&env, 3, 20).await {
                Ok(opened) => break opened,
                // The folder could not be listed: the supervisor starts the node again.
                Err(Error::Flash { .. }) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        };
        misread(&world, 0.0, 0.0);
        assert_eq!(opened.damage, Vec::<String>::new(), "seed {seed}");
        let list = log.unfinished(volume(1)).await.unwrap();
        assert_eq!(list.len(), 30, "seed {seed}");
        for one in &list {
            check(volume(1), one.serial.0, &one.place).await;
        }
    });
}

#[test]
fn a_wrong_bit_in_a_segment_that_has_refused_a_read_is_read_again() {
    for seed in 0..5 {
        let world = cut_after_thirty_changes(seed);
        let env = world.env();
        world.block_on(async {
            let (log, _) = open_with(&env, 3, 20).await.unwrap();
            let list = log.unfinished(volume(1)).await.unwrap();
            misread(&world, 0.0, 1.0);
            list[0].place.read(0, &mut [0; 2000]).await.expect_err("the device refuses it");
            misread(&world, 0.05, 0.0);
            for one in &list {
                check(volume(1), one.serial.0, &one.place).await;
            }
        });
    }
}
