//! A quiet volume beside another one that takes a stream: against two plain files on the same disk,
//! written with O_DSYNC; and beside the destaging of what a stream has left.

use crate::fio::Job;
use crate::machine;
use crate::nbd::{BLOCK, Client, Reply, Until, percentile};
use crate::rounds::{Bench, Run, Sides, median, middle, short, spread};
use crate::servers::{Rekindle, fill, written_file};
use crate::table::{Row, Wanted};
use anyhow::Result;
use rekindle_base::random::Random;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

const NAME: &str = "beside";
/// Sizes of the quiet side and of the stream's side.
const QUIET_MEBIBYTES: u64 = 64;
const STREAM_MEBIBYTES: u64 = 512;
const STREAM_DEPTH: u64 = 32;
/// A request of the stream has 256 KiB.
const STREAM_REQUESTS_A_MEBIBYTE: f64 = 4.0;
/// Time from the begin of the stream until the quiet side is measured.
const HEAD_START: Duration = Duration::from_secs(1);

/// The quiet side's writes in a run.
#[derive(Debug, Clone, Copy)]
struct Quiet {
    rate: f64,
    p50: f64,
    p99: f64,
    p999: f64,
}

/// A run: the quiet side alone, then beside the stream.
#[derive(Debug, Clone, Copy)]
struct Figures {
    alone: Quiet,
    beside: Quiet,
    /// Rate of the stream, MiB/s.
    stream: f64,
}

/// A run: the quiet side alone, then while the node destages.
#[derive(Debug, Clone, Copy)]
struct Destaging {
    alone: Quiet,
    beside: Quiet,
    /// Time of the destaging.
    took: Duration,
}

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let server = Rekindle::start(bench, NAME, &[])?;
    let (quiet, stream) = (bench.scratch.join("quiet.raw"), bench.scratch.join("stream.raw"));
    for (name, file, mebibytes) in
        [("quiet", &quiet, QUIET_MEBIBYTES), ("stream", &stream, STREAM_MEBIBYTES)]
    {
        server.create(name, mebibytes, "flash")?;
        server.fill(bench, name, mebibytes)?;
        written_file(file, mebibytes as usize)?;
    }
    let seconds = bench.seconds + HEAD_START.as_secs();
    let into_volume =
        Job::nbd(server.uri("stream"), "write", STREAM_DEPTH as u32, seconds, STREAM_MEBIBYTES)
            .with("--bs=256k");
    // A file has no depth: as many threads write, each into its own part.
    let part = STREAM_MEBIBYTES / STREAM_DEPTH;
    let into_file = Job::file(&stream, "write", seconds, part)
        .with("--bs=256k")
        .with("--sync=dsync")
        .with("--thread")
        .with("--group_reporting")
        .with(&format!("--numjobs={STREAM_DEPTH}"))
        .with(&format!("--offset_increment={part}m"));
    let mut seed = 0;
    let sides = bench.alternate(
        || {
            seed += 1;
            let figures = figures(bench, &into_volume, |time| write_volume(&server, seed, time))?;
            server.drain("stream")?;
            Ok(figures)
        },
        || figures(bench, &into_file, |time| write_file(&quiet, time)),
    )?;
    let rate = |job: &Job| Ok(job.run(&bench.layout)?.iops / STREAM_REQUESTS_A_MEBIBYTE);
    let streams = bench.alternate(
        || {
            let rate = rate(&into_volume)?;
            server.drain("stream")?;
            Ok(rate)
        },
        || rate(&into_file),
    )?;
    std::fs::remove_file(&quiet)?;
    std::fs::remove_file(&stream)?;
    let destaging = bench.repeat(|| {
        seed += 1;
        destaging(bench, &server, seed)
    })?;
    let mut rows = rows(&sides);
    rows.push(row_of_streams(&streams));
    rows.push(row_of_destaging(&destaging));
    Ok(rows)
}

/// Measures the quiet side alone, and as long as what a stream has left is destaged.
fn destaging(bench: &Bench, server: &Rekindle, seed: u64) -> Result<Destaging> {
    let time = Duration::from_secs(bench.seconds);
    let measure = || -> Result<Vec<Reply>> {
        machine::pin_this_thread(&bench.layout.client)?;
        write_volume(server, seed, time)
    };
    std::thread::scope(|scope| {
        let alone = quiet(&scope.spawn(measure).join().expect("no panic")?);
        for _ in 0..2 {
            fill(bench, &server.uri("stream"), STREAM_MEBIBYTES)?;
        }
        let begin = Instant::now();
        let drain = scope.spawn(move || server.drain("stream").map(|()| begin.elapsed()));
        let mut replies = scope.spawn(measure).join().expect("no panic")?;
        let took = drain.join().expect("no panic")?;
        replies.retain(|reply| reply.at < took);
        Ok(Destaging { alone, beside: quiet(&replies), took })
    })
}

/// Measures the quiet side alone and beside the stream, on the client's cores.
fn figures(
    bench: &Bench,
    stream: &Job,
    write: impl Fn(Duration) -> Result<Vec<Reply>> + Sync,
) -> Result<Figures> {
    let time = Duration::from_secs(bench.seconds);
    let measure = || -> Result<Quiet> {
        machine::pin_this_thread(&bench.layout.client)?;
        Ok(quiet(&write(time)?))
    };
    std::thread::scope(|scope| {
        let alone = scope.spawn(measure).join().expect("no panic")?;
        let stream = scope.spawn(|| stream.run(&bench.layout));
        std::thread::sleep(HEAD_START);
        let beside = scope.spawn(measure).join().expect("no panic")?;
        let stream = stream.join().expect("no panic")?.iops / STREAM_REQUESTS_A_MEBIBYTE;
        Ok(Figures { alone, beside, stream })
    })
}

fn quiet(replies: &[Reply]) -> Quiet {
    let time = replies.last().map_or(1.0, |reply| reply.at.as_secs_f64());
    let us = |percent| percentile(replies, percent).as_secs_f64() * 1e6;
    Quiet { rate: replies.len() as f64 / time, p50: us(50.0), p99: us(99.0), p999: us(99.9) }
}

fn write_volume(server: &Rekindle, seed: u64, time: Duration) -> Result<Vec<Reply>> {
    let mut client = Client::connect(&server.socket(), "quiet")?;
    client.write_randomly(1, QUIET_MEBIBYTES << 8, seed, Until::Passed(time))
}

fn write_file(path: &Path, time: Duration) -> Result<Vec<Reply>> {
    let flags = rustix::fs::OFlags::DSYNC.bits().cast_signed();
    let file = File::options().write(true).custom_flags(flags).open(path)?;
    let mut random = Random::new(1);
    let block = random.bytes(BLOCK);
    let begin = Instant::now();
    let mut replies = Vec::new();
    while begin.elapsed() < time {
        let sent = Instant::now();
        file.write_all_at(&block, random.below(QUIET_MEBIBYTES << 8) * BLOCK as u64)?;
        replies.push(Reply { at: begin.elapsed(), latency: sent.elapsed() });
    }
    Ok(replies)
}

fn rows(sides: &Sides<Figures, Figures>) -> Vec<Row> {
    // The middle of each measure by itself.
    let text = |runs: &_, of: fn(&Figures) -> Quiet| {
        format!(
            "{} writes/s, p50 {} us, p99 {} us, p99.9 {} us",
            short(median(runs, |run| of(run).rate)),
            short(median(runs, |run| of(run).p50)),
            short(median(runs, |run| of(run).p99)),
            short(median(runs, |run| of(run).p999))
        )
    };
    let p99 = |run: &Figures| run.beside.p99;
    let slowed = |run: &Figures| run.beside.p99 / run.alone.p99;
    let others = middle(&sides.ours, p99).others.max(middle(&sides.theirs, p99).others);
    let row = |what: &str| Row::new(NAME, what).others(others);
    let alone = row("4 KiB random writes, depth 1, alone; a file with O_DSYNC")
        .ours(text(&sides.ours, |run| run.alone))
        .theirs(text(&sides.theirs, |run| run.alone));
    let beside = row("the same beside 256 KiB writes, depth 32, into another volume (file): p99")
        .ours(text(&sides.ours, |run| run.beside))
        .theirs(text(&sides.theirs, |run| run.beside))
        .value(median(&sides.ours, p99) / median(&sides.theirs, p99), "x")
        .wanted(Wanted::AtMost(1.0))
        .note(format!(
            "the stream has {} against {} MiB/s",
            short(median(&sides.ours, |run| run.stream)),
            short(median(&sides.theirs, |run| run.stream))
        ))
        .note(format!(
            "p99 of all rounds, us: {} against {}",
            spread(&sides.ours, p99),
            spread(&sides.theirs, p99)
        ));
    let ratio = row("the same: p99 beside the stream, against alone")
        .ours(format!("{}x", short(median(&sides.ours, slowed))))
        .theirs(format!("{}x", short(median(&sides.theirs, slowed))))
        .value(median(&sides.ours, slowed), "x")
        .wanted(Wanted::AtMost(3.0));
    vec![alone, beside, ratio]
}

fn row_of_streams(sides: &Sides<f64, f64>) -> Row {
    let rate = |rate: &f64| *rate;
    let (ours, theirs) = (median(&sides.ours, rate), median(&sides.theirs, rate));
    let others = middle(&sides.ours, rate).others.max(middle(&sides.theirs, rate).others);
    Row::new(NAME, "256 KiB writes, depth 32, alone; threads into a file with O_DSYNC")
        .others(others)
        .ours(format!("{} MiB/s", short(ours)))
        .theirs(format!("{} MiB/s", short(theirs)))
        .value(ours / theirs, "x")
}

fn row_of_destaging(runs: &[Run<Destaging>]) -> Row {
    let p99 = |run: &Destaging| run.beside.p99;
    let slowed = |run: &Destaging| run.beside.p99 / run.alone.p99;
    let text = |of: fn(&Destaging) -> Quiet| {
        let us = |of_quiet: fn(&Quiet) -> f64| short(median(runs, |run| of_quiet(&of(run))));
        format!("p50 {} us, p99 {} us, p99.9 {} us", us(|q| q.p50), us(|q| q.p99), us(|q| q.p999))
    };
    let what = "4 KiB random writes, depth 1, while a stream's rest is destaged: p99; alone";
    Row::new(NAME, what)
        .others(middle(runs, p99).others)
        .ours(text(|run| run.beside))
        .theirs(text(|run| run.alone))
        .value(median(runs, slowed), "x")
        .wanted(Wanted::AtMost(1.3))
        .note(format!(
            "{} writes/s; the destaging took {} s",
            short(median(runs, |run| run.beside.rate)),
            short(median(runs, |run| run.took.as_secs_f64()))
        ))
}
