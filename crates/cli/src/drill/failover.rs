//! `rekindle drill failover`: kill, or stop, the daemon of a host of a cluster under load, and
//! count what a client at another host notices while its volume is taken over.

use super::load::{Load, Mix, Verdict};
use super::{SCRATCH_BYTES, remove_scratch, seed, worker};
use crate::arguments::{Common, Failover, How};
use crate::client::{Client, Interrupts};
use crate::{command, nbd};
use rekindle_base::Kind;
use rekindle_front::http::api::{Cluster, Volume};
use rekindle_supervise::endpoints;
use rekindle_terminal::failure::{EXIT_FAILED, Failure, Outcome};
use rekindle_terminal::output;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;

/// Longest wait for an answer before the load begins.
const PATIENCE: Duration = Duration::from_secs(30);

/// The measurements of a drill.
#[derive(Debug, Serialize)]
struct Report {
    /// `kill` or `stop`.
    how: String,
    /// The host whose daemon was killed, or stopped.
    host: String,
    writes_acknowledged: u64,
    reads_answered: u64,
    acknowledged_writes_lost: u64,
    /// Longest time without an answer.
    stalled_ms: u64,
    /// How often the client's own connection has ended: the other host keeps it.
    connections_lost: u64,
    places_checked: u64,
    /// The scratch volume, which is left: its owner runs elsewhere.
    left: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    findings: Vec<String>,
}

/// A process that stands still; its drop lets it go on.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Runs the drill; exit code 1 when something acknowledged is missing.
pub fn run(common: &Common, failover: &Failover) -> Outcome<u8> {
    let client = command::client(common)?;
    let cluster: Cluster = client.get("/api/v1/cluster")?;
    permit(&cluster, failover)?;
    // Signals are caught before the scratch volume is made, so that it is removed again.
    let mut interrupts = client.interrupts()?;
    let name = format!("drill-{}", std::process::id());
    let request = json!({ "name": name, "size": SCRATCH_BYTES, "copies": 1 });
    let volume: Volume = client.post("/api/v1/volumes", &request)?;
    let mut is_struck = false;
    let drilled = drill(&client, failover, &volume, &mut interrupts, &mut is_struck);
    if !is_struck {
        remove_scratch(&client, common, &name, drilled.is_ok());
    }
    let report = match drilled {
        Err(failure) if is_struck => return Err(failure.next(to_remove(&name))),
        drilled => drilled?,
    };
    common.shown(&report, || print(&report));
    Ok(if report.acknowledged_writes_lost == 0 { 0 } else { EXIT_FAILED })
}

/// Refuses to strike a host that the user may not mean, or for which no other host can go on.
fn permit(cluster: &Cluster, failover: &Failover) -> Outcome {
    if !cluster.member {
        return Err(Failure::usage("this daemon is in no cluster: no other host can go on for it")
            .next("rekindle cluster --help"));
    }
    match &failover.host {
        Some(host) if *host != cluster.name && *host != cluster.node => {
            let what = format!("the host here is '{}', and not '{host}'", cluster.name);
            return Err(Failure::usage(what)
                .next("run the drill at that host, or with --dir of its daemon"));
        }
        None if !failover.yes => {
            let what = format!(
                "all volumes of the host '{}' would be taken over by another host",
                cluster.name
            );
            let next =
                format!("name the host (`rekindle drill failover {}`), or --yes", cluster.name);
            return Err(Failure::usage(what).next(next));
        }
        _ => {}
    }
    if !cluster.holders.iter().any(|holder| holder.ready) {
        let what = "no other host has copies of all of this host's log: none could go on";
        return Err(Failure::new(what).kind(Kind::Conflict).next("rekindle cluster show"));
    }
    Ok(())
}

fn drill(
    client: &Client,
    failover: &Failover,
    volume: &Volume,
    interrupts: &mut Interrupts<'_>,
    is_struck: &mut bool,
) -> Outcome<Report> {
    let opened = |what: &'static str| {
        move |error: std::io::Error| Failure::new(what).because(error).kind(Kind::Unavailable)
    };
    // The host of its first client owns a volume.
    let here = endpoints::nbd(client.dir())?;
    drop(
        nbd::open(&here, &volume.name, PATIENCE)
            .map_err(opened("the scratch volume cannot be opened"))?,
    );
    let through = failover.through.clone();
    let failed = opened("the volume cannot be opened through the other host");
    let open = nbd::open(&through, &volume.name, PATIENCE).map_err(failed)?;
    let cluster: Cluster = client.get("/api/v1/cluster")?;
    if !cluster.visitors.iter().any(|visitor| visitor.volume == volume.name) {
        let what = format!("{through} is not an NBD address of another host of this cluster");
        return Err(Failure::usage(what).next("rekindle status --dir FOLDER, at the other host"));
    }
    drop(open);
    let mix = Mix { depth: failover.depth, reads_percent: failover.reads };
    let mut load = Load::new(through, volume.name.clone(), volume.size, mix, seed());
    let time = Duration::from_secs(failover.seconds);
    load.work_for(time, interrupts)?;
    load.mark();
    *is_struck = true;
    let stopped = strike(client, failover.how)?;
    load.work_for(time, interrupts)?;
    // The takeover may take longer than that.
    load.settle()?;
    load.flush()?;
    let stalled = load.longest_gap;
    let Verdict { checked, lost, findings } = load.verify()?;
    drop(stopped);
    Ok(Report {
        how: failover.how.to_string(),
        host: cluster.name,
        writes_acknowledged: load.writes,
        reads_answered: load.reads,
        acknowledged_writes_lost: lost,
        stalled_ms: u64::try_from(stalled.as_millis()).unwrap_or(u64::MAX),
        connections_lost: load.connections_lost,
        places_checked: checked,
        left: volume.name.clone(),
        findings,
    })
}

/// Kills all processes of the daemon, or stops the one that serves.
fn strike(client: &Client, how: How) -> Outcome<Option<Stopped>> {
    let worker = worker(client)?;
    let failed = |error: std::io::Error| {
        Failure::new("the daemon cannot be killed or stopped")
            .because(error)
            .next("run the drill as the user who runs the daemon")
    };
    match how {
        How::Kill => {
            // First the one that would start another worker.
            if let Some(found) = endpoints::read(client.dir()) {
                endpoints::signal(client.dir(), found.pid, Signal::KILL).map_err(failed)?;
            }
            match kill_process(worker, Signal::KILL) {
                // A worker without its supervisor may have ended by itself.
                Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(None),
                Err(error) => Err(failed(error.into())),
            }
        }
        How::Stop => {
            kill_process(worker, Signal::STOP).map_err(|error| failed(error.into()))?;
            Ok(Some(Stopped(worker)))
        }
    }
}

fn to_remove(name: &str) -> String {
    format!(
        "`rekindle volume rm {name} --now` at the host that serves it removes the scratch volume"
    )
}

fn print(report: &Report) {
    let struck = if report.how == "kill" { "killed" } else { "stopped" };
    output::pairs(&[
        (struck, report.host.clone()),
        ("writes acknowledged", report.writes_acknowledged.to_string()),
        ("reads answered", report.reads_answered.to_string()),
        ("acknowledged writes lost", report.acknowledged_writes_lost.to_string()),
        ("longest stall", format!("{} ms", report.stalled_ms)),
        ("connections lost", report.connections_lost.to_string()),
        ("blocks read back", report.places_checked.to_string()),
    ]);
    for finding in &report.findings {
        output::line(&format!("lost: {finding}"));
    }
    output::line(&format!("next: {}", to_remove(&report.left)));
    if report.how == "kill" {
        output::line("      `rekindle up` here: the host goes on as a new node");
    }
}
