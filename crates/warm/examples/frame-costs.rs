//! The cost of block frames on this machine:
//! `cargo run --release -p rekindle-warm --example frame-costs [FILE] [MIB]`.
//!
//! Prints the time of opening, of the first use of a frame in a process, of a hit, of a miss and of
//! an insertion. Asserts nothing about time.

use rekindle_base::{NodeId, StoreId};
use rekindle_env::Env;
use rekindle_warm::{Arena, Frames, FramesShape, Key, Shape};
use std::path::{Path, PathBuf};
use std::time::Duration;

const NODE: NodeId = NodeId([1; 16]);

fn open(env: &Env, path: &Path, mebibytes: u64) -> Frames {
    let start = env.now();
    let frames = FramesShape { bytes: mebibytes << 20, store: StoreId([2; 16]) };
    let shape = Shape { slots: 1, slot_bytes: 8 << 20, frames: Some(frames) };
    let arena = Arena::open_shaped(env, path, NODE, shape).expect("memory for the arena");
    let frames = arena.frames().expect("room for frames");
    println!("open: {:?}, {}", env.now().since(start), frames.stats().began.as_str());
    frames
}

/// Keys like the names of chunks: uniform.
fn keys(env: &Env, count: usize) -> Vec<Key> {
    (0..count).map(|_| env.random()).collect()
}

fn time(env: &Env, what: &str, keys: &[Key], mut each: impl FnMut(&Key)) {
    let start = env.now();
    keys.iter().for_each(&mut each);
    let taken: Duration = env.now().since(start);
    let each = taken.as_nanos() / keys.len() as u128;
    println!("{what}: {each} ns each, {} of them", keys.len());
}

fn main() {
    let path =
        std::env::args().nth(1).map_or_else(|| PathBuf::from("/dev/shm/frame-costs"), Into::into);
    let mebibytes = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(64);
    let (env, _runtime) = rekindle_env::real::env().expect("an environment");
    env.memory().unmap(&path).expect("an old file can go");
    let node = vec![7u8; 13_000];
    let small = vec![7u8; 1000];
    // Half of what fits, so that hits are hits.
    let count = usize::try_from((mebibytes << 20) / 181_440).expect("fits") * 4;
    let (large_keys, small_keys) = (keys(&env, count), keys(&env, count));
    let frames = open(&env, &path, mebibytes);
    time(&env, "insert 13,000 bytes into untouched memory", &large_keys, |key| {
        std::hint::black_box(frames.insert(key, &[&node]));
    });
    time(&env, "insert 1,000 bytes", &small_keys, |key| {
        std::hint::black_box(frames.insert(key, &[&small]));
    });
    time(&env, "replace 13,000 bytes", &large_keys, |key| {
        std::hint::black_box(frames.replace(key, &[&node]));
    });
    drop(frames);
    let frames = open(&env, &path, mebibytes);
    let look = |key: &Key| {
        std::hint::black_box(frames.get(key, |bytes| Some(bytes.len())).ok());
    };
    let copy = |key: &Key| {
        std::hint::black_box(frames.get(key, |bytes| Some(bytes.to_vec())).ok());
    };
    time(&env, "first use, 13,000 bytes", &large_keys, look);
    time(&env, "first use, 1,000 bytes", &small_keys, look);
    time(&env, "hit, in place", &large_keys, look);
    time(&env, "hit, 13,000 bytes copied out", &large_keys, copy);
    time(&env, "miss", &keys(&env, count), look);
    println!("{:?}\n{:?}", frames.stats(), frames.usage());
    env.memory().unmap(&path).expect("the file can go");
}
