//! Released or forgotten changes stay so, whatever happens to the process.

use super::*;
use crate::Recovered;
use rekindle_base::SegmentId;

fn serials(list: &[Recovered]) -> Vec<u64> {
    list.iter().map(|one| one.serial.0).collect()
}

#[test]
fn what_was_released_never_comes_back() {
    for seed in 0..40 {
        let world = world(seed);
        let env = world.env();
        world.block_on(async {
            let (log, _) = open_with(&env, 4, 20).await.unwrap();
            for serial in 1..=10 + seed * 2 {
                append(&log, volume(1), serial, 1000).await.unwrap();
                append(&log, volume(2), serial, 100).await.unwrap();
                append(&log, volume(3), serial, 100).await.unwrap();
            }
            log.forget(volume(1));
            log.release(volume(2), Serial(7));
            // A change behind the released ones counts.
            append(&log, volume(1), 900, 100).await.unwrap();
            let position = log.release(volume(3), Serial(5));
            log.commit(position).await.unwrap();
        });
        for life in 0..6 {
            if (seed + life) % 2 == 0 {
                world.crash_process()
            } else {
                world.cut_power()
            }
            let env = world.env();
            world.block_on(async {
                let (log, opened) = open_with(&env, 4, 20).await.unwrap();
                assert_eq!(opened.damage, Vec::<String>::new());
                if (seed + life) % 3 == 0 {
                    let summary = log.summary(volume(2)).await.unwrap().unwrap();
                    assert_eq!(summary.lowest, Serial(8));
                }
                let list = log.unfinished(volume(1)).await.unwrap();
                assert!(serials(&list).iter().all(|&serial| serial == 900), "{:?}", serials(&list));
                let last = 10 + seed * 2;
                assert_eq!(recovered(&log, volume(2)).await, (8..=last).collect::<Vec<_>>());
                assert_eq!(recovered(&log, volume(3)).await, (6..=last).collect::<Vec<_>>());
                // A life with work of its own, which rolls over.
                for serial in 1..=life * 10 {
                    append(&log, volume(4), life * 100 + serial, 1000).await.unwrap();
                }
                log.commit(log.forget(volume(4))).await.unwrap();
            });
        }
    }
}

/// Removal after removal, as `drain`, `rm`, `stop`, `up` do it.
#[test]
fn changes_of_removed_volumes_do_not_fill_the_log() {
    for power in [false, true] {
        let world = world(3);
        for life in 0..30u8 {
            let env = world.env();
            world.block_on(async {
                let (log, _) = open_with(&env, 4, 4).await.unwrap();
                // No volume exists any more that would destage the changes listed here.
                assert_eq!(log.unfinished_volumes().await.unwrap(), [], "life {life}");
                let work = async {
                    for serial in 1..=60 {
                        append(&log, volume(life), serial, 1000).await.unwrap();
                        log.release(volume(life), Serial(serial - serial % 7));
                    }
                };
                let done = env.timeout(Duration::from_secs(60), work).await;
                assert!(done.is_ok(), "life {life} hangs: {:?}", log.usage());
                log.commit(log.forget(volume(life))).await.unwrap();
                if life % 3 == 0 {
                    log.close().await.unwrap();
                }
            });
            if power { world.cut_power() } else { world.crash_process() }
        }
    }
}

#[test]
fn a_change_behind_a_forgotten_one_counts_in_the_same_segment() {
    let world = world(4);
    let env = world.env();
    let write = async |log: &Log, serial, generation| {
        let bytes = payload(volume(1), serial, 64);
        let change =
            Append { generation: Generation(generation), ..change(volume(1), serial, &bytes) };
        log.append(&[change]).unwrap();
    };
    world.block_on(async {
        let (log, _) = open(&env).await;
        for serial in [8, 9, 10] {
            write(&log, serial, 1).await;
        }
        log.forget(volume(1));
        for serial in [9, 10, 11] {
            write(&log, serial, 2).await;
        }
        log.release(volume(1), Serial(9));
        log.commit(Position(u64::MAX)).await.unwrap();
    });
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        let list = log.unfinished(volume(1)).await.unwrap();
        let list: Vec<_> = list.iter().map(|one| (one.generation.0, one.serial.0)).collect();
        assert_eq!(list, [(2, 10), (2, 11)]);
    });
}

#[test]
fn a_lost_segment_whose_changes_were_released_harms_nobody() {
    let world = world(5);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 3, 20).await.unwrap();
        let mut serial = 0;
        while log.usage().segments < 4 {
            serial += 1;
            append(&log, volume(1), serial, 1000).await.unwrap();
            append(&log, volume(2), serial, 100).await.unwrap();
            append(&log, volume(3), serial, 100).await.unwrap();
        }
        log.forget(volume(1));
        log.release(volume(2), Serial(serial));
        log.commit(Position(u64::MAX)).await.unwrap();
    });
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        env.disk().remove(Path::new("/flash/00000001.seg")).await.unwrap();
        let (log, opened) = open_with(&env, 3, 20).await.unwrap();
        assert_eq!(opened.damage.len(), 1, "{:?}", opened.damage);
        assert_eq!(recovered(&log, volume(1)).await, Vec::<u64>::new());
        assert_eq!(recovered(&log, volume(2)).await, Vec::<u64>::new());
        let lost = log.unfinished(volume(3)).await.err();
        assert!(
            matches!(&lost, Some(Error::Lost { losses, .. }) if losses[0].segment == SegmentId(1))
        );
    });
}

#[test]
fn up_to_where_a_volume_was_released_outlives_a_restart() {
    let world = world(77);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        for serial in 1..=5 {
            append(&log, volume(1), serial, 100).await.unwrap();
            append(&log, volume(2), serial, 100).await.unwrap();
        }
        assert_eq!(log.released(volume(1)), Serial(0));
        log.release(volume(1), Serial(3));
        assert_eq!(log.released(volume(1)), Serial(3));
        log.release(volume(1), Serial(5));
        let end = log.forget(volume(2));
        log.commit(end).await.unwrap();
    });
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        assert_eq!(log.released(volume(1)), Serial(5));
        assert_eq!(log.released(volume(2)), Serial(0), "of what is forgotten nothing is known");
        assert_eq!(log.released(volume(3)), Serial(0));
    });
}
