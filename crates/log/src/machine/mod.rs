//! The log's decisions, without I/O: what the log is after a start, and which segments may go.

pub(crate) mod history;
pub(crate) mod table;
