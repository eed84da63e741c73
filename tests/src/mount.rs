//! A kernel block device without a kernel NBD client: nbdfuse, then a loop device.

use crate::shell::{Shell, wait_until};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// An NBD export as a loop device; taken down on drop, in whatever state it is.
pub struct LoopDevice {
    pub device: String,
    file: PathBuf,
    fuse: Child,
}

impl LoopDevice {
    /// Attaches the export; `folder` is for intermediate files.
    pub fn attach(uri: &str, folder: &Path) -> Result<Self> {
        let file = folder.join("dev.img");
        std::fs::write(&file, b"")?;
        let log = std::fs::File::create(folder.join("nbdfuse.txt"))?;
        let fuse = Command::new("nbdfuse")
            .arg(&file)
            .arg(uri)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let mut this = Self { device: String::new(), file, fuse };
        wait_until("nbdfuse", || std::fs::metadata(&this.file).is_ok_and(|data| data.len() > 0))?;
        this.device =
            Shell::new("losetup").args(["--show", "-f"]).arg(&this.file).run()?.trim().to_owned();
        Ok(this)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if !self.device.is_empty() {
            let _ = Shell::new("losetup").args(["-d", &self.device]).output();
        }
        for _ in 0..20 {
            let done = Shell::new("fusermount3").arg("-u").arg(&self.file).output();
            if done.is_ok_and(|output| output.status.success()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = Shell::new("umount").arg("-l").arg(&self.file).output();
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
    }
}

/// A mounted file system; unmounted on drop.
pub struct Mount {
    pub folder: PathBuf,
}

impl Mount {
    /// Mounts `device` on `folder`.
    pub fn on(device: &str, folder: &Path, options: &str) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut command = Shell::new("mount");
        if !options.is_empty() {
            command = command.args(["-o", options]);
        }
        command.arg(device).arg(folder).run().context("mount")?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Unmounts the file system; an error says when that fails.
    pub fn unmount(self) -> Result<()> {
        let folder = self.folder.clone();
        std::mem::forget(self);
        Shell::new("umount").arg(folder).run().map(|_| ())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        for _ in 0..10 {
            let done = Shell::new("umount").arg(&self.folder).output();
            if done.is_ok_and(|output| output.status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = Shell::new("umount").arg("-l").arg(&self.folder).output();
    }
}
