//! The process that serves. The supervisor starts it with its sockets open; under systemd `up`
//! itself serves.

use crate::memory_holder;
use crate::sockets::{self, Listening, Passed, Role};
use rekindle_base::Kind;
use rekindle_env::real::standard_error;
use rekindle_terminal::failure::{
    EXIT_FAILED, EXIT_FENCED, EXIT_UNCLEAN, EXIT_USAGE, Failure, Outcome,
};
use rekindle_terminal::output;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

/// The name of the hidden command that starts a worker.
pub(crate) const COMMAND: &str = "worker";
/// The environment variable that carries a [`Handover`].
pub(crate) const VARIABLE: &str = "REKINDLE_WORKER";
/// Time for background work to finish after the node has stopped.
const PATIENCE: Duration = Duration::from_millis(200);

/// Settings and sockets that the supervisor hands to the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Handover {
    pub config: rekindle_node::Config,
    pub sockets: Vec<Passed>,
    /// Descriptor for one line ([`Ready`]), written when the worker serves.
    pub report: Option<RawFd>,
    /// Time of the process's birth, by [`rekindle_env::real::since_boot`].
    #[serde(default)]
    pub born: Option<Duration>,
    /// Process id of the supervisor, with which the worker dies.
    pub parent: u32,
    pub verbose: bool,
    pub log_format: LogFormat,
}

/// The way in which diagnostics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// The worker's report to the supervisor when it serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ready {
    /// Process id of the worker.
    pub pid: u32,
    /// Identity of the node.
    pub node: String,
    /// URL of the store.
    pub store: String,
    /// Time to serve, from the worker's first instruction.
    pub start_ms: u64,
}

impl Handover {
    /// Makes a handover of these settings; the supervisor fills in the rest for each worker.
    pub fn new(config: rekindle_node::Config) -> Self {
        Self {
            config,
            sockets: Vec::new(),
            report: None,
            born: None,
            parent: 0,
            verbose: false,
            log_format: LogFormat::Text,
        }
    }

    /// Encodes the handover for [`VARIABLE`].
    pub fn encode(&self) -> Outcome<String> {
        serde_json::to_string(self).map_err(|error| {
            Failure::usage("a path in the settings is not text (UTF-8)")
                .because(error)
                .next("choose other names for --dir and --warm, or links to them")
        })
    }
}

/// Whether the words of this process are `rekindle worker`. Asked before the grammar of the other
/// commands is built: clients wait, and the grammar takes longer to build than a worker to begin.
pub fn is_meant() -> bool {
    let mut words = std::env::args_os().skip(1);
    words.next().is_some_and(|word| word == COMMAND) && words.next().is_none()
}

/// Runs `rekindle worker`.
pub fn run() -> Outcome {
    let by_hand = || {
        Failure::usage("the worker is started by `rekindle up`, not by hand").next("rekindle up")
    };
    let text = std::env::var(VARIABLE).map_err(|_| by_hand())?;
    let handover: Handover =
        serde_json::from_str(&text).map_err(|error| by_hand().because(error))?;
    // Without the supervisor's sockets the worker would serve no client, and would keep the folder
    // from a new daemon.
    let parent = i32::try_from(handover.parent).ok().and_then(Pid::from_raw);
    die_with(parent.ok_or_else(by_hand)?).map_err(|error| {
        Failure::new("the supervisor is gone").because(error).kind(Kind::Unavailable)
    })?;
    rekindle_env::real::access::keep_private();
    let holder = memory_holder::spawn();
    let mut taken = Vec::new();
    for passed in &handover.sockets {
        taken.push((passed.role, sockets::take(passed.descriptor)?));
    }
    let report = handover.report.map(sockets::take).transpose()?;
    trace(&handover)?;
    if let Err(error) = holder {
        tracing::debug!(%error, "no holder: after a kill the next worker starts later");
    }
    serve(&handover, taken, |ready| {
        let Some(report) = report else { return };
        let line = serde_json::to_string(&ready).unwrap_or_default();
        // If the supervisor is gone, the kernel has killed this process already.
        let _ = writeln!(std::fs::File::from(report), "{line}");
    })
}

/// Asks the kernel to kill this process when its parent dies; `NotConnected` if the parent is gone
/// already. Makes system calls only, so that it may run between a fork and an exec.
pub fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotConnected.into()) }
}

/// Serves in this process, until told to stop.
pub(crate) fn serve_here(
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
    rekindle_env::real::panics::end_process();
    let (env, runtime) = rekindle_env::real::env()?;
    if let Some((before, by)) = rekindle_env::real::before_first_instruction(handover.born) {
        env.boot_born(before, by);
    }
    let served = runtime.block_on(async {
        let mut sockets = rekindle_node::Sockets::default();
        for (role, socket) in taken {
            let acceptor = rekindle_env::real::net::from_listener(socket)?;
            match role {
                Role::Nbd => sockets.nbd.push(acceptor),
                Role::Nfs => sockets.nfs.push(acceptor),
                Role::Http => sockets.http.push(acceptor),
            }
        }
        let announce = |ready: &rekindle_node::Ready| {
            announce(Ready {
                pid: std::process::id(),
                node: ready.node.to_string(),
                store: ready.store.clone(),
                start_ms: ready.start_ms,
            });
        };
        rekindle_node::run(env, handover.config.clone(), sockets, announce, say_progress)
            .await
            .map_err(explain)
    });
    runtime.shut_down(PATIENCE);
    served
}

/// Prints the progress of a stop for the user who watches `up`.
fn say_progress(stopping: &rekindle_volume::StopProgress) {
    // Prints nothing into a terminal that another process has in the foreground (`up &`). The
    // worker has a process group of its own: its supervisor's group is the one that would be in the
    // foreground.
    if std::io::IsTerminal::is_terminal(&io::stderr()) {
        let of_parent = getppid().and_then(|parent| output::group(Some(parent)));
        let foreground = output::foreground();
        if foreground.is_none() || (foreground != of_parent && foreground != output::group(None)) {
            return;
        }
    }
    output::tell(&format!("rekindle: {}", progress_line(stopping)));
}

fn progress_line(stopping: &rekindle_volume::StopProgress) -> String {
    let (done, volumes) = (stopping.done, stopping.volumes);
    let mut line = match stopping.phase.as_str() {
        "volumes" | "log" => format!("stopping: {done} of {volumes} volume(s)"),
        _ => "stopping".to_owned(),
    };
    if !stopping.waits_for.is_empty() {
        line = format!("{line}; waiting for {}", stopping.waits_for);
    }
    if let Some(eta) = stopping.eta_ms {
        line = format!("{line}; about {} left", output::time(eta));
    }
    line
}

fn explain(error: rekindle_node::Error) -> Failure {
    use rekindle_node::Error;
    let (what, exit) = match error {
        Error::Unclean(_) => ("the stop did not go to its end", EXIT_UNCLEAN),
        Error::Usage(_) => ("cannot serve", EXIT_USAGE),
        Error::Copied(_) | Error::Fenced(_) => ("cannot serve", EXIT_FENCED),
        _ => ("cannot serve", EXIT_FAILED),
    };
    Failure { exit, ..Failure::new(what).because(&error).kind(error.kind()) }
}

/// Sends diagnostics to standard error.
fn trace(handover: &Handover) -> Outcome {
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::{Layer, fmt, prelude::*};
    let default = if handover.verbose { "info,rekindle=debug" } else { "warn" };
    let said = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
    let text = said("REKINDLE_TRACE").or_else(|| said("RUST_LOG"));
    let text = text.as_deref().unwrap_or(default);
    let filter: Targets = text.parse().map_err(|error| {
        Failure::usage(format!("RUST_LOG='{text}' is not a filter"))
            .because(error)
            .next("write a level (debug), or parts with levels (info,rekindle_log=trace)")
    })?;
    standard_error::never_wait();
    let lines = fmt::layer().with_ansi(false).with_writer(|| output::Forgiving);
    let lines = match handover.log_format {
        LogFormat::Text => lines.compact().boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_says_how_far_it_is_and_what_it_waits_for() {
        let mut stopping = rekindle_volume::StopProgress {
            phase: "sessions".to_owned(),
            waits_for: "3 session(s) to end".to_owned(),
            ..rekindle_volume::StopProgress::default()
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
