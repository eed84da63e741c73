//! The commands of a user for a volume: create, list, rename, resize, move, remove, restore, roll
//! back, pin, take a snapshot, clone.
//!
//! [`rest`] is common to those that need the volume out of service first.

pub(crate) mod create;
pub(crate) mod hand_over;
pub(crate) mod leftover;
pub(crate) mod list;
pub(crate) mod names;
pub(crate) mod pin;
pub(crate) mod reap;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod rest;
pub(crate) mod rested;
pub(crate) mod roots;
pub(crate) mod set;
pub(crate) mod settings;
pub(crate) mod snapshots;
pub(crate) mod trash;
pub(crate) mod versions;
