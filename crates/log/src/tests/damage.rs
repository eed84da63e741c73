//! Flipped bits and missing files: seen, reported, and confined.

use super::*;
use crate::Recovered;

/// Volume 1 has changes everywhere, volume 2 in the first segment only, volume 3 in the last only.
async fn fill(env: &Env) -> (Log, u64) {
    let (log, _) = open_with(env, 3, 20).await.unwrap();
    append(&log, volume(2), 1, 300).await.unwrap();
    let mut serial = 0;
    while log.usage().segments < 6 {
        serial += 1;
        append(&log, volume(1), serial, 1000).await.unwrap();
    }
    append(&log, volume(3), 1, 300).await.unwrap();
    log.commit(Position(u64::MAX)).await.unwrap();
    (log, serial)
}

fn filled(world: &World) -> u64 {
    let env = world.env();
    world.block_on(async { fill(&env).await.1 })
}

fn serials(list: &[Recovered]) -> Vec<u64> {
    list.iter().map(|one| one.serial.0).collect()
}

async fn lost(log: &Log, volume: VolumeId) -> Vec<crate::Loss> {
    match log.unfinished(volume).await {
        Err(Error::Lost { losses, .. }) => losses,
        other => panic!("a loss is expected, not {:?}", other.map(|list| serials(&list))),
    }
}

#[test]
fn a_missing_segment_is_reported_and_concerns_only_who_may_be_in_it() {
    let world = world(1);
    let last = filled(&world);
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        env.disk().remove(Path::new("/flash/00000003.seg")).await.unwrap();
        let (log, opened) = open_with(&env, 3, 20).await.unwrap();
        assert_eq!(opened.damage.len(), 1, "{:?}", opened.damage);
        assert!(opened.damage[0].contains("segment 3"), "{:?}", opened.damage);
        let losses = lost(&log, volume(1)).await;
        let (list, same) = log.salvage(volume(1)).await.unwrap();
        assert_eq!(losses, same);
        let serials = serials(&list);
        let gap = serials.windows(2).find(|pair| pair[1] != pair[0] + 1).expect("a gap").to_vec();
        assert_eq!((losses[0].after.0, losses[0].before.map(|s| s.0)), (gap[0], Some(gap[1])));
        assert_eq!((serials[0], serials[serials.len() - 1]), (1, last));
        // By the statistics of a later head, volume 2 had nothing after its first change, volume 4
        // nothing at all.
        assert_eq!(recovered(&log, volume(2)).await, [1]);
        assert_eq!(recovered(&log, volume(4)).await, Vec::<u64>::new());
        // Volume 3 has nothing before its only change; the log does not know that it is the very
        // first.
        let _ = log.salvage(volume(3)).await.unwrap();
        append(&log, volume(1), last + 1, 100).await.unwrap();
    });
    // The next start still reports the loss.
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open_with(&env, 3, 20).await.unwrap();
        assert!(opened.damage[0].contains("segment 3"), "{:?}", opened.damage);
        lost(&log, volume(1)).await;
        assert!(!log.holds_nothing(), "the proof of a loss is needed until a user accepts it");
        log.accept_losses().await.unwrap();
        assert!(log.unfinished(volume(1)).await.unwrap().len() > 10);
        for serial in 1..50 {
            append(&log, volume(5), serial, 2000).await.unwrap();
        }
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let (_, opened) = open_with(&env, 3, 20).await.unwrap();
        assert_eq!(opened.damage, Vec::<String>::new());
    });
}

#[test]
fn a_lost_head_is_reported_for_every_volume() {
    let world = world(2);
    filled(&world);
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        env.disk().remove(Path::new("/flash/00000006.seg")).await.unwrap();
        let (log, opened) = open_with(&env, 3, 20).await.unwrap();
        assert!(opened.damage[0].contains("head"), "{:?}", opened.damage);
        for number in 1..=4 {
            let losses = lost(&log, volume(number)).await;
            assert_eq!(losses[0].before, None);
        }
        let (list, _) = log.salvage(volume(1)).await.unwrap();
        assert!(list.len() > 50);
        append(&log, volume(1), 9999, 100).await.unwrap();
    });
}

#[test]
fn a_lost_head_after_a_clean_restart_is_noticed_too() {
    let world = world(3);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        append(&log, volume(1), 1, 100).await.unwrap();
        log.close().await.unwrap();
        drop(log);
        let (log, _) = open(&env).await;
        let (position, _) = append(&log, volume(1), 2, 100).await.unwrap();
        log.commit(position).await.unwrap();
    });
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        env.disk().remove(Path::new("/flash/00000002.seg")).await.unwrap();
        let (log, opened) = open(&env).await;
        assert_eq!(opened.damage.len(), 1, "{:?}", opened.damage);
        lost(&log, volume(1)).await;
    });
}

#[test]
fn a_flipped_bit_never_goes_unseen() {
    let mut seen = [0; 3];
    for seed in 0..400 {
        let world = world(seed);
        let last = filled(&world);
        world.cut_power();
        let file = format!("/flash/{:08}.seg", 1 + seed % 6);
        let offset = world.env().random_u64() % u64::from(SEGMENT);
        assert!(world.flip_bit(&file, offset));
        let env = world.env();
        let outcome = world.block_on(async {
            let (log, opened) = match open_with(&env, 3, 20).await {
                Ok(opened) => opened,
                Err(error) => panic!("seed {seed}: {error}"),
            };
            let list = match log.unfinished(volume(1)).await {
                Ok(list) => list,
                Err(Error::Lost { .. }) => return 0,
                Err(error) => panic!("seed {seed}: {error}"),
            };
            // A torn last batch and a damaged one look the same: only the last batch may vanish
            // without a report.
            let serials = serials(&list);
            let in_last_batch = seed % 6 == 5;
            let expected: Vec<u64> = (1..=last).collect();
            assert!(
                serials == expected || in_last_batch,
                "seed {seed} {file}+{offset}: {serials:?}, {:?}",
                opened.damage
            );
            assert_eq!(serials, expected[..serials.len()]);
            for one in &list {
                let mut bytes = vec![0; one.place.length() as usize];
                match one.place.read(0, &mut bytes).await {
                    Ok(()) => assert_eq!(bytes, payload(volume(1), one.serial.0, bytes.len())),
                    Err(Error::Damaged { .. }) => return 1,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            2
        });
        seen[outcome] += 1;
    }
    assert!(seen.iter().all(|&count| count > 0), "lost, damaged, harmless: {seen:?}");
}

#[test]
fn a_flipped_bit_of_memory_is_healed_from_flash_or_seen() {
    let mut healed = 0;
    for seed in 0..1000 {
        let world = world(seed);
        let env = world.env();
        let last = world.block_on(async {
            let (log, _) = open_with(&env, 10, 20).await.unwrap();
            let mut serial = 0;
            while log.usage().segments < 6 {
                serial += 1;
                append(&log, volume(1), serial, 1000).await.unwrap();
            }
            serial
        });
        world.crash_process();
        // Records of the used slots, and the slots themselves.
        let random = world.env().random_u64();
        let start =
            if seed % 8 == 0 { 4096 } else { u64::from(Arena::file_bytes(1) as u32 - (8 << 20)) };
        let range = if seed % 8 == 0 { 10 * 64 } else { 6 * u64::from(SEGMENT) };
        world.flip_memory_bit(ARENA, start + random % range);
        let place = (random % range / u64::from(SEGMENT), random % range % u64::from(SEGMENT));
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open_with(&env, 10, 20).await.unwrap();
            let list = match log.unfinished(volume(1)).await {
                Ok(list) => list,
                Err(Error::Lost { .. }) => return,
                Err(error) => panic!("seed {seed}: {error}"),
            };
            let serials = serials(&list);
            assert_eq!(serials, (1..=serials.len() as u64).collect::<Vec<_>>());
            assert!(
                serials.len() as u64 == last,
                "seed {seed}, flipped {place:?}: {} of {last}, {:?}",
                serials.len(),
                opened.damage
            );
            for one in &list {
                let mut bytes = vec![0; one.place.length() as usize];
                match one.place.read(0, &mut bytes).await {
                    Ok(()) => assert_eq!(bytes, payload(volume(1), one.serial.0, bytes.len())),
                    Err(Error::Damaged { .. }) => return,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            healed += u64::from(serials.len() as u64 == last);
        });
    }
    assert!(healed > 700, "{healed}");
}

#[test]
fn an_error_latches() {
    let world = world(5);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        let (position, _) = append(&log, volume(1), 1, 100).await.unwrap();
        log.commit(position).await.unwrap();
        let (second, place) = append(&log, volume(1), 2, 100).await.unwrap();
        world.change_faults(|faults| faults.write_error = 1.0);
        assert!(matches!(log.commit(second).await, Err(Error::Flash { .. })));
        world.change_faults(|faults| faults.write_error = 0.0);
        assert!(matches!(log.commit(second).await, Err(Error::Flash { .. })), "final");
        log.commit(position).await.unwrap();
        assert!(log.append(&[change(volume(1), 3, &[])]).is_err());
        assert!(matches!(log.roll(0).await, Err(Error::Flash { .. })));
        assert!(log.close().await.is_err());
        check(volume(1), 2, &place).await;
    });
}

#[test]
fn an_outdated_arena_is_not_believed() {
    let world = world(6);
    let env = world.env();
    // A life with the arena, then one without, then with it again.
    world.block_on(async {
        let (log, _) = open(&env).await;
        let (position, _) = append(&log, volume(1), 1, 100).await.unwrap();
        log.commit(position).await.unwrap();
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let (log, _) =
            Log::open(&env, Arena::volatile_sized(4, SEGMENT), config(8), Incarnation(1))
                .await
                .unwrap();
        for serial in 2..=40 {
            append(&log, volume(1), serial, 2000).await.unwrap();
        }
        log.commit(Position(u64::MAX)).await.unwrap();
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open(&env).await;
        assert_eq!(opened.damage, Vec::<String>::new());
        assert_eq!(recovered(&log, volume(1)).await, (1..=40).collect::<Vec<_>>());
    });
}

#[test]
fn a_newer_format_is_refused() {
    let world = world(7);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        log.close().await.unwrap();
        let file = env
            .disk()
            .open(Path::new("/flash/00000001.seg"), rekindle_env::Open::Write)
            .await
            .unwrap();
        let mut header = [0; 128];
        file.read_at(&mut header, 0).await.unwrap();
        header[8] = 9;
        let crc = rekindle_base::checksum::crc32c(&header[..124]);
        header[124..].copy_from_slice(&crc.to_le_bytes());
        file.write_durable(&header, 0).await.unwrap();
        let error = open_with(&env, 4, 8).await.err().expect("a newer format");
        assert!(
            matches!(error, Error::Newer { found: 9, known: crate::format::VERSION, .. }),
            "{error}"
        );
    });
}

#[test]
fn who_was_only_in_a_lost_segment_hears_of_it_in_every_life() {
    let world = world(8);
    filled(&world);
    world.cut_power();
    let env = world.env();
    world.block_on(async { env.disk().remove(Path::new("/flash/00000001.seg")).await.unwrap() });
    for life in 0..4 {
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open_with(&env, 3, 20).await.unwrap();
            assert_eq!(opened.damage.len(), 1, "life {life}: {:?}", opened.damage);
            let losses = lost(&log, volume(2)).await;
            assert_eq!((losses[0].after.0, losses[0].before.map(|s| s.0)), (0, Some(2)));
            assert!(log.unfinished(volume(4)).await.unwrap().is_empty());
            for serial in 1..30 {
                append(&log, volume(5), life * 100 + serial, 2000).await.unwrap();
                log.release(volume(5), Serial(life * 100 + serial));
            }
            log.commit(Position(u64::MAX)).await.unwrap();
        });
        if life % 2 == 0 { world.crash_process() } else { world.cut_power() }
    }
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 3, 20).await.unwrap();
        log.accept_losses().await.unwrap();
        assert!(log.unfinished(volume(2)).await.unwrap().is_empty());
    });
}

#[test]
fn what_only_damaged_memory_had_is_lost_in_every_life() {
    let world = world(9);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 3, 20).await.unwrap();
        let (position, _) = append(&log, volume(1), 1, 100).await.unwrap();
        log.commit(position).await.unwrap();
        append(&log, volume(1), 2, 100).await.unwrap();
    });
    world.crash_process();
    // The state word of every used slot, which includes the head's.
    (0..3).for_each(|slot| _ = world.flip_memory_bit(ARENA, 4096 + slot * 64));
    for _ in 0..3 {
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open_with(&env, 3, 20).await.unwrap();
            assert_eq!(opened.damage.len(), 1, "{:?}", opened.damage);
            let losses = lost(&log, volume(1)).await;
            assert_eq!((losses[0].after.0, losses[0].before), (1, None));
            lost(&log, volume(7)).await;
        });
        world.cut_power();
    }
}

#[test]
fn volumes_of_the_newest_head_are_counted_before_the_next_is_opened() {
    let world = world(14);
    let env = world.env();
    // The volume's only change is in segment 1: the life that wrote it made no statistics of that.
    world.block_on(async {
        let (log, _) = open_with(&env, 3, 20).await.unwrap();
        append(&log, volume(1), 1, 100).await.unwrap();
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 3, 20).await.unwrap();
        append(&log, volume(2), 1, 100).await.unwrap();
        log.commit(Position(u64::MAX)).await.unwrap();
    });
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        env.disk().remove(Path::new("/flash/00000001.seg")).await.unwrap();
        let (log, _) = open_with(&env, 3, 20).await.unwrap();
        assert_eq!(lost(&log, volume(1)).await[0].before, Some(Serial(2)));
        assert!(log.unfinished(volume(3)).await.unwrap().is_empty());
    });
}

#[test]
fn an_arena_that_is_not_the_one_used_last_is_cold() {
    let world = world(15);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        let (position, _) = append(&log, volume(1), 1, 100).await.unwrap();
        log.commit(position).await.unwrap();
        append(&log, volume(1), 2, 100).await.unwrap();
    });
    world.crash_process();
    let env = world.env();
    let open_trusting = async |trust| {
        let arena = Arena::open_sized(&env, Path::new(ARENA), NODE, 4, SEGMENT).unwrap();
        Log::find(&env, arena, config(8), trust, None)
            .await
            .unwrap()
            .open(Incarnation(2))
            .await
            .unwrap()
    };
    world.block_on(async {
        let (log, opened) = open_trusting(false).await;
        assert_eq!(opened.damage, Vec::<String>::new());
        assert_eq!(recovered(&log, volume(1)).await, [1], "what flash has");
        assert!(log.unfinished(volume(1)).await.unwrap()[0].life == Incarnation(1));
        log.commit(log.begins()).await.unwrap();
    });
}

#[test]
fn an_arena_whose_headers_are_both_damaged_is_a_loss_that_is_said() {
    let world = world(16);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        let (position, _) = append(&log, volume(1), 1, 100).await.unwrap();
        log.commit(position).await.unwrap();
        append(&log, volume(1), 2, 100).await.unwrap();
    });
    world.crash_process();
    assert!(world.flip_memory_bit(ARENA, 20) && world.flip_memory_bit(ARENA, 1024 + 20));
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open(&env).await;
        assert!(opened.damage.iter().any(|why| why.contains("headers")), "{:?}", opened.damage);
        assert_eq!(lost(&log, volume(1)).await[0].after, Serial(1));
    });
}

/// Memory of an earlier moment lies over a log that has gone on: another arena was in use
/// meanwhile, or a snapshot of the machine's memory was restored.
#[test]
fn outdated_memory_is_never_written_over_what_flash_has() {
    for seed in 0..120 {
        let world = world(seed);
        let host = world.host("host");
        let env = host.env();
        world.block_on(async {
            let (log, _) = open(&env).await;
            for serial in 1..=5 + seed % 30 {
                append(&log, volume(1), serial, 1000).await.unwrap();
            }
            log.commit(Position(u64::MAX)).await.unwrap();
            append(&log, volume(1), 6 + seed % 30, 1000).await.unwrap();
        });
        host.crash_process();
        let old = host.copy_memory(ARENA).expect("an arena");
        let mut last = 0;
        // Lives with another memory, or with this one.
        for life in 0..1 + seed % 3 {
            let env = host.env();
            let with_memory = (seed + life) % 2 == 0;
            last = world.block_on(async {
                let arena = if with_memory {
                    Arena::open_sized(&env, Path::new(ARENA), NODE, 4, SEGMENT).unwrap()
                } else {
                    Arena::volatile_sized(4, SEGMENT)
                };
                let (log, _) = Log::open(&env, arena, config(8), Incarnation(2)).await.unwrap();
                let list = recovered(&log, volume(1)).await;
                let first = list.last().copied().unwrap_or_default() + 1;
                for serial in first..first + 20 + seed % 17 {
                    append(&log, volume(1), serial, 1000).await.unwrap();
                }
                log.commit(Position(u64::MAX)).await.unwrap();
                first + 19 + seed % 17
            });
            host.crash_process();
        }
        assert!(host.put_memory(ARENA, &old).unwrap());
        let env = host.env();
        world.block_on(async {
            let (log, opened) = open(&env).await;
            assert_eq!(opened.damage, Vec::<String>::new(), "seed {seed}");
            let expected = (1..=last).collect::<Vec<_>>();
            assert_eq!(recovered(&log, volume(1)).await, expected, "seed {seed}");
        });
        host.cut_power();
        let env = host.env();
        world.block_on(async {
            let (log, opened) = open(&env).await;
            assert_eq!(opened.damage, Vec::<String>::new(), "seed {seed}");
            let expected = (1..=last).collect::<Vec<_>>();
            assert_eq!(recovered(&log, volume(1)).await, expected, "seed {seed}");
        });
    }
}

#[test]
fn a_truncated_arena_costs_nothing_that_flash_has() {
    let slots = Arena::file_bytes(1) as usize - (8 << 20);
    let slot = SEGMENT as usize;
    for length in [0, 30, 100, 3000, 4096 + 64, slots, slots + 50, slots + 3000, slots + slot + 9] {
        let world = world(length as u64);
        let host = world.host("host");
        let env = host.env();
        let last = world.block_on(async {
            let (log, _) = open(&env).await;
            for serial in 1..=50 {
                append(&log, volume(1), serial, 1000).await.unwrap();
            }
            log.commit(Position(u64::MAX)).await.unwrap();
            50
        });
        host.crash_process();
        assert!(host.truncate_memory(ARENA, length).unwrap());
        let env = host.env();
        world.block_on(async {
            let (log, opened) = open(&env).await;
            assert_eq!(opened.damage, Vec::<String>::new(), "{length}");
            let expected = (1..=last).collect::<Vec<_>>();
            assert_eq!(recovered(&log, volume(1)).await, expected, "{length}");
            assert_eq!(recovered(&log, volume(2)).await, Vec::<u64>::new());
        });
    }
}

#[test]
fn a_truncated_arena_that_had_more_than_flash_is_a_loss() {
    let world = world(1);
    let host = world.host("host");
    let env = host.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        let (position, _) = append(&log, volume(1), 1, 1000).await.unwrap();
        log.commit(position).await.unwrap();
        append(&log, volume(1), 2, 1000).await.unwrap();
    });
    host.crash_process();
    assert!(host.truncate_memory(ARENA, 528_384).unwrap());
    let env = host.env();
    world.block_on(async {
        let (log, opened) = open(&env).await;
        assert_eq!(opened.damage.len(), 1, "{:?}", opened.damage);
        assert_eq!(lost(&log, volume(1)).await[0].after, Serial(1));
    });
}

/// Two lives on copies of one folder both take themselves for the node; then a file of one lies
/// among those of the other.
#[test]
fn a_segment_of_another_life_is_not_taken_for_a_member() {
    let world = world(17);
    let (one, other) = (world.host("one"), world.host("other"));
    let fill = async |env: &Env, life: u64, last: u64| {
        let arena = Arena::open_sized(env, Path::new(ARENA), NODE, 3, SEGMENT).unwrap();
        let (log, _) = Log::open(env, arena, config(20), Incarnation(life)).await.unwrap();
        let first = log.unfinished(volume(1)).await.unwrap().len() as u64 + 1;
        for serial in first..=last {
            append(&log, volume(1), serial, 1000).await.unwrap();
        }
        log.commit(Position(u64::MAX)).await.unwrap();
    };
    world.block_on(async { fill(&one.env(), 1, 10).await });
    one.cut_power();
    one.copy_folder(FOLDER, &other, FOLDER).unwrap();
    world.block_on(async {
        fill(&one.env(), 2, 150).await;
        fill(&other.env(), 2, 120).await;
    });
    one.cut_power();
    other.cut_power();
    let file = "/flash/00000003.seg";
    one.plant(file, &other.peek(file).unwrap()).unwrap();
    let env = one.env();
    world.block_on(async {
        let (log, opened) = open_with(&env, 3, 20).await.unwrap();
        assert!(opened.damage[0].contains("segment 3"), "{:?}", opened.damage);
        assert_eq!(lost(&log, volume(1)).await[0].segment, rekindle_base::SegmentId(3));
    });
}
