//! The log waits when descriptors, memory or room are exhausted: nothing latches, nothing is lost.

use super::*;
use rekindle_env::sim::Failure;

#[test]
fn nothing_that_others_may_give_back_ends_the_log() {
    let exhausted: [fn(&mut Faults, f64); 3] = [
        |faults, chance| faults.no_descriptors = chance,
        |faults, chance| faults.no_memory = chance,
        |faults, chance| faults.no_space = chance,
    ];
    for (seed, set) in (0..60).zip(exhausted.into_iter().cycle()) {
        let world = world(seed);
        let env = world.env();
        let last = world.block_on(async {
            let (log, _) = open_with(&env, 3, 6).await.unwrap();
            world.change_faults(|faults| set(faults, 0.3));
            let mut places = Vec::new();
            for serial in 1..=150 {
                let (position, place) = append(&log, volume(1), serial, 1000).await.unwrap();
                log.commit(position).await.unwrap();
                places.push((serial, place));
                if serial % 20 == 0 {
                    for (serial, place) in places.drain(..) {
                        check(volume(1), serial, &place).await;
                    }
                    log.release(volume(1), Serial(serial - 5));
                }
            }
            log.commit(Position(u64::MAX)).await.unwrap();
            world.change_faults(|faults| set(faults, 0.0));
            150
        });
        if seed % 2 == 0 {
            world.crash_process()
        } else {
            world.cut_power()
        }
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open_with(&env, 3, 6).await.unwrap();
            assert_eq!(opened.damage, Vec::<String>::new());
            assert_eq!(recovered(&log, volume(1)).await, (136..=last).collect::<Vec<_>>());
        });
    }
}

/// One call of the whole life fails; each is tried.
#[test]
fn whatever_call_finds_something_exhausted_the_life_goes_on() {
    for failure in [Failure::NoDescriptors, Failure::NoMemory, Failure::NoSpace] {
        for number in 0..120 {
            let world = world(number);
            let env = world.env();
            world.block_on(async {
                let (log, _) = open_with(&env, 3, 6).await.unwrap();
                let next = world.disk_operations() + 1 + number;
                world.change_faults(|faults| {
                    (faults.fail_operation, faults.fail_with) = (Some(next), failure);
                });
                for serial in 1..=60 {
                    let (position, place) = append(&log, volume(1), serial, 1000).await.unwrap();
                    log.commit(position).await.unwrap();
                    log.release(volume(1), Serial(serial.saturating_sub(9)));
                    check(volume(1), serial, &place).await;
                }
                log.close().await.unwrap();
            });
        }
    }
}

#[test]
fn a_start_without_descriptors_gives_nothing_up() {
    for seed in 0..40 {
        let world = world(seed);
        let env = world.env();
        world.block_on(async {
            let (log, _) = open_with(&env, 3, 20).await.unwrap();
            for serial in 1..=80 {
                append(&log, volume(1), serial, 1000).await.unwrap();
            }
            log.commit(Position(u64::MAX)).await.unwrap();
        });
        world.cut_power();
        world.change_faults(|faults| (faults.no_descriptors, faults.no_memory) = (0.1, 0.1));
        let mut opened = false;
        for _ in 0..200 {
            let env = world.env();
            opened = world.block_on(async {
                let Ok((log, opened)) = open_with(&env, 3, 20).await else { return false };
                assert_eq!(opened.damage, Vec::<String>::new());
                assert_eq!(recovered(&log, volume(1)).await, (1..=80).collect::<Vec<_>>());
                true
            });
            world.crash_process();
            if opened {
                break;
            }
        }
        assert!(opened, "seed {seed}");
    }
}

/// Writes `serials` and releases those older than `behind` of them. When no more fits, it releases
/// all, as destaging does, and returns how often it did.
async fn write_on(
    env: &Env,
    log: &Log,
    serials: std::ops::RangeInclusive<u64>,
    behind: u64,
) -> usize {
    let mut waited = 0;
    for serial in serials {
        let bytes = payload(volume(1), serial, 1000);
        while log.append(&[change(volume(1), serial, &bytes)]).is_err() {
            let rolled = env.timeout(Duration::from_secs(3), log.roll(1000)).await;
            if rolled.is_err() {
                waited += 1;
                log.release(volume(1), Serial(serial - 1));
            }
        }
        log.commit(Position(u64::MAX)).await.unwrap();
        log.release(volume(1), Serial(serial.saturating_sub(behind)));
    }
    waited
}

/// The disk is full but for the files that the log keeps for that.
#[test]
fn on_a_full_disk_heads_follow_one_another_for_as_long_as_changes_are_released() {
    for behind in [0, 1, 20, 70] {
        let world = world(behind);
        let env = world.env();
        world.block_on(async {
            let (log, _) = open_with(&env, 4, 20).await.unwrap();
            assert!(log.reserve().await);
            world.set_disk_bytes(0);
            let waited = write_on(&env, &log, 1..=600, behind).await;
            assert!(waited < 40, "{behind}: {waited}");
        });
    }
}
