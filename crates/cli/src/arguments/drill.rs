//! `drill`: breaking things on purpose.

use crate::parse;
use clap::{Args, Subcommand, ValueEnum};
use rekindle_env::Address;
use rekindle_staging::Ack;

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rekindle drill restart
  rekindle drill attach --reads 16
  rekindle drill failover one --through 10.0.0.2:10809")]
pub enum Drill {
    /// Kill the worker with SIGKILL under load; count milliseconds stalled and acknowledged writes
    /// lost
    Restart(Restart),
    /// Bring every volume into service and read it here and there; count milliseconds
    Attach(Attach),
    /// Kill, or stop, the daemon of a cluster's host under load; count milliseconds stalled and
    /// acknowledged writes lost
    Failover(Failover),
}

/// What happens to the daemon of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum How {
    /// Its processes are killed (SIGKILL), and stay dead
    Kill,
    /// Its worker stands still (SIGSTOP) until the drill ends
    Stop,
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            How::Kill => "kill",
            How::Stop => "stop",
        })
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Run it on the host that is to be struck, or with --dir of its daemon. It makes a
scratch volume with a copy on another host, and a client of its own writes to
it through a third address: an NBD address of any other host of the cluster,
which forwards to the owner. The owner is struck, another host takes all of its
volumes over, and the client goes on. At the end each block that was ever
acknowledged is read back. Clients at the struck host's own addresses lose
their connections.

Examples:
  rekindle drill failover one --through 10.0.0.2:10809
  rekindle drill failover one --through /srv/two/nbd.sock --how stop --json

Exit code 1 when an acknowledged write is missing.")]
pub struct Failover {
    /// The host here, by its name in the cluster
    pub host: Option<String>,
    /// NBD address of another host: HOST:PORT, or the path of a socket
    #[arg(long, value_name = "ADDRESS")]
    pub through: Address,
    /// What happens to the daemon here
    #[arg(long, value_enum, default_value = "kill")]
    pub how: How,
    /// Seconds of load before that, and after it
    #[arg(long, default_value_t = 4)]
    pub seconds: u64,
    /// Requests in flight
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub depth: u16,
    /// So many of a hundred requests are reads
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=90))]
    pub reads: u8,
    /// The host need not be named
    #[arg(long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The work of a daemon when all clients come back at once: each volume is
brought into service, and some of its blocks are read, spread evenly over it.
The daemon does it itself, so that clients and networks have no part in what
it takes.

Example:
  rekindle drill attach --reads 16 --at-once 4 --json")]
pub struct Attach {
    /// Only this many volumes, the first ones by name
    #[arg(long, value_name = "COUNT")]
    pub first: Option<usize>,
    /// Blocks read of each volume
    #[arg(long, default_value_t = 8)]
    pub reads: u64,
    /// Volumes at once
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub at_once: u16,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Writes self-describing 4 KiB blocks through a client of its own, kills the
worker, lets the supervisor start another, reconnects, sends again what was
not acknowledged, and at the end reads back every block that was ever
acknowledged. Reads in between are judged in the same way. Other clients of
the daemon lose their connections as well: those that do not reconnect see
errors. So a daemon with clients is killed with --force only.

Examples:
  rekindle drill restart
  rekindle drill restart --reads 70
  rekindle drill restart --rounds 10 --seconds 2 --depth 32 --json
  rekindle drill restart --volume spare --overwrite   its content is lost

Exit code 1 when an acknowledged write is missing.")]
pub struct Restart {
    /// Seconds of load before each kill, and after the last one
    #[arg(long, default_value_t = 2)]
    pub seconds: u64,
    /// Kills
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Requests in flight
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub depth: u16,
    /// So many of a hundred requests are reads
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=90))]
    pub reads: u8,
    /// What `back` asks of the log, for the scratch volume
    #[arg(long, default_value = "flash", value_parser = parse::ack())]
    pub ack: Ack,
    /// Use this volume instead of a scratch one
    #[arg(long, value_parser = parse::volume_name, requires = "overwrite")]
    pub volume: Option<String>,
    /// The content of --volume may be overwritten
    #[arg(long)]
    pub overwrite: bool,
    /// Also while other clients are connected
    #[arg(long)]
    pub force: bool,
}
