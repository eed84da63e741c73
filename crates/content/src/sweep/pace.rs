//! The share of the machine that a sweep may take.

use crate::Error;
use parking_lot::Mutex;
use rekindle_env::{Env, Moment};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The budget of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// As fast as it goes.
    Unlimited,
    /// So many bytes read and written per second.
    BytesPerSecond(u64),
    /// So many percent of the time; the sweep rests in between.
    Percent(u32),
}

/// Longest rest between two looks for a stop. Also the longest rest of [`Budget::Percent`]: the
/// time since the last call may be a wait for other nodes, and no work.
const REST_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Pace {
    env: Env,
    budget: Budget,
    worked_from: Mutex<Moment>,
    stop: Arc<AtomicBool>,
}

impl Pace {
    /// Creates a pace. `stop` ends the sweep at its next rest.
    pub(crate) fn new(env: &Env, budget: Budget, stop: Arc<AtomicBool>) -> Self {
        Self { env: env.clone(), budget, worked_from: Mutex::new(env.now()), stop }
    }

    /// Rests for what was done since the last call: `bytes` were read or written.
    pub(crate) async fn spend(&self, bytes: u64) -> Result<(), Error> {
        let now = self.env.now();
        let worked = now.since(*self.worked_from.lock());
        let rest = match self.budget {
            Budget::Unlimited => Duration::ZERO,
            Budget::BytesPerSecond(rate) => {
                let due = Duration::from_micros(bytes.saturating_mul(1_000_000) / rate.max(1));
                due.saturating_sub(worked)
            }
            Budget::Percent(percent) => {
                let percent = percent.clamp(1, 100);
                (worked * (100 - percent) / percent).min(REST_MAX)
            }
        };
        let until = self.env.now() + rest;
        loop {
            let left = until.since(self.env.now());
            if left.is_zero() || self.stop.load(Ordering::Relaxed) {
                break;
            }
            self.env.sleep(left.min(REST_MAX)).await;
        }
        *self.worked_from.lock() = self.env.now();
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::Stopped("a user asked for it".into())),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_env::sim::{Faults, World};

    #[test]
    fn the_budget_is_kept() {
        let world = World::new(1, Faults::none());
        let env = world.env();
        world.block_on(async move {
            for (budget, bytes, expected) in [
                (Budget::Unlimited, 1 << 40, 0..1),
                (Budget::BytesPerSecond(1000), 2000, 1990..2010),
                (Budget::BytesPerSecond(1000), 40_000, 39_990..40_010),
                (Budget::Percent(25), 0, 395..405),
                (Budget::Percent(0), 0, 4990..5200),
            ] {
                let pace = Pace::new(&env, budget, Arc::default());
                if matches!(budget, Budget::Percent(_)) {
                    env.sleep(Duration::from_millis(100)).await;
                }
                let begin = *pace.worked_from.lock();
                pace.spend(bytes).await.unwrap();
                let took = env.now().since(begin).as_millis();
                assert!(expected.contains(&took), "{budget:?}: {took}");
            }
        });
    }

    #[test]
    fn a_stop_ends_a_long_rest() {
        let world = World::new(2, Faults::none());
        let env = world.env();
        world.block_on(async move {
            let stop = Arc::new(AtomicBool::new(false));
            let pace = Pace::new(&env, Budget::BytesPerSecond(1), stop.clone());
            let begin = env.now();
            env.spawn("stop", {
                let env = env.clone();
                async move {
                    env.sleep(Duration::from_secs(12)).await;
                    stop.store(true, Ordering::Relaxed);
                }
            });
            assert!(pace.spend(1 << 20).await.is_err());
            assert!(env.now().since(begin) < Duration::from_secs(12) + REST_MAX);
        });
    }
}
