//! The automaton of a volume: states, events, the table of lawful transitions. Pure: no clock, no I/O.
//!
//! [`Machine`] holds the state of one volume and its bounded history; the registry applies events under the entry's
//! lock and does all I/O outside it. A transition that is not in [`TABLE`] is a bug and is never carried out.

use crate::limits;
use env::{Moment, Timestamp};
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
///     |             |     |                        | |
///     |    hand-over|     | offline                | | (error: attach -> attaching, offline -> offlining,
///     |             v     v                        v |         salvage -> salvaging)
///     |    handing-over  offlining <---------------+-+  (also unattached and preattached: a removal)
///     |             |     |   |
///     +-------------+-----+   +--- collected --> preattached
///                             +--- salvage ----> salvaging --- salvage-done ---> preattached
///                                                ^             salvage-failed -> error
///                                                +--- salvage: from attaching (damage); by an operator from
///                                                     unattached, preattached and error
/// ```
///
/// `attaching`, `offlining`, `salvaging` and `handing-over` are exclusive: one task works, all others wait for it to
/// end. A volume that waits for a salvage worker is `salvaging` already. `handing-over` is lawful but nothing leads there yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Not in service; the next client attaches it.
    Unattached,
    /// Known by name, from an earlier life or because the collector has put it here; nothing of it is in memory. The
    /// next client attaches it.
    Preattached,
    /// One task reads the vault, becomes owner and re-indexes unfinished changes.
    Attaching,
    /// In service.
    Attached,
    /// One task takes it out of service, or removes it.
    Offlining,
    /// It waits for a salvage worker, or one repairs it.
    Salvaging,
    /// In service, but writes wait: the reason says for what.
    Stalled,
    /// One task gives it to another node.
    HandingOver,
    /// It cannot be served and trying again alone will not mend it; the next client tries nevertheless.
    Error,
    /// Removed. The end.
    Deleted,
}

/// What happens to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// Known from an earlier life, or taken over.
    Preattach,
    /// A client asks for it.
    Attach,
    /// It is in service.
    AttachDone,
    /// It could not be attached now; later it may.
    AttachFailed,
    /// It could not be attached because something of it is damaged or unknown.
    AttachDamaged,
    /// Its writes wait.
    Stall,
    /// Its writes go on.
    Resume,
    /// It went out of service by itself: fenced, or its changes are damaged.
    Failed,
    /// Stop, detach, or removal.
    Offline,
    /// It is out of service.
    OfflineDone,
    /// It is out of service because nobody used it, and owes nothing.
    Collected,
    /// It is out of service, but not in good order.
    OfflineFailed,
    /// Its vault is marked deleted.
    Removed,
    /// It needs repair.
    Salvage,
    /// It is repaired.
    SalvageDone,
    /// It could not be repaired.
    SalvageFailed,
    /// Another node shall have it.
    HandOver,
    /// Another node has it.
    HandOverDone,
    /// It stays here.
    HandOverFailed,
}

/// All lawful transitions.
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
    (State::Attached, Event::HandOver, State::HandingOver),
    (State::Stalled, Event::Resume, State::Attached),
    (State::Stalled, Event::Failed, State::Error),
    (State::Stalled, Event::Offline, State::Offlining),
    (State::Offlining, Event::OfflineDone, State::Unattached),
    (State::Offlining, Event::Collected, State::Preattached),
    (State::Offlining, Event::OfflineFailed, State::Error),
    (State::Offlining, Event::Removed, State::Deleted),
    (State::Offlining, Event::Salvage, State::Salvaging),
    (State::Salvaging, Event::SalvageDone, State::Preattached),
    (State::Salvaging, Event::SalvageFailed, State::Error),
    (State::HandingOver, Event::HandOverDone, State::Unattached),
    (State::HandingOver, Event::HandOverFailed, State::Attached),
    (State::Error, Event::Attach, State::Attaching),
    (State::Error, Event::Offline, State::Offlining),
    (State::Error, Event::Salvage, State::Salvaging),
];

/// The row of [`TABLE`] for `event` in `state`, if it is lawful there.
#[must_use]
pub fn row(state: State, event: Event) -> Option<usize> {
    TABLE.iter().position(|(from, what, _)| (*from, *what) == (state, event))
}

/// Where `event` leads from `state`, if it is lawful there.
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
        State::Stalled,
        State::HandingOver,
        State::Error,
        State::Deleted,
    ];

    /// As people and `--json` see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Unattached => "unattached",
            State::Preattached => "preattached",
            State::Attaching => "attaching",
            State::Attached => "attached",
            State::Offlining => "offlining",
            State::Salvaging => "salvaging",
            State::Stalled => "stalled",
            State::HandingOver => "handing-over",
            State::Error => "error",
            State::Deleted => "deleted",
        }
    }

    /// One task works on the volume; all others wait until it ends.
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        matches!(self, State::Attaching | State::Offlining | State::Salvaging | State::HandingOver)
    }

    /// Clients are served.
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
        Event::Removed,
        Event::Salvage,
        Event::SalvageDone,
        Event::SalvageFailed,
        Event::HandOver,
        Event::HandOverDone,
        Event::HandOverFailed,
    ];

    /// As people and `--json` see it.
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
            Event::Removed => "removed",
            Event::Salvage => "salvage",
            Event::SalvageDone => "salvage-done",
            Event::SalvageFailed => "salvage-failed",
            Event::HandOver => "hand-over",
            Event::HandOverDone => "hand-over-done",
            Event::HandOverFailed => "hand-over-failed",
        }
    }
}

/// One change of state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The volume's name.
    pub volume: String,
    pub from: State,
    pub event: Event,
    pub to: State,
    /// Why, in words.
    pub cause: String,
    /// When, microseconds since 1970.
    pub at: u64,
    /// How long it had been in `from`, microseconds.
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

/// The automaton of one volume.
#[derive(Debug)]
pub struct Machine {
    volume: String,
    state: State,
    since: Moment,
    history: VecDeque<Change>,
}

impl Machine {
    /// A volume that is not in service.
    #[must_use]
    pub fn new(volume: &str, now: Moment) -> Self {
        Self {
            volume: volume.to_owned(),
            state: State::Unattached,
            since: now,
            history: VecDeque::new(),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Since when it is there.
    #[must_use]
    pub fn since(&self) -> Moment {
        self.since
    }

    /// Its last changes, oldest first.
    #[must_use]
    pub fn history(&self) -> &VecDeque<Change> {
        &self.history
    }

    /// Applies an event, or refuses it and changes nothing.
    pub fn apply(
        &mut self,
        event: Event,
        cause: &str,
        now: Moment,
        at: Timestamp,
    ) -> Result<&Change, Unlawful> {
        let Some(to) = next(self.state, event) else {
            return Err(Unlawful { volume: self.volume.clone(), state: self.state, event });
        };
        let spent = now.since(self.since);
        if self.history.len() == limits::HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(Change {
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
