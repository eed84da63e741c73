//! The time that the start of the process took, up to the first reply to a client.
//!
//! The code of a step takes a [`Watch`] before the step and hands it in after it. The first reply
//! closes the record: a watch is then empty, and taking one costs a look at a flag. [`limits`]
//! bounds all of it.

use crate::{Env, Moment, limits};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The phase that ends the start.
const FIRST_REPLY: &str = "first-reply";

/// The moment at which a step of the start began; empty once the start is over.
#[derive(Debug, Clone, Copy, Default)]
pub struct Watch(Option<Moment>);

/// A step of the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    pub name: String,
    /// The step of which this one is a part.
    pub part_of: Option<String>,
    pub began: Moment,
    pub ended: Moment,
}

/// The place in which a fetch found its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In the cache of this process.
    Ram,
    /// In memory that an earlier process left.
    Warm,
    /// In the datastore.
    Store,
}

/// A read that the start needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// Kind of the thing that was read.
    pub what: &'static str,
    /// Name of the thing that was read.
    pub name: String,
    pub source: Source,
    pub began: Moment,
    pub took: Duration,
}

/// The record of a start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Boot {
    /// Time from the birth of the process to [`Moment`] zero, and the source of that knowledge.
    pub before: Option<(Duration, &'static str)>,
    /// In the order of their ends.
    pub phases: Vec<Phase>,
    /// Phases for which there was no room.
    pub phases_left_out: u64,
    /// In the order of their ends.
    pub fetches: Vec<Fetch>,
    /// Number of fetches by source (RAM, warm memory, store), those without room in `fetches`
    /// included.
    pub fetched: [u64; 3],
    /// Number of misses in warm memory, by cause.
    pub missed: Vec<(&'static str, u64)>,
    /// Whether the first reply is out.
    pub is_over: bool,
}

/// The record of the start, and whether it is closed.
#[derive(Default)]
pub(crate) struct Record {
    is_over: AtomicBool,
    boot: Mutex<Boot>,
}

impl Env {
    /// Begins to measure a step of the start.
    #[must_use]
    pub fn watch(&self) -> Watch {
        let is_over = self.boot.is_over.load(Ordering::Relaxed);
        Watch((!is_over).then(|| self.now()))
    }

    /// Records that the process was born this long before [`Moment`] zero; `by` names the source of
    /// that knowledge.
    pub fn boot_born(&self, before: Duration, by: &'static str) {
        self.boot.boot.lock().before = Some((before, by));
    }

    /// Records that a step of the start ends now; only the first one of a name counts.
    pub fn boot_phase(&self, name: &str, part_of: Option<&str>, watch: Watch) {
        let Watch(Some(began)) = watch else { return };
        let ended = self.now();
        let mut boot = self.boot.boot.lock();
        let same = |phase: &Phase| phase.name == name && phase.part_of.as_deref() == part_of;
        if boot.phases.iter().any(same) {
            return;
        }
        // The phase that ends the start always has room.
        if boot.phases.len() >= limits::BOOT_PHASES_MAX && name != FIRST_REPLY {
            boot.phases_left_out += 1;
            return;
        }
        let (name, part_of) = (name.to_owned(), part_of.map(str::to_owned));
        boot.phases.push(Phase { name, part_of, began, ended });
    }

    /// Records a read that the start needed.
    pub fn boot_fetch(
        &self,
        what: &'static str,
        name: impl FnOnce() -> String,
        source: Source,
        watch: Watch,
    ) {
        let Watch(Some(began)) = watch else { return };
        let took = self.now() - began;
        let mut boot = self.boot.boot.lock();
        boot.fetched[source as usize] += 1;
        if boot.fetches.len() < limits::BOOT_FETCHES_MAX {
            boot.fetches.push(Fetch { what, name: name(), source, began, took });
        }
    }

    /// Records that warm memory did not have what the start needed.
    pub fn boot_missed(&self, cause: &'static str, watch: Watch) {
        if watch.0.is_none() {
            return;
        }
        let mut boot = self.boot.boot.lock();
        match boot.missed.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, count)) => *count += 1,
            None => boot.missed.push((cause, 1)),
        }
    }

    /// Records that the first reply to a client is out, which took from `watch` until now. The
    /// start is then over.
    pub fn boot_over(&self, watch: Watch) {
        if !self.boot.is_over.load(Ordering::Relaxed) {
            self.boot_phase(FIRST_REPLY, None, watch);
            self.boot.boot.lock().is_over = true;
            self.boot.is_over.store(true, Ordering::Relaxed);
        }
    }

    /// The record of the start so far.
    #[must_use]
    pub fn boot(&self) -> Boot {
        self.boot.boot.lock().clone()
    }
}

impl Source {
    /// One word for display and for programs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Ram => "ram",
            Source::Warm => "warm",
            Source::Store => "store",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Faults, World};

    #[test]
    fn the_record_is_bounded_and_closed_by_the_first_reply() {
        let env = World::new(1, Faults::none()).env();
        let begin = env.watch();
        for number in 0..limits::BOOT_FETCHES_MAX + 5 {
            env.boot_fetch("chunk", || number.to_string(), Source::Store, begin);
            env.boot_phase(&number.to_string(), None, begin);
            env.boot_phase("again", Some("0"), begin);
        }
        env.boot_missed("cold", begin);
        env.boot_missed("cold", begin);
        let boot = env.boot();
        assert_eq!(boot.fetches.len(), limits::BOOT_FETCHES_MAX);
        assert_eq!(boot.fetched, [0, 0, limits::BOOT_FETCHES_MAX as u64 + 5]);
        assert_eq!(boot.phases.len(), limits::BOOT_PHASES_MAX);
        assert!(boot.phases_left_out > 0 && !boot.is_over);
        assert_eq!(boot.missed, [("cold", 2)]);
        env.boot_over(begin);
        let over = env.boot();
        assert!(over.is_over && over.phases.last().is_some_and(|last| last.name == "first-reply"));
        let late = env.watch();
        env.boot_fetch("chunk", || panic!("nobody looks any more"), Source::Ram, late);
        env.boot_phase("late", None, late);
        env.boot_missed("late", late);
        env.boot_over(late);
        assert_eq!(env.boot(), over);
    }

    #[test]
    fn the_first_of_a_name_counts() {
        let env = World::new(1, Faults::none()).env();
        let (first, second) = (env.watch(), env.watch());
        for (part_of, watch) in [(None, first), (Some("attach"), first), (None, second)] {
            env.boot_phase("log", part_of, watch);
        }
        env.boot_over(second);
        let names: Vec<_> = env.boot().phases.into_iter().map(|phase| phase.name).collect();
        assert_eq!(names, ["log", "log", "first-reply"]);
    }
}
