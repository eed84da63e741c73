//! What copies on other hosts cost: throughput of a stream, latency of one write. All hosts run on
//! this machine and write to its one disk.

use crate::fio::{Figures, Job};
use crate::hosts::Hosts;
use crate::round_trip::round_trip;
use crate::rounds::{Bench, median, middle, short, spread};
use crate::servers::{Rekindle, written_file};
use crate::table::{Row, Wanted};
use anyhow::Result;
use std::net::{TcpListener, TcpStream};

const MEBIBYTES: u64 = 256;
/// Requests of 64 KiB in a MiB.
const REQUESTS_A_MEBIBYTE: f64 = 16.0;
/// Copies of the volumes that are compared.
const COPIES: usize = 2;
/// Bytes of a holder's answer, about.
const REPLY: usize = 64;

/// A round of streams: without copies, with one, with two. MiB/s and CPU seconds a GiB.
type Streams = [(f64, f64); COPIES + 1];

/// Measures streams of 64 KiB writes.
pub fn streams(bench: &Bench) -> Result<Vec<Row>> {
    const NAME: &str = "copies-stream";
    let alone = Rekindle::start(bench, "stream-0", &[])?;
    alone.create("v", MEBIBYTES, "flash")?;
    let clusters = [Hosts::start(bench, "stream-1", 2)?, Hosts::start(bench, "stream-2", 3)?];
    for (copies, hosts) in clusters.iter().enumerate() {
        hosts.create("v", MEBIBYTES, "flash", copies + 1)?;
    }
    let stream = |server: &Rekindle, cpu: &dyn Fn() -> Result<f64>| -> Result<(f64, f64)> {
        let job = Job::nbd(server.uri("v"), "write", 16, bench.seconds, MEBIBYTES).with("--bs=64k");
        let begin = cpu()?;
        let rate = job.run(&bench.layout)?.iops / REQUESTS_A_MEBIBYTE;
        let used = cpu()? - begin;
        server.drain("v")?;
        Ok((rate, used / (rate * bench.seconds as f64 / 1024.0)))
    };
    let runs = bench.repeat(|| -> Result<Streams> {
        Ok([
            stream(&alone, &|| alone.cpu_seconds())?,
            stream(clusters[0].owner(), &|| clusters[0].cpu_seconds())?,
            stream(clusters[1].owner(), &|| clusters[1].cpu_seconds())?,
        ])
    })?;
    let others = middle(&runs, |run| run[1].0).others;
    Ok((1..=COPIES)
        .map(|copies| {
            let text = |copies: usize| {
                let rate = median(&runs, |run| run[copies].0);
                let cpu = median(&runs, |run| run[copies].1);
                format!("{} MiB/s, {} CPU-s a GiB", short(rate), short(cpu))
            };
            let what =
                format!("64 KiB sequential, depth 16: back+{copies} against back+{}", copies - 1);
            let ratio = median(&runs, |run| run[copies].0 / run[copies - 1].0);
            Row::new(NAME, what)
                .ours(text(copies))
                .theirs(text(copies - 1))
                .value(ratio, "x")
                .wanted(Wanted::AtLeast(0.85))
                .others(others)
                .note(format!(
                    "the copies are on the same disk and cores; MiB/s: {} against {}",
                    spread(&runs, |run| run[copies].0),
                    spread(&runs, |run| run[copies - 1].0)
                ))
        })
        .collect())
}

/// A round of single writes, p50 in us.
#[derive(Debug, Clone, Copy)]
struct Single {
    alone: f64,
    copied: f64,
    /// The least that a copy costs: a write with O_DSYNC where it must be on flash, and a round
    /// trip.
    bare: f64,
}

/// Measures one write at a time.
pub fn single(bench: &Bench) -> Result<Vec<Row>> {
    const NAME: &str = "copies-qd1";
    let file = bench.scratch.join("peer.raw");
    written_file(&file, MEBIBYTES as usize)?;
    let alone = Rekindle::start(bench, "single-0", &[])?;
    let hosts = Hosts::start(bench, "single-1", 2)?;
    let mut rows = Vec::new();
    for (ack, wanted) in [("flash", 1.3), ("memory", 2.0)] {
        let disk = Job::file(&file, "randwrite", bench.seconds, MEBIBYTES).with("--sync=dsync");
        let cores = (bench.layout.client.as_str(), bench.layout.server.as_str());
        alone.create(ack, MEBIBYTES, ack)?;
        hosts.create(ack, MEBIBYTES, ack, 1)?;
        let write = |server: &Rekindle| -> Result<Figures> {
            let job = Job::nbd(server.uri(ack), "randwrite", 1, bench.seconds, MEBIBYTES);
            let figures = job.run(&bench.layout)?;
            server.drain(ack)?;
            Ok(figures)
        };
        let runs = bench.repeat(|| {
            let synced = if ack == "flash" { disk.run(&bench.layout)?.p50_us } else { 0.0 };
            Ok(Single {
                alone: write(&alone)?.p50_us,
                copied: write(hosts.owner())?.p50_us,
                bare: synced + round_trip(tcp_pair()?, cores, REPLY)?.as_secs_f64() * 1e6,
            })
        })?;
        let added = |run: &Single| run.copied - run.alone;
        let bare = if ack == "flash" { "O_DSYNC write + echo over TCP" } else { "echo over TCP" };
        let what = format!("4 KiB random write, depth 1, ack={ack}: p50 that a copy adds; {bare}");
        let of = |measure: fn(&Single) -> f64| short(median(&runs, measure));
        rows.push(
            Row::new(NAME, what)
                .ours(format!(
                    "{} us added: {} us, {} without a copy",
                    short(median(&runs, added)),
                    of(|run| run.copied),
                    of(|run| run.alone)
                ))
                .theirs(format!("{} us", of(|run| run.bare)))
                .value(median(&runs, |run| added(run) / run.bare), "x")
                .wanted(Wanted::AtMost(wanted))
                .others(middle(&runs, added).others)
                .note(format!("added, us: {}", spread(&runs, added))),
        );
    }
    std::fs::remove_file(&file)?;
    Ok(rows)
}

/// Makes both ends of a TCP connection of this machine.
fn tcp_pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let (theirs, _) = listener.accept()?;
    ours.set_nodelay(true)?;
    theirs.set_nodelay(true)?;
    Ok((ours, theirs))
}
