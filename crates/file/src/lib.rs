//! A file volume: a file system over chunks of content, after HydraFS.
//!
//! [`File`] is the [`rekindle_volume::Kind`] that the node registers. [`Files`] is the view of a
//! front: POSIX calls by inode number. Where to look: `format` for every byte; `table` for inodes,
//! names and extended attributes in pages; `overlay` for what the log has and the root has not;
//! `home` for how records become a new version (the commit server); `files` for the calls.

mod files;
mod format;
mod home;
mod kind;
pub mod limits;
mod look;
mod names;
mod overlay;
mod ranges;
mod state;
mod table;
mod types;

#[cfg(test)]
mod tests;

pub use files::Files;
pub use home::Home;
pub use kind::{File, KIND, RootSettings};
pub use types::*;
