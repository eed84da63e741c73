//! Volumes in an exclusive (passing) state, and the watchdog that names those which stay there.
//!
//! A passing state is always left: by its task's end, or by the guard when the task is dropped. What can still happen is
//! that the task waits for something that does not come. The task notes what it waits for; this tells people.

use crate::entry::Entry;
use crate::limits;
use crate::machine::State;
use crate::registry::Inner;
use env::Moment;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A volume in an exclusive state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Passing {
    pub volume: String,
    pub state: State,
    /// How long it has been there.
    pub age_ms: u64,
    /// Why it went there.
    pub cause: String,
    /// What its task waits for.
    pub waits_for: String,
    /// Since when it waits for that.
    pub step_ms: u64,
    /// Clients and others that wait for the state to end.
    pub waiting: u64,
}

/// Volumes that are in an exclusive state for longer than they should.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Stuck {
    /// The oldest first; not more than fit into an answer.
    pub volumes: Vec<Passing>,
    /// How many there are.
    pub total: u64,
}

impl Passing {
    /// As a sentence for people.
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

/// What one volume is at, if it is passing.
fn of(entry: &Entry, now: Moment) -> Option<Passing> {
    let inside = entry.inside.lock();
    let state = inside.machine.state();
    if !state.is_exclusive() {
        return None;
    }
    let since = inside.machine.since();
    let (what, step_since) = match inside.step {
        Some(step) => (step.what, step.since),
        None => ("its task to go on", since),
    };
    Some(Passing {
        volume: entry.name.clone(),
        state,
        age_ms: milliseconds(now.since(since)),
        cause: inside.machine.history().back().map_or_else(String::new, |last| last.cause.clone()),
        waits_for: what.to_owned(),
        step_ms: milliseconds(now.since(step_since)),
        waiting: entry.waiting(),
    })
}

/// All volumes in an exclusive state, the oldest first, as many as fit into an answer; and how many there are.
pub(crate) fn look(inner: &Inner) -> (Vec<Passing>, u64) {
    // Mostly there are none, and then a million idle volumes need not be asked.
    if inner.passing_level() == 0 {
        return (Vec::new(), 0);
    }
    let now = inner.env.now();
    let mut all: Vec<Passing> = inner.all().iter().filter_map(|entry| of(entry, now)).collect();
    let total = all.len() as u64;
    all.sort_by(|one, other| {
        other.age_ms.cmp(&one.age_ms).then_with(|| one.volume.cmp(&other.volume))
    });
    all.truncate(limits::PASSING_MAX);
    (all, total)
}

/// Looks until the registry is gone.
pub(crate) async fn watch(inner: Weak<Inner>, limit: Duration) {
    let pause = (limit / 4).clamp(limits::WATCH_INTERVAL_MIN, limits::WATCH_INTERVAL_MAX);
    let mut told = Told::default();
    loop {
        let Some(env) = inner.upgrade().map(|inner| inner.env.clone()) else { return };
        env.sleep(pause).await;
        let Some(inner) = inner.upgrade() else { return };
        report(&inner, limit, &mut told);
    }
}

fn report(inner: &Arc<Inner>, limit: Duration, told: &mut Told) {
    let (mut volumes, passing) = look(inner);
    let looked_at = volumes.len() as u64;
    volumes.retain(|passing| passing.age_ms >= milliseconds(limit));
    // The oldest come first: when all that were looked at are stuck, those beyond may be as well.
    let total = if volumes.len() as u64 == looked_at { passing } else { volumes.len() as u64 };
    let (due, more) = told.due(&volumes, inner.env.now());
    for index in due {
        tracing::warn!("{}", volumes[index].sentence());
    }
    if more > 0 {
        tracing::warn!("{more} more volume(s) are stuck: `rekindle debug locks` names them");
    }
    *inner.stuck.lock() = Stuck { volumes, total };
}

/// When each stuck volume was warned of.
#[derive(Default)]
struct Told {
    last: HashMap<(String, State), Moment>,
}

impl Told {
    /// Which of `stuck` are to be warned of now, and how many more would be.
    fn due(&mut self, stuck: &[Passing], now: Moment) -> (Vec<usize>, usize) {
        let key = |passing: &Passing| (passing.volume.clone(), passing.state);
        let known = std::mem::take(&mut self.last);
        let (mut due, mut more) = (Vec::new(), 0);
        for (index, passing) in stuck.iter().enumerate() {
            let last = known.get(&key(passing)).copied();
            if last.is_some_and(|last| now.since(last) < limits::WARN_AGAIN) {
                self.last.extend(last.map(|last| (key(passing), last)));
                continue;
            }
            if due.len() < limits::WARNINGS_MAX {
                due.push(index);
            } else {
                more += 1;
            }
            self.last.insert(key(passing), now);
        }
        (due, more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck(volume: &str) -> Passing {
        Passing {
            volume: volume.to_owned(),
            state: State::Attaching,
            age_ms: 11_000,
            cause: "first client".to_owned(),
            waits_for: "the store".to_owned(),
            step_ms: 10_000,
            waiting: 1,
        }
    }

    #[test]
    fn a_stuck_volume_is_warned_of_at_once_and_then_once_a_minute() {
        let at = |seconds| Moment(Duration::from_secs(seconds));
        let mut told = Told::default();
        let one = [stuck("a")];
        assert_eq!(told.due(&one, at(0)), (vec![0], 0));
        assert_eq!(told.due(&one, at(59)), (vec![], 0));
        assert_eq!(told.due(&one, at(60)), (vec![0], 0));
        assert_eq!(told.due(&[], at(61)), (vec![], 0));
        assert_eq!(told.due(&one, at(62)), (vec![0], 0), "it is stuck again");
        assert!(told.last.len() == 1);
    }

    #[test]
    fn a_store_that_hangs_does_not_flood_the_log() {
        let many: Vec<Passing> = (0..50).map(|number| stuck(&number.to_string())).collect();
        let mut told = Told::default();
        let (due, more) = told.due(&many, Moment::default());
        assert_eq!((due.len(), more), (limits::WARNINGS_MAX, 50 - limits::WARNINGS_MAX));
        assert_eq!(told.due(&many, Moment(Duration::from_secs(3))), (vec![], 0));
    }
}
