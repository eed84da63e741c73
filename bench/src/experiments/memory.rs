//! Requests that never wait for the disk (writes acknowledged from memory, and reads from the
//! cache) against a server that does nothing but copy.

use crate::fio::Job;
use crate::rounds::{Bench, beside, middle, short, spread};
use crate::servers::{Rekindle, Simple, fill};
use crate::table::{Row, Wanted};
use anyhow::Result;

const MEBIBYTES: u64 = 256;

/// Measures one pattern at one depth.
pub fn run(
    bench: &Bench,
    name: &'static str,
    pattern: &'static str,
    depth: u32,
) -> Result<Vec<Row>> {
    // There is room for all that the runs write, so that no flow control sets in, and the cache
    // holds the whole volume.
    let arguments = ["--flash-budget", "16G", "--cache", "1G"];
    let server = Rekindle::start(bench, name, &arguments)?;
    server.create("v", MEBIBYTES, "memory")?;
    server.fill(bench, "v", MEBIBYTES)?;
    let rival = Simple::nbdkit_memory(bench, MEBIBYTES)?;
    fill(bench, &rival.uri(), MEBIBYTES)?;
    let job = |uri: String| Job::nbd(uri, pattern, depth, bench.seconds, MEBIBYTES);
    let (ours, theirs) = (job(server.uri("v")), job(rival.uri()));
    if pattern == "randread" {
        // Everything has been in the cache since it was written; this run touches it.
        ours.run(&bench.layout)?;
    }
    let sides = bench.alternate(
        || {
            let figures = ours.run(&bench.layout)?;
            // Without a drain, later destaging would disturb the other side.
            server.drain("v")?;
            Ok(figures)
        },
        || theirs.run(&bench.layout),
    )?;
    let ours = middle(&sides.ours, |figures| figures.iops);
    let theirs = middle(&sides.theirs, |figures| figures.iops);
    let text = |figures: &crate::fio::Figures| {
        let (p50, p99) = (short(figures.p50_us), short(figures.p99_us));
        format!("{} IOPS, p50 {p50} us, p99 {p99} us", short(figures.iops))
    };
    let what =
        if pattern == "randread" { "cached 4 KiB random read" } else { "4 KiB random write" };
    let row = Row::new(name, format!("{what}, depth {depth}; `nbdkit memory`"))
        .ours(text(&ours.value))
        .theirs(text(&theirs.value))
        .value(ours.value.iops / theirs.value.iops, "x")
        .wanted(Wanted::AtLeast(0.9))
        .others(ours.others.max(theirs.others))
        .note(format!(
            "{}; IOPS of all: {} against {}",
            beside(&sides, |figures| figures.iops, |figures| figures.iops),
            spread(&sides.ours, |figures| figures.iops),
            spread(&sides.theirs, |figures| figures.iops)
        ));
    Ok(vec![row])
}
