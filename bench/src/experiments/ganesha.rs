//! Killed while a client has state. An NFS server first lets clients reclaim their state, and no
//! client opens a file until that time is over. Measured is nfs-ganesha with its own defaults,
//! through libnfs.

use crate::machine::pinned;
use crate::rounds::{Bench, short};
use crate::servers::Process;
use crate::table::Row;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const NAME: &str = "ganesha";
pub(super) const PORT: u16 = 22_049;
/// Longest wait; the server's grace period is 90 s.
const PATIENCE: Duration = Duration::from_secs(180);
const FILE_BYTES: usize = 1 << 20;

/// A running nfs-ganesha that exports the folder `export` of its own folder.
pub(super) struct Ganesha {
    process: Process,
    folder: PathBuf,
}

/// Whether a server has clients reclaim their state first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grace {
    /// As its own defaults have it.
    Usual,
    /// At once ready for new clients, where no client has state.
    Without,
}

/// Measures one round, which is a minute and a half of waiting.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let folder = Ganesha::folder(bench, NAME)?;
    std::fs::write(folder.join("export/file"), vec![7; FILE_BYTES])?;
    let mut server = Ganesha::start(bench, &folder, Grace::Usual)?;
    let begin = Instant::now();
    server.until(begin, "nfs-cat", "/export/file")?;
    let run = bench.run(|| {
        server.process.kill()?;
        let begin = Instant::now();
        server = Ganesha::start(bench, &folder, Grace::Usual)?;
        let listed = server.until(begin, "nfs-ls", "/export")?;
        let opened = server.until(begin, "nfs-cat", "/export/file")?;
        Ok((listed, opened))
    })?;
    let (listed, opened) = run.value;
    let what = "kill -9 of nfs-ganesha (NFSv4) after a client had a file open: exec to the first folder listed, and to the \
                first file opened and read";
    let text = format!("{} ms listed, {} ms opened (grace period)", short(listed), short(opened));
    Ok(vec![Row::new(NAME, what).theirs(text).others(run.others)])
}

impl Ganesha {
    /// Whether the program can be started at all.
    pub(super) fn is_installed() -> bool {
        Command::new("ganesha.nfsd").arg("-v").output().is_ok()
    }

    /// Makes the folder of a server.
    pub(super) fn folder(bench: &Bench, name: &str) -> Result<PathBuf> {
        let folder = bench.scratch.join(name);
        for part in ["export", "recovery"] {
            std::fs::create_dir_all(folder.join(part))?;
        }
        Ok(folder)
    }

    pub(super) fn start(bench: &Bench, folder: &Path, grace: Grace) -> Result<Self> {
        let at = folder.display();
        let graceless = grace == Grace::Without;
        let config = format!(
            "NFS_CORE_PARAM {{ NFS_Port = {PORT}; Protocols = 4; mount_path_pseudo = true; \
             Enable_NLM = false; Enable_RQUOTA = false; }}\n\
             NFSv4 {{ Minor_Versions = 0,1,2; RecoveryBackend = fs; RecoveryRoot = \"{at}/recovery\"; \
             Graceless = {graceless}; }}\n\
             EXPORT {{ Export_Id = 1; Path = {at}/export; Pseudo = /export; Access_Type = RW; \
             Squash = No_Root_Squash; SecType = sys; Protocols = 4; FSAL {{ Name = VFS; }} }}\n"
        );
        std::fs::write(folder.join("ganesha.conf"), config)?;
        let mut command = pinned(&bench.layout.server, "ganesha.nfsd");
        for (flag, file) in [("-L", "log"), ("-f", "ganesha.conf"), ("-p", "pid")] {
            command.arg(flag).arg(folder.join(file));
        }
        command.arg("-F").stdin(Stdio::null()).stdout(Stdio::null());
        let process = Process::start(&mut command).context("is nfs-ganesha-vfs installed?")?;
        Ok(Self { process, folder: folder.to_owned() })
    }

    /// Waits until a client's program succeeds; returns the time since `begin`, ms.
    fn until(&self, begin: Instant, program: &str, path: &str) -> Result<f64> {
        let url = format!("nfs://127.0.0.1{path}?version=4&nfsport={PORT}");
        loop {
            let mut command = Command::new(program);
            let said = command.arg(&url).stdin(Stdio::null()).output();
            let said = said
                .with_context(|| format!("cannot start {}: is libnfs-utils installed?", program))?;
            // Some programs report a failure in words only.
            let enough = program == "nfs-ls" || said.stdout.len() == FILE_BYTES;
            if said.status.success() && enough {
                return Ok(begin.elapsed().as_secs_f64() * 1e3);
            }
            ensure!(
                begin.elapsed() < PATIENCE,
                "nfs-ganesha does not answer, see {}: {}",
                self.folder.join("log").display(),
                String::from_utf8_lossy(&said.stderr)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
