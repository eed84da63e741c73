//! The command line, as clap sees it. One struct a command; each command's file does the work.

pub use crate::appliance::MemoryKind;
use crate::parse::{self, ParityChoice, Place};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
First five minutes:
  rekindle up                                  serve from ./rekindle-data (in one terminal)
  rekindle volume create vm1 --size 20G        make a disk (in another)
  nbdinfo 'nbd+unix:///vm1?socket=rekindle-data/nbd.sock'
  rekindle drill restart                       kill the worker under load and count what was lost

Every command takes --json (for programs) and --dir (which daemon).
Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// Virtual disks that acknowledge at flash speed and survive kill -9.
#[derive(Debug, Parser)]
#[command(name = "rekindle", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
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
    /// Show the daemon: endpoints, backlog, cache, store
    Status(Status),
    /// Stop the daemon, and wait until it is gone
    Stop(Stop),
    /// Make a volume a disk of this machine, /dev/nbdN, that waits while the daemon restarts
    Map(Map),
    /// Read every chunk that a volume reaches and compare it with its name
    Verify(Verify),
    /// Repair damaged volumes: what waits, what was done, begin, break off
    #[command(subcommand)]
    Salvage(Salvage),
    /// Give back space in the store that no volume reaches
    #[command(subcommand)]
    Sweep(Sweep),
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
    /// Decode a file, an object or a folder of Rekindle's, offline and read-only
    Inspect(Inspect),
    /// Print a completion script for a shell
    Completions(Completions),
    /// The process that serves; started by `up`
    #[command(hide = true, name = "worker")]
    Worker,
    /// The newest version that this binary knows of each format; asked by `upgrade`
    #[command(hide = true, name = "formats")]
    Formats,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle up
  rekindle up --dir /srv/rekindle --store s3://bucket/prefix
  rekindle up --nbd 0.0.0.0:10809 --http unix:/run/rekindle.sock
  rekindle up --parity 16+1                                     heal what a disk of the store loses
  rekindle up --store-fault latency=100ms,fail=20%,gone=60s     a store that misbehaves, for drills

Without --store the bulk lies in DIR/store. S3 credentials come from AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL.

What the command line does not say comes from the environment (REKINDLE_STORE, ...), then from
--config, then from the defaults.

Ctrl-C or SIGTERM is a quick stop: it does not wait for the store, and nothing acknowledged is lost.
A second one stops at once. A worker that dies is started again; its clients wait meanwhile.")]
pub struct Up {
    /// Where the bulk lies: file:///FOLDER or s3://BUCKET/PREFIX [default: DIR/store]
    #[arg(long, env = "REKINDLE_STORE", hide_env_values = true, value_name = "URL")]
    pub store: Option<String>,
    /// Serve NBD here besides DIR/nbd.sock: HOST:PORT, unix:PATH, or off; repeatable [default: 127.0.0.1:10809]
    #[arg(long, env = "REKINDLE_NBD", hide_env_values = true, value_name = "ADDR", value_parser = parse::address, value_delimiter = ',')]
    pub nbd: Vec<Place>,
    /// Serve the JSON API here besides DIR/rekindle.sock [default: 127.0.0.1:8809]
    #[arg(long, env = "REKINDLE_HTTP", hide_env_values = true, value_name = "ADDR", value_parser = parse::private_address, value_delimiter = ',')]
    pub http: Vec<Place>,
    /// File of the memory that outlives the process, on tmpfs; memfd: no file, held by `up` itself or by systemd;
    /// in a virtual machine ivshmem, or a file on a file system mounted with -o dax: outlives the machine's kernel
    /// [default: /dev/shm/rekindle-NODE.warm]
    #[arg(long, env = "REKINDLE_WARM", hide_env_values = true, value_name = "PATH")]
    pub warm: Option<PathBuf>,
    /// Read settings from this TOML file
    #[arg(long, env = "REKINDLE_CONFIG", hide_env_values = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Put faults in front of the store: latency=10ms,fail=20%,gone=60s
    #[arg(long, env = "REKINDLE_STORE_FAULT", hide_env_values = true, value_name = "SPEC")]
    pub store_fault: Option<String>,
    /// Flash for acknowledged writes that are not in the store yet [default: 4G, at most half of what is free]
    #[arg(long, env = "REKINDLE_FLASH_BUDGET", hide_env_values = true, value_name = "SIZE", value_parser = parse::size)]
    pub flash_budget: Option<u64>,
    /// RAM for cached blocks [default: 256M]
    #[arg(long, env = "REKINDLE_CACHE", hide_env_values = true, value_name = "SIZE", value_parser = parse::size)]
    pub cache: Option<u64>,
    /// Memory that outlives the process [default: 256M, at most a sixteenth of what is free]
    #[arg(long, env = "REKINDLE_WARM_SIZE", hide_env_values = true, value_name = "SIZE", value_parser = parse::size)]
    pub warm_size: Option<u64>,
    /// How much of it keeps tree nodes over a restart, 0 for none [default: a quarter]
    #[arg(long, env = "REKINDLE_WARM_FRAMES", hide_env_values = true, value_name = "SIZE", value_parser = parse::size)]
    pub warm_frames: Option<u64>,
    /// Add parity to new packs: 16+1 is one parity cell to 16 of data, a sixteenth more space, and what is damaged in
    /// the store within that bound comes back; off: none [default: off]
    #[arg(long, env = "REKINDLE_PARITY", hide_env_values = true, value_name = "D+P|off", value_parser = parse::parity)]
    pub parity: Option<ParityChoice>,
    /// Read a volume's tree as soon as it is attached; off: only what is asked for [default: off]
    #[arg(long, env = "REKINDLE_READ_AHEAD", hide_env_values = true, value_name = "ON|OFF", value_parser = parse::switch)]
    pub read_ahead: Option<bool>,
    /// Read what is in memory by a plain call; off: by a message to another thread, to show what that costs
    /// [default: on]
    #[arg(long, env = "REKINDLE_DIRECT_PATH", hide_env_values = true, value_name = "ON|OFF", value_parser = parse::switch)]
    pub direct_path: Option<bool>,
    /// Say more about what is going on (REKINDLE_TRACE takes a tracing filter)
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Make a volume
    Create(Create),
    /// List the volumes
    #[command(visible_alias = "list")]
    Ls,
    /// Show one volume
    Show(Named),
    /// Remove a volume and everything in it
    #[command(visible_alias = "remove")]
    Rm(Remove),
    /// Move everything that was acknowledged so far to the store, and wait for it
    Drain(Named),
    /// Show what happened to a volume: its changes of state, with cause and duration
    History(Named),
    /// Keep a volume in service however long nobody uses it
    Pin(Named),
    /// Let a volume go out of service again when nobody uses it for long
    Unpin(Named),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle volume create vm1 --size 20G
  rekindle volume create archive --size 1T --policy through     acknowledged when the store has it
  rekindle volume create scratch --size 512M --ack memory       survives kill -9; what was not
                                                                FLUSHed does not survive a power cut")]
pub struct Create {
    /// Its name: printable, no / and no leading dot, at most 255 bytes
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// How large it looks; space is taken when it is written: 20G, 512M
    #[arg(long, value_parser = parse::volume_size)]
    pub size: u64,
    /// After what a write is acknowledged: back = the log has it, through and uncached = the store has it
    #[arg(long, default_value = "back")]
    pub policy: PolicyWord,
    /// What `back` asks of the log: flash = synced to flash, memory = in memory that outlives the process
    #[arg(long, default_value = "flash")]
    pub ack: AckWord,
    /// Unit of deduplication and compression: a power of two from 4K to 1M
    #[arg(long, value_name = "SIZE", value_parser = parse::block_size, default_value = "16K")]
    pub block_size: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyWord {
    Back,
    Through,
    Uncached,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AckWord {
    Flash,
    Memory,
}

#[derive(Debug, Args)]
pub struct Named {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
}

#[derive(Debug, Args)]
pub struct Remove {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// Also when clients are connected; they are let go
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle map vm1                                    prints the device and stays until Ctrl-C
  rekindle map vm1 --device /dev/nbd3 --nbd 10.0.0.7:10809

The kernel's NBD client does the I/O. While the daemon is away, requests wait in the kernel; this
command connects again as soon as it is back. Unmount before you end it: Ctrl-C or SIGTERM takes
the device away. Wants root, and the kernel module nbd.")]
pub struct Map {
    /// The volume
    #[arg(value_parser = parse::volume_name)]
    pub name: String,
    /// The device [default: a free one]
    #[arg(long, value_name = "PATH", value_parser = parse::nbd_device)]
    pub device: Option<u32>,
    /// Where NBD is served: HOST:PORT or unix:PATH [default: where the daemon of --dir says]
    #[arg(long, value_name = "ADDR", value_parser = parse::address)]
    pub nbd: Option<Place>,
    /// Connections; the kernel spreads requests over them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub connections: u8,
    /// Sector size that the kernel shows
    #[arg(long, value_name = "SIZE", value_parser = parse::sector_size, default_value = "512")]
    pub sector_size: u64,
    /// Send a request again when it is not answered for this long; whole seconds
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "5s")]
    pub timeout: Duration,
    /// Fail requests when nobody serves for this long; whole seconds
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "10m")]
    pub patience: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --drain it does not wait for the store: what is not there yet is kept in the log, and the
next start brings it there. With --drain everything goes to the store first, which may take as
long as `rekindle status` says; Ctrl-C then makes it a quick stop, a second one stops waiting.
Clients are let go first in both cases.

Exit code 1 when no daemon answers, or when not everything could be drained.")]
pub struct Stop {
    /// First move everything that was acknowledged to the store
    #[arg(long)]
    pub drain: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit code 1 when no daemon answers, or while it is starting or stopping.")]
pub struct Status {
    /// Print again every so often: 1s, 500ms
    #[arg(long, value_name = "TIME", value_parser = parse::duration, num_args = 0..=1, default_missing_value = "1s")]
    pub watch: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle verify                 every volume, with progress
  rekindle verify vm1             one volume
  rekindle verify --no-wait       start it and come back later: `rekindle status` shows it
  rekindle verify --salvage --rate 20M    slowly, and repair what is damaged

In the settings file, `interval` under `[scrub]` does the last one again and again; `rate` says how
fast.

Exit code 1 when something is damaged.")]
pub struct Verify {
    /// The volume [default: all]
    #[arg(value_parser = parse::volume_name)]
    pub name: Option<String>,
    /// Wait for the end (the default)
    #[arg(long, overrides_with = "no_wait")]
    pub wait: bool,
    /// Only start it
    #[arg(long)]
    pub no_wait: bool,
    /// Ask for a salvage of each volume in which damage is found
    #[arg(long)]
    pub salvage: bool,
    /// Read at most so many bytes per second
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    pub rate: Option<u64>,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Damage that a read, a batch, an attach or a scrub meets brings a salvage about by itself. A volume
in service stays in service meanwhile. What the cache still has comes back; what cannot be had is
quarantined: reads of it are errors that name the bytes, writes over it heal it. Nothing else of
the volume is touched, and zeros are never given for what is lost.

After 16 attempts in vain, or two that find the same and change nothing, a volume waits for
`rekindle salvage run`.

When acknowledged changes that had not reached the store are lost (flash and memory both damaged),
the volume stays out of service and says which; nobody but you can decide to go on without them:
`rekindle salvage run NAME --accept-losses`.")]
pub enum Salvage {
    /// Volumes that are being salvaged, and those that wait for it
    Queue,
    /// Read and check everything of a volume, repair what can be, and wait for the end
    Run(SalvageRun),
    /// Break the salvage of a volume off, whether it waits or runs
    Cancel(Named),
    /// What the last salvages found and did
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
}

#[derive(Debug, Args)]
pub struct SalvageHistory {
    /// The volume [default: all]
    #[arg(value_parser = parse::volume_name)]
    pub name: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Sweep {
    /// What the sweep is doing and what it has given back
    Status,
    /// Sweep now, and wait for the end
    Run,
}

#[derive(Debug, Subcommand)]
pub enum Warm {
    /// What it holds, how often it helped, and why not when it did not
    Show,
    /// Empty the block frames; segments of the log stay, so nothing acknowledged is lost
    Drop,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle boot-report                    phases, what was read and where it was found
  rekindle boot-report --svg boot.svg     besides, a timeline to look at

The start ends with the first reply to a client of NBD; before, the report is of what there is.")]
pub struct BootReport {
    /// Draw a timeline into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle upgrade                                    the file of the running binary was replaced
  rekindle upgrade --binary /opt/rekindle-2/rekindle  another file

The new binary must run and know every format in use; else it is refused and nothing is touched.
Then `up` becomes the new binary (same pid, same sockets), the old worker makes a quick stop and a
new one starts. Clients that connect meanwhile wait; those connected connect again, as after a
crash. If the new binary's workers die before one has served, the old binary comes back.

Under systemd: put the new binary in place and `systemctl restart` the unit.
Exit code 1 when the old binary serves on.")]
pub struct Upgrade {
    /// The new binary [default: the file from which the daemon was started]
    #[arg(long, value_name = "PATH")]
    pub binary: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Each is a copy under short locks and of bounded length: safe on a daemon under load. The store is
not asked, so they answer while it is away. Fields of --json may change with any version.")]
pub enum Debug {
    /// Volumes asked for since the start: state, sessions, serials, overlay, what the collector thinks
    Volumes(Narrow),
    /// What waits to be destaged: the destager's ring, and flow control of each volume
    Queue(Narrow),
    /// Segments of the log, how full its head is, what is committed
    Log,
    /// Memory that outlives the daemon: which segment lies in which slot, how full the sets of frames are
    Warm,
    /// Volumes in a passing state: who has the say, what it waits for, who waits for it
    Locks,
}

#[derive(Debug, Args)]
pub struct Narrow {
    /// Only volumes whose names begin with this
    pub prefix: Option<String>,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rekindle appliance build --out /srv/appliance        once, and again for a newer binary or kernel
  rekindle appliance run /srv/appliance                stays; clients find it at /srv/appliance/nbd.sock
  rekindle volume create vm1 --size 20G --dir /srv/appliance
  rekindle appliance reset /srv/appliance              clients wait; nothing acknowledged is lost
  rekindle stop --dir /srv/appliance                   an orderly end, and the machine is off

Every command takes the appliance's folder as --dir, as if the daemon ran here.")]
pub enum Appliance {
    /// Put one together: the distribution's kernel, an initramfs with this binary, a data disk
    Build(ApplianceBuild),
    /// Run one with QEMU, and start it again whatever ends it
    Run(Box<ApplianceRun>),
    /// Reset the guest of a running one, as a power button held down would
    Reset(ApplianceReset),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle appliance build --out /srv/appliance
  rekindle appliance build --out /srv/appliance --memory 1G --disk 100G
  dpkg -x linux-image-6.1.0-*-cloud-amd64_*.deb kernel
  rekindle appliance build --out /srv/appliance --kernel kernel        not installed, only unpacked

In a folder that holds an appliance the kernel and the binary are replaced; disk and memory stay.
Wants mkfs.ext4 (package e2fsprogs).")]
pub struct ApplianceBuild {
    /// Where: a new folder, or one that holds an appliance
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// A kernel image, or a folder into which a kernel package was unpacked [default: the newest in /boot]
    #[arg(long, value_name = "PATH")]
    pub kernel: Option<PathBuf>,
    /// The folder of its modules [default: lib/modules/VERSION beside it]
    #[arg(long, value_name = "DIR")]
    pub modules: Option<PathBuf>,
    /// RAM of this host that outlives the guest; a power of two
    #[arg(long, value_name = "SIZE", value_parser = parse::size, default_value = "256M")]
    pub memory: u64,
    /// How the guest sees that RAM
    #[arg(long, value_name = "KIND", default_value = "ivshmem")]
    pub memory_kind: MemoryKind,
    /// The disk of the log and of the folder store; takes space as it is written
    #[arg(long, value_name = "SIZE", value_parser = parse::size, default_value = "8G")]
    pub disk: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle appliance run /srv/appliance
  rekindle appliance run /srv/appliance --store s3://bucket/prefix --ram 2G
  rekindle appliance run /srv/appliance -- --cache 512M --flash-budget 4G

A panic or a reset of the guest, and the death of QEMU, start it again: warm, because its memory is
a file in this host's /dev/shm. That file stays after the end; remove it to start without it (then
only what was acknowledged from flash or flushed is there).
AWS_* variables are passed on. Ctrl-C or SIGTERM switches the guest off; a second one does not wait.
Its console is in DIR/console.log. Nobody reaches the guest but through the sockets printed here.")]
pub struct ApplianceRun {
    /// The appliance
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Serve NBD here besides DIR/nbd.sock: HOST:PORT, unix:PATH, or off; repeatable [default: 127.0.0.1:10809]
    #[arg(long, value_name = "ADDR", value_parser = parse::address, value_delimiter = ',')]
    pub nbd: Vec<Place>,
    /// Serve the JSON API here besides DIR/rekindle.sock [default: 127.0.0.1:8809]
    #[arg(long, value_name = "ADDR", value_parser = parse::private_address, value_delimiter = ',')]
    pub http: Vec<Place>,
    /// Where the bulk lies: s3://BUCKET/PREFIX [default: the data disk]
    #[arg(long, env = "REKINDLE_STORE", hide_env_values = true, value_name = "URL")]
    pub store: Option<String>,
    /// The guest's own RAM
    #[arg(long, value_name = "SIZE", value_parser = parse::size, default_value = "1G")]
    pub ram: u64,
    /// The guest's processors
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub cpus: u16,
    /// Who runs the guest's code: the processor (kvm), or QEMU itself (tcg)
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub accelerator: Accelerator,
    /// A command for the guest to run once, when it serves, with its output on the console
    #[arg(long, hide = true)]
    pub then: Option<String>,
    /// Further arguments of `rekindle up` in the guest
    #[arg(last = true, value_name = "UP ARGUMENTS")]
    pub up: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Accelerator {
    /// kvm where the processor does it, else tcg
    Auto,
    Kvm,
    Tcg,
}

#[derive(Debug, Args)]
pub struct ApplianceReset {
    /// The appliance
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Make its kernel panic instead, by a non-maskable interrupt
    #[arg(long)]
    pub panic: bool,
}

#[derive(Debug, Subcommand)]
pub enum Drill {
    /// Kill the worker with SIGKILL under load; count milliseconds stalled and acknowledged writes lost
    Restart(Restart),
    /// Bring every volume into service and read it here and there; count milliseconds
    Attach(Attach),
}

#[derive(Debug, Args)]
#[command(after_help = "\
What everybody asks of a daemon at once when all clients come back: each volume is brought into
service, and some of its blocks are read, spread evenly over it. The daemon does it itself, so
that clients and networks have no part in what it takes.

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
Writes self-describing 4 KiB blocks through a client of its own, kills the worker, lets the
supervisor start another, reconnects, sends again what was not acknowledged, and at the end reads
back every block that was ever acknowledged. Reads in between are judged in the same way.

Examples:
  rekindle drill restart
  rekindle drill restart --reads 70
  rekindle drill restart --rounds 10 --seconds 2 --depth 32 --json
  rekindle drill restart --volume spare --overwrite                its content is lost

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
    #[arg(long, default_value = "flash")]
    pub ack: AckWord,
    /// Use this volume instead of a scratch one
    #[arg(long, value_parser = parse::volume_name, requires = "overwrite")]
    pub volume: Option<String>,
    /// The content of --volume may be overwritten
    #[arg(long)]
    pub overwrite: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle inspect rekindle-data/store                         a store: what is in it
  rekindle inspect rekindle-data/store/rekindle.json           a record
  rekindle inspect rekindle-data/flash                         the log's segments
  rekindle inspect volumes/3f0c...  --dir rekindle-data        a key of the daemon's folder store
  rekindle inspect rekindle.json  --store s3://bucket/prefix   a key of a bucket

Nothing is written. A damaged file is decoded as far as it goes; the report says where it ends, and
why.
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
#[command(after_help = "Example:\n  rekindle completions bash > /etc/bash_completion.d/rekindle")]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}
