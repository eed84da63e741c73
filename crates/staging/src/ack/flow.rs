//! Flow control: holds acknowledgements back so that writes come in as fast as they drain. Pure.
//!
//! Three measures are watched: the count of unfinished changes, the bytes that they take of the
//! volume's share, and the time that they will take to destage. The fullest of the three is the
//! *pressure*. The delay is a multiple of the latency of one store operation: nothing up to half,
//! once that latency at six tenths, four times near full. (FVP begins with a jump to one latency.
//! The ramp lets the delay settle where arrivals match the drain, instead of swinging around the
//! threshold.) The write itself is safe before the delay begins; only its acknowledgement waits.

use crate::limits;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Pressure at which delays begin.
const BEGIN: f64 = 0.50;
/// Pressure at which the delay is one latency.
const ONCE: f64 = 0.60;
/// Pressure at which the delay is at its most.
const FULL: f64 = 0.95;
/// The most, in latencies.
const FACTOR_MAX: f64 = 4.0;

/// The unfinished changes, and their bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) changes: u64,
    pub(crate) changes_max: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_max: u64,
    /// Expected time to destage all of it, if known.
    pub(crate) eta: Option<Duration>,
    pub(crate) eta_max: Duration,
}

impl Load {
    /// The fullest of the three measures, as a fraction.
    pub(crate) fn pressure(&self) -> f64 {
        let part = |value: u64, max: u64| value as f64 / max.max(1) as f64;
        let time =
            self.eta.map_or(0.0, |eta| eta.as_secs_f64() / self.eta_max.as_secs_f64().max(1e-9));
        part(self.changes, self.changes_max).max(part(self.bytes, self.bytes_max)).max(time)
    }

    /// The delay of an acknowledgement now. The test for no delay costs no division, because each
    /// write asks.
    pub(crate) fn delay(&self, latency: Duration) -> Duration {
        let idle = self.changes.saturating_mul(2) <= self.changes_max
            && self.bytes.saturating_mul(2) <= self.bytes_max
            && self.eta.is_none_or(|eta| eta * 2 <= self.eta_max);
        if idle {
            return Duration::ZERO;
        }
        latency.min(limits::LATENCY_MAX).mul_f64(factor(self.pressure()))
    }
}

/// Delay in latencies at a pressure.
pub(crate) fn factor(pressure: f64) -> f64 {
    if pressure <= BEGIN {
        0.0
    } else if pressure <= ONCE {
        (pressure - BEGIN) / (ONCE - BEGIN)
    } else {
        (1.0 + (pressure - ONCE) / (FULL - ONCE) * (FACTOR_MAX - 1.0)).min(FACTOR_MAX)
    }
}

/// A volume's part in the budget of flash.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// Unfinished bytes of this volume, with what was promised to waiting writes.
    pub(crate) bytes: u64,
    /// Unfinished bytes of all volumes.
    pub(crate) total: u64,
    /// The budget of all volumes.
    pub(crate) flash_bytes: u64,
    /// Volumes with unfinished changes, this one included.
    pub(crate) volumes: u64,
}

impl Share {
    /// The fair share of the volume.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.flash_bytes / self.volumes.max(1)
    }

    /// Whether a write of `cost` bytes may come in. Full means really full: a volume above its
    /// share goes on (slowed down by flow control) until nearly all flash is taken, one below its
    /// share until all is. The first write to an empty flash is always let in, so that a change
    /// larger than the budget does not wait for ever.
    pub(crate) fn has_room(&self, cost: u64) -> bool {
        if self.bytes == 0 && self.total == 0 {
            return true;
        }
        let total = self.total + cost;
        if total > self.flash_bytes {
            return false;
        }
        self.bytes + cost <= self.bytes_max()
            || total <= self.flash_bytes / 100 * limits::SHARED_PERCENT
    }
}

/// A moving average.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Average(Option<f64>);

/// Weight of a new sample.
const WEIGHT: f64 = 0.25;

impl Average {
    pub(crate) fn add(&mut self, sample: f64) {
        self.0 = Some(self.0.map_or(sample, |value| value + (sample - value) * WEIGHT));
    }
    pub(crate) fn get(&self) -> Option<f64> {
        self.0
    }
}

/// The speed at which a volume drains.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Drain {
    /// Seconds per batch.
    batch: Average,
    /// Bytes per second, of batches large enough to tell.
    rate: Average,
}

impl Drain {
    /// Adds a batch of `bytes` that took `time`; it could have had `bytes_max`. A small batch is
    /// nearly all latency, and says nothing about the rate of large ones.
    pub(crate) fn add(&mut self, bytes: u64, bytes_max: u64, time: Duration) {
        let seconds = time.as_secs_f64().max(1e-6);
        self.batch.add(seconds);
        if bytes >= bytes_max / 4 {
            self.rate.add(bytes as f64 / seconds);
        }
    }

    /// Expected time to destage `bytes` in batches of `bytes_max`, once a batch was measured.
    pub(crate) fn eta(&self, bytes: u64, bytes_max: u64) -> Option<Duration> {
        if bytes == 0 {
            return Some(Duration::ZERO);
        }
        let batch = self.batch.get()?;
        let seconds = match self.rate.get() {
            Some(rate) if bytes > bytes_max => (bytes as f64 / rate).max(batch),
            _ => batch * bytes.div_ceil(bytes_max.max(1)) as f64,
        };
        // A year is as good as for ever, and a `Duration` can hold it.
        Some(Duration::from_secs_f64(seconds.min(3.2e7)))
    }
}
