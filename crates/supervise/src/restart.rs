//! The time at which a dead worker is replaced: at once, unless workers keep dying.

use std::time::Duration;

/// A worker with a shorter life died of its start.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// Shortest wait between tries that is not zero.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Longest wait between tries.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A count of short lives.
#[derive(Debug, Default)]
pub struct Restarts {
    short_lives: u32,
}

impl Restarts {
    /// Counts a worker that died after `life`; returns the wait before the next one.
    ///
    /// Two short lives are forgiven, so that a worker killed twice in quick succession comes back
    /// at once both times.
    pub fn wait_after(&mut self, life: Duration) -> Duration {
        if life >= SHORT_LIFE {
            self.short_lives = 0;
            return Duration::ZERO;
        }
        self.short_lives += 1;
        self.wait()
    }

    /// Counts a worker that could not even be started; returns the wait before the next try, never
    /// zero.
    pub fn wait_after_failure(&mut self) -> Duration {
        self.short_lives += 1;
        self.wait().max(FIRST_WAIT)
    }

    fn wait(&self) -> Duration {
        match self.short_lives {
            0..=2 => Duration::ZERO,
            many => (FIRST_WAIT * 2u32.saturating_pow(many - 3)).min(LONGEST_WAIT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_worker_that_keeps_dying_waits() {
        let mut restarts = Restarts::default();
        let short = Duration::from_millis(50);
        assert_eq!(restarts.wait_after(short), Duration::ZERO);
        assert_eq!(restarts.wait_after(short), Duration::ZERO);
        assert_eq!(restarts.wait_after(short), Duration::from_millis(100));
        assert_eq!(restarts.wait_after(short), Duration::from_millis(200));
        for _ in 0..40 {
            restarts.wait_after(short);
        }
        assert_eq!(restarts.wait_after(short), LONGEST_WAIT);
        assert_eq!(restarts.wait_after(Duration::from_secs(2)), Duration::ZERO);
        assert_eq!(restarts.wait_after(short), Duration::ZERO);
    }
}
