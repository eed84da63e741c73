//! `up` run by hand: keeps the sockets, starts the worker, starts another one at once when it dies.
//!
//! The supervisor does nothing that could fail under load: it holds no data, reads no store, and has one thread. What
//! it must outlive is in the worker.
#![expect(
    clippy::disallowed_methods,
    reason = "the supervisor outlives every process that has an Env"
)]

pub mod endpoints;
pub mod memory;
mod restart;
pub mod sockets;

use crate::failure::{Failure, Outcome};
use crate::signals::StopSignals;
use crate::worker::{Handover, Ready};
use endpoints::{Endpoints, Lock};
use restart::Restarts;
use rustix::process::{Pid, Signal, kill_process};
use sockets::Listening;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// Tells people, once.
pub type Announce = Box<dyn FnOnce(&Ready)>;

/// What the supervisor keeps.
pub struct Supervisor {
    pub dir: PathBuf,
    pub handover: Handover,
    pub sockets: Vec<Listening>,
    /// Held for as long as this lives.
    pub _lock: Lock,
    /// Warm memory without a file, if that was asked for: held for the workers.
    pub _memory: Option<std::os::fd::OwnedFd>,
    /// Called once, when the first worker serves.
    pub announce: Announce,
}

/// A running worker.
struct Worker {
    child: Child,
    born: Instant,
    /// Says one line when the worker serves; `None` after that, or when the worker has closed it.
    report: Option<BufReader<Receiver>>,
}

/// What the supervisor waits for.
enum News {
    /// Child processes changed.
    Child,
    /// Somebody wants us to stop.
    Stop(Signal),
    /// The worker serves.
    Ready(Ready),
}

struct Ears {
    child: Signals,
    stop: StopSignals,
}

impl Supervisor {
    /// Supervises until the worker is told to stop. Gives the exit code.
    pub fn run(self) -> Outcome<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.supervise())
    }

    async fn supervise(mut self) -> Outcome<u8> {
        let mut ears = Ears { child: signal(SignalKind::child())?, stop: StopSignals::new()? };
        let mut announce = Some(std::mem::replace(&mut self.announce, Box::new(|_| ())));
        let mut restarts = Restarts::default();
        let mut stopping = false;
        // The sockets are open: whoever connects waits.
        Endpoints::of(&self.sockets, 0).write(&self.dir)?;
        let mut worker = self.start()?;
        loop {
            match ears.listen(&mut worker).await {
                News::Ready(ready) => {
                    Endpoints::of(&self.sockets, ready.pid).write(&self.dir)?;
                    if let Some(announce) = announce.take() {
                        announce(&ready);
                    }
                }
                News::Stop(signal) => {
                    stopping = true;
                    // Gone already is as good.
                    let _ = kill_process(Pid::from_child(&worker.child), signal);
                }
                News::Child => {
                    let Some(status) = worker.child.try_wait()? else { continue };
                    // Before its first service a worker that gives up has said why: a wrong URL does not mend itself.
                    if status.success()
                        || stopping
                        || (announce.is_some() && status.code().is_some())
                    {
                        return Ok(exit_code(status));
                    }
                    let wait = restarts.wait_after(worker.born.elapsed());
                    eprintln!(
                        "rekindle: the worker {}; starting another{}",
                        ended(status),
                        after(wait)
                    );
                    if ears.pause(wait).await {
                        return Ok(0);
                    }
                    worker = self.start()?;
                }
            }
        }
    }

    fn start(&self) -> Outcome<Worker> {
        let binary = std::env::current_exe()?;
        let (ours, theirs) = std::io::pipe()?;
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())
            .map_err(std::io::Error::from)?;
        let mut handover = self.handover.clone();
        handover.sockets = self.sockets.iter().map(Listening::pass_on).collect::<Outcome<_>>()?;
        handover.report = Some(theirs.as_raw_fd());
        handover.parent = std::process::id();
        let child = Command::new(binary)
            .arg("worker")
            .env(crate::worker::VARIABLE, handover.encode())
            // A group of its own: Ctrl-C at the terminal reaches the supervisor only, which passes it on once.
            .process_group(0)
            .stdin(std::process::Stdio::null())
            .spawn()
            .map_err(|error| Failure::new("cannot start the worker").because(error))?;
        drop(theirs);
        let report = Some(BufReader::new(Receiver::from_owned_fd(ours.into())?));
        Ok(Worker { child, born: Instant::now(), report })
    }
}

impl Worker {
    /// Waits for the worker to serve; for ever, when it has said so already or never will.
    async fn ready(&mut self) -> Ready {
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

impl Ears {
    async fn listen(&mut self, worker: &mut Worker) -> News {
        tokio::select! {
            // What a worker said before it died counts.
            biased;
            ready = worker.ready() => News::Ready(ready),
            _ = self.child.recv() => News::Child,
            signal = self.stop.next() => News::Stop(signal),
        }
    }

    /// Waits; `true` when somebody wants us to stop meanwhile.
    async fn pause(&mut self, wait: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(wait) => false,
            _ = self.stop.next() => true,
        }
    }
}

/// What a parent shell would report.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

fn ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (_, Some(code)) => format!("ended with exit code {code}"),
        _ => "ended".to_owned(),
    }
}

fn after(wait: Duration) -> String {
    if wait.is_zero() { String::new() } else { format!(" in {} ms", wait.as_millis()) }
}
