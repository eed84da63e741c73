//! Decides which idle volumes go out of service, and when each is looked at next. Pure: no clock,
//! no I/O; the driver is in `collect`.
//!
//! A volume is *due* when it has had no client for [`Settings::idle`], owes nothing to the
//! datastore, and is not pinned. A volume that only has to be idle for longer is looked at again
//! exactly when it would be due. A volume that cannot go, or is in use at each look, grows older,
//! and older volumes are looked at less often. So a pass stays cheap on a node with very many
//! volumes:
//!
//! ```text
//!   new (idle / 8) --in use, pinned, owes--> middle (idle / 4) --same--> old (idle / 2)
//!       <---------------- idle since the last look -----------------------
//! ```
//!
//! The number of due volumes decides how many go in one pass: at least a batch, and enough that all
//! volumes due now are gone within [`limits::COLLECT_TIME`].

use crate::limits;
use rekindle_env::Moment;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The settings of the collector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Idle time after which a volume goes out of service; `None`: never.
    pub idle: Option<Duration>,
    /// Pause between two passes.
    pub interval: Duration,
    /// Least number of volumes that one pass takes out of service, if that many are due.
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
    /// Checks that the settings make sense together. The error says what to change.
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

/// The collector's age of a volume. The older a volume, the less often the collector looks at it.
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

    /// Pause until the next look at a volume that cannot go.
    fn pause(self, idle: Duration) -> Duration {
        match self {
            Self::New => idle / 8,
            Self::Middle => idle / 4,
            Self::Old => idle / 2,
        }
    }
}

/// The decision of one look at a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// A client holds the volume.
    InUse,
    /// The volume has no client, but has not been idle for long enough.
    NotYet,
    /// A user pinned the volume.
    Pinned,
    /// The volume has changes that the datastore lacks.
    Owes,
    /// The volume goes.
    Due,
    /// The volume is due, but this pass has taken enough; a later pass takes it.
    NextPass,
    /// The volume was due, and a client came just in time.
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

    /// Returns the word that users and `--json` see.
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

/// The facts about a volume in service that decide.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub clients: u64,
    /// Time at which the last client let go, or the volume came into service.
    pub idle_since: Moment,
    pub pinned: bool,
    /// Whether the volume has unfinished changes.
    pub owes: bool,
}

/// Decides about a volume with these facts.
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

/// The collector's memory of a volume in service.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Aging {
    pub generation: Generation,
    /// Earliest time of the next look.
    pub next_look: Moment,
    pub decision: Option<Decision>,
}

impl Aging {
    /// Decides about a volume, ages it, and sets the next look.
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

/// The pace: how many volumes a pass takes.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Most volumes due at once since the last pass without any.
    most: u64,
}

impl Pace {
    /// Returns how many of `due` volumes go in this pass. The rate that a large backlog asked for
    /// is kept until the backlog is gone: a rate that fell with it would never reach its end.
    pub fn quota(&mut self, due: u64, settings: &Settings) -> u64 {
        self.most = if due == 0 { 0 } else { self.most.max(due) };
        let passes = limits::COLLECT_TIME.as_micros() / settings.interval.as_micros().max(1);
        let passes = u64::try_from(passes).unwrap_or(u64::MAX).max(1);
        settings.batch.max(self.most.div_ceil(passes)).min(due)
    }
}

/// The counters of the collector since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// `None`: the collector is off.
    pub idle_ms: Option<u64>,
    pub passes: u64,
    /// Volumes taken out of service.
    pub detached: u64,
    /// Volumes that were about to go when a client came.
    pub rescued: u64,
    /// Volumes that went out of service with an error; the next client attaches them all the same.
    pub failed: u64,
    /// Volumes due at the last pass, including those that went.
    pub due: u64,
}

#[cfg(test)]
mod tests;
