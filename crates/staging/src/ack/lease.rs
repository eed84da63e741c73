//! The lease for reads. A node whose log has copies elsewhere may be replaced there while it lives:
//! it reads only while each holder of copies has promised not to take over yet.
//!
//! A volume whose changes are on this machine alone is not served by a successor, unless a user
//! gives up what that one lacks. So it goes on without a lease for as long as this life *stands*:
//! the store was asked a moment ago, and knows of no other life, or it does not answer. A process
//! that stood still asks before it reads or acknowledges anything.

use crate::Inner;
use rekindle_env::{Env, Moment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// The time for which no other life of the node can serve its volumes.
#[derive(Debug)]
pub struct Lease {
    /// Its end, nanoseconds of the monotonic clock; [`FOR_EVER`]: no other node may take over.
    end: AtomicU64,
    /// The moment up to which this life stands without a lease, nanoseconds.
    stands: AtomicU64,
    /// Rung when one of them changes.
    changed: Notify,
}

const FOR_EVER: u64 = u64::MAX;

impl Lease {
    /// A lease without an end.
    #[must_use]
    pub fn for_ever() -> Arc<Lease> {
        Self::until(FOR_EVER)
    }

    /// A lease that has not begun.
    #[must_use]
    pub fn not_yet() -> Arc<Lease> {
        Self::until(0)
    }

    fn until(end: u64) -> Arc<Lease> {
        let (end, stands) = (AtomicU64::new(end), AtomicU64::new(0));
        Arc::new(Lease { end, stands, changed: Notify::new() })
    }

    /// Sets the end; `None`: there is none.
    pub fn set(&self, end: Option<Moment>) {
        self.end.store(end.map_or(FOR_EVER, nanoseconds), Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Whether the lease holds now. Without an end, it asks no clock.
    #[must_use]
    pub fn holds(&self, env: &Env) -> bool {
        match self.end.load(Ordering::Acquire) {
            FOR_EVER => true,
            end => env.now().0 < Duration::from_nanos(end),
        }
    }

    /// Notes that no other life of the node is known, and that this one stands until `end`, lease
    /// or not.
    pub fn stand(&self, end: Moment) {
        self.stands.fetch_max(nanoseconds(end), Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    /// Whether this life stands now: it has a lease, or no other life was known a moment ago.
    #[must_use]
    pub fn stands(&self, env: &Env) -> bool {
        let is_known = || env.now().0 < Duration::from_nanos(self.stands.load(Ordering::Acquire));
        self.holds(env) || is_known()
    }

    /// Waits until the lease does not hold.
    pub async fn lapses(&self, env: &Env) {
        loop {
            let changed = self.changed.notified();
            match self.end.load(Ordering::Acquire) {
                FOR_EVER => changed.await,
                end => match Duration::from_nanos(end).checked_sub(env.now().0) {
                    Some(left) if !left.is_zero() => _ = env.timeout(left, changed).await,
                    _ => return,
                },
            }
        }
    }

    async fn wait(&self, holds: impl Fn() -> bool) {
        loop {
            let changed = self.changed.notified();
            if holds() {
                return;
            }
            changed.await;
        }
    }
}

fn nanoseconds(moment: Moment) -> u64 {
    u64::try_from(moment.0.as_nanos()).unwrap_or(0)
}

impl Inner {
    /// Whether no other life of the node serves volumes now: by the lease, or as this life stands.
    pub(crate) fn may_go_on(&self, needs_lease: bool) -> bool {
        let lease = &self.config.lease;
        if needs_lease { lease.holds(&self.env) } else { lease.stands(&self.env) }
    }

    /// Waits for that.
    pub(crate) async fn goes_on(&self, needs_lease: bool) {
        self.config.lease.wait(|| self.may_go_on(needs_lease)).await;
    }
}
