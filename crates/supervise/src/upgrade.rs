//! The upgrade as its supervisor sees it: the request, the check before it, and the result.
//!
//! A request is a file and a signal, its answer a file. The files are in the daemon's folder, so
//! that only a user who may write there (or signal the process) may upgrade.
#![expect(clippy::disallowed_methods, reason = "the supervisor works on the real machine")]

use crate::formats::Formats;
use rekindle_base::Kind;
use rekindle_env::real::folder::Folder;
use rekindle_terminal::failure::{Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The environment variable that carries the state of a supervisor over an `exec`.
pub(crate) const VARIABLE: &str = "REKINDLE_PASSAGE";
/// Longest time for a binary to say what it knows.
const CHECK_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time for the previous worker to stop; after that it is killed, which loses nothing.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
/// Workers of a new binary that may die before one serves, before the old binary comes back.
const DEATHS_MAX: u32 = 3;

/// The request of `rekindle upgrade`, in `upgrade.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// `None`: the file that is now where the running binary was started from.
    pub binary: Option<PathBuf>,
}

/// The result of an upgrade, in `upgraded.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Answer {
    /// The new binary serves.
    Upgraded {
        /// Version before.
        from: String,
        /// Version now.
        to: String,
        /// The file of the new binary.
        binary: PathBuf,
        /// Process id of the supervisor, as before.
        supervisor: u32,
        /// Process id of the new worker.
        worker: u32,
        /// From the moment the old worker was told to stop until the new one served.
        stalled_ms: u64,
    },
    /// Nothing was touched.
    Refused { error: String, cause: Option<String>, next: Option<String>, kind: String },
    /// The new binary never served; the old one serves again.
    WentBack { binary: PathBuf, cause: String, version: String },
}

impl Answer {
    /// Makes the answer to a request that was refused: nothing was touched.
    pub(crate) fn refused(failure: Failure) -> Self {
        let Failure { error, cause, next, kind, .. } = failure;
        Self::Refused { error, cause, next, kind }
    }

    /// Writes the answer for the command that asked.
    pub(crate) fn write(&self, dir: &Path) {
        if let Err(failure) = write(dir, ANSWER, self) {
            failure.print(false);
        }
    }
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

/// The name of a file, and of the temporary file through which it is written.
pub type Name = (&'static str, &'static str);
/// Name of the request.
pub const REQUEST: Name = ("upgrade.json", "upgrade.new");
/// Name of the answer.
pub const ANSWER: Name = ("upgraded.json", "upgraded.new");

/// Writes a small file, whole or not at all.
pub fn write(dir: &Path, (name, temporary): Name, value: &impl Serialize) -> Outcome {
    let attempt = || {
        let text = serde_json::to_string(value).map_err(io::Error::from)?;
        Folder::open_own(dir)?.write(name, temporary, text.as_bytes())
    };
    attempt().map_err(|error: io::Error| {
        Failure::new(format!("cannot write {}", dir.join(name).display()))
            .because(error)
            .next("run the command as the user who runs the daemon, and see that there is space")
    })
}

/// Takes the request, so that it is done once; returns the binary.
pub(crate) fn take_request(dir: &Path, program: &Path) -> Outcome<PathBuf> {
    let folder = Folder::open_own(dir)?;
    let text = folder.read(REQUEST.0)?;
    folder.remove(REQUEST.0)?;
    let request: Request = serde_json::from_slice(&text).map_err(io::Error::from)?;
    Ok(request.binary.unwrap_or_else(|| program.to_owned()))
}

/// Checks whether this process could go on as `binary`: it must run, and understand every format in
/// use. Takes up to [`CHECK_PATIENCE`], so the thread that looks after the worker must not call it.
pub(crate) fn check(binary: &Path) -> Outcome {
    let refused = |cause: String| {
        Failure::new(format!("{} cannot take over", binary.display()))
            .because(cause)
            .next("nothing was touched; name a rekindle binary of this or a later version with --binary")
            .kind(Kind::Unsupported)
    };
    let (status, text) =
        say_formats(binary).map_err(|error| refused(format!("it does not run: {error}")))?;
    if !status {
        return Err(refused("it did not say what it knows (`formats --json`)".to_owned()));
    }
    let theirs: Formats = serde_json::from_str(&text)
        .map_err(|_| refused("it is no rekindle that could be upgraded to".to_owned()))?;
    let unknown = Formats::own().unknown_to(&theirs);
    if !unknown.is_empty() {
        let (version, unknown) = (theirs.version, unknown.join("; "));
        return Err(refused(format!(
            "version {version} does not know every format in use: {unknown}"
        )));
    }
    Ok(())
}

/// Runs `binary formats --json`; returns whether it succeeded, and its output.
fn say_formats(binary: &Path) -> io::Result<(bool, String)> {
    let mut said: File =
        rustix::fs::memfd_create("rekindle-formats", rustix::fs::MemfdFlags::CLOEXEC)?.into();
    let mut child = Command::new(binary)
        .args(["formats", "--json"])
        .env_remove(VARIABLE)
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(Stdio::null())
        .spawn()?;
    let deadline = Instant::now() + CHECK_PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            let cause = format!("nothing was said for {} s", CHECK_PATIENCE.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, cause));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    said.rewind()?;
    let mut bytes = Vec::new();
    said.take(64 * 1024).read_to_end(&mut bytes)?;
    Ok((status.success(), String::from_utf8_lossy(&bytes).into_owned()))
}

/// The change that an `exec` is part of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BinaryChange {
    /// Version of the previous binary.
    pub from: String,
    /// The program that was asked for.
    pub binary: PathBuf,
    /// The previous binary, open; `None` when there is no way back.
    pub previous: Option<RawFd>,
    /// Path from which the previous binary was started.
    pub previous_program: PathBuf,
    /// Reason why the binary that was asked for has been left again.
    pub failed: Option<String>,
}

/// The way back to the previous binary.
pub(crate) struct Back {
    pub image: OwnedFd,
    pub program: PathBuf,
}

/// An upgrade under way in this process, from the `exec` until a worker of this binary serves.
pub(crate) struct Arrival {
    /// The worker of the previous binary, which still serves.
    pub worker: Option<i32>,
    pub change: BinaryChange,
    /// The way back, if there is one.
    pub back: Option<Back>,
    began: Instant,
    deaths: u32,
}

impl Arrival {
    /// Begins the time of an upgrade now.
    pub fn new(worker: Option<i32>, change: BinaryChange, back: Option<Back>) -> Self {
        Self { worker, change, back, began: Instant::now(), deaths: 0 }
    }

    /// Returns the deadline for the end of the old worker.
    pub fn deadline(&self) -> Instant {
        self.began + STOP_PATIENCE
    }

    /// Counts a worker of this binary that died before one has served; returns whether to go back.
    pub fn died(&mut self) -> bool {
        self.deaths += 1;
        self.back.is_some() && self.deaths >= DEATHS_MAX
    }

    /// Makes the answer, when a worker serves.
    pub fn answer(self, worker: u32) -> Answer {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let BinaryChange { from, binary, failed, .. } = self.change;
        match failed {
            Some(cause) => Answer::WentBack { binary, cause, version },
            None => Answer::Upgraded {
                from,
                to: version,
                binary,
                supervisor: std::process::id(),
                worker,
                stalled_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            },
        }
    }
}
