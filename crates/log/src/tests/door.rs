//! The door: what streams have between memory and flash, and the order in which they come in.

use super::{ARENA, NODE, append, config, volume, world};
use crate::limits::{AHEAD_BYTES_MAX, QUANTUM_BYTES, UNDER_WAY_BYTES_FREE};
use crate::{Log, Position, Quantum};
use rekindle_base::{Incarnation, Serial};
use rekindle_env::Env;
use rekindle_warm::Arena;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MIB: u64 = 1 << 20;
const PIECE: u64 = 128 << 10;
/// More than a stream's pieces have around their payload.
const AROUND: u64 = 16 << 10;

/// A log whose segments hold several quanta.
async fn open(env: &Env) -> Log {
    let arena = Arena::open_sized(env, Path::new(ARENA), NODE, 8, 4 * MIB as u32).unwrap();
    let config = crate::Config { flash_bytes: 64 * MIB, ..config(0) };
    Log::open(env, arena, config, Incarnation(1)).await.unwrap().0
}

fn uncommitted(log: &Log) -> u64 {
    log.usage().uncommitted_bytes
}

/// Appends `count` pieces as a stream does that never waits for a reply.
async fn stream(log: &Log, number: u8, count: u64, let_in: impl Fn()) {
    let mut quantum: Option<Quantum> = None;
    for serial in 1..=count {
        let has_turn = quantum.as_mut().is_some_and(|quantum| quantum.take(PIECE));
        if !has_turn && !log.admits(MIB, PIECE) {
            drop(quantum.take());
            assert!(quantum.insert(log.quantum().await).take(PIECE));
        }
        append(log, volume(number), serial, PIECE as usize).await.unwrap();
        log.release(volume(number), Serial(serial));
        let_in();
    }
}

#[test]
fn streams_have_few_bytes_between_memory_and_flash() {
    let highest = Arc::new(AtomicU64::new(0));
    for seed in 0..10 {
        let world = world(seed);
        let env = world.env();
        world.block_on(async {
            let log = open(&env).await;
            let streams = (1..=4).map(|number| {
                let (log, highest) = (log.clone(), Arc::clone(&highest));
                env.run("stream", async move {
                    stream(&log, number, 40, || {
                        highest.fetch_max(uncommitted(&log), Ordering::Relaxed);
                    })
                    .await;
                })
            });
            futures_util::future::join_all(streams.collect::<Vec<_>>()).await;
        });
    }
    let highest = highest.load(Ordering::Relaxed);
    assert!(highest > AHEAD_BYTES_MAX, "{highest}: streams are held back for nothing");
    assert!(highest <= AHEAD_BYTES_MAX + QUANTUM_BYTES + AROUND, "{highest}");
}

#[test]
fn a_stream_does_not_overtake_those_that_queue_and_a_small_write_does() {
    let world = world(1);
    let env = world.env();
    world.block_on(async {
        let log = open(&env).await;
        assert!(log.admits(MIB, PIECE), "nothing is uncommitted");
        let first = log.quantum().await;
        assert!(!log.admits(MIB, PIECE), "another stream has its quantum");
        assert!(log.admits(0, 4096));
        drop(first);
        assert!(log.admits(MIB, PIECE));
    });
}

#[test]
fn small_writes_do_not_keep_a_stream_outside() {
    // In some worlds the small writes go to sleep together, and leave a moment for the stream.
    for seed in 1..=30 {
        let world = world(seed);
        let env = world.env();
        world.block_on(async {
            let log = open(&env).await;
            let is_in = Arc::new(AtomicBool::new(false));
            // Enough of them that flash is always far behind.
            let writers = (1..=12u8).map(|number| {
                let (log, is_in) = (log.clone(), Arc::clone(&is_in));
                env.run("writer", async move {
                    for serial in 1..=100 {
                        let length = UNDER_WAY_BYTES_FREE as usize;
                        let (end, _) = append(&log, volume(number), serial, length).await.unwrap();
                        log.commit(end).await.unwrap();
                        log.release(volume(number), Serial(serial));
                        if is_in.load(Ordering::Relaxed) {
                            return true;
                        }
                    }
                    false
                })
            });
            let writers: Vec<_> = writers.collect();
            let waits = async {
                while uncommitted(&log) <= AHEAD_BYTES_MAX {
                    env.sleep(std::time::Duration::from_micros(10)).await;
                }
                let before = log.progress().appended;
                drop(log.quantum().await);
                is_in.store(true, Ordering::Relaxed);
                let Position(appended) = log.progress().appended;
                appended - before.0
            };
            let (overtaken, were_busy) =
                futures_util::future::join(waits, futures_util::future::join_all(writers)).await;
            assert!(were_busy.iter().all(|&is_busy| is_busy), "the small writes came to their end");
            assert!(overtaken <= MIB, "seed {seed}: {overtaken}");
        });
    }
}
