//! `rekindle up`: the daemon of one folder, from the moment it takes the folder to its end.

use crate::endpoints::{Endpoints, Lock};
use crate::sockets::{Listening, Role, WantedSockets};
use crate::supervisor::Supervisor;
use crate::worker::{self, Handover, LogFormat, Ready};
use crate::{ivshmem, memory};
use rekindle_env::Address;
use rekindle_terminal::failure::Outcome;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// A daemon that holds its folder, and whose sockets are open: clients that connect wait.
pub struct Service {
    dir: PathBuf,
    handover: Handover,
    sockets: Vec<Listening>,
    memory: Option<OwnedFd>,
    lock: Lock,
}

impl Service {
    /// Takes the folder, finds or makes warm memory, opens the sockets. Adds notes for the user.
    pub fn open(
        dir: PathBuf,
        mut config: rekindle_node::Config,
        wanted: &WantedSockets,
        notes: &mut Vec<String>,
    ) -> Outcome<Self> {
        let lock = Lock::take(&dir)?;
        ivshmem::settle(&mut config.warm)?;
        let memory = memory::hold(&mut config.warm, under_systemd())?;
        let sockets = wanted.open(&dir, notes)?;
        Ok(Self { handover: Handover::new(config), dir, sockets, memory, lock })
    }

    /// Sets how much diagnostics say, and how they are written.
    #[must_use]
    pub fn diagnostics(mut self, verbose: bool, log_format: LogFormat) -> Self {
        (self.handover.verbose, self.handover.log_format) = (verbose, log_format);
        self
    }

    /// Returns the addresses at which the sockets listen.
    pub fn places(&self) -> Vec<(Role, Address)> {
        self.sockets.iter().map(|socket| (socket.role, socket.address.clone())).collect()
    }

    /// Serves until told to stop; returns the exit code. Calls `announce` once, when the daemon
    /// serves, with whether a supervisor of ours (or else systemd) starts a dead worker again.
    pub fn run(self, announce: impl FnOnce(&Ready, bool) + 'static) -> Outcome<u8> {
        let Self { dir, handover, sockets, memory, lock } = self;
        if under_systemd() {
            let endpoints = Endpoints::of(&sockets, std::process::id());
            let served = worker::serve_here(&handover, sockets, |ready| {
                if let Err(failure) = endpoints.write(&dir) {
                    failure.print(false);
                }
                announce(&ready, false);
            });
            drop((lock, memory));
            return served.map(|()| 0);
        }
        Supervisor {
            dir,
            handover,
            sockets,
            lock,
            memory,
            announce: Some(Box::new(move |ready: &Ready| announce(ready, true))),
            program: std::env::current_exe()?,
            arrival: None,
        }
        .run()
    }
}

/// Whether systemd started this very process, and so will restart it. Its variables alone do not
/// tell: every shell of a desktop session inherits them.
fn under_systemd() -> bool {
    let own = std::process::id().to_string();
    std::env::var_os("NOTIFY_SOCKET").is_some()
        || std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|pid| pid == own)
        || (std::env::var_os("INVOCATION_ID").is_some()
            && rustix::process::getppid().is_some_and(rustix::process::Pid::is_init))
}
