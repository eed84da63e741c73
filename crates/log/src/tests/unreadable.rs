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
        assert!(files(&env).await.len() <= 8, "{:?}", files(&env).await);
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
