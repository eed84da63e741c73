//! A volume's place in the destager's ring, and the outcome of its last batches.

use crate::ack::flow::Drain;
use crate::destage::plan::Due;
use crate::{Error, limits};
use rekindle_env::Moment;
use std::time::Duration;

/// The signal of a write to the destager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// No signal.
    No,
    /// The volume has changes to destage, and had none before.
    Join,
    /// The volume is due.
    Wake,
}

/// The destager's pause after an error.
#[derive(Debug, Clone, Copy, Default)]
struct Pause {
    until: Moment,
    length: Duration,
}

/// The state of a volume's destaging.
#[derive(Default)]
pub(crate) struct Destaging {
    /// Whether the volume is in the destager's ring, or being destaged.
    ringed: bool,
    /// Whether the destager was told that there is work.
    told: bool,
    /// The speed so far.
    pub(crate) drain: Drain,
    pause: Pause,
    /// Error of the last attempt, if it failed.
    pub(crate) error: Option<String>,
    /// Acknowledged changes that cannot be read back.
    pub(crate) lost: Option<Error>,
}

impl Destaging {
    /// Decides whether the destager has to know of new changes: only when its decision changes,
    /// since telling costs.
    pub(crate) fn note(&mut self, is_due: impl FnOnce() -> bool) -> Wakeup {
        debug_assert!(self.ringed || !self.told, "the destager reads the ring only");
        let was_ringed = std::mem::replace(&mut self.ringed, true);
        if was_ringed && (self.told || !is_due()) {
            return Wakeup::No;
        }
        self.told = true;
        if was_ringed { Wakeup::Wake } else { Wakeup::Join }
    }

    /// Notes what the destager has decided: it knows of all changes so far.
    pub(crate) fn looked(&mut self, due: Due) {
        self.told = matches!(due, Due::Now | Due::ByAge);
        self.ringed = due != Due::Never;
    }

    /// Lets the next change be told, whatever the destager knows already.
    pub(crate) fn tell_again(&mut self) {
        self.told = false;
    }

    /// The rest of the pause after an error.
    pub(crate) fn pause(&self, now: Moment) -> Duration {
        self.pause.until.since(now)
    }

    /// Returns the error for a caller that waits for the datastore, if changes are lost.
    pub(crate) fn loses_nothing(&self) -> Result<(), Error> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// The reason why changes do not reach the datastore, for users.
    pub(crate) fn problem(&self) -> Option<String> {
        self.lost.as_ref().map(ToString::to_string).or_else(|| self.error.clone())
    }

    /// Notes a batch that reached the store, or found nothing to do.
    pub(crate) fn succeeded(&mut self) {
        (self.pause, self.error, self.lost) = Default::default();
    }

    /// Notes a batch that did not reach the store. Returns the pause before the next attempt.
    pub(crate) fn failed(&mut self, error: &Error, now: Moment) -> Duration {
        let length = (self.pause.length * 2).clamp(limits::BACKOFF_MIN, limits::BACKOFF_MAX);
        self.pause = Pause { until: now + length, length };
        self.error = Some(error.to_string());
        length
    }
}
