//! A client at a host that forwards its requests to the owner's host, against one at the owner's.

use crate::fio::Job;
use crate::hosts::Hosts;
use crate::rounds::{Bench, beside, middle, short, spread};
use crate::table::{Row, Wanted};
use anyhow::Result;

const NAME: &str = "forwarded";
const MEBIBYTES: u64 = 256;

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let hosts = Hosts::start(bench, NAME, 2)?;
    hosts.create("v", MEBIBYTES, "flash", 0)?;
    hosts.owner().fill(bench, "v", MEBIBYTES)?;
    let [owner, other] = [0, 1].map(|host| hosts.0[host].uri("v"));
    let mut rows = Vec::new();
    for (what, pattern, depth, size, wanted) in [
        ("4 KiB random reads that the owner has in RAM, depth 1", "randread", 1, "4k", None),
        ("4 KiB random writes, depth 1", "randwrite", 1, "4k", None),
        ("4 KiB random writes, depth 32", "randwrite", 32, "4k", None),
        ("64 KiB sequential writes, depth 16", "write", 16, "64k", Some(Wanted::AtLeast(0.8))),
    ] {
        let job = |uri: &String| {
            Job::nbd(uri.clone(), pattern, depth, bench.seconds, MEBIBYTES)
                .with(&format!("--bs={size}"))
        };
        let (through, direct) = (job(&other), job(&owner));
        let run = |job: &Job| {
            let figures = job.run(&bench.layout)?;
            hosts.owner().drain("v")?;
            Ok(figures)
        };
        let sides = bench.alternate(|| run(&through), || run(&direct))?;
        let ours = middle(&sides.ours, |figures| figures.iops);
        let theirs = middle(&sides.theirs, |figures| figures.iops);
        let text = |figures: &crate::fio::Figures| {
            let (p50, p99) = (short(figures.p50_us), short(figures.p99_us));
            format!("{} IOPS, p50 {p50} us, p99 {p99} us", short(figures.iops))
        };
        let row = Row::new(NAME, format!("{what}: through another host, and at the owner's"))
            .ours(text(&ours.value))
            .theirs(text(&theirs.value))
            .value(ours.value.iops / theirs.value.iops, "x")
            .others(ours.others.max(theirs.others))
            .note(format!(
                "{}; all IOPS: {} against {}",
                beside(&sides, |figures| figures.iops, |figures| figures.iops),
                spread(&sides.ours, |figures| figures.iops),
                spread(&sides.theirs, |figures| figures.iops)
            ));
        rows.push(match wanted {
            Some(wanted) => row.wanted(wanted),
            None => row,
        });
    }
    Ok(rows)
}
