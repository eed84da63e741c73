//! Groups of changes: all or nothing, whatever happens.

use super::*;
use crate::Recovered;
use crate::format::{EntryHeader, Kind};
use crate::limits::GROUP_ENTRIES_MAX;
use crate::walk::walk;
use parking_lot::Mutex;
use rekindle_env::sim::Stop;
use std::sync::Arc;

pub(super) fn record(volume: VolumeId, serial: u64, kind: u64, payload: &[u8]) -> Append<'_> {
    let span = payload.len() as u64;
    Append { change: Change::Record, position: kind, span, ..change(volume, serial, payload) }
}

/// The changes as one group.
pub(super) fn joined<'a>(changes: &[Append<'a>]) -> Vec<Append<'a>> {
    let last = changes.len() - 1;
    let joined = |(index, one): (usize, &Append<'a>)| Append { joined: index < last, ..*one };
    changes.iter().enumerate().map(joined).collect()
}

#[test]
fn a_group_of_records_comes_back_as_it_was() {
    for power in [false, true] {
        let world = world(1);
        let env = world.env();
        world.block_on(async {
            let (log, _) = open(&env).await;
            append(&log, volume(1), 1, 100).await.unwrap();
            let bytes: Vec<_> = (2..5).map(|n| payload(volume(1), n, n as usize * 50)).collect();
            let records: Vec<_> =
                (2..).zip(&bytes).map(|(n, b)| record(volume(1), n, 70 + n, b)).collect();
            let (position, _) = log.append(&joined(&records)).unwrap();
            log.commit(position).await.unwrap();
        });
        if power {
            world.cut_power();
        } else {
            world.crash_process();
        }
        let env = world.env();
        world.block_on(async {
            let (log, _) = open(&env).await;
            let summary = log.summary(volume(1)).await.unwrap().unwrap();
            assert!(summary.gapless && !summary.joined);
            let list = log.unfinished(volume(1)).await.unwrap();
            let seen =
                |one: &Recovered| (one.serial.0, one.change, one.joined, one.position, one.span);
            let expected = [
                (1, Change::Write, false, 512, 100),
                (2, Change::Record, true, 72, 100),
                (3, Change::Record, true, 73, 150),
                (4, Change::Record, false, 74, 200),
            ];
            assert_eq!(list.iter().map(seen).collect::<Vec<_>>(), expected);
            for one in &list {
                check(volume(1), one.serial.0, &one.place).await;
            }
        });
    }
}

#[test]
fn a_malformed_append_is_refused_and_leaves_no_trace() {
    let world = world(1);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        append(&log, volume(1), 1, 100).await.unwrap();
        let before = log.progress().appended;
        let plain = |serial| change(volume(1), serial, &[]);
        let first = Append { joined: true, ..plain(2) };
        let big = [7; SEGMENT as usize / 4];
        let many: Vec<_> = (2..GROUP_ENTRIES_MAX as u64 + 3).map(plain).collect();
        let malformed: [&[Append<'_>]; 10] = [
            // The rest of the group is missing, of another volume, generation, or not the next.
            &[first],
            &[plain(2), Append { joined: true, ..plain(3) }],
            &[first, change(volume(2), 3, &[])],
            &[first, Append { generation: Generation(2), ..plain(3) }],
            &[first, plain(4)],
            &[first, plain(2)],
            // Too large.
            &joined(&many),
            &joined(&[record(volume(1), 2, 0, &big), record(volume(1), 3, 0, &big)]),
            // No change.
            &[Append { payload: &[1], ..plain(2) }],
            &[Append { span: 7, ..record(volume(1), 2, 0, &big) }],
        ];
        for (number, changes) in malformed.into_iter().enumerate() {
            let refused = log.append(changes);
            assert!(matches!(refused, Err(Refused::Malformed(_))), "{number}");
            assert_eq!(log.progress().appended, before, "{number}");
        }
        let good = [first, plain(3), plain(4), Append { joined: true, ..plain(5) }, plain(6)];
        log.append(&good).expect("two groups and a single change");
        assert_eq!(log.append(&[]).expect("nothing").1.len(), 0);
    });
}

/// The largest group always fits a new head, however full the present one is.
#[test]
fn the_largest_group_finds_room() {
    let world = world(1);
    let env = world.env();
    world.block_on(async {
        const LARGE: u32 = 512 << 10;
        let config = Config { flash_bytes: 16 * u64::from(LARGE), ..config(16) };
        let arena = Arena::volatile_sized(4, LARGE);
        let (log, _) = Log::open(&env, arena, config, Incarnation(1)).await.unwrap();
        let (mut serial, mut rolled) = (1, 0);
        for _ in 0..12 {
            let most: Vec<_> =
                (serial..).take(GROUP_ENTRIES_MAX).map(|n| change(volume(1), n, &[])).collect();
            // Header, payload and descriptor of both are half of a segment.
            let half = vec![5; (LARGE / 4 - 128) as usize];
            let next = serial + GROUP_ENTRIES_MAX as u64;
            let two = [record(volume(1), next, 1, &half), record(volume(1), next + 1, 1, &half)];
            for group in [joined(&most), joined(&two)] {
                let bytes = group.iter().map(|one| one.payload.len()).sum();
                while let Err(refused) = log.append(&group) {
                    assert_eq!(refused, Refused::HeadFull);
                    rolled += 1;
                    assert!(rolled < 100, "a new head has room");
                    log.roll(bytes).await.unwrap();
                }
            }
            serial = next + 2;
            log.release(volume(1), Serial(serial - 1));
        }
    });
}

/// A reader beside the appends, and a commit at any moment, see whole groups only.
#[test]
fn neither_a_certificate_nor_a_published_state_falls_within_a_group() {
    (0..8).for_each(watch_appends);
}

#[expect(clippy::disallowed_methods, reason = "a task of the simulation never runs within a call")]
fn watch_appends(seed: u64) {
    const GROUP: u64 = 200;
    const LARGE: u32 = 8 << 20;
    let world = world(seed);
    let env = world.env();
    world.block_on(async {
        let config = Config { flash_bytes: 8 * u64::from(LARGE), ..config(8) };
        let arena = Arena::volatile_sized(4, LARGE);
        let (log, _) = Log::open(&env, arena, config, Incarnation(1)).await.unwrap();
        let segment = Arc::clone(&log.inner.heads.lock().open.segment);
        let memory = segment.with_memory(Clone::clone).unwrap();
        let appender = {
            let log = log.clone();
            std::thread::spawn(move || {
                let bytes = [9; 40];
                for first in (1..).step_by(GROUP as usize) {
                    let serials = first..first + GROUP;
                    let group: Vec<_> = serials.map(|n| record(volume(1), n, 1, &bytes)).collect();
                    if log.append(&joined(&group)).is_err() {
                        return;
                    }
                }
            })
        };
        let certify = || {
            let mut heads = log.inner.heads.lock();
            if let Some(batch) = heads.open.close_batch() {
                heads.open.set_durable(batch.end);
            }
        };
        while !appender.is_finished() {
            for _ in 0..1000 {
                let entries = memory.back().len() as u64 / 64;
                assert!(entries.is_multiple_of(GROUP), "{entries} are published");
            }
            certify();
        }
        appender.join().unwrap();
        certify();
        let front = memory.front(0, memory.front_length()).unwrap();
        let (mut at, mut certificates, mut open) = (0, 0, false);
        while let Some(bytes) = front.get(at as usize..).filter(|bytes| bytes.len() >= 64) {
            match EntryHeader::decode(bytes, segment.header.key()) {
                Ok(entry) if entry.offset == at => {
                    if entry.kind == Kind::Certificate {
                        assert!(!open, "a certificate at {at} parts a group");
                        certificates += 1;
                    }
                    open = entry.joined;
                    at = entry.end();
                }
                _ => at += 64,
            }
        }
        assert!(certificates > 1 && walk(front, &segment.header, 0).end > 0);
    });
}

/// The appends of a run: the groups of each volume, by first and last serial, and how many of
/// them are committed.
#[derive(Default)]
struct Model {
    groups: [Vec<(u64, u64)>; 2],
    committed: [usize; 2],
}

async fn work(env: Env, model: &Mutex<Model>) {
    let (log, _) = open(&env).await;
    // More would fill the flash, since nothing is released.
    for _ in 0..60 {
        let at = (env.random_u64() % 2) as usize;
        let first = model.lock().groups[at].last().map_or(1, |group| group.1 + 1);
        let serials: Vec<u64> = (first..=first + env.random_u64() % 5).collect();
        let volume = volume(at as u8 + 1);
        let length = |serial: u64| [0, 40, 700, 1500][serial as usize % 4];
        let bytes: Vec<_> = serials.iter().map(|&s| payload(volume, s, length(s))).collect();
        let records: Vec<_> =
            serials.iter().zip(&bytes).map(|(&s, b)| record(volume, s, 3, b)).collect();
        let position = loop {
            match log.append(&joined(&records)) {
                Ok((position, _)) => break position,
                Err(Refused::HeadFull) => log.roll(bytes.iter().map(Vec::len).sum()).await.unwrap(),
                Err(Refused::Malformed(why)) => panic!("{why}"),
            }
        };
        model.lock().groups[at].push((first, first + serials.len() as u64 - 1));
        if env.random_u64().is_multiple_of(3) {
            let counts = [0, 1].map(|at| model.lock().groups[at].len());
            log.commit(position).await.unwrap();
            model.lock().committed = counts;
        }
    }
}

/// Damage makes entries unreadable, at worst; it never makes half a group look like a whole.
#[test]
fn no_crash_and_no_damage_leaves_half_a_group_that_counts() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(400);
    let (mut halves, mut whole) = (0, 0);
    for seed in 0..seeds {
        let world = world(seed);
        let env = world.env();
        world.change_faults(|faults| faults.torn_sectors = 0.5);
        let model = Mutex::new(Model::default());
        let random = env.random_u64();
        world.block_on_until(Stop::DiskOperation(20 + random % 120), work(env, &model));
        // Memory is lost whenever flash is damaged: else most of the damage is never read.
        let damages = random / 120 % 4;
        if damages > 0 || random.is_multiple_of(2) {
            world.cut_power();
        } else {
            world.crash_process();
        }
        let env = world.env();
        for _ in 0..damages {
            let file = 1 + env.random_u64() % 4;
            let offset = 256 + env.random_u64() % u64::from(SEGMENT - 256);
            world.flip_bit(format!("/flash/{file:08}.seg"), offset);
        }
        let model = model.into_inner();
        world.block_on(async {
            let Ok((log, _)) = open_with(&env, 4, 8).await else {
                assert!(damages > 0, "seed {seed}: it opens");
                return;
            };
            for (at, groups) in model.groups.iter().enumerate() {
                let (list, losses) = log.salvage(volume(at as u8 + 1)).await.unwrap();
                assert!(losses.is_empty() || damages > 0, "seed {seed}: {losses:?}");
                let serials: Vec<u64> = list.iter().map(|one| one.serial.0).collect();
                let has = |serial: u64| serials.binary_search(&serial).is_ok();
                let told = |serial: u64| {
                    losses.iter().any(|loss| {
                        loss.after.0 < serial && loss.before.is_none_or(|before| serial < before.0)
                    })
                };
                for (number, &(first, last)) in groups.iter().enumerate() {
                    let there = (first..=last).filter(|&serial| has(serial)).count() as u64;
                    let is_whole = there == last - first + 1;
                    let may_go = number >= model.committed[at] || damages > 0;
                    assert!(is_whole || may_go, "seed {seed}: group {first}-{last} is lost");
                    whole += u64::from(is_whole);
                    if there > 0 && !is_whole {
                        halves += 1;
                        let missing = (first..=last).filter(|&serial| !has(serial));
                        missing.for_each(|serial| {
                            assert!(told(serial), "seed {seed}: {serial} of {first}-{last}");
                        });
                    }
                }
                for one in &list {
                    let ends = groups.iter().any(|&(_, last)| last == one.serial.0);
                    assert_eq!(one.joined, !ends, "seed {seed}: {}", one.serial);
                }
                if let Some(summary) = log.summary(volume(at as u8 + 1)).await.unwrap() {
                    assert!(!summary.joined && !list.last().unwrap().joined, "seed {seed}");
                }
            }
        });
    }
    assert!(whole > 1000 && (halves > 0 || seeds < 400), "{whole} whole groups, {halves} halves");
}
