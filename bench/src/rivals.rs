//! Stores that take disk images: ours, and the deduplicating backup programs that do the same by
//! hand.

use crate::images::Image;
use crate::machine::{cpu_seconds_of_children, folder_bytes, pinned};
use crate::rounds::Bench;
use crate::servers::Rekindle;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

/// Size of a file system for a tree, bytes.
const TREE_BYTES_MAX: u64 = 1 << 40;

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    Rekindle,
    Borg,
    Restic,
}

/// The effort of storing an image.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Seconds until the whole image was in the store.
    pub seconds: f64,
    /// Seconds until the client had all acknowledgements, where that is earlier.
    pub acknowledged: f64,
    /// CPU seconds, user and system, of the store's own processes.
    pub cpu: f64,
}

impl Keeper {
    pub const RIVALS: [Keeper; 2] = [Keeper::Borg, Keeper::Restic];

    pub fn name(self) -> &'static str {
        match self {
            Keeper::Rekindle => "rekindle",
            Keeper::Borg => "borg",
            Keeper::Restic => "restic",
        }
    }

    fn is_installed(self) -> bool {
        Command::new(self.name()).arg("--help").output().is_ok()
    }

    /// Parts the rivals into those that can be run, and the names of the others.
    pub fn rivals() -> (Vec<Keeper>, Vec<&'static str>) {
        let (here, missing): (Vec<_>, Vec<_>) =
            Self::RIVALS.into_iter().partition(|rival| rival.is_installed());
        (here, missing.into_iter().map(Keeper::name).collect())
    }

    /// Opens an empty store. Each compresses with its fast zstd.
    pub fn open(self, bench: &Bench) -> Result<Store> {
        if self == Keeper::Rekindle {
            let settings = "[sweep]\ninterval = \"off\"\n";
            let server = Rekindle::start_with(bench, "keeper", settings, &[])?;
            return Ok(Store::Rekindle(server, bench.layout.client.clone()));
        }
        let folder = bench.scratch.join(self.name());
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let repository = Repository { rival: self, folder, cores: bench.layout.server.clone() };
        repository.run(match self {
            Keeper::Borg => &["init", "--encryption", "none"],
            _ => &["init"],
        })?;
        Ok(Store::Rival(repository))
    }
}

/// An open store; removed on drop.
pub enum Store {
    /// A daemon, and the cores of its clients.
    Rekindle(Rekindle, String),
    Rival(Repository),
}

impl Store {
    /// Stores an image under a name, until it is durable.
    pub fn put(&self, image: &Image, name: &str) -> Result<Effort> {
        match self {
            Store::Rekindle(server, cores) => put(server, cores, image, name),
            Store::Rival(repository) => repository.put(&image.path, name),
        }
    }

    /// Stores a folder under a name, until it is durable: a file system of ours.
    pub fn put_tree(&self, binary: &Path, folder: &Path, name: &str) -> Result<Effort> {
        let (server, cores) = match self {
            Store::Rekindle(server, cores) => (server, cores),
            Store::Rival(repository) => return repository.put(folder, name),
        };
        let body = json!({"name": name, "kind": "file", "size": TREE_BYTES_MAX});
        server.api("POST", "/api/v1/volumes", Some(&body))?;
        let mut command = pinned(cores, binary);
        command.args(["fs", "import"]).arg(folder).arg(name).arg("--dir").arg(server.dir());
        finish(server, name, &mut command)
    }

    /// Returns the bytes that the store takes.
    pub fn bytes(&self) -> Result<u64> {
        match self {
            Store::Rekindle(server, _) => folder_bytes(&server.store()),
            Store::Rival(repository) => folder_bytes(&repository.data()),
        }
    }
}

/// Copies an image into a new volume, and drains that.
fn put(server: &Rekindle, cores: &str, image: &Image, name: &str) -> Result<Effort> {
    server.create(name, image.size >> 20, "flash")?;
    let mut command = pinned(cores, "nbdcopy");
    finish(server, name, command.arg(&image.path).arg(server.uri(name)))
}

/// Runs a program that writes to a volume, and drains that.
fn finish(server: &Rekindle, name: &str, command: &mut Command) -> Result<Effort> {
    let (begin, cpu) = (Instant::now(), server.cpu_seconds()?);
    checked(command.output()?).with_context(|| format!("{command:?}"))?;
    let acknowledged = begin.elapsed().as_secs_f64();
    server.drain(name)?;
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Effort { seconds, acknowledged, cpu: server.cpu_seconds()? - cpu })
}

/// A rival's repository.
pub struct Repository {
    rival: Keeper,
    /// Folder of the repository and of the program's own caches.
    folder: PathBuf,
    cores: String,
}

impl Repository {
    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn put(&self, path: &Path, name: &str) -> Result<Effort> {
        let path = path.to_str().context("a path that is text")?;
        let (begin, cpu) = (Instant::now(), cpu_seconds_of_children()?);
        let archive = format!("::{name}");
        match self.rival {
            Keeper::Borg => self.run(&["create", "--compression", "zstd,1", &archive, path])?,
            _ => self.run(&["backup", "--compression", "auto", path])?,
        }
        let seconds = begin.elapsed().as_secs_f64();
        let cpu = cpu_seconds_of_children()? - cpu;
        Ok(Effort { seconds, acknowledged: seconds, cpu })
    }

    fn run(&self, arguments: &[&str]) -> Result<()> {
        let mut command = pinned(&self.cores, self.rival.name());
        command.args(arguments).env("HOME", &self.folder).env("XDG_CACHE_HOME", &self.folder);
        command.env("BORG_BASE_DIR", &self.folder).env("BORG_REPO", self.data());
        command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
        command.env("RESTIC_REPOSITORY", self.data()).env("RESTIC_PASSWORD", "bench");
        checked(command.output()?).with_context(|| format!("{command:?}"))
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn checked(output: Output) -> Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", said.trim().lines().last().unwrap_or("no reason given"));
    Ok(())
}
