//! The clocks of the operating system.
#![expect(
    clippy::disallowed_methods,
    reason = "this is what Env::now, Env::wall_clock and Env::sleep are made of"
)]

use crate::{BoxFuture, Clock, Moment, Timestamp};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest sleep that is told apart from a longer one: keeps sums of times in range.
const SLEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// When this process first asked for the time.
static START: OnceLock<Instant> = OnceLock::new();

pub(super) struct RealClock {
    start: Instant,
}

impl RealClock {
    pub(super) fn new() -> Self {
        Self { start: *START.get_or_init(Instant::now) }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Moment {
        Moment(self.start.elapsed())
    }

    fn wall_clock(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let deadline = tokio::time::Instant::now() + duration.min(SLEEP_MAX);
        // A tokio timer belongs to the runtime in which it is made: make it where it is first polled, which may be
        // a session's thread.
        Box::pin(async move { tokio::time::sleep_until(deadline).await })
    }
}
