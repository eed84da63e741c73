//! `appliance`: a virtual machine that only serves.

use clap::{Args, Subcommand};
use rekindle_appliance::{Build, Run};
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
    Build(Build),
    /// Run one with QEMU, and start it again whatever ends it
    Run(Box<Run>),
    /// Reset the guest of a running one, as a power button held down would
    Reset(ApplianceReset),
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
