//! The phases of a sweep and the lawful steps between them.
//!
//! ```text
//!            begin            candidates          recorded           settled
//!   idle ----------> marking ------------> condemned ----> settling --------> re-marking
//!    ^  \               | nothing               |             |                  |  | nothing
//!    |   \ resume       v                       | failed      | failed           |  v
//!    |    \           idle <--------------------+-------------+------------------+ idle
//!    |     \                                                                     | confirmed
//!    |      +---------> deleting <-----------------------------------------------+
//!    |   deleted       |   ^  | sparse
//!    +-----------------+   |  v
//!    ^           compacted |  |
//!    |                     |  |
//!    +---- deleted ----- compacting
//! ```

use serde::Serialize;

/// The phase of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// No sweep runs.
    #[default]
    Idle,
    /// Walks everything that roots reach.
    Marking,
    /// Has found packs that nothing reaches, refuses duplicates in them, writes them into the
    /// record.
    Condemned,
    /// Waits until what began before has ended, here and on other nodes.
    Settling,
    /// Walks what has changed since.
    ReMarking,
    /// Copies what is alive out of packs that are mostly dead.
    Compacting,
    /// Deletes: first what nothing reaches, so that there is room for copies, later what was
    /// compacted.
    Deleting,
}

/// An event of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The sweep begins.
    Begin,
    /// The record says that an earlier sweep was deleting.
    Resume,
    /// There are packs to condemn.
    Candidates,
    /// There is nothing to do (any more).
    Nothing,
    /// The record names the condemned packs.
    Recorded,
    /// No batch is left that could have found a duplicate in the condemned packs.
    Settled,
    /// The second mark is done, and some of the packs are still dead.
    Confirmed,
    /// Packs that nothing reaches are gone; packs that are mostly dead are next.
    Sparse,
    /// The notes of moved chunks are durable.
    Compacted,
    /// The deletion is done.
    Deleted,
    /// An error ended the sweep.
    Failed,
}

/// The phase after an event; `None` when the event cannot happen in this phase.
pub(super) fn next(phase: Phase, event: Event) -> Option<Phase> {
    Some(match (phase, event) {
        (Phase::Idle, Event::Begin) => Phase::Marking,
        (Phase::Idle, Event::Resume) => Phase::Deleting,
        (Phase::Marking, Event::Candidates) => Phase::Condemned,
        (Phase::Marking | Phase::ReMarking, Event::Nothing) => Phase::Idle,
        (Phase::Condemned, Event::Recorded) => Phase::Settling,
        (Phase::Settling, Event::Settled) => Phase::ReMarking,
        (Phase::ReMarking, Event::Confirmed) => Phase::Deleting,
        (Phase::Deleting, Event::Sparse) => Phase::Compacting,
        (Phase::Compacting, Event::Compacted) => Phase::Deleting,
        (Phase::Deleting | Phase::Compacting, Event::Deleted) => Phase::Idle,
        (_, Event::Failed) => Phase::Idle,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_deleted_that_was_not_condemned_settled_and_marked_again() {
        use Event::*;
        let events = [
            Begin, Resume, Candidates, Nothing, Recorded, Settled, Confirmed, Sparse, Compacted,
            Deleted, Failed,
        ];
        let phases = [
            Phase::Idle,
            Phase::Marking,
            Phase::Condemned,
            Phase::Settling,
            Phase::ReMarking,
            Phase::Deleting,
            Phase::Compacting,
        ];
        // Each phase of the middle is entered from one phase by one event; after a compaction packs
        // are deleted once more.
        for (at, phase) in phases.iter().enumerate().skip(1) {
            let ways: Vec<_> = phases
                .iter()
                .flat_map(|from| events.iter().map(move |event| (*from, *event)))
                .filter(|(from, event)| next(*from, *event) == Some(*phase))
                .collect();
            let usual = ways.iter().filter(|(_, event)| ![Resume, Compacted].contains(event));
            let usual = usual.count();
            assert_eq!(usual, 1, "{phase:?}: {ways:?}");
            assert!(ways.iter().any(|(from, _)| *from == phases[at - 1]), "{phase:?}");
            assert_eq!(
                ways.len() > usual,
                *phase == Phase::Deleting,
                "only a recorded decision is resumed"
            );
        }
        assert!(phases.iter().all(|phase| next(*phase, Failed) == Some(Phase::Idle)));
    }
}
