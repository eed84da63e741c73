//! Measures the costs of the log on this machine:
//! `cargo run --release -p rekindle-log --example log-costs [FOLDER]`.
//!
//! Append, commit, and the inventory of a gibibyte of unfinished 4 KiB writes. Prints; asserts
//! nothing about time.

use rekindle_base::{Generation, Incarnation, NodeId, Serial, VolumeId};
use rekindle_env::Env;
use rekindle_log::{Append, Change, Config, Log};
use rekindle_warm::Arena;
use std::path::{Path, PathBuf};
use std::time::Duration;

const WRITES: u64 = 262_144;
const NODE: NodeId = NodeId([1; 16]);
const VOLUME: VolumeId = VolumeId([2; 16]);

fn config(folder: &Path) -> Config {
    Config {
        folder: folder.to_owned(),
        node: NODE,
        flash_bytes: 4 << 30,
        flush_interval: Duration::from_secs(3600),
    }
}

fn write(serial: u64, payload: &[u8]) -> Append<'_> {
    Append {
        volume: VOLUME,
        generation: Generation(1),
        serial: Serial(serial),
        change: Change::Write,
        joined: false,
        position: serial * 4096 % (1 << 40),
        span: payload.len() as u64,
        payload,
    }
}

async fn append(log: &Log, serial: u64, payload: &[u8]) -> rekindle_log::Position {
    loop {
        match log.append(&[write(serial, payload)]) {
            Ok((position, _)) => return position,
            Err(rekindle_log::Refused::HeadFull) => {
                log.roll(payload.len()).await.expect("the disk works")
            }
            Err(rekindle_log::Refused::Malformed(why)) => panic!("{why}"),
        }
    }
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{what}: p50 {:?}, p90 {:?}, p99 {:?}, max {:?}", at(50), at(90), at(99), at(100));
}

async fn run(env: Env, folder: PathBuf, arena_path: Option<PathBuf>) {
    let slots = 160;
    let open_arena = || match &arena_path {
        Some(path) => Arena::open(&env, path, NODE, slots).expect("memory for the arena"),
        None => Arena::volatile(slots),
    };
    let start = env.now();
    let arena = open_arena();
    let mapped = env.now().since(start);
    let (log, _) = Log::open(&env, arena, config(&folder), Incarnation(1)).await.expect("opens");
    println!("first open: arena {mapped:?}, all {:?}", env.now().since(start));

    let payload = vec![0xa5; 4096];
    let mut serial = 0;
    for batch in [1u64, 8, 64] {
        let mut times = Vec::new();
        for _ in 0..1000 {
            let start = env.now();
            let mut position = rekindle_log::Position(0);
            for _ in 0..batch {
                serial += 1;
                position = append(&log, serial, &payload).await;
            }
            log.commit(position).await.expect("the disk works");
            times.push(env.now().since(start));
            if serial % 4096 == 0 {
                log.release(VOLUME, Serial(serial));
            }
        }
        report(&format!("append + commit of {batch} x 4 KiB"), &mut times);
    }
    log.release(VOLUME, Serial(serial));
    let first = serial + 1;
    let (mut appending, mut rolling, mut rolls) = (Duration::ZERO, Duration::ZERO, 0u32);
    let start = env.now();
    while serial < first + WRITES - 1 {
        let begun = env.now();
        let appended = log.append(&[write(serial + 1, &payload)]).is_ok();
        if appended {
            serial += 1;
            appending += env.now().since(begun);
        } else {
            log.roll(4096).await.expect("the disk works");
            rolling += env.now().since(begun);
            rolls += 1;
        }
    }
    println!(
        "append of {WRITES} x 4 KiB: {:?} each; {rolls} rollovers of {:?} each (8 MiB of flash written in each); all {:?}",
        appending / u32::try_from(WRITES).expect("small"),
        rolling / rolls.max(1),
        env.now().since(start)
    );
    if arena_path.is_none() {
        log.commit(rekindle_log::Position(u64::MAX)).await.expect("the disk works");
    }
    drop(log);
    for life in 2..5 {
        let start = env.now();
        let arena = open_arena();
        let mapped = env.now().since(start);
        let start = env.now();
        let (log, opened) =
            Log::open(&env, arena, config(&folder), Incarnation(life)).await.expect("opens");
        let open = env.now().since(start);
        let start = env.now();
        let volumes = log.unfinished_volumes().await.expect("can be read");
        let read = env.now().since(start);
        let recovered = log.unfinished(VOLUME).await.expect("can be read");
        let listed = env.now().since(start);
        println!(
            "life {life}: map {mapped:?}, open {open:?} ({} segments, {} in memory, damage {:?}); tables {read:?}, list of {} in all {listed:?}",
            opened.segments,
            opened.segments_warm,
            opened.damage,
            recovered.len(),
        );
        assert_eq!(volumes, [(VOLUME, Serial(serial))]);
        let mut out = vec![0; 4096];
        let start = env.now();
        for one in recovered.iter().take(1000) {
            one.place.read(0, &mut out).await.expect("is whole");
            assert_eq!(out, payload);
        }
        println!("        first read of a place, verified: {:?}", env.now().since(start) / 1000);
    }
}

fn main() {
    let (env, runtime) = rekindle_env::real::env().expect("a runtime");
    let folder = std::env::args()
        .nth(1)
        .map_or_else(|| std::env::temp_dir().join("rekindle-log-costs"), PathBuf::from);
    for warm in [true, false] {
        println!("-- {}", if warm { "warm arena" } else { "arena forgotten with the process" });
        let arena = warm.then(|| PathBuf::from("/dev/shm/rekindle-log-costs"));
        let _ = std::fs::remove_dir_all(&folder);
        runtime.block_on(run(env.clone(), folder.clone(), arena.clone()));
        let _ = std::fs::remove_dir_all(&folder);
        arena.into_iter().for_each(|path| _ = env.memory().unmap(&path));
    }
}
