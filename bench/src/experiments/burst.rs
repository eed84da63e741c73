//! A burst into a store that answers after 10 ms: the purpose of write-back.

use crate::machine;
use crate::nbd::{Client, Reply, Until, percentile};
use crate::rounds::{Bench, Sides, beside, middle, short};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::Result;
use std::time::Duration;

const NAME: &str = "burst";
const MEBIBYTES: u64 = 1024;
const BLOCKS: u64 = MEBIBYTES << 8;
pub const DEPTH: usize = 32;
/// Latency that the fault layer adds to each call of the store, give or take a half.
pub const LATENCY: Duration = Duration::from_millis(10);
/// Seconds of the run that is measured second by second.
const LONG: u64 = 10;

/// Compares `back` with `uncached` in the same daemon, then measures `back` second by second.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let fault = format!("latency={}ms", LATENCY.as_millis());
    let server = Rekindle::start(bench, NAME, &["--store-fault", &fault, "--flash-budget", "16G"])?;
    server.create("flash", MEBIBYTES, "flash")?;
    server.create("memory", MEBIBYTES, "memory")?;
    server.create("uncached", MEBIBYTES, "uncached")?;
    let seconds = Duration::from_secs(bench.seconds);
    let mut seed = 0;
    let mut burst = |volume: &str, time: Duration| -> Result<Vec<Reply>> {
        seed += 1;
        let replies = load(bench, &server, volume, seed, time)?;
        server.drain(volume)?;
        Ok(replies)
    };
    let mut flash = Vec::new();
    let mut memory = Vec::new();
    let mut uncached = Vec::new();
    for _ in 0..bench.rounds {
        flash.push(bench.run(|| burst("flash", seconds).map(|replies| rate(&replies)))?);
        uncached.push(bench.run(|| burst("uncached", seconds).map(|replies| rate(&replies)))?);
        memory.push(bench.run(|| burst("memory", seconds).map(|replies| rate(&replies)))?);
    }
    let mut sides = Sides { ours: Vec::new(), theirs: uncached };
    let mut rows = Vec::new();
    for (ack, runs) in [("flash", flash), ("memory", memory)] {
        sides.ours = runs;
        let (ours, theirs) =
            (middle(&sides.ours, |rate| *rate), middle(&sides.theirs, |rate| *rate));
        let what = format!("`back`, ack={ack}, into a store of 10 ms, depth {DEPTH}; `uncached`");
        rows.push(
            Row::new(NAME, what)
                .ours(format!("{} writes/s", short(ours.value)))
                .theirs(format!("{} writes/s", short(theirs.value)))
                .value(ours.value / theirs.value, "x")
                .wanted(Wanted::AtLeast(20.0))
                .note(beside(&sides, |rate| *rate, |rate| *rate))
                .others(ours.others.max(theirs.others)),
        );
    }
    let long = bench.run(|| burst("flash", Duration::from_secs(LONG)))?;
    rows.push(steady(&long.value).others(long.others));
    Ok(rows)
}

/// Writes for a while, on the client's cores.
pub fn load(
    bench: &Bench,
    server: &Rekindle,
    volume: &str,
    seed: u64,
    time: Duration,
) -> Result<Vec<Reply>> {
    let mut client = Client::connect(&server.socket(), volume)?;
    let cores = bench.layout.client.clone();
    let work = std::thread::spawn(move || {
        machine::pin_this_thread(&cores)?;
        client.write_randomly(DEPTH, BLOCKS, seed, Until::Passed(time))
    });
    work.join().expect("no panic")
}

/// Computes the replies a second.
pub fn rate(replies: &[Reply]) -> f64 {
    let time = replies.last().map_or(1.0, |reply| reply.at.as_secs_f64());
    replies.len() as f64 / time
}

/// Groups replies by whole second.
pub fn by_second(replies: &[Reply]) -> Vec<Vec<Reply>> {
    let mut seconds: Vec<Vec<Reply>> = Vec::new();
    for reply in replies {
        let at = reply.at.as_secs() as usize;
        if seconds.len() <= at {
            seconds.resize_with(at + 1, Vec::new);
        }
        seconds[at].push(*reply);
    }
    seconds
}

fn steady(replies: &[Reply]) -> Row {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let mut seconds = by_second(replies);
    seconds.truncate(LONG as usize);
    let p99: Vec<f64> = seconds.iter().map(|second| us(percentile(second, 99.0))).collect();
    let p50: Vec<f64> = seconds.iter().map(|second| us(percentile(second, 50.0))).collect();
    let counts: Vec<f64> = seconds.iter().map(|second| second.len() as f64).collect();
    let mut sorted = p99.clone();
    sorted.sort_by(f64::total_cmp);
    let (middle, worst) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
    let line = |values: &[f64]| values.iter().map(|&v| short(v)).collect::<Vec<_>>().join(" ");
    Row::new(
        NAME,
        format!("the worst second's p99 against the middle one's, {LONG} s of ack=flash"),
    )
    .ours(format!("worst {} us", short(worst)))
    .theirs(format!("middle {} us", short(middle)))
    .value(worst / middle, "x")
    .wanted(Wanted::AtMost(2.0))
    .note(format!("writes/s, second by second: {}", line(&counts)))
    .note(format!("p50 us, second by second: {}", line(&p50)))
    .note(format!("p99 us, second by second: {}", line(&p99)))
}
