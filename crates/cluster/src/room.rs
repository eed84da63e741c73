//! The budget of a holder: bytes of all copies together; and the speed of its flash.

use crate::limits::SPEED_BYTES_MIN;
use parking_lot::Mutex;
use rekindle_base::units::format_size;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The bytes that copies may take, and those that they take.
pub(crate) struct Room {
    budget: u64,
    taken: Mutex<u64>,
}

/// The bytes of one file; given back on drop.
pub(crate) struct Share {
    room: Arc<Room>,
    bytes: u64,
}

impl Room {
    pub(crate) fn new(budget: u64) -> Arc<Room> {
        Arc::new(Room { budget, taken: Mutex::new(0) })
    }

    /// Takes room for a new file.
    pub(crate) fn take(self: &Arc<Self>, bytes: u32) -> Result<Share, String> {
        let mut taken = self.taken.lock();
        let bytes = u64::from(bytes);
        if *taken + bytes > self.budget {
            return Err(format!(
                "no room for another copy: copies take {} of {} here; raise the holder's --hold-budget",
                format_size(*taken),
                format_size(self.budget)
            ));
        }
        *taken += bytes;
        Ok(Share { room: Arc::clone(self), bytes })
    }

    /// Bytes that copies take, and that they may take.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (*self.taken.lock(), self.budget)
    }

    /// Counts a file that is there.
    pub(crate) fn found(self: &Arc<Self>, bytes: u64) -> Share {
        *self.taken.lock() += bytes;
        Share { room: Arc::clone(self), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        *self.room.taken.lock() -= self.bytes;
    }
}

/// The measured speed of durable writes: a moving average.
#[derive(Default)]
pub(crate) struct Speed(AtomicU64);

impl Speed {
    /// Notes that so many bytes took that time.
    pub(crate) fn measured(&self, bytes: usize, time: Duration) {
        if bytes < SPEED_BYTES_MIN {
            // A small write measures the wait for the medium, not its speed.
            return;
        }
        let nanoseconds = time.as_nanos().max(1);
        let found = bytes as u128 * 1_000_000_000 / nanoseconds;
        let found = u64::try_from(found).unwrap_or(u64::MAX);
        // Two samples at once may lose one of them, which an average can bear.
        let average = match self.0.load(Ordering::Relaxed) {
            0 => found,
            old => old - old / 8 + found / 8,
        };
        self.0.store(average, Ordering::Relaxed);
    }

    /// Bytes per second; 0: not known.
    pub(crate) fn bytes_per_second(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
