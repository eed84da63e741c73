//! The number of times that an attach waits for a distant store, one after the other, until the
//! volume is open.

use crate::nbd::Client;
use crate::rounds::{Bench, Run, best, middle, short};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::Result;
use std::time::Duration;

const NAME: &str = "cold-attach";
const LATENCY_MS: f64 = 30.0;
const PATIENCE: Duration = Duration::from_secs(30);

/// Waiting times of a client, ms.
#[derive(Debug, Clone, Copy)]
struct Waited {
    open: f64,
    first_read: f64,
}

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut server = Rekindle::start(bench, NAME, &["--store-fault", "latency=30ms"])?;
    server.create("v", 64, "flash")?;
    server.fill(bench, "v", 8)?;
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds * 2 {
        server.stop()?;
        server.forget_warm_memory()?;
        server.up()?;
        cold.push(bench.run(|| attach(&mut server))?);
        // The same attach after a kill: memory has outlived the process.
        std::thread::sleep(Duration::from_millis(1200));
        server.kill_worker()?;
        warm.push(bench.run(|| attach(&mut server))?);
    }
    Ok(vec![
        row("cold: nothing is known of it here", &cold, 3.0),
        row("warm: memory has outlived the process", &warm, 0.0),
    ])
}

fn attach(server: &mut Rekindle) -> Result<Waited> {
    let mut client = Client::connect_soon(&server.socket(), "v", PATIENCE)?;
    let open = client.opened - client.greeted;
    client.read(0)?;
    let read = client.opened.elapsed();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Waited { open: ms(open), first_read: ms(read) })
}

fn row(how: &str, runs: &[Run<Waited>], most: f64) -> Row {
    let run = middle(runs, |waited| waited.open);
    let what =
        format!("store of 30 ms, {how}: round trips one after the other until the volume is open");
    Row::new(NAME, what)
        .ours(format!(
            "open after {} ms, first read {} ms later",
            short(run.value.open),
            short(run.value.first_read)
        ))
        .value((run.value.open / LATENCY_MS).floor(), "trips")
        .wanted(Wanted::AtMost(most))
        .others(run.others)
        .note(format!(
            "best of {} rounds: open after {} ms",
            runs.len(),
            short(best(runs, |waited| -waited.open).value.open)
        ))
}
