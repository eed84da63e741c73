//! `cluster`: nodes that keep copies of one another's logs, and take lost ones over.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rekindle cluster init                 on the first node, which has --advertise
  rekindle cluster token                what the next node joins with
  rekindle cluster ls

A node that was started with `up --advertise ADDR`, over a store that all nodes
share, keeps copies of its log on other nodes. A volume asks for them with
`volume create --copies N`. When a host is lost, a holder of its copies takes
its node over about a second later, and serves its volumes.

NODE is a name, an id, or the beginning of an id.")]
pub enum Cluster {
    /// Make a cluster over the store, with this node as its first member
    #[command(after_help = "Example:\n  rekindle cluster init")]
    Init,
    /// Print the token with which other nodes join: a secret
    #[command(
        after_help = "Example:\n  rekindle up --store URL --advertise HOST:PORT --join $(rekindle cluster token)"
    )]
    Token,
    /// The nodes: their addresses, whether they answer, the holders of their copies
    #[command(after_help = "Example:\n  rekindle cluster ls")]
    Ls,
    /// One node, this one if none is named: its holders, and its copies here
    #[command(after_help = "Example:\n  rekindle cluster show")]
    Show(ShowNode),
    /// The lost nodes that have gone on at this host, and what that took
    Recoveries(Recoveries),
    /// Have a node take no further copies, and their owners find other holders
    Drain(DrainNode),
    /// Remove a node that is gone for good, and owns no volume any more
    Remove(RemoveNode),
    /// Go on as another node, too, of whose log this one holds copies, now
    Takeover(TakeOver),
    /// Go on as the node of a folder, too: of a lost host, or of one of its holders
    Adopt(Adopt),
    /// Replace the key by which other nodes know this host
    #[command(after_help = "\
Example:
  rekindle cluster rotate

Connections go on, and nothing stops. A key lasts a year, and is replaced by
itself three months before its end.")]
    Rotate,
}

#[derive(Debug, Args)]
pub struct ShowNode {
    /// The node [default: the one that answers]
    pub node: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle cluster recoveries              all, and the last one in detail
  rekindle cluster recoveries 2            the one before that in detail
  rekindle cluster recoveries --svg f.svg  besides, a timeline to look at

The times count from the last moment at which the node was heard.")]
pub struct Recoveries {
    /// The recovery in detail: 1 is the last one
    #[arg(default_value_t = 1)]
    pub number: usize,
    /// Draw its timeline into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle cluster drain two
  rekindle cluster drain two --off

A node that drains keeps its copies until their owners have others, and serves
its own volumes on. `cluster ls` shows when no node has copies there.")]
pub struct DrainNode {
    /// The node
    pub node: String,
    /// It takes copies again
    #[arg(long)]
    pub off: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  rekindle cluster remove 0123456789ab

The node is never started again, and no sweep waits for it. Refused while it
answers, or while it owns volumes: a takeover or its folder goes on with these.")]
pub struct RemoveNode {
    /// The node
    pub node: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  rekindle cluster takeover one

What a silent node meets by itself, by your word: before you switch its host
off, say. If it is well, it is replaced: it acknowledges nothing more, its
clients are disconnected, and find its volumes at the addresses of this daemon.
They wait for a second or so.")]
pub struct TakeOver {
    /// The node
    pub node: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  rekindle cluster adopt /mnt/disk-of-the-lost-host/rekindle

The folder stays where it is. It is one that `up --dir` was given, or the folder
`copies/ID` in one. Refused if another copy of that node has gone on since.")]
pub struct Adopt {
    /// The folder, on the daemon's host
    pub folder: PathBuf,
}
