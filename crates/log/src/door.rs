//! The door of the log: bounds the bytes that streams have between memory and flash.
//!
//! Flash gets the bytes in the order of appends, a batch as a whole. So a small write waits for all
//! that was appended before it. At the door, a caller that has little under way is let in at once.
//! Any other is let in while few bytes are uncommitted; else it queues for a [`Quantum`], first
//! come first served. Each quantum has as many bytes as any other, whatever the length of the
//! writes.
//!
//! A caller that stays outside costs no memory: a session leaves its client's bytes in the socket.

use crate::limits::{AHEAD_BYTES_MAX, QUANTUM_BYTES, UNDER_WAY_BYTES_FREE};
use crate::{Log, Position};
use std::sync::Arc;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// The queue of the callers that wait for a quantum.
#[derive(Default)]
pub(crate) struct Door {
    queue: Arc<Mutex<()>>,
}

/// The right to append some bytes before any other caller of the queue. Dropped as soon as the
/// caller has nothing more to append.
pub struct Quantum {
    left: u64,
    /// `None`: there is no queue.
    _first: Option<OwnedMutexGuard<()>>,
}

impl Quantum {
    /// A quantum of a caller that did not have to queue.
    #[must_use]
    pub fn free() -> Quantum {
        Quantum { left: QUANTUM_BYTES, _first: None }
    }

    /// Takes `bytes` of the quantum; `false` when fewer are left. A whole quantum has room for
    /// anything: else a long change would wait for ever.
    pub fn take(&mut self, bytes: u64) -> bool {
        let has_room = bytes <= self.left || self.left == QUANTUM_BYTES;
        if has_room {
            self.left = self.left.saturating_sub(bytes);
        }
        has_room
    }
}

/// Whether a caller with `under_way` bytes on their way to flash may append `bytes` more without a
/// quantum. `is_clear` tells whether few bytes are uncommitted and no caller queues.
fn admits(under_way: u64, bytes: u64, is_clear: impl FnOnce() -> bool) -> bool {
    under_way + bytes <= UNDER_WAY_BYTES_FREE || is_clear()
}

impl Log {
    /// Whether a caller that waits for flash may append `bytes` now. `under_way`: what it has
    /// appended before and flash lacks, as far as it knows. If not, the caller waits for
    /// [`Log::quantum`]. [`Log::append`] does not ask.
    #[must_use]
    pub fn admits(&self, under_way: u64, bytes: u64) -> bool {
        let inner = &*self.inner;
        admits(under_way, bytes, || {
            inner.uncommitted_bytes() <= AHEAD_BYTES_MAX && inner.door.queue.try_lock().is_ok()
        })
    }

    /// Waits until the caller is the first of the queue, and few bytes are uncommitted of all that
    /// was appended before. What is appended meanwhile does not count: callers with little under
    /// way could keep a stream outside for ever. The calling task may become the flush leader. In
    /// a log that has ended the quantum comes at once: the append tells the reason.
    pub async fn quantum(&self) -> Quantum {
        let inner = &*self.inner;
        let first = Arc::clone(&inner.door.queue).lock_owned().await;
        let enough = Position(inner.appended().0.saturating_sub(AHEAD_BYTES_MAX));
        let _ = inner.commit(enough).await;
        Quantum { left: QUANTUM_BYTES, _first: Some(first) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_with_little_under_way_is_let_in_whatever_the_others_have() {
        let crowded = || false;
        for (under_way, bytes, is_admitted) in [
            (0, 4096, true),
            (0, UNDER_WAY_BYTES_FREE, true),
            (UNDER_WAY_BYTES_FREE - 4096, 4096, true),
            (UNDER_WAY_BYTES_FREE, 1, false),
            (0, UNDER_WAY_BYTES_FREE + 1, false),
        ] {
            assert_eq!(admits(under_way, bytes, crowded), is_admitted, "{under_way} {bytes}");
            assert!(admits(under_way, bytes, || true));
        }
    }

    #[test]
    fn quanta_have_as_many_bytes_whatever_the_length_of_the_writes() {
        for (bytes, count) in
            [(4096, QUANTUM_BYTES / 4096), (QUANTUM_BYTES / 2 + 1, 1), (QUANTUM_BYTES, 1)]
        {
            let mut quantum = Quantum::free();
            let taken = (0..1000).take_while(|_| quantum.take(bytes)).count();
            assert_eq!(taken as u64, count, "{bytes}");
        }
        let mut quantum = Quantum::free();
        assert!(quantum.take(2 * QUANTUM_BYTES), "a change that is longer than any quantum");
        assert!(!quantum.take(1));
    }
}
