//! The versions, the trash, the name and the size of a volume.

use crate::parse;
use clap::Args;

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
      cuts off what is beyond: shrink the file system first")]
pub struct Resize {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// How large it shall be: 40G
    #[arg(value_parser = parse::volume_size)]
    pub size: u64,
    /// Also smaller than it is
    #[arg(long)]
    pub shrink: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle volume versions vm1
  rekindle volume rollback vm1 --to 1234-a5a5a5a5

What was there before becomes a version, so that going back can be taken back.")]
pub struct Rollback {
    /// The volume; no client may be using it
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// One of `rekindle volume versions`
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
