//! `rekindle stop`: ends the daemon, and shows the progress.

use super::client;
use crate::arguments::{Common, Stop};
use crate::client::Client;
use rekindle_base::Kind;
use rekindle_base::units::format_size;
use rekindle_front::http::api::Status;
use rekindle_supervise::endpoints;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use rekindle_volume::StopProgress;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Pause between two looks when the daemon does not answer.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest time for a daemon to be gone once it answers nothing any more.
const GONE_MAX: Duration = Duration::from_secs(30);

/// Runs the command.
pub fn run(common: &Common, stop: &Stop) -> Outcome {
    let client = client(common)?;
    let mut interrupts = client.interrupts()?;
    let mut follower = Follower::new(stop.drain);
    follower.unserved = unserved(&client);
    if interrupts.interrupted() {
        return Err(
            Failure::new("broken off before the daemon was told to stop").kind(Kind::Unavailable)
        );
    }
    let begun: StopProgress = client.post("/api/v1/shutdown", &json!({ "drain": stop.drain }))?;
    let mut ended = begun.phase == "ended";
    follower.show(&begun);
    while !ended {
        if interrupts.interrupted() {
            follower.interrupt(&client)?;
        }
        match client.get::<StopProgress>("/api/v1/shutdown") {
            Ok(now) if now.phase == "serving" => return Err(restarted()),
            Ok(now) => {
                ended = now.phase == "ended";
                follower.show(&now);
            }
            Err(_) if !client.is_there() => break,
            Err(_) => interrupts.pause(PAUSE),
        }
    }
    wait_until_gone(&client, &mut interrupts)?;
    if !ended && endpoints::was_killed(client.dir()) {
        follower.bar.finish_and_clear();
        return Err(killed(client.dir()));
    }
    follower.finish(common)
}

/// Count of the volumes that cannot be served and have changes in the log.
fn unserved(client: &Client) -> usize {
    let status: Outcome<Status> = client.get("/api/v1/status");
    // It is only for the words at the end.
    let troubles = status.map(|status| status.health.troubles).unwrap_or_default();
    troubles.iter().filter(|trouble| trouble.what == "volume-keeps-log").count()
}

fn killed(dir: &Path) -> Failure {
    Failure::new("the daemon was killed before it had stopped")
        .because("it left behind where it served, and answers no more")
        .next(format!(
            "nothing acknowledged is lost: `rekindle up --dir {}` goes on",
            output::quoted(dir)
        ))
        .kind(Kind::Unavailable)
}

fn not_waiting() -> Failure {
    Failure::new("not waiting any longer: the daemon goes on stopping").kind(Kind::Unavailable)
}

fn restarted() -> Failure {
    Failure::new("the daemon serves again: it died while it stopped, and was started again")
        .next("`rekindle stop` once more")
        .kind(Kind::Unavailable)
}

/// Waits until the folder is free: the supervisor ends after the worker.
fn wait_until_gone(client: &Client, interrupts: &mut crate::client::Interrupts) -> Outcome {
    let tries = GONE_MAX.as_millis() / PAUSE.as_millis();
    for _ in 0..tries {
        if !client.is_there() {
            return Ok(());
        }
        if interrupts.interrupted() {
            return Err(not_waiting());
        }
        interrupts.pause(PAUSE);
    }
    let seconds = GONE_MAX.as_secs();
    Err(Failure::new(format!("the daemon has stopped, but is not gone after {seconds} s"))
        .next("see what it printed"))
}

/// The last sight of a stop, and its progress on standard error.
struct Follower {
    bar: indicatif::ProgressBar,
    draining: bool,
    hurried: bool,
    /// The largest backlog that was seen.
    owed_bytes: u64,
    /// Count of the volumes that could not be served and have changes in the log.
    unserved: usize,
    last: Option<StopProgress>,
}

impl Follower {
    fn new(drain: bool) -> Self {
        let (bar, draining) = (output::progress(), drain);
        Self { bar, draining, hurried: false, owed_bytes: 0, unserved: 0, last: None }
    }

    fn show(&mut self, now: &StopProgress) {
        self.owed_bytes = self.owed_bytes.max(now.backlog_bytes);
        if now.draining {
            let done = self.owed_bytes - now.backlog_bytes;
            let line = format!(
                "drain: {} of {} in the store",
                format_size(done),
                format_size(self.owed_bytes)
            );
            output::show_share(&self.bar, &line, done, self.owed_bytes);
        } else {
            let line = format!("stop: {} of {} volumes", now.done, now.volumes);
            output::show_share(&self.bar, &line, now.done, now.volumes);
        }
        self.last = Some(now.clone());
    }

    /// Turns a draining stop into a quick one at the first Ctrl-C; the next one ends the waiting.
    fn interrupt(&mut self, client: &Client) -> Outcome {
        if !self.draining || self.hurried {
            return Err(not_waiting());
        }
        self.hurried = true;
        self.bar.suspend(|| {
            output::tell(
                "rekindle: stopping at once: what is not in the store yet stays in the log",
            );
        });
        let _: Value = client.post("/api/v1/shutdown", &json!({ "drain": false }))?;
        Ok(())
    }

    fn finish(self, common: &Common) -> Outcome {
        self.bar.finish_and_clear();
        // The numbers are known only if the very end was seen.
        let end = self.last.filter(|last| last.phase == "ended");
        let kept = end.as_ref().map(|end| end.kept_bytes);
        let others = end.as_ref().and_then(|end| end.kept_volumes);
        let drained = self.draining.then(|| kept.map(|kept| kept == 0 && others == Some(0)));
        common.told(
            &json!({
                "stopped": true, "drained": drained.flatten(), "kept_bytes": kept,
                "kept_volumes": others, "volumes": end.map(|end| end.volumes),
            }),
            &match kept {
                Some(0) if self.unserved > 0 => format!(
                    "stopped; the changes of {} volume(s) that could not be served are only in the log: keep this folder",
                    self.unserved
                ),
                Some(0) if others == Some(0) => "stopped; everything is in the store".to_owned(),
                Some(0) if let Some(others) = others => format!(
                    "stopped; changes of {others} volume(s) that were not in service are in the log for the next start"
                ),
                Some(kept) if kept > 0 => {
                    format!("stopped; {} are in the log for the next start", format_size(kept))
                }
                _ => {
                    "stopped; what is not in the store is in the log for the next start".to_owned()
                }
            },
        );
        if drained == Some(Some(false)) {
            let why = match (self.hurried, others) {
                (true, _) => "the drain was broken off",
                (false, Some(1..)) => "not all volumes could be brought into service",
                (false, _) => "the daemon said why when it ended",
            };
            return Err(Failure::new("not everything could be drained into the store")
                .because(why)
                .next("nothing is lost: start it again, and see `rekindle status`")
                .kind(Kind::Unavailable));
        }
        Ok(())
    }
}
