//! Retries: pauses that double, with a random part, until a budget of time is spent.

use rekindle_env::{Env, Moment};
use std::time::Duration;

/// The pauses and the time budget of a series of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// The time after the first attempt from which no new attempt starts.
    pub budget: Duration,
}

impl Policy {
    /// The policy of calls that are safe to repeat.
    pub const CALLS: Policy = Policy {
        first: Duration::from_millis(20),
        longest: Duration::from_secs(2),
        budget: Duration::from_secs(30),
    };
    /// The policy of conditional writes of records, on top of [`Policy::CALLS`].
    pub const RECORDS: Policy = Policy {
        first: Duration::from_millis(5),
        longest: Duration::from_secs(1),
        budget: Duration::from_secs(20),
    };
}

/// One series of attempts.
pub(crate) struct Backoff<'a> {
    env: &'a Env,
    policy: Policy,
    started: Moment,
    pause: Duration,
}

impl<'a> Backoff<'a> {
    /// Starts the clock.
    pub(crate) fn new(env: &'a Env, policy: Policy) -> Self {
        Self { env, policy, started: env.now(), pause: policy.first }
    }

    /// Pauses before the next attempt; returns `false` at once when the budget is spent.
    pub(crate) async fn pause(&mut self) -> bool {
        // Between a half and the whole, so that writers that collided once do not collide again.
        let half = self.pause / 2;
        let span = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
        let pause = half + Duration::from_micros(self.env.random_u64() % span);
        if self.env.now().since(self.started) + pause > self.policy.budget {
            return false;
        }
        self.env.sleep(pause).await;
        self.pause = (self.pause * 2).min(self.policy.longest);
        true
    }
}
