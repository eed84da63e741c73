//! `fs` and `mount`: file systems.

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
  rekindle mount home /mnt/home      stays until Ctrl-C or `umount /mnt/home`
  rekindle mount home /mnt/home --read-only

The kernel checks permissions, and keeps locks. While the daemon is away,
requests wait here, and go on by themselves as soon as it is back. Wants root,
or fusermount3 (package fuse3).")]
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
