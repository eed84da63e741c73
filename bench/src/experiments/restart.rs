//! Killed with 1 GiB of unfinished 4 KiB writes: the time until the volume serves again.

use crate::machine;
use crate::nbd::{Client, Until};
use crate::rounds::{Bench, Run, best, median, middle, short};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

const NAME: &str = "restart";
/// Number of writes that make 1 GiB.
const WRITES: usize = 1 << 18;
/// Size of the volume, so large that most writes stay apart.
const MEBIBYTES: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

/// Times of a restart as a client saw them, ms.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// From the kill (or exec) to the greeting of the new worker.
    greeted: f64,
    /// From the greeting until the export was open: from then on writes are taken.
    opened: f64,
    /// From the greeting to the reply to a read, which needs the overlay.
    indexed: f64,
    /// From the kill (or exec) to that reply.
    replied: f64,
}

/// Measures restarts from warm memory, then from flash alone.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let config = bench.scratch.join("restart.toml");
    // Nothing is destaged: not for its age, not for its size, and three seconds after each start
    // the store is gone.
    std::fs::write(&config, "[destage]\nage = \"1h\"\nbytes = \"64G\"\ndeadline = \"2h\"\n")?;
    let config = config.display().to_string();
    let arguments = [
        "--flash-budget",
        "8G",
        "--warm-size",
        "2G",
        "--store-fault",
        "gone=1h@3s",
        "--config",
        &config,
    ];
    let mut server = Rekindle::start(bench, NAME, &arguments)?;
    server.create("v", MEBIBYTES, "memory")?;
    write(bench, &server)?;
    let backlog = backlog(&server)?;
    let warm = bench.repeat(|| {
        // A worker that dies young again and again is not replaced at once, and that delay is not
        // measured here.
        std::thread::sleep(Duration::from_millis(1200));
        let begin = Instant::now();
        server.kill_worker()?;
        watch(&server, begin)
    })?;
    anyhow::ensure!(self::backlog(&server)? >= backlog, "something was destaged or lost");
    let mut flash = Vec::new();
    for _ in 0..bench.rounds {
        // All writes are on flash by now, and must not come from the page cache.
        std::thread::sleep(Duration::from_secs(1));
        server.kill()?;
        server.forget_warm_memory()?;
        server.forget_cached_flash()?;
        flash.push(bench.run(|| {
            let begin = Instant::now();
            server.up()?;
            watch(&server, begin)
        })?);
    }
    anyhow::ensure!(self::backlog(&server)? >= backlog, "something was destaged or lost");
    let mebibytes = short(backlog / 1048576.0);
    let what = |from: &str| {
        format!("{mebibytes} MiB of unfinished 4 KiB writes, overlay ready, from {from}")
    };
    Ok(vec![
        row(what("warm memory"), &warm).wanted(Wanted::AtMost(50.0)),
        row(what("flash only (warm memory gone, page cache dropped), from exec"), &flash),
    ])
}

fn write(bench: &Bench, server: &Rekindle) -> Result<()> {
    let mut client = Client::connect(&server.socket(), "v")?;
    let cores = bench.layout.client.clone();
    let work = std::thread::spawn(move || {
        machine::pin_this_thread(&cores)?;
        client.write_randomly(32, MEBIBYTES << 8, 1, Until::Sent(WRITES))
    });
    work.join().expect("no panic").map(drop)
}

fn backlog(server: &Rekindle) -> Result<f64> {
    let volume = server.api("GET", "/api/v1/volumes/v", None)?;
    volume["backlog"]["bytes"].as_f64().context("a volume in service has a backlog")
}

/// Waits for the first reply, as a client that comes back.
fn watch(server: &Rekindle, begin: Instant) -> Result<Seen> {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut client = Client::connect_soon(&server.socket(), "v", PATIENCE)?;
    client.read(0)?;
    let replied = Instant::now();
    Ok(Seen {
        greeted: ms(client.greeted - begin),
        opened: ms(client.opened - client.greeted),
        indexed: ms(replied - client.greeted),
        replied: ms(replied - begin),
    })
}

fn row(what: String, runs: &[Run<Seen>]) -> Row {
    let run = middle(runs, |seen| seen.replied);
    let median = |of: fn(&Seen) -> f64| short(median(runs, of));
    Row::new(NAME, what)
        .ours(format!(
            "open {} ms after the greeting, first read {} ms after it, {} ms after the kill",
            short(run.value.opened),
            short(run.value.indexed),
            short(run.value.replied)
        ))
        .value(run.value.replied, "ms")
        .others(run.others)
        .note(format!(
            "medians of {} rounds, ms: new worker greets {}, then export open {}, first read {}; {} after the kill; \
             best {}",
            runs.len(),
            median(|seen| seen.greeted),
            median(|seen| seen.opened),
            median(|seen| seen.indexed),
            median(|seen| seen.replied),
            short(best(runs, |seen| -seen.replied).value.replied)
        ))
}
