//! The clocks of the operating system.
#![expect(
    clippy::disallowed_methods,
    reason = "this is what Env::now, Env::wall_clock and Env::sleep are made of"
)]

use crate::{BoxFuture, Clock, Moment, Timestamp};
use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime;

/// Longest sleep; a longer one is cut to this, so that sums of times stay in range.
const SLEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The moment at which this process first asked for the time, by [`since_boot`].
static START: OnceLock<Duration> = OnceLock::new();

/// Makes this moment [`Moment`] zero of every environment made from now on. The first instruction
/// of `main` calls it.
pub fn first_instruction() {
    START.get_or_init(since_boot);
}

/// Time since the machine was started, sleep included; the same clock in every process.
#[must_use]
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Time from the birth of this process to [`Moment`] zero, and one word for the source of that
/// knowledge. The time is exact when the parent tells the birth (by [`since_boot`]). Otherwise it
/// is as the kernel tells it, to the length of a tick (10 ms as a rule).
#[must_use]
pub fn before_first_instruction(born: Option<Duration>) -> Option<(Duration, &'static str)> {
    let first = *START.get()?;
    match born {
        Some(born) => Some((first.checked_sub(born)?, "supervisor")),
        None => {
            let ticks = start_ticks(&std::fs::read_to_string("/proc/self/stat").ok()?)?;
            let rate = rustix::param::clock_ticks_per_second();
            let born = Duration::from_nanos(ticks.checked_mul(1_000_000_000)?.checked_div(rate)?);
            Some((first.checked_sub(born)?, "kernel"))
        }
    }
}

/// Field 22 of `/proc/PID/stat`. Field 2 is a name that may hold any character, and ends at the
/// last parenthesis.
fn start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

pub(super) struct RealClock {
    start: Duration,
}

impl RealClock {
    pub(super) fn new() -> Self {
        Self { start: *START.get_or_init(since_boot) }
    }
}

impl Clock for RealClock {
    // The clock that goes on while the machine sleeps: a lease must not outlast its time.
    fn now(&self) -> Moment {
        Moment(since_boot().saturating_sub(self.start))
    }

    fn wall_clock(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let deadline = tokio::time::Instant::now() + duration.min(SLEEP_MAX);
        Box::pin(Sleep { deadline, timer: None })
    }
}

/// A sleep that any task may poll, and another one after it. A tokio timer belongs to the runtime
/// in which it is made, which may be that of a session, and ends with it.
struct Sleep {
    deadline: tokio::time::Instant,
    /// The timer, and the runtime that it belongs to.
    timer: Option<(runtime::Id, Pin<Box<tokio::time::Sleep>>)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let here = runtime::Handle::current().id();
        let timer = match this.timer.take() {
            Some((runtime, timer)) if runtime == here => timer,
            _ => Box::pin(tokio::time::sleep_until(this.deadline)),
        };
        this.timer.insert((here, timer)).1.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_birth_of_a_process_is_found() {
        let line = "17 (a b) c) S 1 17 17 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        assert_eq!(start_ticks(line), Some(4242));
        assert_eq!(start_ticks("17 (cut"), None);
        first_instruction();
        let (_, by) = before_first_instruction(None).expect("Linux says");
        assert_eq!(by, "kernel");
        let (before, by) = before_first_instruction(Some(Duration::ZERO)).expect("said");
        assert_eq!(by, "supervisor");
        assert!(before <= since_boot());
        assert_eq!(before_first_instruction(Some(Duration::MAX)), None, "nobody is born later");
    }
}
