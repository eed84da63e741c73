//! A client that sends FLUSH after each write.

use crate::fio::Job;
use crate::rounds::{Bench, beside, middle, short, spread};
use crate::servers::{Rekindle, Simple, written_file};
use crate::table::{Row, Wanted};
use anyhow::Result;

const MEBIBYTES: u64 = 256;

/// Compares `ack=memory` with `qemu-nbd` on a raw file, in its usual configuration.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let file = bench.scratch.join("flush.raw");
    written_file(&file, MEBIBYTES as usize)?;
    let server = Rekindle::start(bench, "flush", &[])?;
    server.create("v", MEBIBYTES, "memory")?;
    server.fill(bench, "v", MEBIBYTES)?;
    let rival = Simple::qemu_nbd(bench, &file)?;
    let job =
        |uri: String| Job::nbd(uri, "randwrite", 1, bench.seconds, MEBIBYTES).with("--fsync=1");
    let (ours, theirs) = (job(server.uri("v")), job(rival.uri()));
    let sides = bench.alternate(
        || {
            let figures = ours.run(&bench.layout)?;
            server.drain("v")?;
            Ok(figures)
        },
        || theirs.run(&bench.layout),
    )?;
    let ours = middle(&sides.ours, |figures| figures.iops);
    let theirs = middle(&sides.theirs, |figures| figures.iops);
    let what = "4 KiB random write + FLUSH, depth 1; `qemu-nbd --cache=writeback`, raw file";
    let row = Row::new("flush", what)
        .ours(format!("{} pairs/s", short(ours.value.iops)))
        .theirs(format!("{} pairs/s", short(theirs.value.iops)))
        .value(ours.value.iops / theirs.value.iops, "x")
        .wanted(Wanted::Above(1.0))
        .others(ours.others.max(theirs.others))
        .note(format!(
            "{}; all: {} against {}",
            beside(&sides, |figures| figures.iops, |figures| figures.iops),
            spread(&sides.ours, |figures| figures.iops),
            spread(&sides.theirs, |figures| figures.iops)
        ));
    drop(rival);
    std::fs::remove_file(&file)?;
    Ok(vec![row])
}
