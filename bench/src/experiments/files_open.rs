//! Killed by `kill -9` while a client of NFS 4.1 has a file open: the time until another client, a
//! stranger to the server, has opened it. A server that lets clients reclaim their state first
//! makes strangers wait for a minute and more (see `ganesha`).

use crate::hosts::Hosts;
use crate::mounted::VOLUME;
use crate::nfs::Session;
use crate::rounds::{Bench, best, middle, short, spread};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::Result;
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const NAME: &str = "files-open";
const PORT: u16 = 22_051;
/// Longest wait for an open.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two attempts of a client.
const PAUSE: Duration = Duration::from_millis(1);
/// A worker that dies young again and again is not replaced at once.
const AGE: Duration = Duration::from_millis(1200);

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let address = format!("127.0.0.1:{PORT}");
    let arguments = ["--nfs", &address];
    let settings = "nfs_any_port = 'on'\n";
    let alone = Rekindle::start_with(bench, NAME, settings, &arguments)?;
    let mut rows = vec![row(bench, &alone, "a node alone")?];
    drop(alone);
    let hosts = Hosts::start_with(bench, "files-open-hosts", 2, settings, &arguments)?;
    rows.push(row(bench, hosts.owner(), "a cluster of two")?);
    Ok(rows)
}

fn row(bench: &Bench, server: &Rekindle, which: &str) -> Result<Row> {
    let body = json!({"name": VOLUME, "kind": "file", "size": 1_u64 << 30});
    server.api("POST", "/api/v1/volumes", Some(&body))?;
    let mut first = connect(Instant::now())?;
    let root = first.root.clone();
    first.open(&root, "file", true)?;
    let runs = bench.repeat(|| {
        std::thread::sleep(AGE);
        server.kill_worker()?;
        let begin = Instant::now();
        let mut stranger = connect(begin)?;
        stranger.open(&root, "file", false)?;
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    })?;
    let run = middle(&runs, |ms| *ms);
    Ok(Row::new(
        NAME,
        format!("kill -9 while a file is open, until a stranger has opened it: {which}"),
    )
    .ours(format!("{} ms", short(run.value)))
    .value(run.value, "ms")
    .wanted(Wanted::AtMost(100.0))
    .others(run.others)
    .note(format!(
        "best {} ms; all: {}",
        short(best(&runs, |ms| -ms).value),
        spread(&runs, |ms| *ms)
    )))
}

/// Connects a client that the server does not know, as soon as it can be.
fn connect(begin: Instant) -> Result<Session> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("stranger-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    loop {
        match Session::new(PORT, VOLUME, &name) {
            Err(_) if begin.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            connected => return connected,
        }
    }
}
