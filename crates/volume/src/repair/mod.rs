//! Repair: the salvage of damaged volumes, and the end of losses that a person has accepted.

pub(crate) mod losses;
pub(crate) mod salvage;
