//! The signals that ask for the end.

use rustix::process::Signal;
use std::io;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// Hears them from its making on; before that they end the process.
pub struct StopSignals {
    terminate: Signals,
    interrupt: Signals,
    hang_up: Signals,
}

impl StopSignals {
    /// Wants a runtime.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next one.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
            // The terminal is gone: an orderly end as well.
            _ = self.hang_up.recv() => Signal::TERM,
        }
    }
}
