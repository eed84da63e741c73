//! Cold reads of a volume whose store answers after 20 ms, against the store itself without a
//! volume in front.
//!
//! The bare store is asked by the same code, with the same latency: for random reads one range of a
//! block for each, at the same depth; for sequential reads the same packs in ranges of 4 MiB, four
//! at once.

use crate::fio::Job;
use crate::machine::pinned;
use crate::nbd::Client;
use crate::rounds::{Bench, Sides, median, middle, short, spread};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::{Result, ensure};
use rekindle_base::random::Random;
use rekindle_datastore::layer::fault;
use rekindle_datastore::{Store, key};
use rekindle_env::real::Runtime;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const NAME: &str = "cold-read";
/// The latency that the fault layer adds to each request, give or take a half.
const FAULT: &str = "latency=20ms";
const DEPTHS: [u32; 2] = [1, 32];
/// Bytes of a block of a volume, which a random read asks a store for.
const BLOCK: u64 = 16 << 10;
/// A request for a sequential read of the bare store.
const RANGE: u64 = 4 << 20;
const RANGES_AT_ONCE: usize = 4;
const ROUNDS_MAX: usize = 3;
const MIB: f64 = (1_u64 << 20) as f64;

/// How nbdcopy reads one request after the other.
const ONE_AT_A_TIME: &[&str] =
    &["--connections=1", "--requests=1", "--threads=1", "--request-size=131072"];

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let size = bench.size / 2;
    let mut server = Rekindle::start(bench, NAME, &["--store-fault", FAULT])?;
    server.create("v", size >> 20, "flash")?;
    Client::connect(&server.socket(), "v")?.fill(size, 1)?;
    server.drain("v")?;
    let bare = Bare::open(&server.store(), FAULT)?;
    let bench = &Bench { rounds: bench.rounds.min(ROUNDS_MAX), ..bench.clone() };
    let mut rows = Vec::new();
    for depth in DEPTHS {
        let sides = bench.alternate(
            || {
                cold(&mut server)?;
                // Each block is read once, so that the cache has nothing of it.
                let job = Job::nbd(server.uri("v"), "randread", depth, bench.seconds, size >> 20)
                    .with("--norandommap=0")
                    .with(&format!("--blockalign={BLOCK}"));
                Ok(job.run(&bench.layout)?.iops)
            },
            || bare.random(depth as usize, Duration::from_secs(bench.seconds)),
        )?;
        let what = format!(
            "store of 20 ms: cold 4 KiB random reads, depth {depth}; bare ranges of 16 KiB"
        );
        let mut row = row(what, "reads/s", &sides);
        let blocks = (size / BLOCK) as f64;
        if sides.ours.iter().any(|run| run.value * bench.seconds as f64 > blocks) {
            row = row.note("blocks were read more than once, from the cache: a larger --size");
        }
        rows.push(row);
    }
    for (what, options) in [("128 KiB, depth 1", ONE_AT_A_TIME), ("nbdcopy", &[])] {
        let sides = bench.alternate(
            || {
                cold(&mut server)?;
                copy(bench, &server, options, size)
            },
            || bare.sequential(RANGES_AT_ONCE),
        )?;
        let what = format!(
            "store of 20 ms: {} MiB sequentially, cold, {what}; bare ranges of 4 MiB, {RANGES_AT_ONCE} at once",
            size >> 20
        );
        rows.push(row(what, "MiB/s", &sides).wanted(Wanted::AtLeast(0.82)));
    }
    Ok(rows)
}

fn row(what: String, unit: &str, sides: &Sides<f64, f64>) -> Row {
    let (ours, theirs) = (median(&sides.ours, |rate| *rate), median(&sides.theirs, |rate| *rate));
    let others = middle(&sides.ours, |rate| *rate).others;
    let all = |runs: &_| spread(runs, |rate| *rate);
    Row::new(NAME, what)
        .ours(format!("{} {unit}", short(ours)))
        .theirs(format!("{} {unit}", short(theirs)))
        .value(ours / theirs, "x")
        .others(others.max(middle(&sides.theirs, |rate| *rate).others))
        .note(format!("all rounds: {} against {}", all(&sides.ours), all(&sides.theirs)))
}

/// Starts the daemon again without anything that it knew of the store.
fn cold(server: &mut Rekindle) -> Result<()> {
    server.stop()?;
    server.forget_warm_memory()?;
    server.up()?;
    server.wait_until_it_serves()
}

/// Reads the whole volume from begin to end; returns MiB/s.
fn copy(bench: &Bench, server: &Rekindle, options: &[&str], size: u64) -> Result<f64> {
    let begin = Instant::now();
    let mut command = pinned(&bench.layout.client, "nbdcopy");
    let output = command.args(options).arg(server.uri("v")).arg("null:").output()?;
    ensure!(output.status.success(), "nbdcopy: {}", String::from_utf8_lossy(&output.stderr));
    Ok(size as f64 / MIB / begin.elapsed().as_secs_f64())
}

/// A store with its latency, and its packs of data.
pub struct Bare {
    runtime: Runtime,
    store: Store,
    /// Keys and lengths.
    packs: Vec<(String, u64)>,
}

impl Bare {
    /// Opens the store in a folder, with the faults that its daemon sees.
    pub fn open(folder: &Path, faults: &str) -> Result<Self> {
        let (env, runtime) = rekindle_env::real::env()?;
        let url = format!("file://{}", folder.display());
        let inner = runtime.block_on(rekindle_datastore::open_known(&env, &url))?;
        let listed = runtime.block_on(inner.list(key::PACKS_DATA, None))?;
        let (store, _) = fault::wrap(&env, inner, faults.parse()?);
        let packs = listed.into_iter().map(|listed| (listed.key, listed.length)).collect();
        Ok(Self { runtime, store, packs })
    }

    /// Reads a range of an object, and waits for it.
    fn read(&self, key: &str, range: Range<u64>) -> Result<()> {
        Ok(self.runtime.block_on(self.store.get_range(key, range)).map(drop)?)
    }

    /// Reads blocks at random places, so many at once; returns reads a second.
    fn random(&self, depth: usize, time: Duration) -> Result<f64> {
        let begin = Instant::now();
        let reads = together(depth, |seed| {
            let mut random = Random::new(seed as u64);
            let mut reads = 0;
            while begin.elapsed() < time {
                let (key, bytes) = &self.packs[random.index(self.packs.len())];
                let from = random.below(bytes.saturating_sub(BLOCK).max(1));
                self.read(key, from..(from + BLOCK).min(*bytes))?;
                reads += 1;
            }
            Ok(reads)
        })?;
        Ok(f64::from(reads.iter().sum::<u32>()) / begin.elapsed().as_secs_f64())
    }

    /// Reads all packs from begin to end, so many ranges at once; returns MiB/s.
    pub fn sequential(&self, at_once: usize) -> Result<f64> {
        let ranges: Vec<(&str, Range<u64>)> = (self.packs.iter())
            .flat_map(|(key, bytes)| {
                let begins = (0..*bytes).step_by(RANGE as usize);
                begins.map(|from| (key.as_str(), from..(from + RANGE).min(*bytes)))
            })
            .collect();
        let (begin, next) = (Instant::now(), AtomicUsize::new(0));
        together(at_once, |_| {
            while let Some((key, range)) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.read(key, range.clone())?;
            }
            Ok(())
        })?;
        let bytes: u64 = self.packs.iter().map(|(_, bytes)| bytes).sum();
        Ok(bytes as f64 / MIB / begin.elapsed().as_secs_f64())
    }
}

/// Runs a piece of work in so many threads at once.
fn together<T: Send>(count: usize, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}
