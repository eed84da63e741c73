//! The way down: changes in serial order become chunks, a new root, and one conditional write of
//! the vault.
//!
//! - [`destager`]: the tasks, and which volume is due.
//! - [`plan`]: which volume is due, and the prefix of the queue that one batch takes.
//! - [`batch`]: one batch, from the folds of the home to the release of the log.
//! - [`commit`]: the vault that a batch writes.
//! - [`turn`]: the destager's place, which a salvage or a snapshot takes for a while.
//! - [`snapshots`]: contents that the user keeps, at a serial that no batch passes.
//! - [`previous_root`], [`versions`]: earlier contents, a minute in RAM, a day in the vault.

pub(crate) mod batch;
pub(crate) mod commit;
pub(crate) mod destager;
pub(crate) mod plan;
pub(crate) mod previous_root;
mod snapshots;
pub(crate) mod turn;
pub mod versions;
