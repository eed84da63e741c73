//! Foreign suites over NFS, with the kernel's own client in a guest: pjdfstest asks for each call
//! of POSIX, and fsx for the bytes of a file, while the daemon is killed.

use crate::suites::{FSX_SETTINGS, SETTINGS, exceptions, judge, lacks, program, suitable};
use anyhow::{Context, Result, ensure};
use e2e::guest::{self, Guest, Namespace};
use e2e::random::for_story;
use e2e::shell::wait_until;
use e2e::{Daemon, Options};
use std::path::Path;
use std::time::Duration;

/// Tests of pjdfstest that do not pass over version 3 alone, and why.
const EXCEPTIONS_3: &[(&str, &str)] =
    &[("unlink::open_file_not_freed", SILLY), ("utimensat::y2038", SECONDS)];

/// The kernel keeps what servers say of links to itself; a file takes four billion.
const LINKS: &str = "the suite asks for LINK_MAX, which the kernel does not tell";
/// The server would not see it.
const REMOUNT: &str = "the suite makes the mount read-only, which the kernel alone would judge";
/// A server of version 3 is not told of opens, so a client renames a file that it has open in place
/// of removing it.
const SILLY: &str = "an open file that is removed has a name still, as the kernel does it";
const SECONDS: &str =
    "version 3 has 32 bits for seconds, which end in 2106, where the suite begins";

/// What the guest does. Another file system is at /run, for what cannot be done across two.
const WORK: &str = r"
work() {
  MOUNT 10.77.0.1:/home /mnt || return 1
  mkdir FOLDER || return 2
  echo begun >/run/out/began
  PJDFSTEST --configuration-file /run/out/pjdfstest.toml --path FOLDER --secondary-fs /run \
    >/run/out/posix 2>/run/out/posix.errors
  ls -A FOLDER >/run/out/left
  echo done >/run/out/posix.done
  FSX -f /run/out/fsx.toml -P /run -S 1 -N 4000 /mnt/fsx1 || return 4
  echo begun >/run/out/fsx.begun
  for seed in 2 3 4; do
    FSX -f /run/out/fsx.toml -P /run -S $seed -N 3000 /mnt/fsx$seed || return $((3 + seed))
  done
  echo done >/run/out/fsx.done
  umount /mnt || return 8
  dmesg | grep -iE 'i/o error|reclaim|recovery failed' && return 9
  return 0
}";

fn suites(name: &str, version: u32, more: &[(&str, &str)]) -> Result<()> {
    if guest::skipped(&[]) || lacks("pjdfstest") || lacks("fsx") {
        return Ok(());
    }
    let namespace = Namespace::new(name)?;
    let options = ["--nfs", "10.77.0.1:2049", "--insecure"];
    let options = Options::with_settings(name, "nfs_squash = 'none'", &options)?;
    let daemon = Daemon::start_with(name, Options { prefix: namespace.words(), ..options })?;
    daemon.cli(&["fs", "create", "home"])?;
    let out = daemon.scratch().join("out");
    std::fs::create_dir_all(&out)?;
    std::fs::write(out.join("pjdfstest.toml"), SETTINGS)?;
    // Neither version has an operation that makes holes.
    std::fs::write(out.join("fsx.toml"), FSX_SETTINGS.replace("punch_hole = 3\n", ""))?;
    let (module, mount) = match version {
        3 => (
            "nfsv3",
            "mount -i -t nfs -o vers=3,nolock,proto=tcp,port=2049,mountport=2049,mountproto=tcp,addr=10.77.0.1",
        ),
        _ => (
            "nfsv4",
            "mount -i -t nfs4 -o vers=4.1,proto=tcp,port=2049,addr=10.77.0.1,clientaddr=10.77.0.2",
        ),
    };
    let work = [
        ("MOUNT", mount.to_owned()),
        ("FOLDER", suitable(Path::new("/mnt")).display().to_string()),
        ("PJDFSTEST", program("pjdfstest").display().to_string()),
        ("FSX", program("fsx").display().to_string()),
    ];
    let work = work.iter().fold(WORK.to_owned(), |work, (from, to)| work.replace(from, to));
    let guest = Guest::boot(&namespace, daemon.scratch(), module, &work)?;
    let comes = |name: &str| {
        let is_there = || guest.out.join(name).exists() || !guest.read("rc").is_empty();
        wait_until(name, is_there).with_context(|| guest.said())
    };
    comes("began")?;
    comes("posix.done")?;
    let exceptions = exceptions(REMOUNT, LINKS, more);
    judge(&guest.read("posix"), &exceptions).with_context(|| guest.said())?;
    // Over version 3 a file is left that was open when it was removed.
    ensure!(version == 3 || guest.read("left").is_empty(), "left: {}", guest.read("left"));
    comes("fsx.begun")?;
    let (mut random, mut kills) = (for_story(name), 0);
    while !guest.out.join("fsx.done").exists() && guest.read("rc").is_empty() && kills < 8 {
        std::thread::sleep(Duration::from_millis(500 + random.below(1500)));
        let worker = daemon.worker()?;
        daemon.kill_worker()?;
        daemon.wait_for_worker_after(worker)?;
        kills += 1;
    }
    guest.ends_well()?;
    println!("{kills} kills of the daemon");
    ensure!(kills > 1, "{}", guest.said());
    Ok(())
}

#[test]
fn suites_pass_over_version_3_but_for_a_list_with_reasons() -> Result<()> {
    suites("nfs-suites-3", 3, EXCEPTIONS_3)
}

#[test]
fn suites_pass_over_version_4_1_but_for_a_list_with_reasons() -> Result<()> {
    suites("nfs-suites-4", 4, &[])
}
