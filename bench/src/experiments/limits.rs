//! The machine's own limits, in the same run: a ratio means little without the value that it is a
//! ratio of.

use crate::fio::Job;
use crate::round_trip::round_trip;
use crate::rounds::{Bench, middle, short};
use crate::servers::written_file;
use crate::table::Row;
use anyhow::Result;
use rekindle_base::random::Random;
use std::os::unix::net::UnixStream;
use std::time::Instant;

const NAME: &str = "limits";

/// Measures disk, socket and memory.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let file = bench.scratch.join("limits.raw");
    written_file(&file, 256)?;
    let mut rows = Vec::new();
    for (what, options) in [
        ("4 KiB write O_DSYNC, one at a time", &["--sync=dsync"][..]),
        ("4 KiB write O_DIRECT + O_DSYNC, one at a time", &["--sync=dsync", "--direct=1"]),
        ("4 KiB write + fdatasync, one at a time", &["--fdatasync=1"]),
    ] {
        let job = Job::file(&file, "randwrite", bench.seconds, 256);
        let job = options.iter().fold(job, |job, option| job.with(option));
        let runs = bench.repeat(|| job.run(&bench.layout))?;
        let run = middle(&runs, |figures| figures.iops);
        // fio's latency of a write leaves out the fdatasync after it.
        let figures =
            format!("{} IOPS, mean {} us", short(run.value.iops), short(1e6 / run.value.iops),);
        rows.push(Row::new(NAME, what).theirs(figures).others(run.others));
    }
    std::fs::remove_file(&file)?;
    for (what, client, server) in
        [("same core", "0", "0"), ("two cores, blocking", "0", "1"), ("free", "0", "0,1")]
    {
        let runs = bench.repeat(|| round_trip(UnixStream::pair()?, (client, server), 16))?;
        let run = middle(&runs, |time| time.as_secs_f64());
        let text = format!("{} us", short(run.value.as_secs_f64() * 1e6));
        let what = format!("4 KiB over a Unix socket and 16 bytes back, {what}");
        rows.push(Row::new(NAME, what).theirs(text).others(run.others));
    }
    let runs = bench.repeat(|| Ok(copy_rate()))?;
    let run = middle(&runs, |rate| *rate);
    let text = format!("{:.1} GB/s", run.value / 1e9);
    rows.push(Row::new(NAME, "memcpy of 64 MiB").theirs(text).others(run.others));
    Ok(rows)
}

fn copy_rate() -> f64 {
    let from = Random::new(1).bytes(64 << 20);
    let mut to = from.clone();
    let begin = Instant::now();
    for _ in 0..8 {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    (8 * from.len()) as f64 / begin.elapsed().as_secs_f64()
}
