//! `rekindle upgrade`: asks the supervisor to go on as another binary, and says what came of it.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use crate::arguments::{Common, Upgrade};
use crate::failure::{Failure, Outcome};
use crate::folder;
use crate::output;
use crate::supervise::endpoints::{self, Endpoints};
use crate::supervise::upgrade::{self, Answer, Request};
use base::Kind;
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long all of it may take before we stop watching: a check, a stop, some starts.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at the answer.
const LOOK: Duration = Duration::from_millis(5);

/// Runs the command.
pub fn run(common: &Common, upgrade: &Upgrade) -> Outcome {
    let dir = folder::of_client(common.dir.as_deref())?;
    let supervisor = supervisor(&dir)?;
    let _one_at_a_time = take_turn(&dir)?;
    let binary = match &upgrade.binary {
        Some(path) => Some(std::path::absolute(path)?),
        None => None,
    };
    // Of an upgrade before.
    let _ = std::fs::remove_file(upgrade::answer_path(&dir));
    upgrade::write(&upgrade::request_path(&dir), &Request { binary })?;
    kill_process(supervisor, Signal::USR2).map_err(|error| {
        Failure::new(format!("cannot signal the daemon (pid {})", supervisor.as_raw_pid()))
            .because(std::io::Error::from(error))
            .next("run the command as the user who runs the daemon")
    })?;
    let answer = wait(&dir, supervisor)?;
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

/// The process that keeps the sockets, if it is one that can be upgraded.
fn supervisor(dir: &Path) -> Outcome<Pid> {
    let none = || {
        Failure::new(format!("no daemon serves in {}", dir.display()))
            .next(format!(
                "start it with `rekindle up --dir {}`, or name another folder with --dir",
                dir.display()
            ))
            .kind(Kind::Unavailable)
    };
    let Endpoints { pid, worker, upgradable, .. } = endpoints::read(dir).ok_or_else(none)?;
    let supervisor = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(none)?;
    if test_kill_process(supervisor) == Err(rustix::io::Errno::SRCH) {
        return Err(none());
    }
    if upgradable {
        return Ok(supervisor);
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

/// Two requests at once would be one too many for the files that they are made of.
fn take_turn(dir: &Path) -> Outcome<File> {
    let path = dir.join("upgrade.lock");
    let file =
        File::options().write(true).create(true).truncate(false).open(&path).map_err(|error| {
            Failure::new(format!("cannot write {}", path.display()))
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

fn wait(dir: &Path, supervisor: Pid) -> Outcome<Answer> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let found = std::fs::read(upgrade::answer_path(dir)).ok();
        if let Some(answer) = found.and_then(|text| serde_json::from_slice(&text).ok()) {
            return Ok(answer);
        }
        if test_kill_process(supervisor) == Err(rustix::io::Errno::SRCH) {
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

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upgraded { from, to, binary, supervisor, worker, stalled_ms } => write!(
                f,
                "version {to} ({}) serves after {from}: {stalled_ms} ms without a worker; supervisor pid {supervisor} as before, worker pid {worker}",
                binary.display()
            ),
            Self::Refused { error, .. } => write!(f, "no upgrade: {error}"),
            Self::WentBack { binary, cause, version } => write!(
                f,
                "{} never served ({cause}); version {version} serves again",
                binary.display()
            ),
        }
    }
}
