//! `lab`: a cluster on one machine.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle lab                     three nodes in ./rekindle-lab
  rekindle lab --nodes 2 --dir /tmp/lab

For people to try: the nodes share this machine's disk and memory, so their
copies keep nothing that the machine loses. Each node is a `rekindle up` with a
folder of its own, to be stopped and killed. Another `rekindle lab` in the same
folder starts the nodes that have ended. Ctrl-C stops the nodes that the command
has started, and the folder keeps everything. Settings of `up` come from the
environment (REKINDLE_CACHE, ...).")]
pub struct Lab {
    /// Nodes of the cluster
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub nodes: u8,
}
