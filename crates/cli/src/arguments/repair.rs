//! `verify`, `salvage` and `sweep`: care of the store.

use super::Named;
use crate::parse;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle verify                 every volume, with progress
  rekindle verify vm1             one volume
  rekindle verify --detach
      start it and come back later: `rekindle jobs ls` shows it
  rekindle verify --salvage --rate 20M    slowly, and repair what is damaged

In the settings file, `interval` under `[scrub]` does the last one again and
again; `rate` says how fast.

Exit code 1 when something is damaged.")]
pub struct Verify {
    /// The volume [default: all]
    #[arg(value_parser = parse::volume_name)]
    pub name: Option<String>,
    /// Wait for the end (the default)
    #[arg(long, overrides_with = "no_wait")]
    pub wait: bool,
    /// Only start it
    #[arg(long, visible_alias = "detach")]
    pub no_wait: bool,
    /// Ask for a salvage of each volume in which damage is found
    #[arg(long)]
    pub salvage: bool,
    /// Read at most so many bytes per second of the store; the log is read as
    /// fast as it can be
    #[arg(long, value_name = "SIZE", value_parser = parse::budget)]
    pub rate: Option<u64>,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Damage that a read, a batch, an attach or a scrub meets brings a salvage about
by itself. A volume in service stays in service meanwhile. What the cache
still has comes back; what cannot be had is quarantined: reads of it are
errors that name the bytes, writes over it heal it. Nothing else of the volume
is touched, and zeros are never given for what is lost.

After 16 attempts in vain, or two that find the same and change nothing, a
volume waits for `rekindle salvage run`.

When acknowledged changes that had not reached the store are lost (flash and
memory both damaged), the volume stays out of service and says which; only
you can decide to go on without them:
  rekindle salvage run NAME --accept-losses

Examples:
  rekindle salvage queue
  rekindle salvage run vm1")]
pub enum Salvage {
    /// Volumes that are being salvaged, and those that wait for it
    #[command(after_help = "Example:\n  rekindle salvage queue")]
    Queue,
    /// Read and check everything of a volume, repair what can be, and wait for the end
    #[command(
        after_help = "Examples:\n  rekindle salvage run vm1\n  rekindle salvage run vm1 --accept-losses"
    )]
    Run(SalvageRun),
    /// Break the salvage of a volume off, whether it waits or runs
    #[command(after_help = "Example:\n  rekindle salvage cancel vm1")]
    Cancel(Named),
    /// What the last salvages found and did
    #[command(after_help = "Examples:\n  rekindle salvage history\n  rekindle salvage history vm1")]
    History(SalvageHistory),
}

#[derive(Debug, Args)]
pub struct SalvageRun {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// Go on without acknowledged changes that are lost: the volume keeps what is whole before
    /// them, and the rest is named
    #[arg(long)]
    pub accept_losses: bool,
    /// Only start it
    #[arg(long)]
    pub detach: bool,
}

#[derive(Debug, Args)]
pub struct SalvageHistory {
    /// The volume [default: all]
    #[arg(value_parser = parse::volume_name)]
    pub name: Option<String>,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rekindle sweep plan
  rekindle sweep run
  rekindle sweep status")]
pub enum Sweep {
    /// What the sweep is doing and what it has given back
    #[command(after_help = "Example:\n  rekindle sweep status")]
    Status,
    /// What a sweep would free, read and write now, and the cost of that
    #[command(after_help = "\
Example:
  rekindle sweep plan

It changes nothing in the store. It reads what a sweep reads first: what has
changed since the last one. The prices are those under [prices] in the
settings file.")]
    Plan,
    /// Sweep now, and wait for the end
    Run(SweepRun),
    /// Say that another node of the store is gone for good, so that no sweep waits for it
    Dismiss(SweepDismiss),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle sweep run   with progress; Ctrl-C ends the waiting, not the sweep
  rekindle sweep run --detach     start it; `rekindle jobs ls` shows it")]
pub struct SweepRun {
    /// Only start it
    #[arg(long)]
    pub detach: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  rekindle sweep dismiss 0123456789abcdef0123456789abcdef

A sweep deletes nothing before each node that uses the store has agreed. One
that was stopped in good order need not be asked; one that died is waited for,
and the sweep fails with its id. Dismiss only a node that runs nowhere any
more: what a living one writes meanwhile may be deleted. Started again, it
takes part again.")]
pub struct SweepDismiss {
    /// The node, as the failure of the sweep names it
    pub node: rekindle_base::NodeId,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rekindle jobs ls
  rekindle jobs cancel 7

The last jobs are remembered until the daemon starts again.")]
pub enum Jobs {
    /// Long work: what runs, how far it is, and how the last ones ended
    #[command(visible_alias = "list", after_help = "Example:\n  rekindle jobs ls")]
    Ls,
    /// Break one off: a check at once, a sweep or a salvage after the step that it is in
    Cancel(CancelJob),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rekindle jobs cancel 7")]
pub struct CancelJob {
    /// Its number, as `rekindle jobs ls` shows it
    pub id: String,
}
