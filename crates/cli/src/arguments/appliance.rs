//! `appliance`: a virtual machine that only serves.

use crate::parse::{self, Place};
use clap::{Args, Subcommand};
use rekindle_appliance::{Accelerator, MemoryKind};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rekindle appliance build --out /srv/appliance
      once, and again for a newer binary or kernel
  rekindle appliance run /srv/appliance
      stays; clients find it at /srv/appliance/nbd.sock
  rekindle volume create vm1 --size 20G --dir /srv/appliance
  rekindle appliance reset /srv/appliance
      clients wait; nothing acknowledged is lost
  rekindle stop --dir /srv/appliance   an orderly end, and the machine is off

Every command takes the appliance's folder as --dir, as if the daemon ran
here.")]
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
  rekindle appliance build --out /srv/appliance --kernel kernel
      not installed, only unpacked

In a folder that holds an appliance the kernel and the binary are replaced;
disk and memory stay. Wants mkfs.ext4 (package e2fsprogs).")]
pub struct ApplianceBuild {
    /// Where: a new folder, or one that holds an appliance
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// A kernel image, or a folder into which a kernel package was unpacked [default: the newest in
    /// /boot]
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

A panic or a reset of the guest, and the death of QEMU, start it again: warm,
because its memory is a file in this host's /dev/shm. That file stays after
the end; remove it to start without it (then only what was acknowledged from
flash or flushed is there). AWS_* variables are passed on. Ctrl-C or SIGTERM
switches the guest off; a second one does not wait. Its console is in
DIR/console.log. Nobody reaches the guest but through the sockets printed
here.")]
pub struct ApplianceRun {
    /// The appliance
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Serve NBD here besides DIR/nbd.sock: unix:PATH or HOST:PORT; repeatable
    #[arg(long, value_name = "ADDR", value_parser = parse::address, value_delimiter = ',')]
    pub nbd: Vec<Place>,
    /// Serve the JSON API here besides DIR/rekindle.sock: unix:PATH or HOST:PORT; repeatable
    #[arg(long, value_name = "ADDR", value_parser = parse::address, value_delimiter = ',')]
    pub http: Vec<Place>,
    /// Allow TCP addresses that other machines reach: clients are not authenticated, and nothing is
    /// encrypted
    #[arg(long)]
    pub insecure: bool,
    /// Let this group use the NBD sockets too [default: only the user who runs the appliance]
    #[arg(long, value_name = "GROUP", value_parser = rekindle_supervise::access::group)]
    pub socket_group: Option<u32>,
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

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle appliance reset /srv/appliance
  rekindle appliance reset /srv/appliance --panic")]
pub struct ApplianceReset {
    /// The appliance
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Make its kernel panic instead, by a non-maskable interrupt
    #[arg(long)]
    pub panic: bool,
}
