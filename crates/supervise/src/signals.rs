//! The signals that ask a process to end.

use rustix::process::Signal;
use std::io;
use std::time::Instant;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// A listener for these signals. Until it is made, they end the process.
pub struct StopSignals {
    terminate: Signals,
    /// As `hang_up`: `None` when the process that started this one ignores the signal.
    interrupt: Option<Signals>,
    /// `None` under `nohup`, which ignores the signal so that the daemon outlives the terminal.
    hang_up: Option<Signals>,
}

impl StopSignals {
    /// Listens from now on. Must be called inside a runtime.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: unless_ignored(SignalKind::interrupt())?,
            hang_up: unless_ignored(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal; a hangup counts as TERM.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            () = heard(&mut self.interrupt) => Signal::INT,
            // A terminal that is gone asks for an orderly end as well.
            () = heard(&mut self.hang_up) => Signal::TERM,
        }
    }
}

/// Ends at a moment; never without one.
pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Listens to a signal, unless it is ignored: listening would end the ignoring.
fn unless_ignored(kind: SignalKind) -> io::Result<Option<Signals>> {
    if is_ignored(kind.as_raw_value()) { Ok(None) } else { signal(kind).map(Some) }
}

fn is_ignored(number: i32) -> bool {
    // SAFETY: plain data that the call fills in.
    let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; the pointer is to memory that outlives the call.
    let code = unsafe { libc::sigaction(number, std::ptr::null(), &raw mut found) };
    code == 0 && found.sa_sigaction == libc::SIG_IGN
}

async fn heard(signals: &mut Option<Signals>) {
    match signals {
        Some(signals) => _ = signals.recv().await,
        None => std::future::pending().await,
    }
}
