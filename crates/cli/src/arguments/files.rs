//! `fs` and `mount`: file systems.

use super::snapshot::{CloneVolume, Snapshotted};
use super::volume::{Named, Writes};
use crate::parse;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rekindle fs create home
  rekindle mount home /mnt/home
  rekindle fs ls

A file system is a volume of kind file: every `rekindle volume` command takes
its name, too.")]
pub enum Fs {
    /// Make a file system
    Create(CreateFs),
    /// List the file systems
    #[command(
        visible_alias = "list",
        after_help = "Examples:\n  rekindle fs ls\n  rekindle fs ls --json"
    )]
    Ls,
    /// Show one file system
    #[command(after_help = "Example:\n  rekindle fs show home")]
    Show(Named),
    /// Keep what a file system has now under a name, in its folder .snapshots
    #[command(after_help = "Example:\n  rekindle fs snapshot home monday\n\n\
        `rekindle snapshot ls|rm` lists and removes snapshots.")]
    Snapshot(Snapshotted),
    /// Make a new file system that begins with a snapshot; nothing is copied
    #[command(after_help = "Example:\n  rekindle fs clone home monday work\n\n\
        Both share their chunks in the store; each goes its own way.")]
    Clone(CloneVolume),
    /// Copy a folder of this machine into a file system
    Import(ImportTree),
    /// Copy a file system, or a part of it, into a folder of this machine
    Export(ExportTree),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle fs create home
  rekindle fs create archive --size 10T --policy through
      acknowledged when the store has it
  rekindle fs create mail --copies 1
      acknowledged when this node's flash and another node have it

As with any file system, what a program has written is safe when it has called
fsync, or closed the file and waited for a while.")]
pub struct CreateFs {
    /// Its name: printable, no / and no leading dot, at most 255 bytes
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// Most bytes that its files may have; space is taken when they are written: 1T, 500G
    #[arg(long, allow_hyphen_values = true, value_parser = parse::volume_size, default_value = "1T")]
    pub size: u64,
    #[command(flatten)]
    pub writes: Writes,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle fs import /srv/home home
  rekindle fs import ./photos home --to /photos
  rekindle fs import /srv/home home --merge    go on where it broke off

Owners, modes, times, links, holes and extended attributes come along. No mount
is needed, and the daemon may be restarted meanwhile. When the command ends, all
of it is durable. Run it as root to read every file.")]
pub struct ImportTree {
    /// The folder, whose content is copied
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The file system
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// The folder in the file system, which is made if it is not there
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub to: PathBuf,
    /// Copy into a folder that is not empty: a file that has the same size and time of change is
    /// left, another one of the same name is replaced
    #[arg(long)]
    pub merge: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle fs export home /mnt/usb/home
  rekindle fs export home ./old --snapshot monday
  rekindle fs export home ./photos --from /photos

Owners, modes, times, links, holes and extended attributes come along; owners
need root. A snapshot is as it was at one moment, while a file system that is in
use changes under the copy. Exit code 1 when something is left out.")]
pub struct ExportTree {
    /// The file system
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// The folder to copy into, which is made if it is not there
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Copy what this snapshot has
    #[arg(long, value_name = "SNAPSHOT")]
    pub snapshot: Option<String>,
    /// The folder in the file system
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub from: PathBuf,
    /// Copy into a folder that is not empty: a file that has the same size and time of change is
    /// left, another one of the same name is replaced
    #[arg(long)]
    pub merge: bool,
    /// Leave out what cannot be read, and copy the rest
    #[arg(long)]
    pub keep_going: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle mount home /mnt/home      stays until Ctrl-C or `umount /mnt/home`
  rekindle mount home /mnt/home --read-only

The kernel checks permissions; locks are the volume's, for all its mounts. While
the daemon is away, requests wait here, and go on by themselves as soon as it is
back. Wants root, or fusermount3 (package fuse3).")]
pub struct Mount {
    /// The volume, of kind file
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// The folder to mount on
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Refuse changes
    #[arg(long)]
    pub read_only: bool,
    /// Let other users in, as far as permissions do [default: true for root, else false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub allow_other: Option<bool>,
}
