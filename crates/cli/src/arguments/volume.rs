//! `volume` and `map`: disks.

use super::{Export, Import, Purge, Rename, Resize, Restore, Rollback, Set};
use crate::parse;
use clap::{Args, Subcommand};
use rekindle_staging::{Ack, MissingCopy, Policy};
use rekindle_terminal::words::{AddressOrOff, address};
use std::time::Duration;

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rekindle volume create vm1 --size 20G
  rekindle volume ls
  rekindle volume show vm1")]
pub enum Volume {
    /// Make a volume
    Create(Create),
    /// List the volumes
    #[command(
        visible_alias = "list",
        after_help = "Examples:\n  rekindle volume ls\n  rekindle volume ls --json"
    )]
    Ls,
    /// Show one volume
    #[command(after_help = "Example:\n  rekindle volume show vm1")]
    Show(Named),
    /// Move a volume to the trash, where it is kept for a week
    #[command(
        visible_alias = "remove",
        after_help = "\
Examples:
  rekindle volume rm vm1
  rekindle volume rm vm1 --now      for good: its space is free soon
  rekindle volume rm vm1 --force    also when clients are connected"
    )]
    Rm(Remove),
    /// Show what is in the trash
    #[command(after_help = "Example:\n  rekindle volume trash")]
    Trash,
    /// Take a volume out of the trash
    Restore(Restore),
    /// Remove for good what is in the trash
    Purge(Purge),
    /// Give a volume another name
    Rename(Rename),
    /// Give a volume another size
    Resize(Resize),
    /// Change when the writes of a volume are acknowledged: its policy, and its copies
    Set(Set),
    /// List the earlier contents of a volume that are kept: the last day, at falling density
    #[command(after_help = "Example:\n  rekindle volume versions vm1")]
    Versions(Named),
    /// Go back to an earlier content of a volume
    Rollback(Rollback),
    /// Move everything that was acknowledged so far to the store, and wait for it
    #[command(after_help = "Example:\n  rekindle volume drain vm1")]
    Drain(Named),
    /// Move a volume to another node of the cluster, while its clients go on
    Move(Move),
    /// Fill a volume with the image of a disk
    Import(Import),
    /// Write a volume into a file
    Export(Export),
    /// Show what happened to a volume: its changes of state, with cause and duration
    #[command(after_help = "Example:\n  rekindle volume history vm1")]
    History(Named),
    /// Keep a volume in service however long no client uses it
    #[command(after_help = "Example:\n  rekindle volume pin vm1")]
    Pin(Named),
    /// Let a volume go out of service again when no client uses it for long
    #[command(after_help = "Example:\n  rekindle volume unpin vm1")]
    Unpin(Named),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle volume create vm1 --size 20G
  rekindle volume create archive --size 1T --policy through
      acknowledged when the store has it
  rekindle volume create mail --size 100G --copies 1
      acknowledged when this node's flash and another node have it
  rekindle volume create scratch --size 512M --ack memory
      survives kill -9; what was not FLUSHed does not survive a power cut")]
pub struct Create {
    /// Its name: printable, no / and no leading dot, at most 255 bytes
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// How large it looks; space is taken when it is written: 20G, 512M
    // With a hyphen it is no option, but a wrong size, which the parser names.
    #[arg(long, allow_hyphen_values = true, value_parser = parse::volume_size)]
    pub size: u64,
    #[command(flatten)]
    pub writes: Writes,
    /// What it holds: block = the bytes of a disk, file = files, as of `rekindle fs create`
    /// [default: block]
    #[arg(long)]
    pub kind: Option<String>,
    /// Gives all chunks of a block volume one size, a power of two from 4K to 1M: the unit of
    /// deduplication and compression [default: chunks of 4K to 128K, cut by content]
    #[arg(long, value_name = "SIZE", value_parser = parse::block_size)]
    pub block_size: Option<u64>,
}

/// When the writes of a new volume are acknowledged.
#[derive(Debug, Clone, Args)]
pub struct Writes {
    /// After what a write is acknowledged: back = the log has it, through and uncached = the store
    /// has it
    #[arg(long, default_value = "back", value_parser = parse::policy())]
    pub policy: Policy,
    /// What `back` asks of the log: flash = synced to flash, memory = in memory that outlives the
    /// process
    #[arg(long, default_value = "flash", value_parser = parse::ack())]
    pub ack: Ack,
    /// Copies on other nodes that a write waits for, with policy back: see `rekindle cluster`
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub copies: u8,
    /// What writes do while there are fewer copies: step-down = wait for the store instead, stall =
    /// wait for the copies
    #[arg(long, default_value = "step-down", hide_default_value = true, value_parser = parse::missing_copy())]
    pub on_missing_copy: MissingCopy,
}

#[derive(Debug, Args)]
pub struct Named {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle volume move vm1 two

The command is given at the host that serves the volume; `rekindle volume move`
at any other one says which that is. Its changes go to the store first, then its
clients wait a moment while the node changes. Those at other hosts keep their
connections, as do those here. TO is a node as `rekindle cluster ls` shows it.
A volume of a node that was taken over moves to the node of this host, too.")]
pub struct Move {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// The node: its name, its id, or the beginning of its id
    pub to: String,
}

#[derive(Debug, Args)]
pub struct Remove {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// Also when clients are connected; they are let go
    #[arg(long)]
    pub force: bool,
    /// Not to the trash: remove it at once, and for good
    #[arg(long)]
    pub now: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle map vm1   prints the device and stays until Ctrl-C
  rekindle map vm1 --device /dev/nbd3 --nbd 10.0.0.7:10809

The kernel's NBD client does the I/O. While the daemon is away, requests wait
in the kernel; this command connects again as soon as it is back. Unmount
before you end it: Ctrl-C or SIGTERM takes the device away. Wants root, and
the kernel module nbd.")]
pub struct Map {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// The device [default: a free one]
    #[arg(long, value_name = "PATH", value_parser = parse::nbd_device)]
    pub device: Option<u32>,
    /// Where NBD is served: HOST:PORT or unix:PATH [default: where the daemon of --dir says]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub nbd: Option<AddressOrOff>,
    /// Connections; the kernel spreads requests over them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub connections: u8,
    /// Sector size that the kernel shows
    #[arg(long, value_name = "SIZE", value_parser = parse::sector_size, default_value = "512")]
    pub sector_size: u64,
    /// Send a request again when it is not answered for this long; whole seconds
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "5s")]
    pub timeout: Duration,
    /// Fail requests when no daemon answers for this long; whole seconds
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "10m")]
    pub patience: Duration,
}
