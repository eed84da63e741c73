//! The way down: changes in serial order become chunks, a new root, and one conditional write of
//! the vault.
//!
//! - [`destager`]: the tasks, and which volume is due.
//! - [`plan`]: which volume is due, and the prefix of the queue that one batch takes.
//! - [`portion`]: the changes of one batch, taken from the queue.
//! - [`batch`]: one batch, from the folds of the home to the release of the log.
//! - [`row`]: batches one behind the other, of which the next is folded while one is stored.
//! - [`commit`]: the vault that a batch writes.
//! - [`turn`]: the destager's place, which a salvage or a snapshot takes for a while.
//! - [`snapshots`]: contents that the user keeps, at a serial that no batch passes.
//! - [`previous_root`], [`versions`]: earlier contents, a minute in RAM, a day in the vault.

pub(crate) mod batch;
pub(crate) mod commit;
pub(crate) mod destager;
pub(crate) mod plan;
pub(crate) mod portion;
pub(crate) mod previous_root;
mod row;
mod snapshots;
pub(crate) mod turn;
pub mod versions;
