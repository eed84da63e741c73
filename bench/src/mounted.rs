//! A daemon whose file volume is mounted.

use crate::machine::pinned;
use crate::rounds::Bench;
use crate::servers::{Process, Rekindle};
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub const VOLUME: &str = "files";
/// Longest wait for a mount.
const PATIENCE: Duration = Duration::from_secs(30);

/// A FUSE file system of another program.
pub struct Other {
    pub folder: PathBuf,
    _mount: Process,
}

impl Other {
    /// Mounts a folder again with a program that hands each call on (bindfs): what a folder of this
    /// disk does through the same front. `None`: it is not installed.
    pub fn bindfs(bench: &Bench, original: &Path, name: &str) -> Result<Option<Self>> {
        if Command::new("bindfs").arg("-V").output().is_err() {
            return Ok(None);
        }
        let folder = bench.scratch.join(name);
        let mut command = pinned(&bench.layout.server, "bindfs");
        command.arg("-f").arg(original).arg(&folder);
        Self::mount(command, folder).map(Some)
    }

    /// Mounts a new JuiceFS with its data in a folder and its names in SQLite, as its own
    /// documentation begins. `None`: it is not installed.
    pub fn juicefs(bench: &Bench, name: &str) -> Result<Option<Self>> {
        if Command::new("juicefs").arg("version").output().is_err() {
            return Ok(None);
        }
        let home = bench.scratch.join(format!("{name}-home"));
        std::fs::create_dir_all(&home)?;
        let names = format!("sqlite3://{}/names.db", home.display());
        let mut format = Command::new("juicefs");
        format.args(["format", "--storage", "file", "--bucket"]);
        let made = format.arg(home.join("store/")).args([&names, "bench"]).output()?;
        ensure!(made.status.success(), "juicefs: {}", String::from_utf8_lossy(&made.stderr));
        let folder = bench.scratch.join(name);
        let mut command = pinned(&bench.layout.server, "juicefs");
        command.args(["mount", "--no-usage-report", "--cache-dir"]).arg(home.join("cache"));
        command.arg("--log").arg(home.join("log")).arg(names).arg(&folder);
        Self::mount(command, folder).map(Some)
    }

    fn mount(mut command: Command, folder: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&folder)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mount = Process::start(&mut command)?;
        let begin = Instant::now();
        while !is_mounted(&folder)? {
            let program = command.get_program().display();
            ensure!(begin.elapsed() < PATIENCE, "{program} does not mount: this needs root");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { folder, _mount: mount })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.folder).status();
    }
}

/// A daemon with a file volume that is mounted.
pub struct Mounted {
    pub folder: PathBuf,
    mount: Option<Process>,
    pub server: Rekindle,
    binary: PathBuf,
}

impl Mounted {
    /// Starts a daemon in a fresh folder, makes the volume and mounts it.
    pub fn start(bench: &Bench, name: &str, arguments: &[&str]) -> Result<Self> {
        let server = Rekindle::start(bench, name, arguments)?;
        let body = json!({"name": VOLUME, "kind": "file", "size": 1_u64 << 40});
        server.api("POST", "/api/v1/volumes", Some(&body))?;
        let folder = bench.scratch.join(format!("{name}-mnt"));
        let mut mounted = Self { folder, mount: None, server, binary: bench.binary.clone() };
        mounted.mount(bench)?;
        Ok(mounted)
    }

    fn mount(&mut self, bench: &Bench) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let mut command = pinned(&bench.layout.server, &self.binary);
        command.args(["mount", VOLUME]).arg(&self.folder).arg("--dir").arg(self.server.dir());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.mount = Some(Process::start(&mut command)?);
        let begin = Instant::now();
        while !is_mounted(&self.folder)? {
            ensure!(begin.elapsed() < PATIENCE, "the volume is not mounted: this needs root");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        let status = Command::new("umount").arg(&self.folder).status()?;
        ensure!(status.success(), "umount {}", self.folder.display());
        self.mount = None;
        Ok(())
    }

    /// Begins anew without anything in memory.
    pub fn forget(&mut self, bench: &Bench) -> Result<()> {
        self.unmount()?;
        self.server.stop()?;
        self.server.forget_warm_memory()?;
        forget_page_cache();
        self.server.up()?;
        self.server.wait_until_it_serves()?;
        self.mount(bench)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}

fn is_mounted(folder: &Path) -> Result<bool> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let folder = folder.display().to_string();
    Ok(table.lines().any(|line| line.split(' ').nth(4) == Some(&folder)))
}

pub fn forget_page_cache() {
    rustix::fs::sync();
    // Only root may; both sides keep it otherwise.
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
}
