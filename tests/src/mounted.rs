//! A file volume that `rekindle mount` has mounted.

use crate::Daemon;
use crate::daemon::binary;
use crate::random::for_story;
use crate::shell::{Shell, skip, skip_without, wait_until};
use anyhow::{Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A volume that is mounted by `rekindle mount`; unmounted on drop.
pub struct Mounted {
    pub folder: PathBuf,
    process: Child,
    trace: PathBuf,
}

impl Mounted {
    /// Mounts a volume, and waits until the kernel has it.
    pub fn new(daemon: &Daemon, volume: &str) -> Result<Self> {
        Self::at(daemon, volume, daemon.scratch().join("mnt"))
    }

    /// The same, on this folder.
    pub fn at(daemon: &Daemon, volume: &str, folder: PathBuf) -> Result<Self> {
        let mut this = Self::begin(daemon, volume, folder)?;
        this.wait()?;
        Ok(this)
    }

    /// Begins to mount a volume.
    pub fn begin(daemon: &Daemon, volume: &str, folder: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let trace = folder.with_extension("mount.txt");
        let output = File::create(&trace)?;
        let process = Command::new(binary())
            .args(["mount", volume])
            .arg(&folder)
            .arg("--dir")
            .arg(&daemon.dir)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        Ok(Self { folder, process, trace })
    }

    /// Waits until the kernel has it.
    pub fn wait(&mut self) -> Result<()> {
        wait_until("the mount", || {
            self.told().contains("mounted '") || self.process.try_wait().is_ok_and(|e| e.is_some())
        })?;
        match self.process.try_wait()? {
            Some(status) => bail!("the mount ended, {status}: {}", self.told()),
            None => Ok(()),
        }
    }

    /// Mounts a volume twice.
    pub fn pair(daemon: &Daemon, volume: &str) -> Result<(Self, Self)> {
        let at = |name: &str| Self::at(daemon, volume, daemon.scratch().join(name));
        Ok((at("one")?, at("two")?))
    }

    /// Returns what the mount has said.
    #[must_use]
    pub fn told(&self) -> String {
        std::fs::read_to_string(&self.trace).unwrap_or_default()
    }

    /// Has the process stand still while `work` is done.
    pub fn while_it_stands_still<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::STOP)?;
        let done = work();
        kill_process(pid, Signal::CONT)?;
        done
    }

    /// Asks the process to end, waits until it has, and returns what it has said.
    pub fn terminate(&mut self) -> Result<String> {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.ended()
    }

    /// Waits until the process has ended, and returns what it has said.
    pub fn ended(&mut self) -> Result<String> {
        wait_until("the mount to end", || self.process.try_wait().is_ok_and(|e| e.is_some()))?;
        Ok(self.told())
    }

    /// Unmounts, and expects the process to end well.
    pub fn unmount(mut self) -> Result<()> {
        Shell::new("umount").arg(&self.folder).run()?;
        wait_until("the mount to end", || self.process.try_wait().is_ok_and(|e| e.is_some()))?;
        let status = self.process.wait()?;
        if status.success() { Ok(()) } else { bail!("the mount ended with {status}") }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        println!("--- the mount said:\n{}", self.told());
        let _ = Shell::new("umount").arg("-l").arg(&self.folder).output();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether a story cannot run here: without root, `/dev/fuse` or these programs.
#[must_use]
pub fn skipped(tools: &[&str]) -> bool {
    let has_fuse = Path::new("/dev/fuse").exists();
    let missing = if has_fuse { vec![] } else { vec!["/dev/fuse".to_owned()] };
    skip_without(&[&["umount"], tools].concat(), true) || skip(&missing)
}

/// Kills the daemon while `work` runs, some times.
pub fn under_kills<T: Send>(
    daemon: &Daemon,
    kills: usize,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let mut random = for_story("files");
    std::thread::scope(|scope| {
        let working = scope.spawn(work);
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(150 + random.below(400)));
            let worker = daemon.worker()?;
            daemon.kill_worker()?;
            daemon.wait_for_worker_after(worker)?;
        }
        working.join().expect("the work does not panic")
    })
}
