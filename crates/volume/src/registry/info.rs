//! The description of a volume for users.

use crate::registry::machine::State;
use rekindle_staging::{Backlog, Vault};

/// The description of a volume for users.
#[derive(Debug, Clone)]
pub struct Info {
    pub vault: Vault,
    pub state: State,
    pub clients: u64,
    /// Only when in service.
    pub backlog: Option<Backlog>,
    /// Reason of the state `error` or `stalled`, of the last failed attach, or of a fault that
    /// waits.
    pub reason: Option<String>,
    /// The part of it that cannot be read and waits for a decision or a repair.
    pub unreadable: Option<String>,
}
