//! What a file volume stores: rows of its tables, and records in the log. See
//! `docs/format/files.md`.

pub(crate) mod inode;
pub(crate) mod page;
pub(crate) mod record;
pub(crate) mod rows;
mod scribe;

/// Bytes that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Bad(pub(crate) &'static str);
