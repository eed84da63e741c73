//! The fence, as pure decisions: state and event in, state and commands out. No clock, no I/O. The
//! drivers ([`crate::owner`], [`crate::watch`]) and the model (`tests/fence.rs`) run this code.
//!
//! - [`owner`]: a life whose log has copies: which holders its writes need, which of them the
//!   node's record names, and how long its reads may go on.
//! - [`holder`]: the copies of one node's log: leases, suspicion, and the takeover.
//! - [`choice`]: the best of a few holders that were drawn.
//!
//! `docs/notes/fencing.md` has the argument why two lives never serve a volume at one time.

pub mod choice;
pub mod holder;
pub mod owner;

use std::time::Duration;

/// The times of the fence. All nodes of a cluster may have others, but for `lease`, which each beat
/// names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pace {
    /// Pause between two beats.
    pub beat: Duration,
    /// The lease that a beat asks for, from the moment of asking.
    pub lease: Duration,
    /// Silence after which an owner replaces a holder. Shorter than the lease, so that reads go on.
    pub replace: Duration,
    /// Time after which an owner does without a required holder that has made no progress.
    pub lag: Duration,
    /// Time for a holder that the record names to get all of a new life's log.
    pub whole: Duration,
    /// Silence after which a holder knocks at its owner's address, and the pause between two
    /// knocks.
    pub knock: Duration,
    /// Silence after which a holder suspects its owner, if a process may be there.
    pub suspect: Duration,
    /// The further patience of each later holder in the record's order.
    pub turn: Duration,
    /// Silence after which a holder takes over although another one hears the owner.
    pub insist: Duration,
    /// Silence of an owner that has not been heard since the holder's process began: after a power
    /// cut, the hosts of a cluster come back one after the other.
    pub cold: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        use crate::limits::*;
        Self {
            beat: BEAT,
            lease: LEASE,
            replace: REPLACE_AFTER,
            lag: LAG_MAX,
            whole: WHOLE_WITHIN,
            knock: KNOCK_AFTER,
            suspect: SUSPECT_AFTER,
            turn: TURN,
            insist: INSIST_AFTER,
            cold: COLD_AFTER,
        }
    }
}

impl Pace {
    /// The length of a lease at the holder that grants it, from the moment of granting: longer, for
    /// clocks that run at different rates.
    #[must_use]
    pub fn granted(lease: Duration) -> Duration {
        let lease = lease.min(crate::limits::LEASE_MAX);
        lease + lease / crate::limits::DRIFT_PART
    }
}
