//! Counters of the NFS server.

use metrics::{Counter, Gauge, counter, gauge};

/// The counters of all sessions.
pub struct Meters {
    calls: Counter,
    errors: Counter,
    replays: Counter,
    read: Counter,
    written: Counter,
}

impl Meters {
    pub fn new() -> Self {
        Self {
            calls: counter!("rekindle_nfs_calls_total"),
            errors: counter!("rekindle_nfs_errors_total"),
            replays: counter!("rekindle_nfs_replays_total"),
            read: counter!("rekindle_nfs_read_bytes_total"),
            written: counter!("rekindle_nfs_written_bytes_total"),
        }
    }

    pub fn called(&self) {
        self.calls.increment(1);
    }

    pub fn failed(&self) {
        self.errors.increment(1);
    }

    /// Counts a call that was carried out before.
    pub fn replayed(&self) {
        self.replays.increment(1);
    }

    pub fn read(&self, bytes: usize) {
        self.read.increment(bytes as u64);
    }

    pub fn written(&self, bytes: usize) {
        self.written.increment(bytes as u64);
    }
}

/// One session in the gauge; its drop takes it out, however the session ends.
pub struct Counted(Gauge);

impl Counted {
    pub fn new() -> Self {
        let sessions = gauge!("rekindle_nfs_sessions");
        sessions.increment(1);
        Self(sessions)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}
