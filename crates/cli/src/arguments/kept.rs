//! The versions, the trash, the name, the size and the settings of a volume.

use crate::parse;
use clap::Args;
use rekindle_staging::{Ack, MissingCopy, Policy};

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rekindle volume rename vm1 mail")]
pub struct Rename {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// Its new name
    #[arg(value_parser = parse::volume_name)]
    pub new_name: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle volume resize vm1 40G
      clients see it when they connect anew
  rekindle volume resize vm1 10G --shrink
      cuts off what is beyond: shrink the file system first

The size of a file system only limits what it takes: it may be less at any time,
and with --shrink also less than what is in it.")]
pub struct Resize {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// How large it shall be: 40G
    #[arg(value_parser = parse::volume_size)]
    pub size: u64,
    /// Also smaller than it is: cut off its end
    #[arg(long)]
    pub shrink: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle volume set vm1 --copies 1
  rekindle volume set vm1 --policy through --copies 0
  rekindle volume set vm1 --ack memory

What the volume has acknowledged goes to the store first. Its clients go on:
they wait for the last part of that, a few writes of the store. What is not
named stays as it is.")]
#[command(group = clap::ArgGroup::new("settings").required(true).multiple(true))]
pub struct Set {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// After what a write is acknowledged: back = the log has it, through and uncached = the store
    /// has it
    #[arg(long, group = "settings", value_parser = parse::policy())]
    pub policy: Option<Policy>,
    /// What `back` asks of the log: flash = synced to flash, memory = in memory that outlives the
    /// process
    #[arg(long, group = "settings", value_parser = parse::ack())]
    pub ack: Option<Ack>,
    /// Copies on other nodes that a write waits for, with policy back: see `rekindle cluster`
    #[arg(long, group = "settings", value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub copies: Option<u8>,
    /// What writes do while there are fewer copies: step-down = wait for the store instead, stall =
    /// wait for the copies
    #[arg(long, group = "settings", value_parser = parse::missing_copy())]
    pub on_missing_copy: Option<MissingCopy>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle volume versions vm1
  rekindle volume rollback vm1 --to 1234-a5a5a5a5
  rekindle volume rollback vm1 --to monday           a snapshot

What was there before becomes a version, so that going back can be taken back.")]
pub struct Rollback {
    /// The volume; no client may be using it
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// One of `rekindle snapshot ls` or `rekindle volume versions`
    #[arg(long, value_name = "VERSION")]
    pub to: String,
    /// Also when what is unfinished cannot reach the store: give that up
    #[arg(long)]
    pub discard: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle volume purge vm1
  rekindle volume purge 3f0c5a5a5a5a5a5a5a5a5a5a5a5a5a5a   one of several")]
pub struct Purge {
    /// As `rekindle volume trash` shows it: the name that it had, or its id
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle volume restore vm1
  rekindle volume restore vm1 --as vm1-old

Of several that had the name, the one that was removed last comes back; the id
of another one brings that back.")]
pub struct Restore {
    /// As `rekindle volume trash` shows it: the name that it had, or its id
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// Under another name
    #[arg(long = "as", value_name = "NAME", value_parser = parse::volume_name)]
    pub new_name: Option<String>,
}
