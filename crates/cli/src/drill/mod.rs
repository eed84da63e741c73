//! `rekindle drill restart`: kill the worker under load and count what clients would have noticed.

pub mod attach;
mod block;
pub mod failover;
mod load;

use crate::arguments::{Common, Restart};
use crate::client::{Client, Interrupts, volume_path};
use crate::command;
use load::{Load, Mix, Verdict};
use rekindle_base::Kind;
use rekindle_env::Address;
use rekindle_front::http::api::{Status, Volume};
use rekindle_supervise::endpoints;
use rekindle_terminal::failure::{EXIT_FAILED, Failure, Outcome};
use rekindle_terminal::output;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Size of the scratch volume, bytes.
const SCRATCH_BYTES: u64 = 256 << 20;
/// Most of a given volume that is written, bytes.
const AREA_BYTES_MAX: u64 = 1 << 30;

/// The measurements of a drill.
#[derive(Debug, Serialize)]
struct Report {
    rounds: u32,
    writes_acknowledged: u64,
    reads_answered: u64,
    acknowledged_writes_lost: u64,
    /// Longest time without an answer, over all rounds.
    stalled_ms_max: u64,
    stalled_ms: Vec<u64>,
    places_checked: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    findings: Vec<String>,
}

/// Runs the drill; exit code 1 when something acknowledged is missing.
pub fn run(common: &Common, restart: &Restart) -> Outcome<u8> {
    let client = command::client(common)?;
    let status: Status = client.get("/api/v1/status")?;
    let served: Vec<Volume> =
        serde_json::from_value(status.detail["volumes"].clone()).unwrap_or_default();
    let clients: u64 = served.iter().map(|volume| volume.clients).sum();
    if clients > 0 && !restart.force {
        let what = format!("{clients} client(s) of this daemon would lose their connections");
        let next = "disconnect them first, or --force if they reconnect by themselves";
        return Err(Failure::new(what).kind(Kind::Conflict).next(next));
    }
    let address = endpoints::nbd(client.dir())?;
    // Signals are caught before the scratch volume is made, so that it is removed again.
    let mut interrupts = client.interrupts()?;
    let (volume, scratch) = subject(&client, restart)?;
    let drilled = drill(&client, restart, &volume, address, common.json, &mut interrupts);
    if scratch {
        remove_scratch(&client, common, &volume.name, drilled.is_ok());
    }
    let report = drilled?;
    common.shown(&report, || print(&report, &status));
    Ok(if report.acknowledged_writes_lost == 0 { 0 } else { EXIT_FAILED })
}

/// Removes the drill's own volume. A failure is only told, and only after a drill that went well.
fn remove_scratch(client: &Client, common: &Common, name: &str, went_well: bool) {
    let removed = client.delete::<Value>(&volume_path(name, "?force=true&now=true"));
    if let (Err(failure), true) = (removed, went_well) {
        failure.print(common.json);
    }
}

/// Returns the volume to write to, and whether it is ours to remove.
fn subject(client: &Client, restart: &Restart) -> Outcome<(Volume, bool)> {
    if let Some(name) = &restart.volume {
        return Ok((client.get(&volume_path(name, ""))?, false));
    }
    let name = format!("drill-{}", std::process::id());
    let request = json!({"name": name, "size": SCRATCH_BYTES, "ack": restart.ack});
    Ok((client.post("/api/v1/volumes", &request)?, true))
}

fn drill(
    client: &Client,
    restart: &Restart,
    volume: &Volume,
    address: Address,
    quiet: bool,
    interrupts: &mut Interrupts<'_>,
) -> Outcome<Report> {
    let bytes = volume.size.min(AREA_BYTES_MAX);
    if bytes < 4096 * u64::from(restart.depth) * 2 {
        return Err(Failure::usage(format!("volume '{}' is too small for a drill", volume.name)));
    }
    let mix = Mix { depth: restart.depth, reads_percent: restart.reads };
    let mut load = Load::new(address, volume.name.clone(), bytes, mix, seed());
    let time = Duration::from_secs(restart.seconds);
    let mut stalled = Vec::new();
    load.work_for(time, interrupts)?;
    for round in 1..=restart.rounds {
        kill_worker(client)?;
        load.mark();
        load.work_for(time.max(Duration::from_millis(500)), interrupts)?;
        let gap = u64::try_from(load.longest_gap.as_millis()).unwrap_or(u64::MAX);
        stalled.push(gap);
        if !quiet {
            output::line(&format!(
                "round {round}: killed; clients waited {gap} ms; {} requests so far",
                load.writes + load.reads
            ));
        }
    }
    load.settle()?;
    load.flush()?;
    let Verdict { checked, lost, findings } = load.verify()?;
    Ok(Report {
        rounds: restart.rounds,
        writes_acknowledged: load.writes,
        reads_answered: load.reads,
        acknowledged_writes_lost: lost,
        stalled_ms_max: stalled.iter().copied().max().unwrap_or(0),
        stalled_ms: stalled,
        places_checked: checked,
        findings,
    })
}

/// Kills the worker that serves now, without notice.
fn kill_worker(client: &Client) -> Outcome {
    if endpoints::read(client.dir()).is_some_and(|found| found.guest) {
        return Err(Failure::usage(
            "the worker runs in a guest, where nothing can be killed from here",
        )
        .next(format!("reset all of it: rekindle appliance reset {}", client.dir().display())));
    }
    let pid = worker(client)?;
    kill_process(pid, Signal::KILL).map_err(|error| {
        Failure::new(format!("cannot kill the worker (pid {})", pid.as_raw_pid()))
            .because(std::io::Error::from(error))
            .next("run the drill as the user who runs the daemon")
    })
}

/// Returns the process that serves now.
fn worker(client: &Client) -> Outcome<Pid> {
    let status: Status = client.get("/api/v1/status")?;
    let pid = status.detail["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    pid.ok_or_else(|| {
        Failure::new("the daemon does not say which process serves").kind(Kind::Unsupported)
    })
}

/// Returns a seed, which makes places and noise differ in every drill.
#[expect(clippy::disallowed_methods, reason = "the drill has no Env")]
fn seed() -> u64 {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap_or(1)
        ^ u64::from(std::process::id())
}

fn print(report: &Report, status: &Status) {
    output::pairs(&[
        ("kills", report.rounds.to_string()),
        ("writes acknowledged", report.writes_acknowledged.to_string()),
        ("reads answered", report.reads_answered.to_string()),
        ("acknowledged writes lost", report.acknowledged_writes_lost.to_string()),
        ("longest stall", format!("{} ms", report.stalled_ms_max)),
        ("blocks read back", report.places_checked.to_string()),
    ]);
    for finding in &report.findings {
        output::line(&format!("lost: {finding}"));
    }
    if report.acknowledged_writes_lost > 0 {
        output::line(&format!(
            "this must never happen: keep the folder of node {} and report it",
            status.node
        ));
    }
}
