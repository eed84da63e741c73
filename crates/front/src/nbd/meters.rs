//! Counters of requests. A session counts in plain numbers and adds them to the shared counters
//! before it waits. The duration of a request is added at once, to atomics without a lock.

use super::wire::command;
use metrics::Counter;
use rekindle_env::Moment;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The commands of NBD, by their numbers.
pub const COMMANDS: [&str; 8] =
    ["read", "write", "disconnect", "flush", "trim", "cache", "write-zeroes", "block-status"];
/// Upper ends of the buckets of a request's duration, microseconds: from a cached read to a store
/// that is away.
pub const BUCKETS: [u64; 15] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000,
    10_000_000,
];

/// The requests of all clients of one volume together, since the node counts them.
#[derive(Debug, Default)]
pub struct VolumeMeters {
    requests: [AtomicU64; COMMANDS.len()],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: AtomicU64,
    times: [Times; COMMANDS.len()],
}

#[derive(Debug, Default)]
struct Times {
    /// Requests by [`BUCKETS`], and those that took longer.
    buckets: [AtomicU64; BUCKETS.len() + 1],
    nanoseconds: AtomicU64,
}

/// A reading of [`VolumeMeters`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeReading {
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub errors: u64,
    /// The commands that clients have used.
    pub commands: Vec<CommandReading>,
}

/// The counters of one command of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandReading {
    pub command: &'static str,
    pub requests: u64,
    /// Requests answered within each of [`BUCKETS`] and not the one before; then those that took
    /// longer.
    pub buckets: [u64; BUCKETS.len() + 1],
    /// The time that all answered requests took together.
    pub nanoseconds: u64,
}

impl VolumeMeters {
    /// Returns the counts so far.
    #[must_use]
    pub fn read(&self) -> VolumeReading {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let command = |(number, times): (usize, &Times)| CommandReading {
            command: COMMANDS[number],
            requests: of(&self.requests[number]),
            buckets: std::array::from_fn(|bucket| of(&times.buckets[bucket])),
            nanoseconds: of(&times.nanoseconds),
        };
        let commands = self.times.iter().enumerate().map(command);
        VolumeReading {
            read_bytes: of(&self.read_bytes),
            written_bytes: of(&self.written_bytes),
            errors: of(&self.errors),
            commands: commands.filter(|command| command.requests > 0).collect(),
        }
    }

    fn took(&self, command: usize, nanoseconds: u64) {
        let Some(times) = self.times.get(command) else { return };
        let bucket = BUCKETS.partition_point(|&end| end * 1000 < nanoseconds);
        times.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        times.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// A request that was taken, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    command: u16,
    at: Moment,
}

/// The counts of a session that are not in the shared counters yet.
pub(super) struct Meters {
    requests: [u64; COMMANDS.len()],
    bytes_read: u64,
    bytes_written: u64,
    errors: u64,
    dirty: bool,
    shared: Shared,
    volume: Arc<VolumeMeters>,
}

struct Shared {
    requests: [Counter; COMMANDS.len()],
    bytes_read: Counter,
    bytes_written: Counter,
    errors: Counter,
}

impl Meters {
    pub(super) fn new(volume: Arc<VolumeMeters>) -> Self {
        let shared = Shared {
            requests: COMMANDS
                .map(|name| metrics::counter!("rekindle_nbd_requests_total", "command" => name)),
            bytes_read: metrics::counter!("rekindle_nbd_read_bytes_total"),
            bytes_written: metrics::counter!("rekindle_nbd_written_bytes_total"),
            errors: metrics::counter!("rekindle_nbd_errors_total"),
        };
        Self {
            requests: [0; COMMANDS.len()],
            bytes_read: 0,
            bytes_written: 0,
            errors: 0,
            dirty: false,
            shared,
            volume,
        }
    }

    pub(super) fn request(&mut self, number: u16, length: u32, at: Moment) -> Asked {
        self.dirty = true;
        if let Some(count) = self.requests.get_mut(usize::from(number)) {
            *count += 1;
        }
        match number {
            command::READ => self.bytes_read += u64::from(length),
            command::WRITE => self.bytes_written += u64::from(length),
            _ => {}
        }
        Asked { command: number, at }
    }

    /// Adds the duration of a request, which has its reply.
    pub(super) fn answered(&self, asked: Asked, now: Moment) {
        let nanoseconds = u64::try_from(now.since(asked.at).as_nanos()).unwrap_or(u64::MAX);
        self.volume.took(usize::from(asked.command), nanoseconds);
    }

    pub(super) fn error(&mut self) {
        self.dirty = true;
        self.errors += 1;
    }

    /// Adds the session's counts to the shared counters.
    pub(super) fn tell(&mut self) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let (shared, volume) = (&self.shared, &self.volume);
        for (number, count) in self.requests.iter_mut().enumerate() {
            tell(count, &shared.requests[number], &volume.requests[number]);
        }
        tell(&mut self.bytes_read, &shared.bytes_read, &volume.read_bytes);
        tell(&mut self.bytes_written, &shared.bytes_written, &volume.written_bytes);
        tell(&mut self.errors, &shared.errors, &volume.errors);
    }
}

impl Drop for Meters {
    fn drop(&mut self) {
        self.tell();
    }
}

fn tell(count: &mut u64, counter: &Counter, volume: &AtomicU64) {
    if *count > 0 {
        volume.fetch_add(*count, Ordering::Relaxed);
        counter.increment(std::mem::take(count));
    }
}
