//! The process that serves. Started by the supervisor with its sockets open, or by systemd through `up` itself.

use crate::arguments::LogFormat;
use crate::failure::{EXIT_FENCED, EXIT_USAGE, Failure, Outcome};
use crate::heir;
use crate::supervise::sockets::{self, Listening, Passed, Role};
use base::Kind;
use rustix::process::{Pid, Signal, getpgid, getpgrp, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

/// The command.
pub const COMMAND: &str = "worker";
/// The environment variable that carries a [`Handover`].
pub const VARIABLE: &str = "REKINDLE_WORKER";
/// How long background work may finish after the node has stopped.
const PATIENCE: Duration = Duration::from_millis(200);

/// What the supervisor tells the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Handover {
    pub config: node::Config,
    pub sockets: Vec<Passed>,
    /// Where to write one line ([`Ready`]) when it serves.
    pub report: Option<RawFd>,
    /// When the process was born, by [`env::real::since_boot`].
    #[serde(default)]
    pub born: Option<Duration>,
    /// The supervisor: without it the worker has no reason to live.
    pub parent: u32,
    pub verbose: bool,
    pub log_format: LogFormat,
}

/// What the worker tells the supervisor when it serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ready {
    pub pid: u32,
    pub node: String,
    pub store: String,
    /// From the worker's first instruction.
    pub start_ms: u64,
}

impl Handover {
    /// For the environment variable.
    pub fn encode(&self) -> Outcome<String> {
        serde_json::to_string(self).map_err(|error| {
            Failure::usage("a path in the settings is not text (UTF-8)")
                .because(error)
                .next("choose other names for --dir and --warm, or links to them")
        })
    }
}

/// Whether the words of this process are `rekindle worker`: clients wait, and the grammar of all the other commands takes
/// longer to build than a worker to begin.
pub fn is_meant() -> bool {
    let mut words = std::env::args_os().skip(1);
    words.next().is_some_and(|word| word == COMMAND) && words.next().is_none()
}

/// `rekindle worker`.
pub fn run() -> Outcome {
    let by_hand = || {
        Failure::usage("the worker is started by `rekindle up`, not by hand").next("rekindle up")
    };
    let text = std::env::var(VARIABLE).map_err(|_| by_hand())?;
    let handover: Handover =
        serde_json::from_str(&text).map_err(|error| by_hand().because(error))?;
    // Without its sockets it would serve nobody, and would keep the folder from a new daemon.
    let parent = i32::try_from(handover.parent).ok().and_then(Pid::from_raw);
    die_with(parent.ok_or_else(by_hand)?).map_err(|error| {
        Failure::new("the supervisor is gone").because(error).kind(Kind::Unavailable)
    })?;
    env::real::access::keep_private();
    let heir = heir::appoint();
    let mut taken = Vec::new();
    for passed in &handover.sockets {
        taken.push((passed.role, sockets::take(passed.descriptor)?));
    }
    let report = handover.report.map(sockets::take).transpose()?;
    trace(&handover)?;
    if let Err(error) = heir {
        tracing::debug!(%error, "no heir: after a kill the next worker starts later");
    }
    serve(&handover, taken, |ready| {
        let Some(report) = report else { return };
        let line = serde_json::to_string(&ready).unwrap_or_default();
        // A supervisor that is gone has killed us already.
        let _ = writeln!(std::fs::File::from(report), "{line}");
    })
}

/// Asks the kernel to kill this process when its parent dies, which must not be too late already (`NotConnected`). System
/// calls only: it may stand between a fork and an exec.
pub fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotConnected.into()) }
}

/// Serves in this process, until told to stop.
pub fn serve_here(
    handover: &Handover,
    listening: Vec<Listening>,
    announce: impl FnOnce(Ready),
) -> Outcome {
    let mut taken = Vec::new();
    for one in &listening {
        taken.push((one.role, one.socket.try_clone()?));
    }
    trace(handover)?;
    // `listening` stays: it removes the socket files at the end.
    serve(handover, taken, announce)
}

fn serve(
    handover: &Handover,
    taken: Vec<(Role, OwnedFd)>,
    announce: impl FnOnce(Ready),
) -> Outcome {
    env::real::panics::end_process();
    let (env, runtime) = env::real::env()?;
    if let Some((before, by)) = env::real::before_first_instruction(handover.born) {
        env.boot_born(before, by);
    }
    let served = runtime.block_on(async {
        let mut sockets = node::Sockets::default();
        for (role, socket) in taken {
            let acceptor = env::real::net::from_listener(socket)?;
            match role {
                Role::Nbd => sockets.nbd.push(acceptor),
                Role::Http => sockets.http.push(acceptor),
            }
        }
        let announce = |ready: &node::Ready| {
            announce(Ready {
                pid: std::process::id(),
                node: ready.node.to_string(),
                store: ready.store.clone(),
                start_ms: ready.start_ms,
            });
        };
        node::run(env, handover.config.clone(), sockets, announce, say_progress)
            .await
            .map_err(explain)
    });
    runtime.shut_down(PATIENCE);
    served
}

/// How far a stop is, for whoever watches `up`.
fn say_progress(stopping: &node::Stopping) {
    // A terminal that another process has in the foreground is not ours to write to: `up &`. (The worker has a group of
    // its own; its supervisor is who would be in the foreground.)
    if std::io::IsTerminal::is_terminal(&io::stderr()) {
        let of_parent = getppid().and_then(|parent| getpgid(Some(parent)).ok());
        let foreground = crate::output::foreground();
        if foreground.is_none() || (foreground != of_parent && foreground != Some(getpgrp())) {
            return;
        }
    }
    crate::output::tell(&format!("rekindle: {}", progress_line(stopping)));
}

fn progress_line(stopping: &node::Stopping) -> String {
    let (done, volumes) = (stopping.done, stopping.volumes);
    let mut line = match stopping.phase.as_str() {
        "volumes" | "log" => format!("stopping: {done} of {volumes} volume(s)"),
        _ => "stopping".to_owned(),
    };
    if !stopping.waits_for.is_empty() {
        line = format!("{line}; waiting for {}", stopping.waits_for);
    }
    if let Some(eta) = stopping.eta_ms {
        line = format!("{line}; about {} left", crate::output::time(eta));
    }
    line
}

fn explain(error: node::Error) -> Failure {
    let mut failure = Failure::new("cannot serve").because(&error).kind(error.kind());
    if matches!(error, node::Error::Usage(_)) {
        failure.exit = EXIT_USAGE;
    }
    if matches!(error, node::Error::Copied(_) | node::Error::Fenced(_)) {
        failure.exit = EXIT_FENCED;
    }
    failure
}

/// Diagnostics go to standard error.
fn trace(handover: &Handover) -> Outcome {
    use tracing_subscriber::EnvFilter;
    let default = if handover.verbose { "info,rekindle=debug" } else { "warn" };
    let said = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
    let filter = match said("REKINDLE_TRACE").or_else(|| said("RUST_LOG")) {
        Some(text) => EnvFilter::try_new(&text).map_err(|error| {
            Failure::usage(format!("RUST_LOG='{text}' is not a filter"))
                .because(error)
                .next("write a level (debug), or parts with levels (info,rekindle_log=trace)")
        })?,
        None => EnvFilter::new(default),
    };
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| crate::output::Forgiving);
    match handover.log_format {
        LogFormat::Text => builder.compact().with_ansi(false).init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_says_how_far_it_is_and_what_it_waits_for() {
        let mut stopping = node::Stopping {
            phase: "sessions".to_owned(),
            waits_for: "3 session(s) to end".to_owned(),
            ..node::Stopping::default()
        };
        assert_eq!(progress_line(&stopping), "stopping; waiting for 3 session(s) to end");
        stopping.phase = "volumes".to_owned();
        stopping.waits_for = "1 MiB of 2 volume(s) to reach the store".to_owned();
        (stopping.done, stopping.volumes, stopping.eta_ms) = (5, 7, Some(12_000));
        assert_eq!(
            progress_line(&stopping),
            "stopping: 5 of 7 volume(s); waiting for 1 MiB of 2 volume(s) to reach the store; about 12 s left"
        );
    }
}
