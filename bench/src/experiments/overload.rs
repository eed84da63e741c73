//! More writes than the flash budget holds, into a slow store: acknowledgements must end at the
//! store's speed, without long waits.

use super::burst::{self, LATENCY, by_second};
use crate::nbd::{Reply, percentile};
use crate::rounds::{Bench, short};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::Result;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NAME: &str = "overload";
const MEBIBYTES: u64 = 1024;
const BUDGET: &str = "64M";
const LONG: Duration = Duration::from_secs(20);
/// The end of the run, in which acknowledgements and drain are compared.
const END: Duration = Duration::from_secs(8);
/// How often the daemon is asked about its backlog.
const LOOK: Duration = Duration::from_millis(50);

/// The daemon's answer about its backlog.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Duration,
    checkpoint: f64,
    bytes: f64,
    delay_ms: f64,
    is_stalled: bool,
}

/// Measures one long run.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let fault = format!("latency={}ms", LATENCY.as_millis());
    // The store is not on the disk of the log: there, writing packs would slow the
    // acknowledgements, which a store on another machine does not.
    let store = MemoryFolder::new()?;
    let url = format!("file://{}", store.0.display());
    let arguments = ["--store-fault", &fault, "--flash-budget", BUDGET, "--store", &url];
    let server = Rekindle::start(bench, NAME, &arguments)?;
    server.create("v", MEBIBYTES, "flash")?;
    let run = bench.run(|| watched_load(bench, &server))?;
    let (replies, looks) = run.value;
    let Some(begin) = looks.iter().find(|look| look.delay_ms > 0.0 || look.is_stalled) else {
        anyhow::bail!("the budget of {BUDGET} did not fill in {LONG:?}");
    };
    let begin = begin.at;
    let after: Vec<Reply> =
        replies.iter().filter(|reply| reply.at > begin + Duration::from_secs(1)).copied().collect();
    let others = run.others;
    Ok(vec![waits(&after, begin, &looks).others(others), speed(&replies, &looks).others(others)])
}

/// A folder on tmpfs; removed on drop.
struct MemoryFolder(PathBuf);

impl MemoryFolder {
    fn new() -> Result<Self> {
        let folder = Self(format!("/dev/shm/rekindle-bench-store-{}", std::process::id()).into());
        std::fs::create_dir_all(&folder.0)?;
        Ok(folder)
    }
}

impl Drop for MemoryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes, and asks the daemon meanwhile.
fn watched_load(bench: &Bench, server: &Rekindle) -> Result<(Vec<Reply>, Vec<Look>)> {
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut looks = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                if let Ok(volume) = server.api("GET", "/api/v1/volumes/v", None) {
                    looks.push(look(begin.elapsed(), &volume["backlog"]));
                }
                std::thread::sleep(LOOK);
            }
            looks
        });
        let replies = burst::load(bench, server, "v", 1, LONG);
        stop.store(true, Ordering::Relaxed);
        Ok((replies?, watch.join().expect("no panic")))
    })
}

fn look(at: Duration, backlog: &Value) -> Look {
    let number = |name: &str| backlog[name].as_f64().unwrap_or(0.0);
    Look {
        at,
        checkpoint: number("checkpoint"),
        bytes: number("bytes"),
        delay_ms: number("delay_ms"),
        is_stalled: backlog["stalled"].is_string(),
    }
}

fn waits(after: &[Reply], begin: Duration, looks: &[Look]) -> Row {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let worst = percentile(after, 100.0);
    let stalled = looks.iter().filter(|look| look.is_stalled).count();
    let delay = looks.iter().map(|look| look.delay_ms).fold(0.0, f64::max);
    let seconds: Vec<String> =
        by_second(after).iter().map(|second| short(ms(percentile(second, 100.0)))).collect();
    Row::new(NAME, format!("longest wait from a second after the budget ({BUDGET}) begins to fill; the store's 10 ms (on tmpfs)"))
        .ours(format!(
            "max {} ms, p99.9 {} ms, p99 {} ms",
            short(ms(worst)),
            short(ms(percentile(after, 99.9))),
            short(ms(percentile(after, 99.0)))
        ))
        .theirs(format!("{} ms", LATENCY.as_millis()))
        .value(worst.as_secs_f64() / LATENCY.as_secs_f64(), "x")
        .wanted(Wanted::AtMost(4.0))
        .note(format!(
            "flow control began after {} s; its largest delay was {} ms; stalled in {stalled} of {} looks, one every {} ms",
            short(begin.as_secs_f64()),
            short(delay),
            looks.len(),
            LOOK.as_millis()
        ))
        .note(format!("longest wait of each second, ms: {}", seconds.join(" ")))
}

fn speed(replies: &[Reply], looks: &[Look]) -> Row {
    let end = LONG - END;
    let acknowledged = replies.iter().filter(|reply| reply.at > end && reply.at <= LONG).count()
        as f64
        / END.as_secs_f64();
    let late: Vec<&Look> = looks.iter().filter(|look| look.at > end).collect();
    let drained = match (late.first(), late.last()) {
        (Some(first), Some(last)) if last.at > first.at => {
            (last.checkpoint - first.checkpoint) / (last.at - first.at).as_secs_f64()
        }
        _ => f64::NAN,
    };
    let counts: Vec<String> =
        by_second(replies).iter().map(|second| short(second.len() as f64)).collect();
    let fullest = looks.iter().map(|look| look.bytes).fold(0.0, f64::max);
    Row::new(
        NAME,
        format!("acknowledged a second in the last {} s; drained a second", END.as_secs()),
    )
    .ours(format!("{} writes/s", short(acknowledged)))
    .theirs(format!("{} writes/s", short(drained)))
    .value(acknowledged / drained, "x")
    .wanted(Wanted::AtLeast(0.8))
    .note(format!("writes/s, second by second: {}", counts.join(" ")))
    .note(format!("fullest backlog: {} MiB", short(fullest / 1048576.0)))
}
