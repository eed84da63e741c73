//! `rekindle upgrade`: asks the supervisor to go on as another binary, and prints the result.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use crate::arguments::{Common, Upgrade};
use crate::folder;
use rekindle_base::Kind;
use rekindle_env::real::folder::Folder;
use rekindle_supervise::endpoints::{self, Endpoints};
use rekindle_supervise::upgrade::{self, Answer, Request};
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use rustix::fs::FlockOperation;
use rustix::process::Signal;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time to watch an upgrade: a check, a stop, some starts.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two looks at the answer.
const LOOK: Duration = Duration::from_millis(5);

/// Runs the command.
pub fn run(common: &Common, upgrade: &Upgrade) -> Outcome {
    // Links are resolved, so that the folder has one name.
    let dir = folder::of_client(common.dir.as_deref())?;
    let dir = dir.canonicalize().map_err(|_| none(&dir))?;
    let supervisor = supervisor(&dir)?;
    let folder = Folder::open_own(&dir).map_err(|error| not_ours(&dir, error))?;
    let _one_at_a_time = take_turn(&folder, &dir)?;
    let binary = match &upgrade.binary {
        Some(path) => Some(std::path::absolute(path)?),
        None => None,
    };
    // The answer of an earlier upgrade.
    let _ = folder.remove(upgrade::ANSWER.0);
    upgrade::write(&dir, upgrade::REQUEST, &Request { binary })?;
    // Only the holder of the folder is signalled: another process may have its number by now, and
    // would die of the signal.
    let told = endpoints::signal(&dir, supervisor, Signal::USR2).map_err(|error| {
        Failure::new(format!("cannot signal the daemon (pid {supervisor})"))
            .because(error)
            .next("run the command as the user who runs the daemon")
    })?;
    if !told {
        let _ = folder.remove(upgrade::REQUEST.0);
        return Err(none(&dir));
    }
    let answer = wait(&folder, &dir)?;
    match &answer {
        Answer::Upgraded { .. } if common.json => output::json(&answer),
        Answer::Upgraded { .. } => output::line(&answer.to_string()),
        Answer::Refused { error, cause, next, kind } => {
            let (cause, next) = (cause.clone(), next.clone());
            let kind = kind.clone();
            return Err(Failure { cause, next, kind, ..Failure::new(error) });
        }
        Answer::WentBack { binary, cause, version } => {
            let error =
                format!("{} never served; version {version} serves again", binary.display());
            return Err(Failure::new(error)
                .because(cause)
                .next("what it said is where `rekindle up` prints; nothing acknowledged is lost"));
        }
    }
    Ok(())
}

fn none(dir: &Path) -> Failure {
    Failure::new(format!("no daemon serves in {}", dir.display()))
        .next(format!(
            "start it with `rekindle up --dir {}`, or name another folder with --dir",
            output::quoted(dir)
        ))
        .kind(Kind::Unavailable)
}

/// Explains that the folder must be this user's: a file written there is a command to the daemon,
/// and an answer read there is believed.
fn not_ours(dir: &Path, error: std::io::Error) -> Failure {
    Failure::new(format!("cannot use the folder {}", dir.display()))
        .because(error)
        .next("run the command as the user who runs the daemon")
}

/// Returns the process that keeps the sockets, if it can be upgraded.
fn supervisor(dir: &Path) -> Outcome<u32> {
    let Endpoints { pid, worker, upgradable, .. } =
        endpoints::read(dir).ok_or_else(|| none(dir))?;
    if upgradable {
        return Ok(pid);
    }
    let failure = if worker == pid {
        Failure::new("this daemon is kept alive by systemd, which has to start the new binary")
            .next("put the new binary in place, then `systemctl restart` its unit: a quick stop, nothing acknowledged is lost")
    } else {
        Failure::new("this daemon is of a version that cannot be upgraded while it serves")
            .next("stop it (Ctrl-C or SIGTERM), then start the new binary with `rekindle up`")
    };
    Err(failure.kind(Kind::Unsupported))
}

/// Takes the lock of upgrades: two at once would overwrite each other's files.
fn take_turn(folder: &Folder, dir: &Path) -> Outcome<File> {
    let file = folder.lock_file("upgrade.lock").map_err(|error| {
        Failure::new(format!("cannot write in {}", dir.display()))
            .because(error)
            .next("run the command as the user who runs the daemon")
    })?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Failure::new("another `rekindle upgrade` is at work here")
            .next("wait for it")
            .kind(Kind::Conflict)
    })?;
    Ok(file)
}

fn wait(folder: &Folder, dir: &Path) -> Outcome<Answer> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let held = endpoints::is_held(dir);
        let found = folder.read(upgrade::ANSWER.0).ok();
        if let Some(answer) = found.and_then(|text| serde_json::from_slice(&text).ok()) {
            return Ok(answer);
        }
        if !held {
            return Err(Failure::new("the daemon ended in the middle of the upgrade")
                .next("start the new binary with `rekindle up`: nothing acknowledged is lost")
                .kind(Kind::Unavailable));
        }
        std::thread::sleep(LOOK);
    }
    Err(Failure::new(format!("no outcome after {} s", PATIENCE.as_secs()))
        .next("look at `rekindle status`, and at what `rekindle up` prints")
        .kind(Kind::Unavailable))
}
