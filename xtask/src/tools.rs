//! Tools that the tests need beside Rust: Debian packages, S3 servers, promtool, kernels for
//! guests.
//!
//! Everything is installed when it may be (root, apt-get), else named. A story whose tool is
//! missing says SKIPPED and why, so a laptop without root still runs the rest.

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
    ("nfs-cp", "libnfs-utils"),
    ("nbdkit", "nbdkit"),
    ("nbd-client", "nbd-client"),
    ("fio", "fio"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("losetup", "mount"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("sqlite3", "sqlite3"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("faketime", "faketime"),
    ("curl", "curl"),
    ("setfacl", "acl"),
    ("make", "make"),
    // libFuzzer.
    ("c++", "g++"),
];
/// Programs with which benches compare, and their Debian packages. No test needs one of them.
const RIVALS: &[(&str, &str)] = &[("borg", "borgbackup"), ("restic", "restic")];
/// The Go that builds the S3 server when the machine's own is too old to fetch a newer one by
/// itself.
const GO: &str = "golang.org/toolchain@v0.0.1-go1.24.4.linux-amd64";
const S3_SERVER: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";

/// Foreign suites for mounts: programs of crates.io, and their versions.
const SUITES: [(&str, &str); 2] = [("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];

/// A cluster that its tests start themselves, and its gateway.
const CEPH: &[&str] = &["ceph-mon", "ceph-osd", "ceph-common", "radosgw"];

/// The folder of the tools that are fetched.
pub struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// Runs cargo so that tests find the tools.
    pub fn cargo(&self, arguments: &[&str]) -> Result<()> {
        self.cargo_with(arguments, &[])
    }

    /// The same, with more environment.
    pub fn cargo_with(&self, arguments: &[&str], more: &[(&str, &str)]) -> Result<()> {
        let old = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{old}:/usr/sbin:/sbin", self.folder.join("bin").display());
        let folder = self.folder.display().to_string();
        let mut environment = vec![("PATH", path.as_str()), ("REKINDLE_TOOLS", &folder)];
        environment.extend(more);
        run::cargo_with(arguments, &environment)
    }
}

/// Installs missing tools if that is allowed; names those that stay missing.
pub fn install() -> Result<Tools> {
    let tools = Tools { folder: root().join("target/tools") };
    std::fs::create_dir_all(tools.folder.join("bin"))?;
    packages(PROGRAMS, "stories")?;
    s3_server(&tools.folder)?;
    suites(&tools.folder)?;
    promtool(&tools.folder)?;
    let guests = "stories with a guest kernel";
    debian_packages(&tools.folder, &["user-mode-linux"], "uml", guests)?;
    match guest_kernel() {
        Some(package) => debian_packages(&tools.folder, &[&package], "kernel", guests)?,
        None => missing("guest kernel: no linux-image-cloud-amd64 in the package lists")?,
    }
    Ok(tools)
}

/// Unpacks Ceph, whose gateway is the second S3 server of the tests. Its packages are services, and
/// are not installed.
pub fn install_ceph() -> Result<()> {
    if has("radosgw") && has("ceph-mon") && has("ceph-osd") {
        return Ok(());
    }
    debian_packages(&root().join("target/tools"), CEPH, "ceph", "tests on Ceph")
}

/// Installs the programs with which benches compare, if that is allowed. A bench goes on without
/// them, and its rows say so.
pub fn install_rivals() {
    if let Err(error) = packages(RIVALS, "rows") {
        println!("MISSING {error:#}");
    }
}

/// Installs the packages of the missing ones of these programs if that is allowed.
fn packages(programs: &[(&str, &str)], wanted_by: &str) -> Result<()> {
    let wanted = programs.iter().filter(|(program, _)| !has(program));
    let mut packages: Vec<_> = wanted.map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    if may_install() {
        step(&format!("installing {}", packages.join(" ")));
        return apt_install(&packages);
    }
    missing(&format!("programs: the {wanted_by} that need them will say SKIPPED"))?;
    println!("  as root: apt-get install --no-install-recommends {}", packages.join(" "));
    Ok(())
}

/// Prints what is missing. In CI that is an error.
fn missing(what: &str) -> Result<()> {
    if run::is_ci() {
        bail!("CI must have everything; missing: {what}");
    }
    println!("MISSING {what}");
    Ok(())
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

/// Builds versitygw: an S3 server over a folder with honest conditional writes.
fn s3_server(folder: &Path) -> Result<()> {
    let binary = folder.join("bin/versitygw");
    if binary.exists() || has("versitygw") {
        return Ok(());
    }
    if !has("go") && may_install() {
        step("installing golang-go");
        apt_install(&["golang-go"])?;
    }
    if !has("go") {
        return missing(&format!("S3 server: install Go, then: go install {S3_SERVER}"));
    }
    step("building the S3 server for the tests");
    let built = recent_go(folder).and_then(|go| {
        run::run(
            Command::new(go)
                .args(["install", S3_SERVER])
                .env("GOBIN", folder.join("bin"))
                .env("GOFLAGS", "-p=2"),
        )
    });
    match built {
        Ok(()) => Ok(()),
        Err(error) => missing(&format!("S3 server: {error:#}")),
    }
}

/// Returns Go as the machine has it. Before 1.21 it cannot fetch the version that a module asks
/// for, so that one is fetched as a module.
fn recent_go(folder: &Path) -> Result<PathBuf> {
    let version = run::output("go", &["version"])?;
    let minor = version.split("go1.").nth(1).and_then(|rest| {
        let digits = rest.split(|digit: char| !digit.is_ascii_digit()).next()?;
        digits.parse::<u32>().ok()
    });
    if minor.is_some_and(|minor| minor >= 21) {
        return Ok("go".into());
    }
    step("fetching a newer Go");
    let modules = folder.join("go");
    run::run(
        Command::new("go")
            .args(["mod", "download", GO])
            .env("GOMODCACHE", &modules)
            .env("GOFLAGS", "-modcacherw")
            // Not in a module of ours.
            .current_dir(folder),
    )?;
    let toolchain = modules.join(GO);
    // Modules know no permissions.
    for programs in ["bin", "pkg/tool/linux_amd64"] {
        run::run(Command::new("chmod").args(["-R", "+x"]).arg(toolchain.join(programs)))?;
    }
    Ok(toolchain.join("bin/go"))
}

/// Builds the foreign suites for mounts. They need not be fast, so they are built without
/// optimisation.
fn suites(folder: &Path) -> Result<()> {
    for (name, version) in SUITES {
        if folder.join("bin").join(name).exists() || has(name) {
            continue;
        }
        step(&format!("building {name} {version} for stories about mounts"));
        let mut install = Command::new("cargo");
        install.args(["install", name, "--version", version, "--locked", "--debug", "--quiet"]);
        // What both need is built once.
        install.arg("--root").arg(folder).arg("--target-dir").arg(folder.join("suites"));
        install.env("CARGO_PROFILE_DEV_DEBUG", "0").current_dir(folder);
        if let Err(error) = run::run(&mut install) {
            missing(&format!("{name}: {error:#}"))?;
        }
    }
    match std::fs::remove_dir_all(folder.join("suites")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
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

/// Unpacks promtool, which checks metrics and alert rules. Its package is a server with its
/// service, and is not installed.
fn promtool(folder: &Path) -> Result<()> {
    if has("promtool") {
        return Ok(());
    }
    debian_packages(folder, &["prometheus"], "prometheus", "stories about metrics and alerts")?;
    let (program, link) = (folder.join("prometheus/usr/bin/promtool"), folder.join("bin/promtool"));
    if program.is_file() && !link.is_symlink() {
        std::os::unix::fs::symlink("../prometheus/usr/bin/promtool", link)?;
    }
    Ok(())
}

/// Unpacks Debian packages, and those that they need and the machine lacks, without installing any.
fn debian_packages(folder: &Path, packages: &[&str], name: &str, wanted_by: &str) -> Result<()> {
    let (target, shown) = (folder.join(name), packages.join(" "));
    if target.join(".done").exists() {
        return Ok(());
    }
    if !has("apt-get") || std::env::var_os("REKINDLE_NO_INSTALL").is_some() {
        return missing(&format!("{shown}: {wanted_by} will say SKIPPED"));
    }
    step(&format!("unpacking {shown} for {wanted_by}"));
    match unpack(&target, packages) {
        Ok(()) => Ok(()),
        Err(error) => missing(&format!("{shown}: {error:#}")),
    }
}

fn unpack(target: &Path, packages: &[&str]) -> Result<()> {
    let downloads = target.join("download");
    std::fs::create_dir_all(&downloads)?;
    // One package alone is unpacked for a file in it; a group of them is to run.
    let mut download = apt();
    match packages {
        [_] => download.arg("download"),
        _ => {
            std::fs::create_dir_all(downloads.join("partial"))?;
            let archives = format!("Dir::Cache::archives={}", downloads.display());
            download.args(["install", "-y", "--download-only", "--no-install-recommends"]);
            // Nothing is installed, so no lock is needed, nor root.
            download.args(["-o", "Debug::NoLocking=true", "-o", &archives])
        }
    };
    download.arg("-qq").args(packages).current_dir(&downloads);
    run::run(download.stdout(Stdio::null()).stderr(Stdio::null()))?;
    let files = std::fs::read_dir(&downloads)?.flatten().map(|entry| entry.path());
    let files: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|end| end == "deb")).collect();
    if files.is_empty() {
        bail!("apt-get download left nothing");
    }
    for file in files {
        run::run(Command::new("dpkg").arg("-x").arg(&file).arg(target))?;
    }
    std::fs::remove_dir_all(&downloads)?;
    std::fs::write(target.join(".done"), packages.join(" "))?;
    Ok(())
}

/// Installs cargo-fuzz, from its sources.
pub fn cargo_fuzz() -> Result<()> {
    if run::output("cargo", &["fuzz", "--version"]).is_ok() {
        return Ok(());
    }
    step("installing cargo-fuzz");
    run::cargo(&["install", "cargo-fuzz", "--version", "0.13.2", "--locked"])
}
