//! What the tests need beside Rust: Debian packages, an S3 server, kernels for guests.
//!
//! Everything is installed when it may be (root, apt-get), else named. A story whose tool is missing says SKIPPED and
//! why, so a laptop without root still runs the rest.

use crate::run::{self, root, step};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program, and the Debian package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("fusermount3", "fuse3"),
    ("nbdkit", "nbdkit"),
    ("nbd-client", "nbd-client"),
    ("fio", "fio"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("losetup", "mount"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("ip", "iproute2"),
];
const S3_SERVER: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";

/// Where what we fetch lies, and how to find it.
pub struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// Runs cargo so that tests find the tools.
    pub fn cargo(&self, arguments: &[&str]) -> Result<()> {
        let old = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{old}:/usr/sbin:/sbin", self.folder.join("bin").display());
        let folder = self.folder.display().to_string();
        run::cargo_with(arguments, &[("PATH", &path), ("REKINDLE_TOOLS", &folder)])
    }
}

/// Installs what is missing if that is allowed; names what stays missing.
pub fn install() -> Result<Tools> {
    let tools = Tools { folder: root().join("target/tools") };
    std::fs::create_dir_all(tools.folder.join("bin"))?;
    let wanted: Vec<_> = PROGRAMS.iter().filter(|(program, _)| !has(program)).collect();
    if !wanted.is_empty() {
        let mut packages: Vec<_> = wanted.iter().map(|(_, package)| *package).collect();
        packages.sort_unstable();
        packages.dedup();
        if may_install() {
            step(&format!("installing {}", packages.join(" ")));
            apt_install(&packages)?;
        } else {
            println!("MISSING programs: the stories that need them will say SKIPPED.");
            println!("  as root: apt-get install --no-install-recommends {}", packages.join(" "));
        }
    }
    s3_server(&tools.folder);
    debian_package(&tools.folder, "user-mode-linux", "uml");
    match guest_kernel() {
        Some(package) => debian_package(&tools.folder, &package, "kernel"),
        None => println!("MISSING guest kernel: no linux-image-cloud-amd64 in the package lists"),
    }
    Ok(tools)
}

fn has(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':').any(|folder| Path::new(folder).join(program).is_file())
}

fn may_install() -> bool {
    let root = run::output("id", &["-u"]).is_ok_and(|uid| uid.trim() == "0");
    root && has("apt-get") && std::env::var_os("REKINDLE_NO_INSTALL").is_none()
}

/// Installs packages without starting the services they bring.
fn apt_install(packages: &[&str]) -> Result<()> {
    let guard = Path::new("/usr/sbin/policy-rc.d");
    let ours = !guard.exists();
    if ours {
        std::fs::write(guard, "#!/bin/sh\nexit 101\n")?;
        run::run(Command::new("chmod").arg("+x").arg(guard))?;
    }
    let install = || {
        run::run(apt().args(["update", "-qq"]).stdout(Stdio::null()))?;
        run::run(
            apt()
                .args(["install", "-y", "-qq", "--no-install-recommends"])
                .args(packages)
                .stdout(Stdio::null()),
        )
    };
    let result = install();
    if ours {
        std::fs::remove_file(guard)?;
    }
    result
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// versitygw: an S3 server over a folder with honest conditional writes.
fn s3_server(folder: &Path) {
    let binary = folder.join("bin/versitygw");
    if binary.exists() || has("versitygw") {
        return;
    }
    if !has("go") {
        println!("MISSING S3 server: install Go (1.24 or later), then: go install {S3_SERVER}");
        return;
    }
    step("building the S3 server for the tests");
    let built = run::run(
        Command::new("go")
            .args(["install", S3_SERVER])
            .env("GOBIN", folder.join("bin"))
            .env("GOFLAGS", "-p=2"),
    );
    if let Err(error) = built {
        println!("MISSING S3 server: {error}");
    }
}

fn guest_kernel() -> Option<String> {
    let depends = run::output(
        "apt-cache",
        &["depends", "--no-recommends", "--no-suggests", "linux-image-cloud-amd64"],
    )
    .ok()?;
    let line = depends.lines().find(|line| line.contains("Depends:"))?;
    Some(line.split_whitespace().last()?.to_owned())
}

/// Unpacks a Debian package without installing it.
fn debian_package(folder: &Path, package: &str, name: &str) {
    let target = folder.join(name);
    if target.join(".done").exists() {
        return;
    }
    if !has("apt-get") || std::env::var_os("REKINDLE_NO_INSTALL").is_some() {
        println!("MISSING {package}: stories with a guest kernel will say SKIPPED");
        return;
    }
    step(&format!("unpacking {package} for guests"));
    if let Err(error) = unpack(&target, package) {
        println!("MISSING {package}: {error:#}");
    }
}

fn unpack(target: &Path, package: &str) -> Result<()> {
    let downloads = target.join("download");
    std::fs::create_dir_all(&downloads)?;
    run::run(
        apt().args(["download", "-qq", package]).current_dir(&downloads).stderr(Stdio::null()),
    )?;
    let Some(file) = std::fs::read_dir(&downloads)?.flatten().map(|entry| entry.path()).next()
    else {
        bail!("apt-get download left nothing");
    };
    run::run(Command::new("dpkg").arg("-x").arg(&file).arg(target))?;
    std::fs::remove_dir_all(&downloads)?;
    std::fs::write(target.join(".done"), package)?;
    Ok(())
}

/// cargo-fuzz, from its sources.
pub fn cargo_fuzz() -> Result<()> {
    if run::output("cargo", &["fuzz", "--version"]).is_ok() {
        return Ok(());
    }
    step("installing cargo-fuzz");
    run::cargo(&["install", "cargo-fuzz", "--version", "0.13.2", "--locked"])
}
