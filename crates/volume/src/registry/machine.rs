//! The state machine of a volume: states, events, the table of lawful transitions. Pure: no clock,
//! no I/O.
//!
//! [`Machine`] holds the state of one volume and its bounded history. The registry applies events
//! under the entry's lock and does all I/O outside it. A transition that is not in [`TABLE`] is a
//! bug and is never carried out.

use crate::limits;
use rekindle_env::{Moment, Timestamp};
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt;

/// State of a volume on this node.
///
/// ```text
///                 preattach
///   unattached ------------> preattached          deleted (the end)
///     ^  ^  |                    |                   ^
///     |  |  | attach             | attach            | removed
///     |  |  +--------+-----------+                   |
///     |  |           v                               |
///     |  |       attaching --- attach-damaged ---> error
///     |  |        |     |                          ^ | ^
///     |  +--------+     | attach-done       failed | | | offline-failed
///     |  attach-failed  v                          | | |
///     |            attached <-- resume/stall --> stalled
///     |                   |                        | |
///     |                   | offline                | | (error: attach -> attaching,
///     |                   |                        | |         offline -> offlining,
///     |                   |                        | |         salvage -> salvaging)
///     |                   v                        v |
///     |                  offlining <---------------+-+  (also from unattached and preattached)
///     |                   |   |
///     +-------------------+   +--- collected --> preattached
///                             +--- salvage ----> salvaging --- salvage-done ---> preattached
///                                                ^             salvage-failed -> error
///                                                +--- salvage: from attaching (damage);
///                                                     by an operator from unattached,
///                                                     preattached and error
/// ```
///
/// A volume in service that moves to another node ends its service here by one more state:
///
/// ```text
///   attached, stalled -- hand-over --> handing-over -- handed-over --------> unattached
///                                          |  |------- hand-over-failed --> attached
///                                          +---------- failed ------------> error
/// ```
///
/// `attaching`, `offlining`, `salvaging` and `handing-over` are transitional: one task works, and
/// all others wait for its end. A volume that waits for a salvage worker is `salvaging` already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Not in service; the next client attaches it.
    Unattached,
    /// Not in service, and nothing of it is in memory: known by name from an earlier life, or put
    /// here by the collector or after a salvage. The next client attaches it.
    Preattached,
    /// One task reads the vault, becomes the owner and re-indexes unfinished changes.
    Attaching,
    /// In service.
    Attached,
    /// One task takes it out of service, or removes it.
    Offlining,
    /// The volume waits for a salvage worker, or a worker repairs it.
    Salvaging,
    /// One task makes another node the owner, while the requests of clients wait.
    HandingOver,
    /// In service, but its writes wait; the reason says for what.
    Stalled,
    /// The volume cannot be served, and a retry alone does not help; the next client tries
    /// nevertheless.
    Error,
    /// The end: the volume was removed, or has another name now.
    Deleted,
}

/// An event in the life of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The node knows the volume from an earlier life, or has taken it over.
    Preattach,
    /// A client asks for the volume.
    Attach,
    /// The volume is in service.
    AttachDone,
    /// The volume could not be attached; a later try may succeed.
    AttachFailed,
    /// The volume could not be attached because part of it is damaged or unknown.
    AttachDamaged,
    /// The volume's writes wait.
    Stall,
    /// The volume's writes go on.
    Resume,
    /// The volume went out of service by itself: it is fenced, or its changes are damaged.
    Failed,
    /// A task needs the volume out of service: a stop, a detach, a removal.
    Offline,
    /// The volume is out of service.
    OfflineDone,
    /// The volume is out of service because it was idle and owed nothing.
    Collected,
    /// The volume is out of service, but its end has failed.
    OfflineFailed,
    /// The volume moves to another node, and nearly all of its changes are in the store.
    HandOver,
    /// Another node owns the volume.
    HandedOver,
    /// The volume could not be handed over, and goes on here.
    HandOverFailed,
    /// The vault is marked deleted or trashed, or has another name.
    Removed,
    /// The volume needs repair.
    Salvage,
    /// The volume is repaired.
    SalvageDone,
    /// The volume could not be repaired.
    SalvageFailed,
}

/// The lawful transitions.
pub const TABLE: &[(State, Event, State)] = &[
    (State::Unattached, Event::Preattach, State::Preattached),
    (State::Unattached, Event::Attach, State::Attaching),
    (State::Unattached, Event::Offline, State::Offlining),
    (State::Unattached, Event::Salvage, State::Salvaging),
    (State::Preattached, Event::Attach, State::Attaching),
    (State::Preattached, Event::Offline, State::Offlining),
    (State::Preattached, Event::Salvage, State::Salvaging),
    (State::Attaching, Event::AttachDone, State::Attached),
    (State::Attaching, Event::AttachFailed, State::Unattached),
    (State::Attaching, Event::AttachDamaged, State::Error),
    (State::Attaching, Event::Salvage, State::Salvaging),
    (State::Attached, Event::Stall, State::Stalled),
    (State::Attached, Event::Failed, State::Error),
    (State::Attached, Event::Offline, State::Offlining),
    (State::Stalled, Event::Resume, State::Attached),
    (State::Stalled, Event::Failed, State::Error),
    (State::Stalled, Event::Offline, State::Offlining),
    (State::Offlining, Event::OfflineDone, State::Unattached),
    (State::Offlining, Event::Collected, State::Preattached),
    (State::Offlining, Event::OfflineFailed, State::Error),
    (State::Offlining, Event::Removed, State::Deleted),
    (State::Offlining, Event::Salvage, State::Salvaging),
    (State::Attached, Event::HandOver, State::HandingOver),
    (State::Stalled, Event::HandOver, State::HandingOver),
    (State::HandingOver, Event::HandedOver, State::Unattached),
    (State::HandingOver, Event::HandOverFailed, State::Attached),
    (State::HandingOver, Event::Failed, State::Error),
    (State::Salvaging, Event::SalvageDone, State::Preattached),
    (State::Salvaging, Event::SalvageFailed, State::Error),
    (State::Error, Event::Attach, State::Attaching),
    (State::Error, Event::Offline, State::Offlining),
    (State::Error, Event::Salvage, State::Salvaging),
];

/// Returns the row of [`TABLE`] for `event` in `state`, if it is lawful there.
#[must_use]
pub fn row(state: State, event: Event) -> Option<usize> {
    TABLE.iter().position(|(from, what, _)| (*from, *what) == (state, event))
}

/// Returns the state to which `event` leads from `state`, if it is lawful there.
#[must_use]
pub fn next(state: State, event: Event) -> Option<State> {
    row(state, event).map(|row| TABLE[row].2)
}

impl State {
    /// All of them, in order.
    pub const ALL: [State; 10] = [
        State::Unattached,
        State::Preattached,
        State::Attaching,
        State::Attached,
        State::Offlining,
        State::Salvaging,
        State::HandingOver,
        State::Stalled,
        State::Error,
        State::Deleted,
    ];

    /// Returns the word that users and `--json` see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Unattached => "unattached",
            State::Preattached => "preattached",
            State::Attaching => "attaching",
            State::Attached => "attached",
            State::Offlining => "offlining",
            State::Salvaging => "salvaging",
            State::HandingOver => "handing-over",
            State::Stalled => "stalled",
            State::Error => "error",
            State::Deleted => "deleted",
        }
    }

    /// Whether one task works on the volume while all others wait.
    #[must_use]
    pub fn is_transitional(self) -> bool {
        matches!(self, State::Attaching | State::Offlining | State::Salvaging | State::HandingOver)
    }

    /// Whether clients are served.
    #[must_use]
    pub fn is_in_service(self) -> bool {
        matches!(self, State::Attached | State::Stalled)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Event {
    /// All of them, in order.
    pub const ALL: [Event; 19] = [
        Event::Preattach,
        Event::Attach,
        Event::AttachDone,
        Event::AttachFailed,
        Event::AttachDamaged,
        Event::Stall,
        Event::Resume,
        Event::Failed,
        Event::Offline,
        Event::OfflineDone,
        Event::Collected,
        Event::OfflineFailed,
        Event::HandOver,
        Event::HandedOver,
        Event::HandOverFailed,
        Event::Removed,
        Event::Salvage,
        Event::SalvageDone,
        Event::SalvageFailed,
    ];

    /// Returns the word that users and `--json` see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Event::Preattach => "preattach",
            Event::Attach => "attach",
            Event::AttachDone => "attach-done",
            Event::AttachFailed => "attach-failed",
            Event::AttachDamaged => "attach-damaged",
            Event::Stall => "stall",
            Event::Resume => "resume",
            Event::Failed => "failed",
            Event::Offline => "offline",
            Event::OfflineDone => "offline-done",
            Event::Collected => "collected",
            Event::OfflineFailed => "offline-failed",
            Event::HandOver => "hand-over",
            Event::HandedOver => "handed-over",
            Event::HandOverFailed => "hand-over-failed",
            Event::Removed => "removed",
            Event::Salvage => "salvage",
            Event::SalvageDone => "salvage-done",
            Event::SalvageFailed => "salvage-failed",
        }
    }
}

/// A change of state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateChange {
    pub volume: String,
    pub from: State,
    pub event: Event,
    pub to: State,
    /// The cause, in words.
    pub cause: String,
    /// The time, microseconds since 1970.
    pub at: u64,
    /// Time spent in `from`, microseconds.
    pub duration_us: u64,
}

/// A transition that [`TABLE`] does not have: a bug in this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "volume '{volume}' cannot do {event:?} while it is {state}: this is a bug, please report it"
)]
pub struct Unlawful {
    pub volume: String,
    pub state: State,
    pub event: Event,
}

/// The state machine of one volume.
#[derive(Debug)]
pub struct Machine {
    volume: String,
    state: State,
    since: Moment,
    history: VecDeque<StateChange>,
}

impl Machine {
    /// A machine of a volume that is not in service.
    #[must_use]
    pub fn new(volume: &str, now: Moment) -> Self {
        Self {
            volume: volume.to_owned(),
            state: State::Unattached,
            since: now,
            history: VecDeque::new(),
        }
    }

    /// Returns the present state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the time of the last change.
    #[must_use]
    pub fn since(&self) -> Moment {
        self.since
    }

    /// Returns the last changes, oldest first.
    #[must_use]
    pub fn history(&self) -> &VecDeque<StateChange> {
        &self.history
    }

    /// Applies an event, or refuses it and changes nothing.
    pub fn apply(
        &mut self,
        event: Event,
        cause: &str,
        now: Moment,
        at: Timestamp,
    ) -> Result<&StateChange, Unlawful> {
        let Some(to) = next(self.state, event) else {
            return Err(Unlawful { volume: self.volume.clone(), state: self.state, event });
        };
        let spent = now.since(self.since);
        if self.history.len() == limits::HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(StateChange {
            volume: self.volume.clone(),
            from: self.state,
            event,
            to,
            cause: cause.to_owned(),
            at: at.0,
            duration_us: u64::try_from(spent.as_micros()).unwrap_or(u64::MAX),
        });
        (self.state, self.since) = (to, now);
        Ok(self.history.back().expect("just pushed"))
    }
}

#[cfg(test)]
mod tests;
