//! The way down: changes in serial order become chunks, a new root, and one conditional write of
//! the vault.
//!
//! - [`destager`]: the tasks, and which volume is due.
//! - [`plan`]: the prefix of the queue that one batch takes, and the last write of each range.
//! - [`batch`]: one batch, from the folds of the home to the release of the log.
//! - [`commit`]: the vault that a batch writes; [`counting`]: how much content it writes over.
//! - [`previous_root`], [`versions`]: earlier contents, a minute in RAM, a day in the vault.

pub(crate) mod batch;
pub(crate) mod commit;
pub(crate) mod counting;
pub(crate) mod destager;
pub(crate) mod plan;
pub(crate) mod previous_root;
pub mod versions;
