//! Running other programs.

use anyhow::{Context, Result, bail};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The time at which everything must have ended, with its limit. [`STEP`] is the step that was
/// printed last, and when.
static DEADLINE: OnceLock<(Instant, Duration)> = OnceLock::new();
static STEP: Mutex<Option<(String, Instant)>> = Mutex::new(None);
/// Time from which a step's duration is told.
const NOTABLE: Duration = Duration::from_secs(10);

/// Limits the time of everything together, from now on.
pub fn set_limit(limit: Duration) {
    let _ = DEADLINE.set((Instant::now() + limit, limit));
}

/// The time that is left for everything together; `None`: no end is set.
pub fn time_left() -> Option<Duration> {
    let &(deadline, _) = DEADLINE.get()?;
    Some(deadline.saturating_duration_since(Instant::now()))
}

/// Returns the folder of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

/// Whether nothing may be skipped: an automatic run, with `CI` set.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some()
}

/// Prints the step that comes next, and how long the one before took, if that was long.
pub fn step(what: &str) {
    let mut step = STEP.lock().expect("no holder panics");
    if let Some((before, begun)) = step.replace((what.to_owned(), Instant::now()))
        && begun.elapsed() >= NOTABLE
    {
        println!("\n   {before}: {} s", begun.elapsed().as_secs());
    }
    println!("\n== {what}");
}

/// Runs cargo.
pub fn cargo(arguments: &[&str]) -> Result<()> {
    cargo_with(arguments, &[])
}

/// Runs cargo with more environment.
pub fn cargo_with(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    run(Command::new(cargo).args(arguments).envs(environment.iter().copied()))
}

/// Runs a program to its end, or to the deadline; fails when the program fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = match DEADLINE.get() {
        None => command.status(),
        Some(&(deadline, limit)) => {
            // A group of its own, so that its children end with it.
            let mut child = command.process_group(0).spawn()?;
            loop {
                match child.try_wait()? {
                    Some(status) => break Ok(status),
                    None if Instant::now() > deadline => {
                        let kill = format!("kill -9 -{}", child.id());
                        let _ = Command::new("sh").args(["-c", &kill]).status();
                        let step = STEP.lock().expect("no holder panics").take();
                        let step = step.map_or_else(String::new, |(step, _)| step);
                        bail!(
                            "not done after {} minutes: it was at '{step}'",
                            limit.as_secs() / 60
                        );
                    }
                    None => std::thread::sleep(Duration::from_millis(50)),
                }
            }
        }
    };
    let status = status.with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

/// Runs a program, and returns its standard output.
pub fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program} {arguments:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}
