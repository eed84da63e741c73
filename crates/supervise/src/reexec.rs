//! The change of a supervisor into another binary: one `exec`, so that the process, its children
//! and its open files stay.
//!
//! The worker that serves is not touched before the new binary runs and has understood its state.
//! Everything that outlives the `exec` is named in an [`ExecState`], in an environment variable.
//! The previous binary stays open, so that the supervisor can return to it when its file is gone.
#![expect(clippy::disallowed_methods, reason = "the supervisor works on the real machine")]

use crate::child::Worker;
use crate::endpoints::Lock;
use crate::formats::EXEC_STATE;
use crate::sockets::{self, Listening, Role};
use crate::supervisor::Supervisor;
use crate::upgrade::{Arrival, Back, BinaryChange, VARIABLE};
use crate::worker::Handover;
use rekindle_env::real::{access, standard_error};
use rekindle_terminal::failure::{Failure, Outcome};
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time that messages get to be read before an `exec`, while the sockets are open already or still.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The state that a supervisor hands to the binary that it goes on as.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExecState {
    version: u32,
    dir: PathBuf,
    /// Settings with which workers are started.
    handover: Handover,
    sockets: Vec<Socket>,
    lock: RawFd,
    /// Warm memory without a file.
    memory: Option<RawFd>,
    /// The worker of the previous binary, to be stopped; `None` when there is none.
    worker: Option<i32>,
    change: BinaryChange,
}

/// A listening socket, kept open.
#[derive(Debug, Serialize, Deserialize)]
struct Socket {
    role: Role,
    address: String,
    descriptor: RawFd,
    /// Device and number of a Unix socket's file; older binaries did not write them.
    #[serde(default)]
    file: Option<(u64, u64)>,
}

impl Supervisor {
    /// Goes on as `binary`; returns only when that fails, with nothing changed.
    pub fn reexec(&self, binary: &Path, worker: &Worker) -> Failure {
        let attempt = || {
            let image = File::open("/proc/self/exe")?;
            let change = BinaryChange {
                from: env!("CARGO_PKG_VERSION").to_owned(),
                binary: binary.to_owned(),
                previous: Some(keep(&image)?),
                previous_program: self.program.clone(),
                failed: None,
            };
            self.exec(binary, Some(worker.pid()), change)
        };
        let Err(failure) = attempt();
        failure
            .next("the running binary serves as before; is the new one a program for this machine?")
    }

    /// Goes back to the previous binary, whose workers did serve; returns only when that fails.
    pub fn go_back(&self, back: &Back, change: &BinaryChange, why: String) -> Failure {
        let change = BinaryChange { previous: None, failed: Some(why), ..change.clone() };
        let image = access::own_path(&back.image);
        let attempt = || {
            let change = BinaryChange { previous_program: back.program.clone(), ..change };
            self.exec(&image, None, change)
        };
        let Err(failure) = attempt();
        failure
    }

    fn exec(
        &self,
        image: &Path,
        worker: Option<i32>,
        change: BinaryChange,
    ) -> Outcome<std::convert::Infallible> {
        let mut passed = Vec::new();
        for socket in &self.sockets {
            let descriptor = socket.pass_on()?.descriptor;
            let address = socket.address.to_string();
            passed.push(Socket { role: socket.role, address, descriptor, file: socket.file });
        }
        let state = ExecState {
            version: EXEC_STATE,
            dir: self.dir.clone(),
            handover: self.handover.clone(),
            sockets: passed,
            lock: keep(&self.lock)?,
            memory: self.memory.as_ref().map(AsRawFd::as_raw_fd),
            worker,
            change,
        };
        let text = serde_json::to_string(&state).map_err(io::Error::from)?;
        // The words with which this process was started, so that tools that look for the process
        // find it.
        let mut words = std::env::args_os();
        standard_error::flush(LAST_WORDS);
        let error = Command::new(image)
            .arg0(words.next().unwrap_or_default())
            .args(words)
            .env(VARIABLE, text)
            .exec();
        rustix::io::fcntl_setfd(&self.lock, FdFlags::CLOEXEC).map_err(io::Error::from)?;
        Err(Failure::new(format!("cannot go on as {}", image.display())).because(error))
    }
}

/// Keeps a descriptor open over an `exec`.
fn keep(descriptor: &impl AsFd) -> Outcome<RawFd> {
    let descriptor = descriptor.as_fd();
    rustix::io::fcntl_setfd(descriptor, FdFlags::empty()).map_err(io::Error::from)?;
    Ok(descriptor.as_raw_fd())
}

/// Goes on where another binary left off, if it has handed its state to this process.
pub fn resume_after_exec() -> Option<Outcome<u8>> {
    let text = std::env::var(VARIABLE).ok()?;
    Some(match serde_json::from_str::<ExecState>(&text) {
        Ok(state) if state.version <= EXEC_STATE => take_over(state).and_then(Supervisor::run),
        Ok(state) => Err(turn_back(
            &text,
            &format!(
                "it knows version {EXEC_STATE} of what a supervisor tells the next, not {}",
                state.version
            ),
        )),
        Err(error) => {
            Err(turn_back(&text, &format!("it does not understand the running one: {error}")))
        }
    })
}

/// Goes back to the previous binary, which understands the state that it wrote: nothing has been
/// touched yet. Returns when that fails.
fn turn_back(text: &str, why: &str) -> Failure {
    let lost = Failure::new(format!("cannot go on as this binary: {why}")).next("rekindle up");
    let Ok(mut state) = serde_json::from_str::<serde_json::Value>(text) else { return lost };
    let change = &mut state["change"];
    let image = change["previous"].take().as_i64().and_then(|image| RawFd::try_from(image).ok());
    let Some(Ok(image)) = image.map(sockets::take) else { return lost };
    change["failed"] = why.into();
    let mut words = std::env::args_os();
    let error = Command::new(access::own_path(&image))
        .arg0(words.next().unwrap_or_default())
        .args(words)
        .env(VARIABLE, state.to_string())
        .exec();
    lost.because(error)
}

fn take_over(state: ExecState) -> Outcome<Supervisor> {
    access::keep_private();
    let ExecState { dir, handover, sockets: passed, lock, memory, worker, change, .. } = state;
    let mut sockets = Vec::new();
    for Socket { role, address, descriptor, file } in passed {
        let address = address.parse().map_err(|error| {
            Failure::new(format!("'{address}' is not an address")).because(error)
        })?;
        sockets.push(Listening { role, address, socket: sockets::take(descriptor)?, file });
    }
    let memory = memory.map(sockets::take).transpose()?;
    if let Some(memory) = &memory {
        // Workers find the memory under its number.
        keep(memory)?;
    }
    let image = change.previous.map(sockets::take).transpose()?;
    let back = image.map(|image| Back { image, program: change.previous_program.clone() });
    // After a return the image is a file that may have no name any more: the path is the former
    // one.
    let program = match &change.failed {
        Some(_) => change.previous_program.clone(),
        None => change.binary.clone(),
    };
    Ok(Supervisor {
        handover,
        sockets,
        lock: Lock::held(sockets::take(lock)?, &dir),
        memory,
        announce: None,
        program,
        arrival: Some(Arrival::new(worker, change, back)),
        dir,
    })
}
