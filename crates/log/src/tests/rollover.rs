//! Rollovers in the middle of an append: memory is one head further than flash.

use super::*;

/// Makes two heads whose changes are only in memory: the first is full and neither committed nor
/// sealed, the second has some changes. No task gets the time to write anything. Returns the last
/// serial, and the first of the second head.
async fn two_heads_in_memory(env: &Env) -> (Log, u64, u64) {
    let (log, _) = open_with(env, 4, 20).await.unwrap();
    assert!(log.reserve().await);
    let mut serial = 0;
    let mut write = || {
        serial += 1;
        let bytes = payload(volume(1), serial, 1000);
        let (_, places) = log.append(&[change(volume(1), serial, &bytes)]).expect("room");
        (serial, places[0].segment_id())
    };
    let (mut first, mut segment) = write();
    let begun = segment;
    while segment == begun {
        // The next head is opened when this one is half full; after that no append waits.
        if first == 20 {
            env.sleep(Duration::from_millis(5)).await;
        }
        (first, segment) = write();
    }
    for _ in 0..3 {
        write();
    }
    (log, first + 3, first)
}

#[test]
fn appends_roll_over_by_themselves() {
    let world = world(1);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 4, 20).await.unwrap();
        for serial in 1..=200 {
            let bytes = payload(volume(1), serial, 1000);
            log.append(&[change(volume(1), serial, &bytes)]).expect("nobody has to wait");
            env.sleep(Duration::from_millis(1)).await;
        }
        assert!(log.usage().segments > 6, "{:?}", log.usage());
    });
}

#[test]
fn two_heads_that_only_memory_has_outlive_the_process() {
    for seed in 0..20 {
        let world = world(seed);
        let env = world.env();
        let (last, first) = world.block_on(async {
            let (log, last, first) = two_heads_in_memory(&env).await;
            assert!(log.committed() < Position(u64::from(SEGMENT)), "the first is not sealed");
            (last, first)
        });
        assert!(last > first && first > 20);
        // The start that recovers them dies at any point, too.
        for operation in 1..14 + seed {
            world.crash_process();
            let env = world.env();
            let open = async {
                let opened = open_with(&env, 4, 20).await;
                drop(opened);
            };
            world.block_on_until(rekindle_env::sim::Stop::DiskOperation(operation), open);
        }
        world.crash_process();
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open_with(&env, 4, 20).await.unwrap();
            assert_eq!(opened.damage, Vec::<String>::new());
            assert_eq!(recovered(&log, volume(1)).await, (1..=last).collect::<Vec<_>>());
        });
        // The start has made all changes durable.
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open_with(&env, 4, 20).await.unwrap();
            assert_eq!(opened.damage, Vec::<String>::new());
            assert_eq!(recovered(&log, volume(1)).await, (1..=last).collect::<Vec<_>>());
        });
    }
}

#[test]
fn a_power_cut_between_two_heads_leaves_a_prefix() {
    for seed in 0..200 {
        let world = world(seed);
        let env = world.env();
        let stop = rekindle_env::sim::Stop::DiskOperation(env.random_u64() % 40);
        let mut committed = 0;
        world.block_on_until(stop, async {
            let (log, last, _) = two_heads_in_memory(&env).await;
            for serial in last + 1.. {
                let (position, _) = append(&log, volume(1), serial, 1000).await.unwrap();
                log.commit(position).await.unwrap();
                committed = serial;
            }
        });
        world.cut_power();
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open_with(&env, 4, 20).await.unwrap();
            assert_eq!(opened.damage, Vec::<String>::new(), "seed {seed}");
            let serials = recovered(&log, volume(1)).await;
            assert_eq!(serials, (1..=serials.len() as u64).collect::<Vec<_>>());
            assert!(serials.len() as u64 >= committed, "seed {seed}: {serials:?}, {committed}");
        });
    }
}

#[test]
fn a_flipped_bit_of_two_heads_that_only_memory_has_is_seen() {
    let (mut whole, mut lost) = (0, 0);
    for seed in 0..1000 {
        let world = world(seed);
        let env = world.env();
        let last = world.block_on(async { two_heads_in_memory(&env).await.1 });
        world.crash_process();
        let random = world.env().random_u64();
        let slots = Arena::file_bytes(1) - (8 << 20);
        let (start, range) =
            if seed % 2 == 0 { (4096, 4 * 64) } else { (slots, 2 * u64::from(SEGMENT)) };
        world.flip_memory_bit(ARENA, start + random % range);
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open_with(&env, 4, 20).await.unwrap();
            let list = match log.unfinished(volume(1)).await {
                Ok(list) => list,
                Err(Error::Lost { .. }) => {
                    assert!(!opened.damage.is_empty());
                    lost += 1;
                    return;
                }
                Err(error) => panic!("seed {seed}: {error}"),
            };
            assert_eq!(list.len() as u64, last, "seed {seed}: {:?}", opened.damage);
            for (one, serial) in list.iter().zip(1..) {
                assert_eq!(one.serial.0, serial);
                let mut bytes = vec![0; one.place.length() as usize];
                match one.place.read(0, &mut bytes).await {
                    Ok(()) => assert_eq!(bytes, payload(volume(1), serial, bytes.len())),
                    Err(Error::Damaged { .. }) => return,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            whole += 1;
        });
    }
    assert!(whole > 100 && lost > 100, "{whole} whole, {lost} lost");
}

#[test]
fn a_closed_log_with_a_next_head_is_closed() {
    let world = world(3);
    let env = world.env();
    world.block_on(async {
        let (log, last, _) = two_heads_in_memory(&env).await;
        // Time to seal this head, and to open the next.
        for serial in last + 1..last + 20 {
            append(&log, volume(1), serial, 1000).await.unwrap();
        }
        env.sleep(Duration::from_millis(50)).await;
        log.close().await.unwrap();
        drop(log);
        let (log, opened) = open_with(&env, 4, 20).await.unwrap();
        assert_eq!(opened.damage, Vec::<String>::new());
        assert_eq!(recovered(&log, volume(1)).await, (1..last + 20).collect::<Vec<_>>());
        append(&log, volume(1), last + 20, 1000).await.unwrap();
        log.commit(Position(u64::MAX)).await.unwrap();
        // The head of this life is lost: the log did not end in order where an earlier life closed
        // it.
        let newest = log.append(&[change(volume(1), last + 21, &[])]).unwrap().1.remove(0);
        let file = newest.segment.file.expect("a file");
        drop((log, newest));
        world.cut_power();
        let env = world.env();
        env.disk().remove(&PathBuf::from(format!("/flash/{file:08}.seg"))).await.unwrap();
        let (_, opened) = open_with(&env, 4, 20).await.unwrap();
        assert_eq!(opened.damage.len(), 1, "{:?}", opened.damage);
    });
}

#[test]
fn a_log_of_dead_segments_is_tidied_so_that_a_restart_looks_into_few() {
    let world = world(5);
    let env = world.env();
    let last = world.block_on(async {
        let (log, _) = open_with(&env, 4, 20).await.unwrap();
        let mut serial = 0;
        while log.usage().segments < 14 {
            serial += 1;
            let bytes = payload(volume(1), serial, 1000);
            log.append(&[change(volume(1), serial, &bytes)]).expect("nobody has to wait");
            env.sleep(Duration::from_millis(1)).await;
        }
        log.release(volume(1), Serial(serial - 1));
        env.sleep(Duration::from_secs(1)).await;
        assert!(log.usage().segments <= 4, "{:?}", log.usage());
        serial
    });
    // A process that knows of no release learns again which segments are dead, and tidies.
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open_with(&env, 4, 20).await.unwrap();
        assert_eq!(opened.damage, Vec::<String>::new());
        assert!(recovered(&log, volume(1)).await.contains(&last), "what was not released is there");
    });
}
