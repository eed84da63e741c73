//! What goes wrong in a simulated world, and how slow it is.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Faults and delays. Probabilities are per operation, from 0.0 (never) to 1.0 (always).
#[derive(Debug, Clone)]
pub struct Faults {
    /// A read of a file fails.
    pub read_error: f64,
    /// A write of a file, or a change of a folder, fails; of a write a part may have been done.
    pub write_error: f64,
    /// A sync fails; each page it should have saved is then saved, or lost although later syncs succeed.
    pub sync_error: f64,
    /// A read succeeds with one wrong bit, while the medium is right.
    pub read_flip: f64,
    /// The disk operation of this number fails ([`super::World::disk_operations`] counts them, from 1).
    pub fail_operation: Option<u64>,
    /// Size of each host's disk, bytes; [`super::Host::set_disk_bytes`] changes it later.
    pub disk_bytes: u64,
    /// Size of each host's memory that may be mapped, bytes.
    pub memory_bytes: u64,
    /// How long a disk operation takes.
    pub disk_latency: RangeInclusive<Duration>,
    /// How long a message is under way.
    pub network_latency: RangeInclusive<Duration>,
    /// A read or write of a stream moves fewer bytes than it could.
    pub short_transfer: f64,
}

impl Faults {
    /// Delays only; streams still deliver in pieces, as streams may.
    #[must_use]
    pub fn none() -> Self {
        Self {
            read_error: 0.0,
            write_error: 0.0,
            sync_error: 0.0,
            read_flip: 0.0,
            fail_operation: None,
            disk_bytes: 1 << 40,
            memory_bytes: 1 << 34,
            disk_latency: Duration::from_micros(10)..=Duration::from_micros(500),
            network_latency: Duration::from_micros(20)..=Duration::from_millis(1),
            short_transfer: 0.25,
        }
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::none()
    }
}
