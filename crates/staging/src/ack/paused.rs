//! The pause of a volume that is handed over to another node.

/// The requests of a volume that wait for the end of a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Paused {
    #[default]
    Nothing,
    Changes,
    All,
}
