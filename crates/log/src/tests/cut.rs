//! An open head that flash has in part: entries behind the damage prove that more was there.

use super::*;
use crate::Recovered;
use crate::limits::SECTOR_BYTES;

fn serials(list: &[Recovered]) -> Vec<u64> {
    list.iter().map(|one| one.serial.0).collect()
}

/// Makes six commits of one change each into the first head. Returns the offsets of the entries.
fn six_commits(world: &World) -> Vec<u32> {
    six_commits_and_quiet(world, Duration::ZERO)
}

/// The same, and nothing is appended for this time.
fn six_commits_and_quiet(world: &World, quiet: Duration) -> Vec<u32> {
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        let mut offsets = Vec::new();
        for serial in 1..=6 {
            let (position, place) = append(&log, volume(1), serial, 600).await.unwrap();
            log.commit(position).await.unwrap();
            offsets.push(place.offset);
        }
        env.sleep(quiet).await;
        offsets
    })
}

#[test]
fn one_bad_header_of_an_open_head_is_an_exact_loss() {
    // Each of the six but the last, which may be torn.
    for (number, byte) in (0..5).flat_map(|number| [(number, 0), (number, 20), (number, 60)]) {
        let world = world(1);
        let offsets = six_commits(&world);
        world.cut_power();
        let image = world.peek("/flash/00000001.seg").unwrap();
        assert!(world.flip_bit("/flash/00000001.seg", u64::from(offsets[number]) + byte));
        let damaged = number as u64 + 1;
        for life in 0..3 {
            let env = world.env();
            world.block_on(async {
                let (log, opened) = open(&env).await;
                assert!(life > 0 || !opened.damage.is_empty(), "{damaged}");
                let (list, losses) = log.salvage(volume(1)).await.unwrap();
                let expected: Vec<_> = (1..=6).filter(|&serial| serial != damaged).collect();
                assert_eq!(serials(&list), expected, "life {life}");
                let said: Vec<_> = losses.iter().map(|l| (l.after.0, l.before)).collect();
                assert_eq!(said, [(damaged - 1, Some(Serial(damaged + 1)))], "life {life}");
                for one in &list {
                    check(volume(1), one.serial.0, &one.place).await;
                }
                append(&log, volume(2), life + 1, 600).await.unwrap();
                log.commit(Position(u64::MAX)).await.unwrap();
            });
            world.cut_power();
            // The proof is still there.
            let now = world.peek("/flash/00000001.seg").unwrap();
            let differs = image.iter().zip(&now).filter(|(a, b)| a != b).count();
            assert_eq!(differs, 1, "life {life}");
        }
        let env = world.env();
        world.block_on(async {
            let (log, _) = open(&env).await;
            log.accept_losses().await.unwrap();
            assert_eq!(log.unfinished(volume(1)).await.unwrap().len(), 5);
        });
    }
}

/// The head after this one was opened, so this one's opening was durable once: no damage of it is
/// taken for a torn write.
#[test]
fn a_head_whose_opening_is_damaged_is_a_loss_when_it_has_a_successor() {
    for byte in [128, 140, 190, 200] {
        let world = world(1);
        let env = world.env();
        world.block_on(async {
            let (log, _) = open(&env).await;
            for serial in 1..=25 {
                append(&log, volume(1), serial, 600).await.unwrap();
            }
            // The next head is opened, and this one has nothing committed beyond its opening.
            env.sleep(Duration::from_millis(10)).await;
            assert!(log.view().head.durable < 2048, "{:?}", log.view());
        });
        assert!(world.peek("/flash/00000002.seg").is_some());
        world.cut_power();
        assert!(world.flip_bit("/flash/00000001.seg", byte));
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open(&env).await;
            assert!(!opened.damage.is_empty(), "{byte}");
            let (list, losses) = log.salvage(volume(1)).await.unwrap();
            assert!(list.is_empty() && losses.len() == 1, "{byte}: {losses:?}");
            log.accept_losses().await.unwrap();
            append(&log, volume(1), 1, 600).await.unwrap();
            log.commit(Position(u64::MAX)).await.unwrap();
        });
    }
}

#[test]
fn a_bad_certificate_of_an_open_head_costs_nothing() {
    let world = world(1);
    let offsets = six_commits(&world);
    world.cut_power();
    // The certificate lies behind header and payload.
    assert!(world.flip_bit("/flash/00000001.seg", u64::from(offsets[2] + 64 + 640)));
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        assert_eq!(recovered(&log, volume(1)).await, [1, 2, 3, 4, 5, 6]);
    });
}

#[test]
fn no_flipped_bit_of_an_open_head_takes_more_than_a_last_batch_that_was_just_written_in_silence() {
    for seed in 0..1200 {
        let world = world(seed);
        // Once the log was quiet, the last batch is confirmed.
        let (quiet, least) = [(0, 5), (3, 6)][(seed % 2) as usize];
        let offsets = six_commits_and_quiet(&world, Duration::from_secs(quiet));
        world.cut_power();
        // Behind the segment's header: without the header there is no sign that there was a log.
        let offset = 128 + world.env().random_u64() % u64::from(offsets[5] + 800);
        assert!(world.flip_bit("/flash/00000001.seg", offset));
        let env = world.env();
        world.block_on(async {
            let (log, _) = open(&env).await;
            let (list, losses) = log.salvage(volume(1)).await.unwrap();
            let found = serials(&list);
            let is_said = !losses.is_empty();
            assert!(is_said || found.len() >= least, "seed {seed} at {offset}: {found:?}");
            assert!(is_said || found == (1..=found.len() as u64).collect::<Vec<_>>());
        });
    }
}

/// A torn write is no damage, wherever it tears, and also when a commit was given up in between.
#[test]
fn a_torn_last_batch_is_never_taken_for_damage() {
    for seed in 0..400 {
        let world = world(seed);
        let env = world.env();
        let stop = rekindle_env::sim::Stop::DiskOperation(1 + env.random_u64() % 60);
        let mut committed = 0;
        world.block_on_until(stop, async {
            let (log, _) = open(&env).await;
            for serial in 1.. {
                let (position, _) = append(&log, volume(1), serial, 3000).await.unwrap();
                if serial % 3 == 0 {
                    // The commit is given up in the middle of its write; the next one repeats it.
                    let commit = log.commit(position);
                    let _ = env.timeout(Duration::from_micros(seed * 3), commit).await;
                } else {
                    log.commit(position).await.unwrap();
                    committed = serial;
                }
                log.release(volume(1), Serial(serial.saturating_sub(4)));
                if serial % 5 == seed % 5 {
                    // The batch before is confirmed, and that write may be torn, too.
                    env.sleep(Duration::from_secs(2)).await;
                }
            }
        });
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open(&env).await;
            assert_eq!(opened.damage, Vec::<String>::new(), "seed {seed}");
            let list = recovered(&log, volume(1)).await;
            assert!(list.last().copied().unwrap_or(0) >= committed, "seed {seed}: {list:?}");
        });
    }
}

/// However little room its segment has left.
#[test]
fn a_last_batch_is_confirmed_wherever_it_ends() {
    let mut ends = std::collections::BTreeSet::new();
    for count in 1..80 {
        let world = world(1);
        let env = world.env();
        let last = world.block_on(async {
            let (log, _) = open(&env).await;
            let mut last = None;
            for serial in 1..=count {
                let (position, place) = append(&log, volume(1), serial, 600).await.unwrap();
                log.commit(position).await.unwrap();
                last = Some((place.segment_id(), place.offset));
            }
            env.sleep(Duration::from_secs(3)).await;
            last.unwrap()
        });
        ends.insert(last);
        world.cut_power();
        let path = format!("/flash/{:08}.seg", last.0.0);
        assert!(world.flip_bit(&path, u64::from(last.1) + 100));
        let env = world.env();
        world.block_on(async {
            let (log, _) = open(&env).await;
            let (list, losses) = log.salvage(volume(1)).await.unwrap();
            let is_there = list.last().is_some_and(|one| one.serial == Serial(count));
            assert!(is_there || !losses.is_empty(), "{count}");
        });
    }
    let segments: std::collections::BTreeSet<_> = ends.iter().map(|end| end.0).collect();
    assert!(segments.len() > 2, "{segments:?}");
}

#[test]
fn a_quiet_log_is_confirmed_once_and_goes_on() {
    let world = world(1);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        let mut before = log.committed();
        for serial in 1..=3 {
            let (position, _) = append(&log, volume(1), serial, 600).await.unwrap();
            log.commit(position).await.unwrap();
            let (written, reached) = (log.committed(), before);
            assert!(written > reached);
            env.sleep(Duration::from_secs(3)).await;
            before = log.committed();
            assert_eq!(before.0, written.0 + u64::from(SECTOR_BYTES));
            env.sleep(Duration::from_secs(60)).await;
            assert_eq!(log.committed(), before, "there is nothing to confirm");
        }
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open(&env).await;
        assert_eq!(opened.damage, Vec::<String>::new());
        assert_eq!(recovered(&log, volume(1)).await, [1, 2, 3]);
    });
}

/// A drive writes 4 KiB as one: a batch must not share them with an acknowledged one.
#[test]
fn batches_end_on_the_drives_physical_sector() {
    let world = world(9);
    world.change_faults(|faults| faults.sector_bytes = 4096);
    let env = world.env();
    let last = world.block_on(async {
        let (log, _) = open_with(&env, 4, 20).await.unwrap();
        let mut before = None;
        for serial in 1..=40 {
            let (position, place) = append(&log, volume(1), serial, 600).await.unwrap();
            log.commit(position).await.unwrap();
            assert!(position.0 % 4096 != 0 && log.committed().0 % 4096 == 0);
            let this = (place.segment_id(), place.offset / 4096);
            assert_ne!(before.replace(this), Some(this), "{serial}");
        }
        40
    });
    world.cut_power();
    // The next life has a drive of another kind, and reads what the first has written.
    world.change_faults(|faults| faults.sector_bytes = 512);
    for _ in 0..2 {
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open_with(&env, 4, 20).await.unwrap();
            assert_eq!(opened.damage, Vec::<String>::new());
            assert_eq!(recovered(&log, volume(1)).await, (1..=last).collect::<Vec<_>>());
            append(&log, volume(2), 1, 600).await.unwrap();
        });
        world.crash_process();
    }
}
