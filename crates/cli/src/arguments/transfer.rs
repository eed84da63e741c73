//! `volume import` and `volume export`: images of disks, in and out.

use crate::parse;
use clap::{Args, ValueEnum};
use rekindle_staging::{Ack, Policy};
use std::path::PathBuf;

/// The layout of an image in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The disk's bytes, as they are
    Raw,
    /// QEMU's; wants qemu-img (package qemu-utils)
    Qcow2,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle volume import debian.qcow2 vm1
  rekindle volume import disk.img vm1 --size 40G    larger than the image
  rekindle volume import disk.img vm1 --resume      go on where it broke off
  rekindle volume import disk.img vm1 --overwrite   vm1 is there; its content
                                                    is lost
  zstd -dc disk.img.zst | rekindle volume import - vm1 --size 40G

The volume is made if it is not there. Holes and zeros take no space.
--resume goes on with an import of the same raw image that broke off: it
compares the image with what is there, and writes what differs.
What is in a FILE never says how it is read: its guest has written that.")]
pub struct Import {
    /// The image; `-`: standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub volume: String,
    /// How the image lies in the file [default: qcow2 for a FILE that ends so, else raw]
    #[arg(long)]
    pub format: Option<Format>,
    /// Size of a new volume [default: that of the image]
    #[arg(long, allow_hyphen_values = true, value_parser = parse::volume_size)]
    pub size: Option<u64>,
    /// Policy of a new volume, as for `volume create`
    #[arg(long, default_value = "back", value_parser = parse::policy())]
    pub policy: Policy,
    /// What `back` asks of the log, for a new volume
    #[arg(long, default_value = "flash", value_parser = parse::ack())]
    pub ack: Ack,
    /// Use a volume that is there: its content is lost
    #[arg(long)]
    pub overwrite: bool,
    /// Go on with an import that broke off: write only what differs
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// --overwrite or --resume also while clients are connected: the disk changes under them
    #[arg(long)]
    pub force: bool,
    /// Also read the files that a qcow2 image names (backing file, external data): only of an image
    /// that you trust
    #[arg(long)]
    pub with_backing_files: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle volume export vm1 vm1.img
  rekindle volume export vm1 vm1.qcow2
  rekindle volume export vm1 vm1.img --skip-damaged   what cannot be read is
                                                      zeros, and is listed
  rekindle volume export vm1 - --snapshot monday | zstd > vm1.img.zst

What clients write meanwhile may be in the file or not: stop them first, or
export a snapshot.
The file has its name when it is whole; until then it is hidden beside it.
An export that broke off begins again from the start.")]
pub struct Export {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// The file, which must not be there; a disk, with --force; `-`: standard output
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write what this snapshot has: what clients write meanwhile is not in it
    #[arg(long, value_name = "SNAPSHOT")]
    pub snapshot: Option<String>,
    /// How to write it [default: qcow2 for a FILE that ends so, else raw]
    #[arg(long)]
    pub format: Option<Format>,
    /// Replace a file that is there, or write over a disk
    #[arg(long)]
    pub force: bool,
    /// Write zeros for what cannot be read, and list it
    #[arg(long)]
    pub skip_damaged: bool,
}
