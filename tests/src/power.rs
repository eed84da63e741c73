//! A mounted file system whose power can be cut: ext4 on loop on nbdfuse on the crash disk.

use crate::crash_disk::{CrashDisk, Torn};
use crate::mount::{LoopDevice, Mount};
use crate::shell::{Shell, wait_until};
use anyhow::{Context, Result};
use rekindle_base::random::Random;
use std::path::{Path, PathBuf};

/// Disk of the machine; the daemon's folder goes on [`PowerLab::folder`].
pub struct PowerLab {
    disk: CrashDisk,
    scratch: PathBuf,
    mounted: Option<(Mount, LoopDevice)>,
}

impl PowerLab {
    /// Makes and mounts a file system of `size` bytes.
    pub fn new(scratch: &Path, size: u64) -> Result<Self> {
        let disk = CrashDisk::new(scratch, size)?;
        let mut lab = Self { disk, scratch: scratch.to_owned(), mounted: None };
        let device = lab.attach()?;
        Shell::new("mkfs.ext4").arg("-qF").arg(&device.device).run()?;
        lab.mount(device)?;
        Ok(lab)
    }

    /// Returns the mount point of the file system.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.scratch.join("mnt")
    }

    /// Lets the power fail in the middle of the next write, and waits for that.
    pub fn fail_at_next_write(&self) -> Result<()> {
        self.disk.fail_at_next_write();
        wait_until("a write to meet the power failure", || !self.disk.has_power())
    }

    /// Cuts the power and brings it back: the file system recovers from its journal. Its users must
    /// be dead.
    pub fn cut(&mut self, percent: u64, random: &mut Random) -> Result<Torn> {
        let torn = self.disk.cut(percent, random)?;
        self.mounted = None;
        self.disk.power_on();
        let device = self.attach()?;
        self.mount(device)?;
        Ok(torn)
    }

    fn attach(&self) -> Result<LoopDevice> {
        let uri = format!("nbd+unix:///?socket={}", self.disk.socket.display());
        LoopDevice::attach(&uri, &self.scratch)
    }

    fn mount(&mut self, device: LoopDevice) -> Result<()> {
        let mount =
            Mount::on(&device.device, &self.folder(), "").context("mount after power came back")?;
        self.mounted = Some((mount, device));
        Ok(())
    }
}
