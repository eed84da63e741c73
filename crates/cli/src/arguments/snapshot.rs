//! `snapshot`: contents of volumes that the user keeps under names.

use super::Named;
use crate::parse;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rekindle snapshot take vm1 monday
  rekindle snapshot ls vm1
  rekindle snapshot clone vm1 monday vm2
  rekindle volume rollback vm1 --to monday

Volumes and file systems alike. A mounted file system shows its snapshots in
the folder .snapshots of its root.")]
pub enum Snapshot {
    /// Keep what a volume has now under a name, while its clients go on
    #[command(after_help = "Example:\n  rekindle snapshot take vm1 monday\n\n\
        It has all that was acknowledged before. Sync the file system first for more:\n\
        `fsfreeze`, or `sync` in the guest.")]
    Take(Snapshotted),
    /// List the snapshots of a volume, the oldest first
    #[command(
        visible_alias = "list",
        after_help = "Examples:\n  rekindle snapshot ls vm1\n  rekindle snapshot ls vm1 --json"
    )]
    Ls(Named),
    /// Remove a snapshot: the sweep gives back what only it keeps
    #[command(visible_alias = "remove", after_help = "Example:\n  rekindle snapshot rm vm1 monday")]
    Rm(Snapshotted),
    /// Make a new volume that begins with a snapshot; nothing is copied
    Clone(CloneVolume),
}

#[derive(Debug, Args)]
pub struct Snapshotted {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// The snapshot's name: as that of a volume, without @
    pub snapshot: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  rekindle snapshot clone vm1 monday vm2

The new volume has the settings of the other. Both share their chunks in the
store; each goes its own way.")]
pub struct CloneVolume {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// One of its snapshots
    pub snapshot: String,
    /// The new volume
    #[arg(value_parser = parse::volume_name)]
    pub new_name: String,
}
