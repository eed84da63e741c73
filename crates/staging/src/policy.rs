//! After what a write is acknowledged.

use serde::{Deserialize, Serialize};

/// Policy of a volume (FVP's uncached, wt, wb; peers come later).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// After the datastore has it; nothing is cached here.
    Uncached,
    /// After the datastore has it; what was written stays cached here.
    Through,
    /// After the log has it; the datastore gets it later.
    #[default]
    Back,
}

/// What "the log has it" means, for `back`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Ack {
    /// On flash, synced.
    #[default]
    Flash,
    /// In memory that outlives the process; a FLUSH or FUA still reaches flash.
    Memory,
}
