//! The log by hand: each call when nothing goes wrong, or one thing does.

use super::*;

#[test]
fn what_is_appended_is_read_back_from_memory_and_after_the_slot_is_gone_from_flash() {
    let world = world(1);
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open(&env).await;
        assert_eq!((opened.segments, opened.damage.len()), (0, 0));
        let mut places = Vec::new();
        for serial in 1..=60 {
            let (position, place) = append(&log, volume(1), serial, 3000).await.unwrap();
            assert!(position > log.committed());
            places.push((serial, place));
            log.release(volume(1), Serial(serial.saturating_sub(40)));
        }
        log.commit(Position(u64::MAX)).await.unwrap();
        let in_memory =
            places.iter().filter(|(_, place)| place.read_now(0, &mut [0; 8]).unwrap()).count();
        assert!(
            in_memory < 60 && in_memory > 20,
            "{in_memory} places are in memory: old slots are reused"
        );
        for (serial, place) in &places {
            check(volume(1), *serial, place).await;
            let mut part = [0; 100];
            place.read(700, &mut part).await.unwrap();
            assert_eq!(part, payload(volume(1), *serial, 3000)[700..800]);
        }
    });
}

#[test]
fn a_process_crash_loses_nothing_that_was_appended() {
    let world = world(2);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        for serial in 1..=30 {
            append(&log, volume(1), serial, (serial as usize * 97) % 3000).await.unwrap();
            append(&log, volume(2), serial, 0).await.unwrap();
        }
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open(&env).await;
        assert_eq!(opened.damage, Vec::<String>::new());
        assert!(opened.segments_warm > 0);
        assert_eq!(
            log.unfinished_volumes().await.unwrap(),
            [(volume(1), Serial(30)), (volume(2), Serial(30))]
        );
        assert_eq!(recovered(&log, volume(1)).await, (1..=30).collect::<Vec<_>>());
        assert_eq!(recovered(&log, volume(2)).await, (1..=30).collect::<Vec<_>>());
        assert_eq!(recovered(&log, volume(3)).await, Vec::<u64>::new());
    });
    // The start has made durable what was only in memory.
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open(&env).await;
        assert_eq!((opened.damage, opened.segments_warm), (vec![], 0));
        assert_eq!(recovered(&log, volume(1)).await, (1..=30).collect::<Vec<_>>());
    });
}

#[test]
fn power_loss_keeps_what_was_committed() {
    for seed in 0..50 {
        let world = world(seed);
        let env = world.env();
        world.block_on(async {
            let (log, _) = open(&env).await;
            for serial in 1..=10 {
                let (position, _) = append(&log, volume(1), serial, 1000).await.unwrap();
                if serial == 7 {
                    log.commit(position).await.unwrap();
                }
            }
        });
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open(&env).await;
            assert_eq!(opened.damage, Vec::<String>::new());
            let serials = recovered(&log, volume(1)).await;
            assert_eq!(serials, (1..=7).collect::<Vec<_>>(), "seed {seed}");
        });
    }
}

#[test]
fn segments_are_freed_when_every_volume_in_them_is_released() {
    let world = world(3);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 4, 3).await.unwrap();
        for serial in 1..=500 {
            append(&log, volume(1), serial, 2000).await.unwrap();
            log.release(volume(1), Serial(serial - 1));
            assert!(log.usage().flash_bytes <= log.usage().flash_bytes_max);
        }
        let files = env.disk().list(Path::new(FOLDER)).await.unwrap().len();
        assert!(
            files <= 3 + crate::limits::RESERVE_FILES as usize + 2,
            "budget, reserve, the lock and the known end: {files}"
        );
    });
}

#[test]
fn a_full_log_waits_for_a_release() {
    let world = world(4);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 4, 3).await.unwrap();
        let mut serial = 0;
        let last = loop {
            serial += 1;
            let appended =
                env.timeout(Duration::from_secs(10), append(&log, volume(1), serial, 2000)).await;
            if appended.is_err() {
                break serial;
            }
        };
        assert!(last > 30, "three segments are filled");
        // A commit goes through meanwhile.
        log.commit(Position(u64::MAX)).await.unwrap();
        let releasing = async {
            env.sleep(Duration::from_secs(1)).await;
            log.release(volume(1), Serial(20));
        };
        let (appended, ()) =
            futures_util::future::join(append(&log, volume(1), last, 2000), releasing).await;
        appended.unwrap();
    });
}

#[test]
fn repeated_crashes_of_a_full_log_do_not_take_ever_more_flash() {
    let world = world(5);
    for life in 0..20 {
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open_with(&env, 4, 3).await.unwrap();
            assert_eq!(opened.damage, Vec::<String>::new());
            let _ = env
                .timeout(Duration::from_secs(1), async {
                    let start = recovered(&log, volume(1)).await.last().copied().unwrap_or(0);
                    for serial in start + 1.. {
                        append(&log, volume(1), serial, 2000).await.unwrap();
                    }
                })
                .await;
            assert!(log.usage().segments <= 5, "life {life}: {:?}", log.usage());
            let files = env.disk().list(Path::new(FOLDER)).await.unwrap().len();
            assert!(
                files <= 3 + crate::limits::RESERVE_FILES as usize + 2,
                "life {life}: {files} files"
            );
        });
        world.crash_process();
    }
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 4, 3).await.unwrap();
        let serials = recovered(&log, volume(1)).await;
        assert_eq!(serials, (1..=serials.len() as u64).collect::<Vec<_>>());
        log.release(volume(1), Serial(u64::MAX));
        for serial in 1..100 {
            append(&log, volume(1), 1000 + serial, 2000).await.unwrap();
            log.release(volume(1), Serial(1000 + serial));
        }
    });
}

#[test]
fn a_place_keeps_its_bytes_after_the_segment_is_freed() {
    let world = world(6);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 3, 3).await.unwrap();
        let (_, kept) = append(&log, volume(7), 1, 1500).await.unwrap();
        log.release(volume(7), Serial(1));
        for serial in 1..=300 {
            append(&log, volume(1), serial, 2000).await.unwrap();
            log.release(volume(1), Serial(serial));
        }
        check(volume(7), 1, &kept).await;
    });
}

#[test]
fn a_closed_log_opens_again_and_lists_the_same() {
    let world = world(7);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        let other = open_with(&env, 4, 8).await.err().expect("the folder is in use");
        assert!(
            matches!(other, Error::Foreign(_)) && other.to_string().contains("another rekindle"),
            "{other}"
        );
        append(&log, volume(1), 1, 100).await.unwrap();
        log.close().await.unwrap();
        log.close().await.unwrap();
        assert!(matches!(append(&log, volume(1), 2, 100).await, Err(Error::Closed)));
        drop(log);
        let (log, opened) = open(&env).await;
        assert_eq!((opened.segments, opened.damage.len()), (1, 0));
        assert_eq!(recovered(&log, volume(1)).await, [1]);
        log.release(volume(1), Serial(1));
        assert_eq!(recovered(&log, volume(1)).await, Vec::<u64>::new());
        append(&log, volume(1), 2, 100).await.unwrap();
        log.close().await.unwrap();
        drop(log);
        let (log, _) = open(&env).await;
        assert_eq!(recovered(&log, volume(1)).await, [2], "what was released stays so");
    });
}

#[test]
fn somebody_elses_folder_is_refused() {
    let world = world(8);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        log.close().await.unwrap();
        let arena = Arena::volatile_sized(4, SEGMENT);
        let config = Config { node: NodeId([8; 16]), ..config(8) };
        assert!(matches!(
            Log::open(&env, arena, config, Incarnation(1)).await,
            Err(Error::Foreign(_))
        ));
    });
}

#[test]
fn commits_of_many_share_few_writes() {
    let world = world(10);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 4, 200).await.unwrap();
        let before = log.usage().commits;
        let writers = (1..=50u8).map(|number| {
            let log = log.clone();
            async move {
                for serial in 1..=20 {
                    let (position, _) = append(&log, volume(number), serial, 512).await.unwrap();
                    log.commit(position).await.unwrap();
                    assert!(log.committed() >= position);
                }
            }
        });
        futures_util::future::join_all(writers).await;
        let commits = log.usage().commits - before;
        assert!(commits < 200, "{commits} writes for 1000 commits");
        assert_eq!(log.usage().uncommitted_bytes, 0);
    });
}

#[test]
fn what_nobody_commits_is_committed_in_time() {
    let world = world(11);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        let (position, _) = append(&log, volume(1), 1, 512).await.unwrap();
        assert!(log.committed() < position);
        env.sleep(Duration::from_millis(100)).await;
        assert!(log.committed() >= position);
    });
}

#[test]
fn a_group_is_appended_whole_or_not_at_all() {
    let world = world(12);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        let bytes = vec![1; 1000];
        for first in 0..100u64 {
            let group: Vec<_> =
                (1..=10).map(|i| change(volume(1), first * 10 + i, &bytes)).collect();
            let (_, places) = loop {
                match log.append(&group) {
                    Ok(appended) => break appended,
                    Err(Refused::HeadFull) => log.roll(10_000).await.unwrap(),
                    Err(Refused::Malformed(why)) => panic!("{why}"),
                }
            };
            assert!(places.windows(2).all(|pair| pair[0].segment_id() == pair[1].segment_id()));
            log.forget(volume(1));
        }
    });
}

#[test]
fn an_older_generation_gives_way_where_a_newer_one_goes_back() {
    let world = world(13);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        for (generation, serial) in [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4)] {
            let bytes = [generation as u8; 64];
            let change =
                Append { generation: Generation(generation), ..change(volume(1), serial, &bytes) };
            log.append(&[change]).unwrap();
        }
        log.close().await.unwrap();
        drop(log);
        let (log, _) = open(&env).await;
        let list = log.unfinished(volume(1)).await.unwrap();
        let list: Vec<_> = list.iter().map(|one| (one.generation.0, one.serial.0)).collect();
        assert_eq!(list, [(1, 1), (2, 2), (2, 3), (2, 4)]);
    });
}

/// Another copy of the folder has made the end of the log void, and the folder goes on below that
/// end. A third life must find the newer change of a serial, whichever lies first in the log.
#[test]
fn of_a_serial_that_two_lives_logged_the_newer_ones_is_listed() {
    let world = world(14);
    let env = world.env();
    world.block_on(async {
        for (life, serials) in [(2, 1..=4), (4, 2..=3)] {
            let arena = Arena::open_sized(&env, Path::new(ARENA), NODE, 4, SEGMENT).unwrap();
            let opened = Log::open(&env, arena, config(8), Incarnation(life)).await;
            let (log, _) = opened.unwrap();
            for serial in serials {
                append(&log, volume(1), serial, 64).await.unwrap();
            }
            log.close().await.unwrap();
        }
        let (log, _) = open(&env).await;
        let list = log.unfinished(volume(1)).await.unwrap();
        let list: Vec<_> = list.iter().map(|one| (one.life.0, one.serial.0)).collect();
        assert_eq!(list, [(2, 1), (4, 2), (4, 3), (2, 4)]);
    });
}

/// The same on the operating system, with threads that really run at once. The budget is large
/// enough that no session waits for the release of another one that waits.
#[test]
fn sessions_on_threads_of_their_own_share_a_log() {
    let folder = tempfile::tempdir().unwrap();
    let (env, runtime) = rekindle_env::real::env().unwrap();
    runtime.block_on(async {
        let config = Config { folder: folder.path().join("log"), ..config(60) };
        let arena = Arena::volatile_sized(4, SEGMENT);
        let (log, _) = Log::open(&env, arena, config.clone(), Incarnation(1)).await.unwrap();
        let (sender, mut done) = tokio::sync::mpsc::unbounded_channel();
        for number in 1..=4u8 {
            let (log, sender) = (log.clone(), sender.clone());
            env.spawn_session("writer", async move {
                for serial in 1..=300 {
                    let (position, place) =
                        append(&log, volume(number), serial, 700).await.unwrap();
                    log.commit(position).await.unwrap();
                    assert!(log.committed() >= position);
                    check(volume(number), serial, &place).await;
                    log.release(volume(number), Serial(serial.saturating_sub(9)));
                }
                sender.send(number).unwrap();
            });
        }
        for _ in 0..4 {
            let ended = env.timeout(Duration::from_secs(60), done.recv()).await;
            assert!(ended.expect("nobody waits for ever").is_some());
        }
        log.close().await.unwrap();
        drop(log);
        let (log, opened) =
            Log::open(&env, Arena::volatile_sized(4, SEGMENT), config, Incarnation(1))
                .await
                .unwrap();
        assert_eq!(opened.damage, Vec::<String>::new());
        for number in 1..=4 {
            let serials = recovered(&log, volume(number)).await;
            assert_eq!(serials[serials.len() - 9..], (292..=300).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_log_was_closed_only_when_no_later_life_began() {
    let world = world(1);
    let find = async |env: &Env| {
        let arena = Arena::open_sized(env, Path::new(ARENA), NODE, 4, SEGMENT).unwrap();
        Log::find(env, arena, config(8), true, None).await.unwrap()
    };
    // Each case: whether the log is closed in good order.
    for (closes, was_closed) in [(true, true), (false, true), (true, false), (false, true)] {
        let env = world.env();
        world.block_on(async {
            let found = find(&env).await;
            assert_eq!(found.was_closed(), was_closed);
            let (log, _) = found.open(Incarnation(1)).await.unwrap();
            if closes {
                append(&log, volume(1), 1, 600).await.unwrap();
                log.close().await.unwrap();
            }
        });
        world.cut_power();
    }
}
