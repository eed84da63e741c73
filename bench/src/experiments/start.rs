//! From exec to the first reply: a clean volume, and two other servers.

use crate::nbd::Client;
use crate::rounds::{Bench, middle, times};
use crate::servers::{Rekindle, Simple, written_file};
use crate::table::{Row, Wanted};
use anyhow::Result;
use std::time::{Duration, Instant};

const NAME: &str = "start";
const MEBIBYTES: u64 = 256;
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures Rekindle, qemu-nbd and nbdkit in turns.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut server = Rekindle::start(bench, NAME, &[])?;
    server.create("v", MEBIBYTES, "flash")?;
    server.fill(bench, "v", MEBIBYTES)?;
    let file = bench.scratch.join("start.raw");
    written_file(&file, MEBIBYTES as usize)?;
    let (mut ours, mut qemu, mut nbdkit) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds * 2 {
        server.stop()?;
        ours.push(bench.run(|| {
            let begin = Instant::now();
            server.up()?;
            let mut client = Client::connect_soon(&server.socket(), "v", PATIENCE)?;
            client.read(0)?;
            Ok(milliseconds(begin))
        })?);
        qemu.push(bench.run(|| {
            let begin = Instant::now();
            first_reply(&Simple::qemu_nbd(bench, &file)?, begin)
        })?);
        nbdkit.push(bench.run(|| {
            let begin = Instant::now();
            first_reply(&Simple::nbdkit_memory(bench, MEBIBYTES)?, begin)
        })?);
    }
    std::fs::remove_file(&file)?;
    let run = middle(&ours, |ms| *ms);
    let what =
        "a clean volume's first 4 KiB read after exec of `rekindle up`; others from their exec";
    let row = Row::new(NAME, what)
        .ours(times(&ours))
        .theirs(format!("qemu-nbd {}; nbdkit memory {}", times(&qemu), times(&nbdkit)))
        .value(run.value, "ms")
        .wanted(Wanted::AtMost(50.0))
        .others(run.others)
        .note("the exec of taskset is part of all three");
    Ok(vec![row])
}

fn first_reply(server: &Simple, begin: Instant) -> Result<f64> {
    Client::connect(server.socket(), "")?.read(0)?;
    Ok(milliseconds(begin))
}

fn milliseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}
