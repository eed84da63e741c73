//! Crashes at random points of random work, life after life, on one disk.
//!
//! The oracle: for each volume, a run of consecutive serials comes back. It begins at the released
//! serial or before, and ends at the acknowledged one or behind: committed, or after a death of the
//! process alone, appended.

use super::*;
use futures_util::future::join_all;
use parking_lot::Mutex;
use rekindle_env::sim::Stop;
use std::sync::Arc;

const VOLUMES: u8 = 3;

#[derive(Default, Clone, Copy, Debug)]
struct Known {
    /// `append` has returned.
    appended: u64,
    /// `append` may have been called.
    tried: u64,
    committed: u64,
    released: u64,
}

type Model = Arc<Mutex<[Known; VOLUMES as usize]>>;

fn length_of(serial: u64) -> usize {
    [0, 64, 512, 1000, 3000, 0, 4096][serial as usize % 7]
}

/// Appends and commits for one volume until it is stopped, or the log ends.
async fn writer(env: Env, log: Log, number: u8, model: Model) {
    let at = usize::from(number);
    loop {
        let group = 1 + env.random_u64() % 3;
        let first = model.lock()[at].appended + 1;
        let serials: Vec<u64> = (first..first + group).collect();
        let bytes: Vec<_> =
            serials.iter().map(|&s| payload(volume(number), s, length_of(s))).collect();
        let changes: Vec<_> =
            serials.iter().zip(&bytes).map(|(&s, b)| change(volume(number), s, b)).collect();
        model.lock()[at].tried = first + group - 1;
        let position = match log.append(&changes) {
            Ok((position, _)) => position,
            Err(Refused::HeadFull) => match log.roll(bytes.iter().map(Vec::len).sum()).await {
                Ok(()) => continue,
                Err(_) => return,
            },
            Err(Refused::Malformed(why)) => panic!("{why}"),
        };
        model.lock()[at].appended = first + group - 1;
        match env.random_u64() % 4 {
            0 => env.sleep(Duration::from_millis(env.random_u64() % 30)).await,
            1 => {}
            _ => {
                if log.commit(position).await.is_err() {
                    return;
                }
                let known = &mut model.lock()[at];
                known.committed = known.committed.max(first + group - 1);
            }
        }
    }
}

/// Releases some of the committed changes, now and then.
async fn releaser(env: Env, log: Log, model: Model) {
    loop {
        env.sleep(Duration::from_millis(1 + env.random_u64() % 20)).await;
        if log.inner.is_latched() {
            return;
        }
        let number = (env.random_u64() % u64::from(VOLUMES)) as u8;
        let before = *model.lock();
        if log.commit(Position(u64::MAX)).await.is_ok() {
            for (known, before) in model.lock().iter_mut().zip(before) {
                known.committed = known.committed.max(before.appended);
            }
        }
        let known = model.lock()[usize::from(number)];
        let upto = known.committed.saturating_sub(env.random_u64() % 5);
        if upto > known.released {
            model.lock()[usize::from(number)].released = upto;
            log.release(volume(number), Serial(upto));
        }
    }
}

/// One life: opens, checks what came back, works until the world stops it.
async fn live(env: Env, slots: usize, outlives: bool, faulty: bool, model: Model) {
    let arena = match outlives {
        true => Arena::open_sized(&env, Path::new(ARENA), NODE, slots, SEGMENT).unwrap(),
        false => Arena::volatile_sized(slots, SEGMENT),
    };
    let (log, opened) = match Log::open(&env, arena, config(5), Incarnation(1)).await {
        Ok(opened) => opened,
        Err(Error::Flash { .. } | Error::Damaged { .. }) if faulty => return, // The disk failed.
        Err(error) => panic!("the log does not open: {error}"),
    };
    if faulty && !opened.damage.is_empty() {
        // A file could not be read this time. That must have no effect on the next life.
        return env.sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(opened.damage, Vec::<String>::new());
    for number in 0..VOLUMES {
        let list = match log.unfinished(volume(number)).await {
            Ok(list) => list,
            Err(Error::Flash { .. }) => return,
            Err(error) => panic!("nothing is lost, but: {error}"),
        };
        let known = model.lock()[usize::from(number)];
        // Released changes may be there or not.
        let serials: Vec<u64> =
            list.iter().map(|one| one.serial.0).filter(|&serial| serial > known.released).collect();
        let last = known.released + serials.len() as u64;
        assert_eq!(serials, (known.released + 1..=last).collect::<Vec<_>>(), "{known:?}");
        assert!(
            last >= known.appended && last <= known.tried.max(known.released),
            "{known:?}, but {serials:?}"
        );
        for one in &list {
            assert_eq!(one.place.length() as usize, length_of(one.serial.0));
            let mut bytes = vec![0; one.place.length() as usize];
            match one.place.read(0, &mut bytes).await {
                Ok(()) => assert_eq!(bytes, payload(volume(number), one.serial.0, bytes.len())),
                Err(Error::Flash { .. }) => return,
                Err(error) => panic!("{error}"),
            }
        }
        // The start has made durable what it recovered, and clients have seen it.
        let known = &mut model.lock()[usize::from(number)];
        (known.appended, known.tried, known.committed) = (last, last, last);
        log.release(volume(number), Serial(known.released));
    }
    let writers =
        (0..VOLUMES).map(|number| writer(env.clone(), log.clone(), number, Arc::clone(&model)));
    let releaser = releaser(env.clone(), log.clone(), Arc::clone(&model));
    futures_util::future::join(join_all(writers), releaser).await;
    // Only an error ends the work.
    assert!(log.commit(Position(u64::MAX)).await.is_err() || log.inner.is_latched());
    assert!(log.append(&[change(volume(9), 1, &[])]).is_err(), "a latched log takes nothing");
    assert!(log.roll(0).await.is_err());
}

fn lives(seed: u64, outlives: bool, faulty: bool, change: impl Fn(&World, u64)) {
    let world = world(seed);
    let model = Model::default();
    for life in 0..6 {
        let env = world.env();
        change(&world, life);
        let random = env.random_u64();
        let stop = match random % 3 {
            0 => Stop::Step(random / 3 % 3000),
            _ => Stop::DiskOperation(1 + random / 3 % 250),
        };
        let begun = world.elapsed();
        let slots = 2 + (seed % 4) as usize;
        world.block_on_until(stop, live(env, slots, outlives, faulty, Arc::clone(&model)));
        let took = world.elapsed() - begun;
        assert!(took < Duration::from_secs(600), "seed {seed}, life {life}: stuck for {took:?}");
        let power = random.is_multiple_of(2);
        if power {
            world.cut_power()
        } else {
            world.crash_process()
        }
        if power || !outlives {
            model.lock().iter_mut().for_each(|known| known.appended = known.committed);
        }
    }
}

fn seeds() -> u64 {
    std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200)
}

#[test]
fn acknowledged_changes_survive_any_crash() {
    (0..seeds()).for_each(|seed| lives(seed, true, false, |_, _| ()));
}

#[test]
fn committed_changes_survive_without_warm_memory() {
    (0..seeds()).for_each(|seed| lives(seed, false, false, |_, _| ()));
}

#[test]
fn acknowledged_changes_survive_any_crash_on_a_drive_with_large_sectors() {
    (0..seeds() / 2).for_each(|seed| {
        lives(seed, seed % 2 == 0, false, |world, life| {
            let bytes = if life % 3 == 2 { 512 } else { 4096 };
            world.change_faults(|faults| {
                faults.sector_bytes = bytes;
                faults.torn_sectors = 0.5;
            });
        });
    });
}

/// A write that failed is in the page cache all the same, where the kernel takes it for clean. The
/// next life reads it, and its sync does not save it.
#[test]
fn what_only_the_page_cache_had_is_made_durable_before_it_counts() {
    (0..seeds()).for_each(|seed| {
        lives(seed, false, true, |world, life| {
            let next = world.disk_operations() + 20 + world.env().random_u64() % 100;
            world.change_faults(|faults| {
                faults.torn_whole = 0.9;
                faults.fail_operation = (life % 2 == 0).then_some(next);
            });
        });
    });
}

#[test]
fn acknowledged_changes_survive_errors_of_the_disk() {
    (0..seeds()).for_each(|seed| {
        lives(seed, true, true, |world, life| {
            let next = world.disk_operations() + 1 + world.env().random_u64() % 120;
            world.change_faults(|faults| {
                faults.fail_operation = Some(next);
                faults.sync_error = if life % 2 == 0 { 0.01 } else { 0.0 };
            });
        });
    });
}

#[test]
fn acknowledged_changes_survive_a_full_disk() {
    (0..seeds() / 4).for_each(|seed| {
        lives(seed, true, true, |world, life| {
            let segments = if life % 2 == 0 { 3 } else { 4 + world.env().random_u64() % 4 };
            world.set_disk_bytes(segments * u64::from(SEGMENT) + (64 << 10));
        });
    });
}
