//! Shared means of all runs: a random sequence of their own, and many actors in one task.

use rekindle_env::BoxFuture;
use std::task::Poll;

/// Random sequence of a run, apart from the world's, so that a change in the system does not change
/// the scenario.
pub struct Dice(u64);

impl Dice {
    /// Creates the sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut dice = Self(seed ^ 0x9e37_79b9_7f4a_7c15);
        dice.next();
        dice
    }

    /// Creates a sequence whose state is `number`, unmixed.
    #[must_use]
    pub fn plain(number: u64) -> Self {
        Self(number)
    }

    /// Creates a sequence for another actor.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    /// Draws any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) ^ (self.0 >> 11)
    }

    /// Draws a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Runs futures side by side in one task, until all have ended or one has failed.
pub async fn join(mut parts: Vec<BoxFuture<'static, Result<(), String>>>) -> Result<(), String> {
    std::future::poll_fn(move |context| {
        let mut failed = None;
        parts.retain_mut(|part| match part.as_mut().poll(context) {
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(why)) => {
                failed = Some(why);
                false
            }
            Poll::Pending => true,
        });
        match failed {
            Some(why) => Poll::Ready(Err(why)),
            None if parts.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    })
    .await
}
