//! The way in: a change is admitted, appended to the log, and acknowledged.
//!
//! - [`policy`]: the table of what an acknowledgement waits for.
//! - [`staged`]: the fast way in, and the waits that the table names.
//! - [`admission`]: the slow way in, for writes that wait for flash, a head of the log, or RAM.
//! - [`flow`], [`budget`]: each volume's share of flash, and the delay that follows from it.
//! - [`hand_over`], [`paused`]: the end of a move, when the next owner is named, and requests wait.
//! - [`fence`]: the end of all acknowledgements once a newer life is met.
//! - [`lease`]: the time for which reads may rest on this life.

pub(crate) mod admission;
pub(crate) mod budget;
pub(crate) mod fence;
pub(crate) mod flow;
pub(crate) mod hand_over;
pub(crate) mod lease;
pub(crate) mod paused;
pub(crate) mod policy;
pub(crate) mod staged;
