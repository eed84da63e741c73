//! `up`, `upgrade` and `stop`: the life of a daemon.

use crate::parse::{self, ParityChoice};
use clap::Args;
use rekindle_node::config::HolderSpread;
use rekindle_supervise::worker::LogFormat;
use rekindle_terminal::words::{AddressOrOff, address};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle up
  rekindle up --dir /srv/rekindle --store s3://bucket/prefix
  rekindle up --socket-group libvirt-qemu   libvirt's QEMU may use the volumes
  rekindle up --nbd 127.0.0.1:10809         every user of this machine may
  rekindle up --nfs 127.0.0.1:2049          file volumes, for mount -t nfs
  rekindle up --parity 16+1                 heal what a disk of the store loses
  rekindle up --store s3://b/p --advertise 10.0.0.1:7733    in a cluster: then
      `rekindle cluster init`
  rekindle up --store-fault latency=100ms,fail=20%,gone=60s       for drills

Only the user who runs it gets in: everything is private, sockets too. A group
gets in with --socket-group; TCP has no such limits.

Without --store the bulk lies in DIR/store. S3 credentials come from
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL.

What the command line does not say comes from the environment (REKINDLE_STORE,
...), then from --config, then from the defaults.

Ctrl-C or SIGTERM is a quick stop: it does not wait for the store, and nothing
acknowledged is lost. A second one stops at once. A hangup (SIGHUP, a terminal
that is closed) is a quick stop too, unless `nohup` started it. A worker that
dies is started again; its clients wait meanwhile.")]
pub struct Up {
    /// Where the bulk lies: file:///FOLDER or s3://BUCKET/PREFIX [default: DIR/store]
    #[arg(long, env = "REKINDLE_STORE", hide_env_values = true, value_name = "URL")]
    pub store: Option<String>,
    /// Serve NBD here besides DIR/nbd.sock: unix:PATH or HOST:PORT; repeatable
    #[arg(
        long,
        visible_alias = "listen",
        env = "REKINDLE_NBD",
        hide_env_values = true,
        value_name = "ADDR",
        value_parser = address,
        value_delimiter = ','
    )]
    pub nbd: Vec<AddressOrOff>,
    /// Serve file volumes through NFS 3 and 4.1 here: HOST:PORT; repeatable [default: off]
    #[arg(long, env = "REKINDLE_NFS", hide_env_values = true, value_name = "ADDR", value_parser = address, value_delimiter = ',')]
    pub nfs: Vec<AddressOrOff>,
    /// Serve the JSON API here besides DIR/rekindle.sock: unix:PATH or HOST:PORT; repeatable
    #[arg(long, env = "REKINDLE_HTTP", hide_env_values = true, value_name = "ADDR", value_parser = address, value_delimiter = ',')]
    pub http: Vec<AddressOrOff>,
    /// Allow TCP addresses that other machines reach: clients are not authenticated, and nothing is
    /// encrypted
    #[arg(long, env = "REKINDLE_INSECURE", hide_env_values = true)]
    pub insecure: bool,
    /// Let this group use the NBD sockets too: QEMU's, for example [default: only the user who runs
    /// the daemon]
    #[arg(long, env = "REKINDLE_SOCKET_GROUP", hide_env_values = true, value_name = "GROUP", value_parser = rekindle_supervise::access::group)]
    pub socket_group: Option<u32>,
    /// Let this group use the sockets of the JSON API too: it may then remove volumes and stop the
    /// daemon
    #[arg(long, env = "REKINDLE_HTTP_SOCKET_GROUP", hide_env_values = true, value_name = "GROUP", value_parser = rekindle_supervise::access::group)]
    pub http_socket_group: Option<u32>,
    /// File of the memory that outlives the process, on tmpfs; memfd: no file, held by `up` itself
    /// or by systemd; in a virtual machine ivshmem, or a file on a file system mounted with -o dax:
    /// outlives the machine's kernel [default: /dev/shm/rekindle-NODE.warm]
    #[arg(long, env = "REKINDLE_WARM", hide_env_values = true, value_name = "PATH")]
    pub warm: Option<PathBuf>,
    /// Read settings from this TOML file
    #[arg(long, env = "REKINDLE_CONFIG", hide_env_values = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Go on with this copy of the folder, whatever other copies have been started: they are
    /// stopped for good
    #[arg(long)]
    pub take_identity: bool,
    /// Go on with copies of this node's log that an earlier start of it has sent: what it has
    /// acknowledged since then is given up
    #[arg(long, requires = "take_identity")]
    pub older_copies: bool,
    /// Put faults in front of the store: latency=10ms,fail=20%,gone=60s
    #[arg(long, env = "REKINDLE_STORE_FAULT", hide_env_values = true, value_name = "SPEC")]
    pub store_fault: Option<String>,
    /// Be a node of a cluster: other nodes reach this one at this address of this host, HOST:PORT
    /// or unix:PATH. What they say is encrypted. See `rekindle cluster`
    #[arg(long, env = "REKINDLE_ADVERTISE", hide_env_values = true, value_name = "ADDR", value_parser = address)]
    pub advertise: Option<AddressOrOff>,
    /// Join the cluster of the store with this token, which `rekindle cluster token` prints on
    /// another node. The folder remembers it
    #[arg(long, env = "REKINDLE_JOIN", hide_env_values = true, value_name = "TOKEN")]
    pub join: Option<String>,
    /// The fault domain of this host, a rack say: copies go to other domains, if there are any
    #[arg(long, env = "REKINDLE_DOMAIN", hide_env_values = true, value_name = "NAME")]
    pub domain: Option<String>,
    /// Where the holders of copies may be: prefer = other domains, if there are any; remote = other
    /// domains only; local = this domain only [default: prefer]
    #[arg(long, env = "REKINDLE_HOLDER_DOMAINS", hide_env_values = true, value_name = "RULE", value_parser = parse::holder_spread())]
    pub holder_domains: Option<HolderSpread>,
    /// The node's name in the cluster [default: the name of the host]
    #[arg(long, env = "REKINDLE_NODE_NAME", hide_env_values = true, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Flash for copies of other nodes' logs: twice the flash budgets of those nodes, so that a
    /// copy that begins anew has room beside the old one [default: 8G]
    #[arg(long, env = "REKINDLE_HOLD_BUDGET", hide_env_values = true, value_name = "SIZE", value_parser = parse::budget)]
    pub hold_budget: Option<u64>,
    /// Flash for acknowledged writes that are not in the store yet [default: 4G, at most half of
    /// what is free]
    #[arg(long, env = "REKINDLE_FLASH_BUDGET", hide_env_values = true, value_name = "SIZE", value_parser = parse::budget)]
    pub flash_budget: Option<u64>,
    /// RAM for cached blocks [default: 256M]
    #[arg(long, env = "REKINDLE_CACHE", hide_env_values = true, value_name = "SIZE", value_parser = parse::budget)]
    pub cache: Option<u64>,
    /// Memory that outlives the process [default: 256M, at most a sixteenth of what is free]
    #[arg(long, env = "REKINDLE_WARM_SIZE", hide_env_values = true, value_name = "SIZE", value_parser = parse::budget)]
    pub warm_size: Option<u64>,
    /// How much of it keeps tree nodes over a restart, 0 for none [default: a quarter]
    #[arg(long, env = "REKINDLE_WARM_FRAMES", hide_env_values = true, value_name = "SIZE", value_parser = parse::budget)]
    pub warm_frames: Option<u64>,
    /// Add parity to new packs: 16+1 is one parity cell to 16 of data, a sixteenth more space, and
    /// what is damaged in the store within that bound comes back; off: none [default: off]
    #[arg(long, env = "REKINDLE_PARITY", hide_env_values = true, value_name = "D+P|off", value_parser = parse::parity)]
    pub parity: Option<ParityChoice>,
    /// Read a volume's tree as soon as it is attached; off: only what is asked for [default: off]
    #[arg(long, env = "REKINDLE_READ_AHEAD", hide_env_values = true, value_name = "ON|OFF", value_parser = parse::switch)]
    pub read_ahead: Option<bool>,
    /// Read what is in memory by a plain call; off: by a message to another thread, to show what
    /// that costs [default: on]
    #[arg(long, env = "REKINDLE_DIRECT_PATH", hide_env_values = true, value_name = "ON|OFF", value_parser = parse::switch)]
    pub direct_path: Option<bool>,
    /// Say more about what is going on (RUST_LOG takes a filter: debug, or rekindle_log=trace)
    #[arg(long, short)]
    pub verbose: bool,
    /// How diagnostics are written
    #[arg(
        long,
        env = "REKINDLE_LOG_FORMAT",
        hide_env_values = true,
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle upgrade   the file of the running binary was replaced
  rekindle upgrade --binary /opt/rekindle-2/rekindle  another file

The new binary must run and know every format in use; else it is refused and
nothing is touched. Then `up` becomes the new binary (same pid, same sockets),
the old worker makes a quick stop and a new one starts. Clients that connect
meanwhile wait; those connected connect again, as after a crash. If the new
binary's workers die before one has served, the old binary comes back.

Under systemd: put the new binary in place and `systemctl restart` the unit.
Exit code 1 when the old binary serves on.")]
pub struct Upgrade {
    /// The new binary [default: the file from which the daemon was started]
    #[arg(long, value_name = "PATH")]
    pub binary: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle stop
  rekindle stop --drain

Without --drain it does not wait for the store: what is not there yet is kept
in the log, and the next start brings it there. With --drain everything goes
to the store first, which may take as long as `rekindle status` says; Ctrl-C
then makes it a quick stop, a second one stops waiting. Clients are let go
first in both cases.

Exit code 1 when no daemon answers, or when not everything could be drained.")]
pub struct Stop {
    /// First move everything that was acknowledged to the store
    #[arg(long)]
    pub drain: bool,
}
