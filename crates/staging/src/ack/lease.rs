//! The lease for reads. A node whose log has copies elsewhere may be replaced there while it lives:
//! it reads only while each holder of copies has promised not to take over yet.
//!
//! A volume whose changes are on this machine alone is not served by a successor, and needs no
//! lease.

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
    /// Rung when the end changes.
    changed: Notify,
}

const FOR_EVER: u64 = u64::MAX;

impl Lease {
    /// A lease without an end.
    #[must_use]
    pub fn for_ever() -> Arc<Lease> {
        Arc::new(Lease { end: AtomicU64::new(FOR_EVER), changed: Notify::new() })
    }

    /// A lease that has not begun.
    #[must_use]
    pub fn not_yet() -> Arc<Lease> {
        Arc::new(Lease { end: AtomicU64::new(0), changed: Notify::new() })
    }

    /// Sets the end; `None`: there is none.
    pub fn set(&self, end: Option<Moment>) {
        let nanoseconds = |moment: Moment| u64::try_from(moment.0.as_nanos()).unwrap_or(0);
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

    async fn wait(&self, env: &Env) {
        loop {
            let changed = self.changed.notified();
            if self.holds(env) {
                return;
            }
            changed.await;
        }
    }
}

impl Inner {
    /// Waits for the lease.
    pub(crate) async fn leased(&self) {
        self.config.lease.wait(&self.env).await;
    }

    /// Whether the lease holds now.
    pub(crate) fn is_leased(&self) -> bool {
        self.config.lease.holds(&self.env)
    }
}
