//! `back` with `ack=flash`: every acknowledged write is on the disk.

use super::group_commit;
use crate::fio::Job;
use crate::rounds::{Bench, beside, middle, short, spread};
use crate::servers::{Rekindle, written_file};
use crate::table::{Row, Wanted};
use anyhow::Result;

const MEBIBYTES: u64 = 256;

/// Measures one write at a time: the latency that a database's commit sees.
pub fn one(bench: &Bench) -> Result<Vec<Row>> {
    const NAME: &str = "flash-qd1";
    let file = bench.scratch.join("flash.raw");
    written_file(&file, MEBIBYTES as usize)?;
    let server = Rekindle::start(bench, "flash1", &[])?;
    server.create("v", MEBIBYTES, "flash")?;
    server.fill(bench, "v", MEBIBYTES)?;
    let write = Job::nbd(server.uri("v"), "randwrite", 1, bench.seconds, MEBIBYTES);
    let disk = Job::file(&file, "randwrite", bench.seconds, MEBIBYTES).with("--sync=dsync");
    let sides = bench.alternate(
        || {
            let figures = write.run(&bench.layout)?;
            server.drain("v")?;
            Ok(figures)
        },
        || disk.run(&bench.layout),
    )?;
    let ours = middle(&sides.ours, |figures| figures.p50_us);
    let theirs = middle(&sides.theirs, |figures| figures.p50_us);
    let text = |figures: &crate::fio::Figures| {
        format!("p50 {} us, p99 {} us", short(figures.p50_us), short(figures.p99_us))
    };
    let row = Row::new(NAME, "4 KiB random write, depth 1, p50; fio's O_DSYNC write to a file")
        .ours(text(&ours.value))
        .theirs(text(&theirs.value))
        .value(ours.value.p50_us / theirs.value.p50_us, "x")
        .wanted(Wanted::AtMost(1.25))
        .others(ours.others.max(theirs.others))
        .note(format!(
            "{}; p50 of all, us: {} against {}",
            beside(&sides, |figures| -figures.p50_us, |figures| -figures.p50_us),
            spread(&sides.ours, |figures| figures.p50_us),
            spread(&sides.theirs, |figures| figures.p50_us)
        ));
    std::fs::remove_file(&file)?;
    Ok(vec![row])
}

/// Measures 32 writes at a time: the effect of group commit.
pub fn many(bench: &Bench) -> Result<Vec<Row>> {
    const NAME: &str = "flash-qd32";
    let file = bench.scratch.join("bare.log");
    written_file(&file, MEBIBYTES as usize)?;
    let server = Rekindle::start(bench, "flash32", &[])?;
    server.create("v", MEBIBYTES, "flash")?;
    server.fill(bench, "v", MEBIBYTES)?;
    let write = Job::nbd(server.uri("v"), "randwrite", 32, bench.seconds, MEBIBYTES);
    let sides = bench.alternate(
        || {
            let figures = write.run(&bench.layout)?;
            server.drain("v")?;
            Ok(figures)
        },
        || group_commit::writes_per_second(bench, &file, 32),
    )?;
    let ours = middle(&sides.ours, |figures| figures.iops);
    let theirs = middle(&sides.theirs, |rate| *rate);
    let row = Row::new(NAME, "4 KiB random write, depth 32; a bare log thread with 32 writers")
        .ours(format!("{} IOPS, p99 {} us", short(ours.value.iops), short(ours.value.p99_us)))
        .theirs(format!("{} writes/s", short(theirs.value)))
        .value(ours.value.iops / theirs.value, "x")
        .wanted(Wanted::AtLeast(0.8))
        .others(ours.others.max(theirs.others))
        .note(format!(
            "{}; all: {} against {}",
            beside(&sides, |figures| figures.iops, |rate| *rate),
            spread(&sides.ours, |figures| figures.iops),
            spread(&sides.theirs, |rate| *rate)
        ));
    std::fs::remove_file(&file)?;
    Ok(vec![row])
}
