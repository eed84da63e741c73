//! Commands that look: at a live daemon, and at its files.

use crate::parse;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle status
  rekindle status --watch          again every second

Exit code 1 when no daemon answers, or while it is starting or stopping; 3 when
another copy of its folder has replaced it.")]
pub struct Status {
    /// Print again every so often: 1s, 500ms
    #[arg(long, value_name = "TIME", value_parser = parse::duration, num_args = 0..=1, default_missing_value = "1s")]
    pub watch: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle space                  every volume, and how often bytes are shared
  rekindle space vm1 --json       one volume, for programs

It reads the trees of all volumes, no data. With very many chunks it estimates.")]
pub struct Space {
    /// Only this volume [default: all of them]
    pub name: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle cost
  rekindle cost --json            for programs

It counts this daemon's requests since its start, by the part of the store that
they are for, and says what a day like that costs. The prices are those under
[prices] in the settings file.")]
pub struct Cost {}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rekindle warm show
  rekindle warm drop --orphans    give back what no folder needs any more")]
pub enum Warm {
    /// What it holds, how often it helped, and why not when it did not
    #[command(after_help = "Example:\n  rekindle warm show")]
    Show,
    /// List the warm memory of all folders on this machine, and say which belongs to no folder any
    /// more
    #[command(after_help = "Example:\n  rekindle warm ls")]
    Ls,
    /// Empty the block frames; segments of the log stay, so nothing acknowledged is lost
    #[command(after_help = "Examples:\n  rekindle warm drop\n  rekindle warm drop --orphans")]
    Drop {
        /// Instead, remove the warm memory of folders that are gone from this machine
        #[arg(long)]
        orphans: bool,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle boot-report   phases, what was read and where it was found
  rekindle boot-report --svg boot.svg     besides, a timeline to look at

The start ends with the first reply to a client of NBD; before, the report is
of what there is.")]
pub struct BootReport {
    /// Draw a timeline into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Each is a copy under short locks and of bounded length: safe on a daemon under
load. The store is not asked, so they answer while it is away. Fields of
--json may change with any version.

Examples:
  rekindle debug volumes vm
  rekindle debug log --json")]
pub enum Debug {
    /// Volumes asked for since the start: state, sessions, serials, overlay, what the collector
    /// thinks
    #[command(after_help = "Examples:\n  rekindle debug volumes\n  rekindle debug volumes vm")]
    Volumes(Narrow),
    /// What waits to be destaged: the destager's ring, and flow control of each volume
    #[command(after_help = "Examples:\n  rekindle debug queue\n  rekindle debug queue vm")]
    Queue(Narrow),
    /// Segments of the log, how full its head is, what is committed
    #[command(after_help = "Example:\n  rekindle debug log")]
    Log,
    /// Memory that outlives the daemon: which segment lies in which slot, how full the sets of
    /// frames are
    #[command(after_help = "Example:\n  rekindle debug warm")]
    Warm,
    /// Volumes in a transitional state: what their tasks wait for, and who waits for them
    #[command(after_help = "Example:\n  rekindle debug locks")]
    Locks,
}

#[derive(Debug, Args)]
pub struct Narrow {
    /// Only volumes whose names begin with this
    pub prefix: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle inspect rekindle-data/store   a store: what is in it
  rekindle inspect rekindle-data/store/rekindle.json           a record
  rekindle inspect rekindle-data/flash   the log's segments
  rekindle inspect volumes/3f0c... --dir rekindle-data
      a key of the daemon's folder store
  rekindle inspect rekindle.json  --store s3://bucket/prefix   a key of a bucket

Nothing is written. A damaged file is decoded as far as it goes; the report
says where it ends, and why.
Exit code 1 when something is damaged.")]
pub struct Inspect {
    /// A file, a folder, or a key of the store
    pub path: String,
    /// The store of a key [default: DIR/store]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Show every entry, not only the first ones
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle man /usr/local/share/man/man1
  man rekindle-volume-create")]
pub struct Man {
    /// Where to; made if it is not there
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rekindle completions bash > /etc/bash_completion.d/rekindle")]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct VolumeNames {
    /// Of those in the trash; the ids of those that share a name
    #[arg(long)]
    pub trash: bool,
    /// Of the nodes of the cluster that a volume may move to, in their place
    #[arg(long)]
    pub nodes: bool,
}
