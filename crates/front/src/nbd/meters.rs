//! Counters. A session counts in plain numbers and adds them to the shared ones before it waits.

use super::wire::command;
use metrics::Counter;

const NAMES: [&str; 8] =
    ["read", "write", "disconnect", "flush", "trim", "cache", "write-zeroes", "block-status"];

/// What a session has counted and not yet told.
pub(super) struct Meters {
    requests: [u64; NAMES.len()],
    bytes_read: u64,
    bytes_written: u64,
    errors: u64,
    dirty: bool,
    shared: Shared,
}

struct Shared {
    requests: [Counter; NAMES.len()],
    bytes_read: Counter,
    bytes_written: Counter,
    errors: Counter,
}

impl Meters {
    pub(super) fn new() -> Self {
        let shared = Shared {
            requests: NAMES
                .map(|name| metrics::counter!("rekindle_nbd_requests_total", "command" => name)),
            bytes_read: metrics::counter!("rekindle_nbd_read_bytes_total"),
            bytes_written: metrics::counter!("rekindle_nbd_written_bytes_total"),
            errors: metrics::counter!("rekindle_nbd_errors_total"),
        };
        Self {
            requests: [0; NAMES.len()],
            bytes_read: 0,
            bytes_written: 0,
            errors: 0,
            dirty: false,
            shared,
        }
    }

    pub(super) fn request(&mut self, number: u16, length: u32) {
        self.dirty = true;
        if let Some(count) = self.requests.get_mut(usize::from(number)) {
            *count += 1;
        }
        match number {
            command::READ => self.bytes_read += u64::from(length),
            command::WRITE => self.bytes_written += u64::from(length),
            _ => {}
        }
    }

    pub(super) fn error(&mut self) {
        self.dirty = true;
        self.errors += 1;
    }

    /// Adds what was counted to the shared counters.
    pub(super) fn tell(&mut self) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        for (count, counter) in self.requests.iter_mut().zip(&self.shared.requests) {
            tell(count, counter);
        }
        tell(&mut self.bytes_read, &self.shared.bytes_read);
        tell(&mut self.bytes_written, &self.shared.bytes_written);
        tell(&mut self.errors, &self.shared.errors);
    }
}

impl Drop for Meters {
    fn drop(&mut self) {
        self.tell();
    }
}

fn tell(count: &mut u64, counter: &Counter) {
    if *count > 0 {
        counter.increment(std::mem::take(count));
    }
}
