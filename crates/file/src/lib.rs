//! A file volume: a file system over chunks of content, after HydraFS.
//!
//! [`File`] is the [`rekindle_volume::Kind`] that the node registers. [`Files`] is the view of a
//! front: POSIX calls by inode number. Where to look: `format` for every byte; `table` for inodes,
//! names and extended attributes in pages; `taken` for the pages that files take; `overlay` for
//! what the log has and the root has not; `home` for how records become a new version (the commit
//! server); `files` for the calls; `repair` for damage.

mod acl;
mod caller;
mod commit;
mod files;
mod format;
mod home;
mod kind;
pub mod limits;
mod look;
mod names;
mod numbers;
mod overlay;
mod part;
mod ranges;
mod repair;
mod settings;
mod state;
mod table;
mod taken;
mod types;

// The model of the tests serves the simulation, too, which knows this crate by its name.
#[cfg(test)]
extern crate self as rekindle_file;
#[cfg(test)]
mod tests;

/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 2] =
    [("file table", format::page::VERSION as u32), ("file record", format::record::VERSION as u32)];

pub use acl::{ACL_ENTRIES_MAX, Acl, AclEntry, AclOf, Rights, tag};
pub use caller::{Caller, Halt, Keeper, Sight, Witness};
pub use files::{Files, is_frozen, joined};
pub use home::{Home, KeptLately};
pub use kind::{File, KIND};
pub use names::Seal;
pub use settings::RootSettings;
pub use types::*;
