//! Volumes in a transitional state, and the watchdog that reports those which stay there.
//!
//! A transitional state always ends: with its task, or by the guard if the task is dropped. Only a
//! task that waits in vain can hold it. The task notes what it waits for, and this module shows the
//! note to users.

use crate::limits;
use crate::registry::Inner;
use crate::registry::entry::Entry;
use crate::registry::machine::State;
use rekindle_env::Moment;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A volume in a transitional state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Transitional {
    pub volume: String,
    pub state: State,
    /// Time in the state.
    pub age_ms: u64,
    /// The cause of the state.
    pub cause: String,
    /// The wait of its task, in words.
    pub waits_for: String,
    /// Time of that wait.
    pub step_ms: u64,
    /// Clients and others that wait for the state to end.
    pub waiting: u64,
}

/// Volumes that are in a transitional state for longer than they should.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Stuck {
    /// The oldest first, bounded to one answer.
    pub volumes: Vec<Transitional>,
    /// Number of all of them.
    pub total: u64,
}

impl Transitional {
    /// Puts it into a sentence for users.
    #[must_use]
    pub fn sentence(&self) -> String {
        format!(
            "volume '{}' is {} for {} s and waits for {}",
            self.volume,
            self.state,
            self.age_ms / 1000,
            self.waits_for
        )
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Describes a volume, if it is in a transitional state.
fn of(entry: &Entry, now: Moment) -> Option<Transitional> {
    let inside = entry.inside.lock();
    let state = inside.machine.state();
    if !state.is_transitional() {
        return None;
    }
    let since = inside.machine.since();
    let (what, step_since) = match inside.step {
        Some(step) => (step.what, step.since),
        None => ("its task to go on", since),
    };
    Some(Transitional {
        volume: entry.name.clone(),
        state,
        age_ms: milliseconds(now.since(since)),
        cause: inside.machine.history().back().map_or_else(String::new, |last| last.cause.clone()),
        waits_for: what.to_owned(),
        step_ms: milliseconds(now.since(step_since)),
        waiting: entry.waiting(),
    })
}

/// Lists the volumes in a transitional state, the oldest first, bounded to one answer; the number
/// counts all of them.
pub(crate) fn look(inner: &Inner) -> (Vec<Transitional>, u64) {
    // Mostly there are none, and then a million idle entries need not be locked.
    if inner.transitional_level() == 0 {
        return (Vec::new(), 0);
    }
    let now = inner.env.now();
    let mut all: Vec<Transitional> =
        inner.all().iter().filter_map(|entry| of(entry, now)).collect();
    let total = all.len() as u64;
    all.sort_by(|one, other| {
        other.age_ms.cmp(&one.age_ms).then_with(|| one.volume.cmp(&other.volume))
    });
    all.truncate(limits::TRANSITIONAL_MAX);
    (all, total)
}

/// Runs the watchdog until the registry is gone.
pub(crate) async fn watch(inner: Weak<Inner>, limit: Duration) {
    let pause = (limit / 4).clamp(limits::WATCH_INTERVAL_MIN, limits::WATCH_INTERVAL_MAX);
    let mut reported = Reported::default();
    loop {
        let Some(env) = inner.upgrade().map(|inner| inner.env.clone()) else { return };
        env.sleep(pause).await;
        let Some(inner) = inner.upgrade() else { return };
        report(&inner, limit, &mut reported);
    }
}

fn report(inner: &Arc<Inner>, limit: Duration, reported: &mut Reported) {
    let (mut volumes, transitional) = look(inner);
    let looked_at = volumes.len() as u64;
    volumes.retain(|transitional| transitional.age_ms >= milliseconds(limit));
    // The oldest come first. If all that are listed are stuck, those beyond the bound may be stuck
    // as well.
    let total = if volumes.len() as u64 == looked_at { transitional } else { volumes.len() as u64 };
    let (due, more) = reported.due(&volumes, inner.env.now());
    for index in due {
        tracing::warn!("{}", volumes[index].sentence());
    }
    if more > 0 {
        tracing::warn!("{more} more volume(s) are stuck: `rekindle debug locks` names them");
    }
    *inner.stuck.lock() = Stuck { volumes, total };
}

/// The last warning about each stuck volume.
#[derive(Default)]
struct Reported {
    last: HashMap<(String, State), Moment>,
}

impl Reported {
    /// Returns the indices of `stuck` that need a warning now, and the number of further ones.
    fn due(&mut self, stuck: &[Transitional], now: Moment) -> (Vec<usize>, usize) {
        let key = |transitional: &Transitional| (transitional.volume.clone(), transitional.state);
        let known = std::mem::take(&mut self.last);
        let (mut due, mut more) = (Vec::new(), 0);
        for (index, transitional) in stuck.iter().enumerate() {
            let last = known.get(&key(transitional)).copied();
            if last.is_some_and(|last| now.since(last) < limits::WARN_AGAIN) {
                self.last.extend(last.map(|last| (key(transitional), last)));
                continue;
            }
            if due.len() < limits::WARNINGS_MAX {
                due.push(index);
            } else {
                more += 1;
            }
            self.last.insert(key(transitional), now);
        }
        (due, more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck(volume: &str) -> Transitional {
        Transitional {
            volume: volume.to_owned(),
            state: State::Attaching,
            age_ms: 11_000,
            cause: "first use".to_owned(),
            waits_for: "the store".to_owned(),
            step_ms: 10_000,
            waiting: 1,
        }
    }

    #[test]
    fn a_stuck_volume_is_warned_of_at_once_and_then_once_a_minute() {
        let at = |seconds| Moment(Duration::from_secs(seconds));
        let mut reported = Reported::default();
        let one = [stuck("a")];
        assert_eq!(reported.due(&one, at(0)), (vec![0], 0));
        assert_eq!(reported.due(&one, at(59)), (vec![], 0));
        assert_eq!(reported.due(&one, at(60)), (vec![0], 0));
        assert_eq!(reported.due(&[], at(61)), (vec![], 0));
        assert_eq!(reported.due(&one, at(62)), (vec![0], 0), "it is stuck again");
        assert!(reported.last.len() == 1);
    }

    #[test]
    fn a_store_that_hangs_does_not_flood_the_log() {
        let many: Vec<Transitional> = (0..50).map(|number| stuck(&number.to_string())).collect();
        let mut reported = Reported::default();
        let (due, more) = reported.due(&many, Moment::default());
        assert_eq!((due.len(), more), (limits::WARNINGS_MAX, 50 - limits::WARNINGS_MAX));
        assert_eq!(reported.due(&many, Moment(Duration::from_secs(3))), (vec![], 0));
    }
}
