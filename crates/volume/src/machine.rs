//! The automaton of a volume: states, events, the table of lawful transitions.

use serde::Serialize;

/// State of a volume on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Unattached,
    Preattached,
    Attaching,
    Attached,
    Offlining,
    Salvaging,
    Stalled,
    HandingOver,
    Error,
    Deleted,
}
