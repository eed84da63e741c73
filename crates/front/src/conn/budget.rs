//! Memory that sessions share. A session leases from it what it needs beyond its own share, first
//! come first served. Strangers (clients at a TCP port) together get a part of it, so they never
//! hold all of it.

use rekindle_env::Env;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Memory of all sessions of a protocol together, beyond their own shares, bytes. The node may set
/// another budget.
pub const BUDGET_BYTES_DEFAULT: usize = 256 << 20;
/// The unit of counting, bytes.
const UNIT_BYTES: usize = 1024;
/// Freed bytes after which the allocator is asked to return memory to the machine.
const TRIM_BYTES: usize = 32 << 20;
/// Quiet time before the allocator is asked.
const TRIM_PAUSE: Duration = Duration::from_secs(1);

/// A budget of bytes. Clones share it.
#[derive(Clone)]
pub struct Budget {
    inner: Arc<Inner>,
    /// Whether leases come out of the strangers' part.
    is_of_strangers: bool,
}

/// Units to lease, and the number of sessions that wait for some.
struct Pool {
    units_max: usize,
    units: Arc<Semaphore>,
    /// Number of waiting sessions.
    waiting: AtomicUsize,
}

struct Inner {
    all: Pool,
    /// The part of `all` that strangers may have.
    of_strangers: Pool,
    /// Bytes given back since the allocator was last asked.
    returned: AtomicUsize,
    /// Notified when `returned` reaches [`TRIM_BYTES`].
    much: Notify,
}

/// Bytes leased from a budget; given back on drop.
pub struct Lease {
    permit: OwnedSemaphorePermit,
    _of_strangers: Option<OwnedSemaphorePermit>,
    budget: Budget,
}

/// One waiting session; its drop ends the wait, however it ends.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

impl Pool {
    fn new(units_max: usize) -> Self {
        let units = Arc::new(Semaphore::new(units_max));
        Self { units_max, units, waiting: AtomicUsize::new(0) }
    }

    async fn acquire(&self, count: u32) -> OwnedSemaphorePermit {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let permit = self.units.clone().acquire_many_owned(count).await;
        permit.expect("the semaphore is never closed")
    }

    fn try_acquire(&self, count: u32) -> Option<OwnedSemaphorePermit> {
        self.units.clone().try_acquire_many_owned(count).ok()
    }

    fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

impl Budget {
    /// Makes a budget of `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let units_max = bytes_max.div_ceil(UNIT_BYTES);
        let inner = Inner {
            all: Pool::new(units_max),
            of_strangers: Pool::new(units_max.div_ceil(2)),
            returned: AtomicUsize::new(0),
            much: Notify::new(),
        };
        Self { inner: Arc::new(inner), is_of_strangers: false }
    }

    /// Returns the same budget for strangers: half of it is out of their reach.
    #[must_use]
    pub fn for_strangers(&self) -> Self {
        Self { is_of_strangers: true, ..self.clone() }
    }

    fn pool(&self) -> &Pool {
        if self.is_of_strangers { &self.inner.of_strangers } else { &self.inner.all }
    }

    /// Returns the most bytes that this budget can lend.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.pool().units_max * UNIT_BYTES
    }

    /// Returns the bytes that are lent now, from both parts.
    #[must_use]
    pub fn used(&self) -> usize {
        let all = &self.inner.all;
        (all.units_max - all.units.available_permits()) * UNIT_BYTES
    }

    /// Whether a session waits for bytes that were lent out of this budget.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.inner.all.is_wanted() || self.pool().is_wanted()
    }

    /// Leases `bytes` (or the whole budget, if that is less) when it is the caller's turn.
    pub fn lease(&self, bytes: usize) -> impl Future<Output = Lease> + Send + use<> {
        let budget = self.clone();
        async move {
            let count = units(bytes.min(budget.bytes_max()));
            // The strangers' part comes first: so the strangers in the queue of all ask for no more
            // than that.
            let of_strangers = match budget.is_of_strangers {
                true => Some(budget.inner.of_strangers.acquire(count).await),
                false => None,
            };
            let permit = budget.inner.all.acquire(count).await;
            Lease { permit, _of_strangers: of_strangers, budget }
        }
    }

    /// Leases `bytes`, if they are free and no session waits for them.
    #[must_use]
    pub fn try_lease(&self, bytes: usize) -> Option<Lease> {
        let count = units(bytes);
        let of_strangers = match self.is_of_strangers {
            true => Some(self.inner.of_strangers.try_acquire(count)?),
            false => None,
        };
        let permit = self.inner.all.try_acquire(count)?;
        Some(Lease { permit, _of_strangers: of_strangers, budget: self.clone() })
    }

    /// Notes freed memory that no lease counts.
    pub(crate) fn freed(&self, bytes: usize) {
        let before = self.inner.returned.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes >= TRIM_BYTES {
            self.inner.much.notify_one();
        }
    }

    /// Returns memory to the machine after a storm, because an allocator keeps what it once had.
    /// Never ends.
    pub(crate) async fn tend(&self, env: &Env) {
        loop {
            self.inner.much.notified().await;
            // It waits for quiet: memory that is freed now may be needed again in a moment.
            let mut before = 0;
            while self.used() > self.bytes_max() / 8
                || before != self.inner.returned.load(Ordering::Relaxed)
            {
                before = self.inner.returned.load(Ordering::Relaxed);
                env.sleep(TRIM_PAUSE).await;
            }
            self.inner.returned.store(0, Ordering::Relaxed);
            let memory = env.clone();
            env.blocking(move || memory.memory().trim()).await;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.freed(self.permit.num_permits() * UNIT_BYTES);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.permit.num_permits() * UNIT_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn bytes_go_to_who_came_first_and_come_back() {
        let budget = Budget::new(100 * UNIT_BYTES);
        let first = budget.lease(60 * UNIT_BYTES).now_or_never().expect("there is enough");
        assert_eq!(budget.used(), 60 * UNIT_BYTES);
        let mut large = Box::pin(budget.lease(80 * UNIT_BYTES));
        assert!(large.as_mut().now_or_never().is_none() && budget.is_wanted());
        assert!(budget.try_lease(UNIT_BYTES).is_none(), "not before the one who waits");
        let mut small = Box::pin(budget.lease(1));
        assert!(small.as_mut().now_or_never().is_none());
        drop(first);
        let large = large.as_mut().now_or_never().expect("its turn");
        let small = small.as_mut().now_or_never().expect("and the next one's");
        assert!(!budget.is_wanted());
        drop((large, small));
        assert_eq!(budget.used(), 0);
        let all = budget.lease(usize::MAX).now_or_never().expect("no more than there is");
        assert_eq!(budget.used(), budget.bytes_max());
        drop(all);
    }

    /// The trace of HydraFS's resource manager. There, a request is counted until it completes, and
    /// so are the objects that it takes; here a lease is both, so the third request fits at once.
    /// The order of those that wait is the same.
    #[test]
    fn the_golden_trace_of_hydrafs_counted_once() {
        let budget = Budget::new(10 * UNIT_BYTES);
        let ask = |units: usize| Box::pin(budget.lease(units * UNIT_BYTES));
        let used = || budget.used() / UNIT_BYTES;
        let first = ask(4).as_mut().now_or_never().expect("4 of 10");
        let second = ask(3).as_mut().now_or_never().expect("7 of 10");
        let third = ask(3).as_mut().now_or_never().expect("10 of 10");
        let (mut fourth, mut fifth) = (ask(6), ask(1));
        assert!(
            fourth.as_mut().now_or_never().is_none() && fifth.as_mut().now_or_never().is_none()
        );
        drop(second);
        assert!(fifth.as_mut().now_or_never().is_none(), "it would fit, and is not the first");
        assert_eq!(used(), 10, "what is free is kept for the one who waits");
        drop(third);
        let fourth = fourth.as_mut().now_or_never().expect("4 + 6");
        assert!(fifth.as_mut().now_or_never().is_none());
        drop(first);
        let fifth = fifth.as_mut().now_or_never().expect("6 + 1");
        assert_eq!(used(), 7);
        drop((fourth, fifth));
        assert_eq!(used(), 0);
    }

    #[test]
    fn who_gives_up_waiting_holds_nothing() {
        let budget = Budget::new(100 * UNIT_BYTES);
        let first = budget.lease(60 * UNIT_BYTES).now_or_never().expect("there is enough");
        let mut second = Box::pin(budget.lease(80 * UNIT_BYTES));
        assert!(second.as_mut().now_or_never().is_none());
        drop(second);
        assert!(!budget.is_wanted());
        drop(first);
        assert_eq!(budget.used(), 0);
    }
}
