//! A large file read from a store of 30 ms: what the help for readers is worth. The same node reads
//! the same file with it, and without: with plain LRU, and only data fetched ahead. The paper on
//! `HydraFS` has such a table (FAST '10): 134 and 183 MB/s, 487 and 212 thousand lookups.
//!
//! The paper's file was written at once. Another one was also overwritten here and there, in
//! several commits: it has more metadata, which lies in many packs as its data does.

use super::files::row;
use crate::inside::{Cost, Inside, Life, Reader};
use crate::rounds::{Bench, Run, Sides, middle, short};
use crate::table::{Row, Wanted};
use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use rekindle_base::random::Random;
use rekindle_base::units::MIB;
use std::time::Instant;

const NAME: &str = "files-ahead";
const FAULT: &str = "latency=30ms";
/// A read, and how many a reader has under way: a kernel's.
const READ_BYTES: usize = 128 << 10;
const READS_AT_ONCE: usize = 4;
/// Commits that write here and there, the writes of one for each MiB of the file, and their bytes.
const COMMITS: u64 = 12;
const WRITES_A_COMMIT_AND_MIB: f64 = 0.25;
const WRITE_BYTES: usize = 16 << 10;

/// A read of the whole file.
#[derive(Debug, Clone, Copy)]
struct Passed {
    /// MiB a second.
    rate: f64,
    cost: Cost,
}

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (commits, how) in [(0, "written at once"), (COMMITS, "overwritten here and there")] {
        let mut inside = Inside::new(bench.scratch.join(NAME), super::content_config())?;
        let product = Reader { faults: FAULT, is_plain: false };
        let plain = Reader { is_plain: true, ..product };
        let mebibytes = bench.size / MIB;
        write(inside.start(Reader { faults: "", ..product })?, mebibytes, commits)?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds {
            ours.push(pass(bench, inside.start(product)?, mebibytes)?);
            theirs.push(pass(bench, inside.start(plain)?, mebibytes)?);
        }
        let what = format!("store of 30 ms: a file of {mebibytes} MiB, {how}, read");
        rows.extend(rows_of(&Sides { ours, theirs }, &what));
    }
    Ok(rows)
}

fn pass(bench: &Bench, life: Life, mebibytes: u64) -> Result<Run<Passed>> {
    let run = bench.run(|| read(&life, mebibytes))?;
    life.stop()?;
    Ok(run)
}

/// Writes the file, and then here and there in so many commits.
fn write(life: Life, mebibytes: u64, commits: u64) -> Result<()> {
    life.runtime.block_on(async {
        let (ino, mut random) = (life.make().await?, Random::new(9));
        for at in 0..mebibytes {
            life.write(ino, at * MIB, &random.bytes(1 << 20)).await?;
        }
        life.drain().await?;
        for _ in 0..commits {
            for _ in 0..(mebibytes as f64 * WRITES_A_COMMIT_AND_MIB) as u64 {
                let at = random.below(mebibytes * MIB - WRITE_BYTES as u64) & !4095;
                life.write(ino, at, &random.bytes(WRITE_BYTES)).await?;
            }
            life.drain().await?;
        }
        anyhow::Ok(())
    })?;
    life.stop()
}

/// Reads the file from begin to end, with nothing in memory.
fn read(life: &Life, mebibytes: u64) -> Result<Passed> {
    life.runtime.block_on(async {
        let ino = life.find().await?;
        let (before, begin) = (life.cost(), Instant::now());
        let files = &life.files;
        let bytes = stream::iter((0..mebibytes * MIB).step_by(READ_BYTES))
            .map(async |at| {
                let pieces = files.pieces(ino, at, READ_BYTES).await?;
                anyhow::Ok(pieces.iter().map(Bytes::len).sum::<usize>())
            })
            .buffered(READS_AT_ONCE)
            .try_fold(0, async |all, bytes| Ok(all + bytes))
            .await?;
        ensure!(bytes as u64 == mebibytes * MIB, "{bytes} bytes");
        let rate = mebibytes as f64 / begin.elapsed().as_secs_f64();
        anyhow::Ok(Passed { rate, cost: life.cost().since(&before) })
    })
}

fn rows_of(sides: &Sides<Passed, Passed>, what: &str) -> Vec<Row> {
    let (ours, theirs) = (measured(&sides.ours), measured(&sides.theirs));
    let rates =
        Sides { ours: of(&sides.ours, |run| run.rate), theirs: of(&sides.theirs, |run| run.rate) };
    let lookups = |of: &Cost| format!("{} lookups", short(of.accesses as f64));
    let rate = row(
        NAME,
        &format!("{what}; with plain LRU, and only data fetched ahead"),
        "MiB/s",
        (&rates, 1.0),
        Some(1.36),
    );
    let fewer = Row::new(NAME, format!("{what}: lookups of the cache"))
        .ours(lookups(&ours))
        .theirs(lookups(&theirs))
        .value(ours.accesses as f64 / theirs.accesses as f64, "x")
        .wanted(Wanted::AtMost(1.0))
        .note(format!("{}; {}", told(&ours), told(&theirs)));
    vec![rate, fewer]
}

fn told(cost: &Cost) -> String {
    format!(
        "readers waited for {} chunks and {} nodes; {} requests for data, {} for metadata; {} chunks fetched ahead, {} of \
         them in vain",
        cost.data_waits,
        cost.metadata_waits,
        cost.data_gets,
        cost.metadata_gets,
        cost.ahead,
        cost.in_vain
    )
}

fn of(runs: &[Run<Passed>], measure: impl Fn(&Passed) -> f64) -> Vec<Run<f64>> {
    runs.iter().map(|run| run.map(&measure)).collect()
}

/// The counts of the run whose rate is the middle one.
fn measured(runs: &[Run<Passed>]) -> Cost {
    middle(runs, |run| run.rate).value.cost
}
