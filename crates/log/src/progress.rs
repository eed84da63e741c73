//! The progress of the log, on each medium that an acknowledgement may wait for.

use crate::Position;

/// A medium on which a change can be recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// The open segment in warm memory: survives the process, where warm memory does.
    Memory,
    /// The segment's file, synced: survives the machine's power.
    Flash,
}

/// The progress of the log. Copies on peers will each add a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Everything before this position is in warm memory.
    pub appended: Position,
    /// Everything before this position is on flash; at most `appended`.
    pub flash: Position,
}

impl Progress {
    /// The position up to which `medium` has everything.
    #[must_use]
    pub fn on(&self, medium: Medium) -> Position {
        match medium {
            Medium::Memory => self.appended,
            Medium::Flash => self.flash,
        }
    }

    /// Whether `medium` has everything before `position`.
    #[must_use]
    pub fn covers(&self, medium: Medium, position: Position) -> bool {
        position <= self.on(medium)
    }
}
