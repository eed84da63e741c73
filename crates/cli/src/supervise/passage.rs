//! How a supervisor goes on as another binary: one `exec`, so that the process, its children and what it holds open stay.
//!
//! The worker that serves is not touched before the new binary runs and has understood what it was told. Everything that
//! outlives the `exec` is named in a [`Passage`], in a variable of the environment. The binary that is replaced stays
//! open, so that it can be returned to when its file is gone.
#![expect(clippy::disallowed_methods, reason = "the supervisor works on the real machine")]

use super::endpoints::Lock;
use super::sockets::{self, Listening, Role};
use super::worker::Worker;
use super::{Supervisor, upgrade};
use crate::failure::{Failure, Outcome};
use crate::worker::Handover;
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable that carries a [`Passage`].
pub const VARIABLE: &str = "REKINDLE_PASSAGE";
/// Version of what a supervisor tells the next. A later one may add fields that have defaults; it goes up when an
/// older binary could not go on with what it is told.
pub const VERSION: u32 = 1;

/// What a supervisor tells the binary that it goes on as.
#[derive(Debug, Serialize, Deserialize)]
pub struct Passage {
    version: u32,
    dir: PathBuf,
    /// How workers are started.
    handover: Handover,
    sockets: Vec<Socket>,
    lock: RawFd,
    /// Warm memory without a file.
    memory: Option<RawFd>,
    /// The worker of the binary before, to be stopped; `None` when there is none.
    worker: Option<i32>,
    change: Change,
}

/// A listening socket, kept open.
#[derive(Debug, Serialize, Deserialize)]
struct Socket {
    role: Role,
    address: String,
    descriptor: RawFd,
    /// Its file; older binaries did not say.
    #[serde(default)]
    file: Option<(u64, u64)>,
}

/// The change that an `exec` is part of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Change {
    /// Version of the binary before.
    pub from: String,
    /// The program that was asked for.
    pub binary: PathBuf,
    /// The binary before, open; `None` when there is no way back.
    previous: Option<RawFd>,
    /// Where that was started from.
    previous_program: PathBuf,
    /// Why the binary that was asked for has been left again.
    pub failed: Option<String>,
}

/// The way back to the binary before.
pub struct Back {
    image: OwnedFd,
    program: PathBuf,
}

impl Supervisor {
    /// Goes on as `binary`; returns only when that fails, with nothing changed.
    pub fn go_on_as(&self, binary: &Path, worker: &Worker) -> Failure {
        let attempt = || {
            let image = File::open("/proc/self/exe")?;
            let change = Change {
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

    /// Goes back to the binary before, whose workers did serve; returns only when that fails.
    pub fn go_back(&self, back: &Back, change: &Change, why: String) -> Failure {
        let change = Change { previous: None, failed: Some(why), ..change.clone() };
        let image = PathBuf::from(format!("/proc/self/fd/{}", back.image.as_raw_fd()));
        let attempt = || {
            let change = Change { previous_program: back.program.clone(), ..change };
            self.exec(&image, None, change)
        };
        let Err(failure) = attempt();
        failure
    }

    fn exec(
        &self,
        image: &Path,
        worker: Option<i32>,
        change: Change,
    ) -> Outcome<std::convert::Infallible> {
        let mut passed = Vec::new();
        for socket in &self.sockets {
            let descriptor = socket.pass_on()?.descriptor;
            let address = socket.address.to_string();
            passed.push(Socket { role: socket.role, address, descriptor, file: socket.file });
        }
        let passage = Passage {
            version: VERSION,
            dir: self.dir.clone(),
            handover: self.handover.clone(),
            sockets: passed,
            lock: keep(&self.lock)?,
            memory: self.memory.as_ref().map(AsRawFd::as_raw_fd),
            worker,
            change,
        };
        let text = serde_json::to_string(&passage).map_err(io::Error::from)?;
        // The words it was started with, so that whoever looks for the process finds it.
        let mut words = std::env::args_os();
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

/// Goes on where another binary was, if one has said so to this process.
pub fn arrive() -> Option<Outcome<u8>> {
    let text = std::env::var(VARIABLE).ok()?;
    Some(match serde_json::from_str::<Passage>(&text) {
        Ok(passage) if passage.version <= VERSION => take_over(passage).and_then(Supervisor::run),
        Ok(passage) => Err(turn_back(
            &text,
            &format!(
                "it knows version {VERSION} of what a supervisor tells the next, not {}",
                passage.version
            ),
        )),
        Err(error) => {
            Err(turn_back(&text, &format!("it does not understand the running one: {error}")))
        }
    })
}

/// Nothing has been touched yet: the binary before still understands what it said itself.
fn turn_back(text: &str, why: &str) -> Failure {
    let lost = Failure::new(format!("cannot go on as this binary: {why}")).next("rekindle up");
    let Ok(mut passage) = serde_json::from_str::<serde_json::Value>(text) else { return lost };
    let change = &mut passage["change"];
    let image = change["previous"].take().as_i64().and_then(|image| RawFd::try_from(image).ok());
    let Some(Ok(image)) = image.map(sockets::take) else { return lost };
    change["failed"] = why.into();
    let mut words = std::env::args_os();
    let error = Command::new(format!("/proc/self/fd/{}", image.as_raw_fd()))
        .arg0(words.next().unwrap_or_default())
        .args(words)
        .env(VARIABLE, passage.to_string())
        .exec();
    lost.because(error)
}

fn take_over(passage: Passage) -> Outcome<Supervisor> {
    env::real::access::keep_private();
    let Passage { dir, handover, sockets: passed, lock, memory, worker, change, .. } = passage;
    let mut sockets = Vec::new();
    for Socket { role, address, descriptor, file } in passed {
        let address = address.parse().map_err(|error| {
            Failure::new(format!("'{address}' is not an address")).because(error)
        })?;
        sockets.push(Listening { role, address, socket: sockets::take(descriptor)?, file });
    }
    let memory = memory.map(sockets::take).transpose()?;
    if let Some(memory) = &memory {
        // Workers find it under its number.
        keep(memory)?;
    }
    let image = change.previous.map(sockets::take).transpose()?;
    let back = image.map(|image| Back { image, program: change.previous_program.clone() });
    // After a return the image is a file that may have no name any more.
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
        arrival: Some(upgrade::Arrival::new(worker, change, back)),
        dir,
    })
}
