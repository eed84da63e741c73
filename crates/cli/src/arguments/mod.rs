//! The command line, as clap sees it. One struct a command; each command's file does the work.

mod appliance;
pub mod cluster;
mod drill;
mod files;
mod kept;
mod lab;
mod look;
mod repair;
mod snapshot;
mod transfer;
mod up;
mod volume;

pub use appliance::Appliance;
use clap::{Args, Parser, Subcommand};
pub use cluster::Cluster;
pub use drill::{Attach, Drill, Failover, How, Restart};
pub use files::{CreateFs, ExportTree, Fs, ImportTree, Mount};
pub use kept::{Purge, Rename, Resize, Restore, Rollback, Set};
pub use lab::Lab;
pub use look::{
    BootReport, Completions, Cost, Debug, Inspect, Man, Space, Status, VolumeNames, Warm,
};
pub use repair::{Jobs, Salvage, SalvageHistory, SalvageRun, Sweep, Verify};
pub use snapshot::{CloneVolume, Snapshot, Snapshotted};
use std::path::PathBuf;
pub use transfer::{Export, Format, Import};
pub use up::{Stop, Up, Upgrade};
pub use volume::{Create, Map, Move, Named, Remove, Volume, Writes};

const EXAMPLES: &str = "\
First five minutes:
  rekindle up                                serve from ./rekindle-data
  rekindle volume create vm1 --size 20G      make a disk (in another terminal)
  nbdinfo 'nbd+unix:///vm1?socket=rekindle-data/nbd.sock'
  rekindle drill restart                     kill it under load, count losses

Every command takes --json (for programs) and --dir (which daemon).
Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// Virtual disks that acknowledge at flash speed and survive kill -9.
#[derive(Debug, Parser)]
#[command(name = "rekindle", version, after_help = EXAMPLES, max_term_width = 80)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// Arguments that every command takes.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// The daemon's folder [default: ./rekindle-data, or rekindle in the user's data folder]
    #[arg(
        long,
        global = true,
        env = "REKINDLE_DIR",
        hide_env_values = true,
        value_name = "FOLDER"
    )]
    pub dir: Option<PathBuf>,
    /// Print JSON, errors too
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve: start the daemon and keep it alive
    Up(Box<Up>),
    /// Make, list, show and remove volumes
    #[command(subcommand)]
    Volume(Volume),
    /// Make, list and show file systems
    #[command(subcommand)]
    Fs(Fs),
    /// Keep what a volume has now under a name; make new volumes of that
    #[command(subcommand)]
    Snapshot(Snapshot),
    /// Show the daemon: health, endpoints, flash, store, memory, backlog, long work
    Status(Status),
    /// Stop the daemon, and wait until it is gone
    Stop(Stop),
    /// Make a volume a disk of this machine, /dev/nbdN, that waits while the daemon restarts
    Map(Map),
    /// Mount a file system on a folder, where it waits while the daemon restarts
    Mount(Mount),
    /// Read every chunk that a volume reaches and compare it with its name; read
    /// what only the log has, too
    Verify(Verify),
    /// Repair damaged volumes: what waits, what was done, begin, break off
    #[command(subcommand)]
    Salvage(Salvage),
    /// Count what volumes take in the store, and what of it is theirs alone
    Space(Space),
    /// What the store will charge: requests and bytes, at your prices
    Cost(Cost),
    /// Give back space in the store that no volume reaches
    #[command(subcommand)]
    Sweep(Sweep),
    /// Nodes that keep copies of one another's logs, and take lost ones over
    #[command(subcommand)]
    Cluster(Cluster),
    /// Long work of the daemon: show it, break it off
    #[command(subcommand)]
    Jobs(Jobs),
    /// Show or empty the memory that outlives the daemon
    #[command(subcommand)]
    Warm(Warm),
    /// Look inside a live daemon: volumes, destager, log, who waits for what
    #[command(subcommand)]
    Debug(Debug),
    /// Show what the last start took, from the first instruction to the first reply
    BootReport(BootReport),
    /// Go on as another binary: sockets stay open, clients wait for a moment, nothing is lost
    Upgrade(Upgrade),
    /// A virtual machine that only serves, and whose warm memory is RAM of the host
    #[command(subcommand)]
    Appliance(Appliance),
    /// Break something on purpose and measure what clients notice
    #[command(subcommand)]
    Drill(Drill),
    /// A cluster of a few nodes on this machine, to try
    Lab(Lab),
    /// Decode a file, an object or a folder of Rekindle's, offline and read-only
    Inspect(Inspect),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Write the man pages, made from the same words as --help
    Man(Man),
    /// The names of the volumes, a line each; asked by completion scripts
    #[command(hide = true, name = "volume-names")]
    VolumeNames(VolumeNames),
    /// The process that serves; started by `up`
    #[command(hide = true, name = "worker")]
    Worker,
    /// The newest version that this binary knows of each format; asked by `upgrade`
    #[command(hide = true, name = "formats")]
    Formats,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn each(command: &clap::Command, path: &str, look: &mut impl FnMut(&clap::Command, &str)) {
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
            let path = format!("{path} {}", inner.get_name());
            look(inner, &path);
            each(inner, &path, look);
        }
    }

    #[test]
    fn every_command_has_examples_that_fit_a_terminal() {
        let long = EXAMPLES.lines().filter(|line| line.chars().count() > 80);
        let mut wrong: Vec<String> = long.map(str::to_owned).collect();
        each(&Cli::command(), "rekindle", &mut |command, path| {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            if !text.contains("Example") {
                wrong.push(format!("{path} has none"));
            }
            let long = text.lines().filter(|line| line.chars().count() > 80);
            wrong.extend(long.map(|line| format!("{path}: {line}")));
        });
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
