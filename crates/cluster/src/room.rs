//! The budget of a holder: bytes of all copies together.

use parking_lot::Mutex;
use rekindle_base::units::format_size;
use std::sync::Arc;

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
