//! Which idle volumes go out of service, and when each is looked at next. Pure: no clock, no I/O; the driver is in
//! `collect`.
//!
//! A volume is *due* when nobody has held it for [`Settings::idle`], it owes nothing to the datastore, and it is not
//! pinned. One that is only waiting for its time is looked at again exactly then. One that cannot go, or is in use each
//! time, grows older, and the older the less often it is looked at, so that a pass costs little though a node has very
//! many volumes:
//!
//! ```text
//!   new (idle / 8) --in use, pinned, owes--> middle (idle / 4) --same--> old (idle / 2)
//!       <---------------- idle since the last look -----------------------
//! ```
//!
//! How many go in one pass follows from how many are due: at least a batch, and so many that whatever is due now is gone
//! within [`limits::COLLECT_TIME`].

use crate::limits;
use env::Moment;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What the collector is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// A volume that nobody has held for this long goes out of service; `None`: none ever does.
    pub idle: Option<Duration>,
    /// Pause between two passes.
    pub interval: Duration,
    /// Least number of volumes that one pass takes out of service, if so many are due.
    pub batch: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            idle: Some(limits::COLLECT_IDLE),
            interval: limits::COLLECT_INTERVAL,
            batch: limits::COLLECT_BATCH,
        }
    }
}

impl Settings {
    /// Whether they make sense together; if not, what to change.
    pub fn check(&self) -> Result<(), String> {
        let words = if self.idle.is_some_and(|idle| idle.is_zero()) {
            "collector.idle must be a time, as in 2h, or off"
        } else if self.interval.is_zero() {
            "collector.interval must be a time, as in 30s"
        } else if self.batch == 0 {
            "collector.batch must be 1 at least; collector.idle = \"off\" turns the collector off"
        } else {
            return Ok(());
        };
        Err(words.to_owned())
    }
}

/// How old a volume is in the collector's eyes: the older, the less often it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Generation {
    #[default]
    New,
    Middle,
    Old,
}

impl Generation {
    fn older(self) -> Self {
        if self == Self::New { Self::Middle } else { Self::Old }
    }

    fn younger(self) -> Self {
        if self == Self::Old { Self::Middle } else { Self::New }
    }

    /// Until the next look at a volume that cannot go.
    fn pause(self, idle: Duration) -> Duration {
        match self {
            Self::New => idle / 8,
            Self::Middle => idle / 4,
            Self::Old => idle / 2,
        }
    }
}

/// What a look at a volume has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// Somebody holds it.
    InUse,
    /// Nobody does, but not for long enough.
    NotYet,
    /// It stays, because people said so.
    Pinned,
    /// It has changes that the datastore has not.
    Owes,
    /// It goes.
    Due,
    /// It is due, but this pass has taken enough; it goes with one of the next.
    NextPass,
    /// It was due, and somebody came just in time.
    Rescued,
}

impl Decision {
    /// All of them.
    pub const ALL: [Decision; 7] = [
        Decision::InUse,
        Decision::NotYet,
        Decision::Pinned,
        Decision::Owes,
        Decision::Due,
        Decision::NextPass,
        Decision::Rescued,
    ];

    /// As people and `--json` see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::InUse => "in-use",
            Decision::NotYet => "not-yet",
            Decision::Pinned => "pinned",
            Decision::Owes => "owes",
            Decision::Due => "due",
            Decision::NextPass => "next-pass",
            Decision::Rescued => "rescued",
        }
    }
}

/// What there is to know of a volume in service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub clients: u64,
    /// When the last client let go, or when it came into service.
    pub idle_since: Moment,
    pub pinned: bool,
    /// It has unfinished changes.
    pub owes: bool,
}

/// What is decided of a volume with these facts.
pub(crate) fn decide(facts: &Facts, now: Moment, idle: Duration) -> Decision {
    if facts.clients > 0 {
        Decision::InUse
    } else if now.since(facts.idle_since) < idle {
        Decision::NotYet
    } else if facts.pinned {
        Decision::Pinned
    } else if facts.owes {
        Decision::Owes
    } else {
        Decision::Due
    }
}

/// What the collector remembers of a volume in service.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Aging {
    pub generation: Generation,
    /// Not to be looked at before.
    pub next_look: Moment,
    pub decision: Option<Decision>,
}

impl Aging {
    /// Looks at a volume.
    pub fn look(&mut self, facts: &Facts, now: Moment, idle: Duration) -> Decision {
        let decision = decide(facts, now, idle);
        (self.generation, self.next_look) = match decision {
            Decision::NotYet => (self.generation.younger(), facts.idle_since + idle),
            Decision::InUse | Decision::Pinned | Decision::Owes => {
                (self.generation.older(), now + self.generation.pause(idle))
            }
            Decision::Due | Decision::NextPass | Decision::Rescued => (self.generation, now),
        };
        self.decision = Some(decision);
        decision
    }
}

/// How many volumes a pass takes.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// The most that were due at once since none was.
    most: u64,
}

impl Pace {
    /// How many of `due` volumes go in this pass. The rate that a large backlog has asked for is kept until it is
    /// gone: a rate that fell with the backlog would never reach its end.
    pub fn quota(&mut self, due: u64, settings: &Settings) -> u64 {
        self.most = if due == 0 { 0 } else { self.most.max(due) };
        let passes = limits::COLLECT_TIME.as_micros() / settings.interval.as_micros().max(1);
        let passes = u64::try_from(passes).unwrap_or(u64::MAX).max(1);
        settings.batch.max(self.most.div_ceil(passes)).min(due)
    }
}

/// What the collector has done since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// `None`: it is off.
    pub idle_ms: Option<u64>,
    pub passes: u64,
    /// Volumes that it has taken out of service.
    pub detached: u64,
    /// Volumes that were about to go when somebody came.
    pub rescued: u64,
    /// Volumes that did not go out of service in good order; the next client attaches them all the same.
    pub failed: u64,
    /// Due at the last pass, those that went included.
    pub due: u64,
}

#[cfg(test)]
mod tests;
