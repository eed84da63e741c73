//! The worker as its supervisor sees it: a child process, born here or before an upgrade.
#![expect(clippy::disallowed_methods, reason = "the supervisor works on the real machine")]

use crate::sockets::Listening;
use crate::upgrade;
use crate::worker::{self, Handover, Ready};
use rekindle_terminal::failure::{Failure, Outcome};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::Receiver;

/// This very program, whatever has become of its file.
const IMAGE: &str = "/proc/self/exe";

/// A running worker.
pub struct Worker {
    pid: Pid,
    born: Instant,
    /// A pipe with one line when the worker serves; `None` after that, or when the worker has
    /// closed it.
    report: Option<BufReader<Receiver>>,
}

impl Worker {
    /// Starts a worker: another process of `program`, which is this very program. `restarted`: a
    /// worker has served before.
    pub fn start(
        program: &Path,
        handover: &Handover,
        sockets: &[Listening],
        restarted: bool,
    ) -> Outcome<Self> {
        let (ours, theirs) = io::pipe()?;
        // Every step that can fail comes before the child: a child that we do not know of would be
        // left alone.
        let report = Some(BufReader::new(Receiver::from_owned_fd(ours.into())?));
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(io::Error::from)?;
        let mut handover = handover.clone();
        handover.sockets = sockets.iter().map(Listening::pass_on).collect::<Outcome<_>>()?;
        handover.report = Some(theirs.as_raw_fd());
        handover.parent = std::process::id();
        handover.config.restarted = restarted;
        handover.born = Some(rekindle_env::real::since_boot());
        let child = Command::new(image(program))
            .arg0(program)
            .arg(worker::COMMAND)
            .env(worker::VARIABLE, handover.encode()?)
            .env_remove(upgrade::VARIABLE)
            // A process group of its own: Ctrl-C at the terminal reaches only the supervisor, which
            // passes it on once.
            .process_group(0)
            .stdin(std::process::Stdio::null())
            .spawn()
            .map_err(|error| Failure::new("cannot start the worker").because(error))?;
        drop(theirs);
        Ok(Self { pid: Pid::from_child(&child), born: Instant::now(), report })
    }

    /// Adopts a worker that was started before this binary ran in this process.
    pub fn adopt(pid: i32) -> Option<Self> {
        Some(Self { pid: Pid::from_raw(pid)?, born: Instant::now(), report: None })
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw_pid()
    }

    /// Returns the time since the worker was started or adopted.
    pub fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// Sends the worker a signal. A worker that is gone already is no failure.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid, signal);
    }

    /// Returns the exit status, if the worker has ended.
    pub fn ended(&self) -> Option<ExitStatus> {
        match waitpid(Some(self.pid), WaitOptions::NOHANG) {
            Ok(ended) => ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())),
            // No child of ours any more: the worker is gone, and its exit status is unknown.
            Err(rustix::io::Errno::CHILD) => Some(ExitStatus::from_raw(Signal::KILL.as_raw())),
            Err(_) => None,
        }
    }

    /// Waits for the worker to serve; for ever, when it has said so already or never will.
    pub async fn ready(&mut self) -> Ready {
        if let Some(report) = &mut self.report {
            let mut line = String::new();
            let read = report.read_line(&mut line).await;
            self.report = None;
            if let (Ok(_), Ok(ready)) = (read, serde_json::from_str(&line)) {
                return ready;
            }
        }
        std::future::pending().await
    }
}

/// Returns the program to start, so that worker and supervisor are the same binary. It is named by
/// its file while that file is the running one (a process is called after it), else it is the
/// running image.
fn image(program: &Path) -> PathBuf {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let image = Path::new(IMAGE);
    if identity(program).is_some_and(|found| Some(found) == identity(image)) {
        program.to_owned()
    } else {
        image.to_owned()
    }
}
