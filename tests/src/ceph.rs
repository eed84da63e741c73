//! Ceph's S3 gateway over the smallest cluster: a monitor, and one OSD that keeps all in memory.

use crate::shell::{Shell, find, free_port, spawn, tools};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// Programs of the cluster.
const PROGRAMS: &[&str] =
    &["monmaptool", "ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "curl"];
/// Name of the cluster and of its OSD; any UUID will do.
const UUID: &str = "7e57c1a5-7e57-4e57-8e57-7e57c1a57e57";

/// Lists the programs that are not here.
pub(crate) fn missing() -> Vec<String> {
    let missing = PROGRAMS.iter().filter(|name| program(name).is_none());
    missing.map(|name| (*name).to_owned()).collect()
}

/// Returns the folder into which `cargo x tools` has unpacked Ceph, or `/`.
fn base() -> PathBuf {
    let unpacked = tools().join("ceph");
    if unpacked.join(".done").is_file() { unpacked } else { PathBuf::from("/") }
}

fn program(name: &str) -> Option<PathBuf> {
    let unpacked = base().join("usr/bin").join(name);
    if unpacked.is_file() { Some(unpacked) } else { find(name) }
}

/// A cluster in a folder.
pub(crate) struct Cluster<'a> {
    folder: &'a Path,
    monitor: String,
}

impl<'a> Cluster<'a> {
    /// Writes the configuration of a cluster whose gateway has this address.
    pub(crate) fn configure(folder: &'a Path, gateway: &str) -> Result<Self> {
        let (shown, lib) = (folder.display(), base().join("usr/lib/x86_64-linux-gnu"));
        let (lib, monitor) = (lib.display(), format!("v1:127.0.0.1:{}", free_port()?));
        let text = format!(
            "[global]\n\
             fsid = {UUID}\n\
             mon host = {monitor}\n\
             public addr = 127.0.0.1\n\
             ms bind msgr2 = false\n\
             auth cluster required = none\n\
             auth service required = none\n\
             auth client required = none\n\
             mon allow pool size one = true\n\
             mon data avail crit = 0\n\
             mon data = {shown}/mon\n\
             osd data = {shown}/osd\n\
             osd objectstore = memstore\n\
             osd crush chooseleaf type = 0\n\
             osd pool default size = 1\n\
             osd pool default min size = 1\n\
             osd pool default pg num = 4\n\
             osd pool default pg autoscale mode = off\n\
             osd class dir = {lib}/rados-classes\n\
             erasure code dir = {lib}/ceph/erasure-code\n\
             plugin dir = {lib}/ceph\n\
             rgw frontends = beast endpoint={gateway}\n\
             rgw data = {shown}/rgw\n\
             run dir = {shown}\n\
             admin socket =\n\
             pid file =\n\
             log file = {shown}/$name.log\n\
             mon cluster log file = {shown}/cluster.log\n\
             crash dir = {shown}\n"
        );
        for part in ["mon", "osd", "rgw"] {
            std::fs::create_dir_all(folder.join(part))?;
        }
        std::fs::write(folder.join("ceph.conf"), text)?;
        Ok(Self { folder, monitor })
    }

    /// Starts all processes, and makes the user. Those that have begun are in `processes`, whatever
    /// the result.
    pub(crate) fn start(&self, key: (&str, &str), processes: &mut Vec<Child>) -> Result<()> {
        let map = self.folder.join("monmap").display().to_string();
        let monitor = format!("[{}]", self.monitor);
        self.run("monmaptool", &["--create", "--fsid", UUID, "--addv", "a", &monitor, &map])?;
        self.run("ceph-mon", &["--id", "a", "--mkfs", "--monmap", &map])?;
        processes.push(self.spawn("ceph-mon", &["--id", "a", "--foreground"])?);
        self.run("ceph-osd", &["--id", "0", "--mkfs", "--osd-uuid", UUID])?;
        processes.push(self.active_osd()?);
        let user = ["user", "create", "--uid", "story", "--display-name", "story"];
        let keys = ["--access-key", key.0, "--secret-key", key.1];
        self.run("radosgw-admin", &[&user[..], &keys].concat())?;
        processes.push(self.spawn("radosgw", &["--name", "client.rgw", "--foreground"])?);
        Ok(())
    }

    /// Starts the OSD. Some starts send the first command before they know the name of the cluster;
    /// the monitor does not answer that, and the OSD would wait for ever.
    fn active_osd(&self) -> Result<Child> {
        let log = self.folder.join("osd.0.log");
        for _ in 0..8 {
            let mut process = self.spawn("ceph-osd", &["--id", "0", "--foreground"])?;
            for _ in 0..100 {
                std::thread::sleep(Duration::from_millis(150));
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                if text.contains("booting -> active") {
                    return Ok(process);
                }
            }
            process.kill()?;
            process.wait()?;
        }
        bail!("Ceph's OSD does not become active: see {}", log.display())
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Result<()> {
        let (program, libraries, config) = self.call(name)?;
        let shell = Shell::new(program).arg("--conf").arg(config).args(arguments);
        shell.env("LD_LIBRARY_PATH", &libraries).run().map(drop)
    }

    fn spawn(&self, name: &str, arguments: &[&str]) -> Result<Child> {
        let (program, libraries, config) = self.call(name)?;
        let mut command = Command::new(program);
        command.arg("--conf").arg(config).args(arguments).env("LD_LIBRARY_PATH", libraries);
        spawn(&mut command, self.folder)
    }

    /// Returns the path of a program, the folders of its libraries, and its configuration.
    fn call(&self, name: &str) -> Result<(PathBuf, String, OsString)> {
        let program = program(name).with_context(|| format!("{name} is missing"))?;
        let base = base();
        let parts = ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph"];
        let folders = parts.into_iter().chain(["lib/x86_64-linux-gnu"]);
        let folders: Vec<_> =
            folders.map(|folder| base.join(folder).display().to_string()).collect();
        Ok((program, folders.join(":"), self.folder.join("ceph.conf").into()))
    }
}

/// Makes the bucket at a gateway.
pub(crate) fn make_bucket(gateway: &str, key: (&str, &str), bucket: &str) -> Result<()> {
    Shell::new("curl")
        .args(["--silent", "--show-error", "--fail", "--request", "PUT"])
        .args(["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &format!("{}:{}", key.0, key.1)])
        .args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
        .arg(format!("http://{gateway}/{bucket}"))
        .run()
        .map(drop)
}
