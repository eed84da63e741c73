//! Real file systems on a kernel block device ride over `kill -9`: fsck is clean, every fsync'ed
//! file is intact.

use anyhow::{Context, Result, bail};
use e2e::Daemon;
use e2e::mount::{LoopDevice, Mount};
use e2e::random::for_story;
use e2e::s3::{Kind, S3Server};
use e2e::shell::{Shell, skip, skip_without};
use rekindle_base::random::Random;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TOOLS: &[&str] =
    &["nbdfuse", "fusermount3", "losetup", "mkfs.ext4", "mkfs.xfs", "xfs_repair", "fsck.ext4"];

#[test]
fn ext4_survives_kill_9_in_the_middle_of_work() -> Result<()> {
    if skip_without(TOOLS, true) {
        return Ok(());
    }
    survive(&mut Daemon::start("ext4")?, "ext4", 3)
}

#[test]
fn xfs_survives_kill_9_in_the_middle_of_work() -> Result<()> {
    if skip_without(TOOLS, true) {
        return Ok(());
    }
    survive(&mut Daemon::start("xfs")?, "xfs", 3)
}

#[test]
fn ext4_survives_on_an_s3_server() -> Result<()> {
    if skip_without(TOOLS, true) || skip(&Kind::Versitygw.missing()) {
        return Ok(());
    }
    let server = S3Server::start(Kind::Versitygw, "ext4-s3")?;
    survive(&mut Daemon::start_with("ext4-s3", server.options("ext4"))?, "ext4", 2)
}

fn survive(daemon: &mut Daemon, kind: &str, rounds: usize) -> Result<()> {
    let mut random = for_story(kind);
    daemon.create("disk", "512M", &[])?;
    let folder = daemon.scratch().join("mnt");
    let mut kept: Vec<String> = Vec::new();
    {
        let device = LoopDevice::attach(&daemon.uri("disk"), daemon.scratch())?;
        let force = if kind == "xfs" { "-qf" } else { "-qF" };
        Shell::new(format!("mkfs.{kind}")).arg(force).arg(&device.device).run()?;
        Mount::on(&device.device, &folder, "")?.unmount()?;
        Shell::new("sync").arg(&device.device).run()?;
    }
    for round in 0..rounds {
        {
            let device = LoopDevice::attach(&daemon.uri("disk"), daemon.scratch())?;
            let options = if kind == "xfs" { "nouuid" } else { "" };
            let _mount = Mount::on(&device.device, &folder, options)?;
            check_files(&folder, &kept)?;
            let delay = Duration::from_millis(200 + random.below(1200));
            kept.extend(work_until_killed(daemon, &folder, round, delay)?);
        }
        fsck(daemon, kind, &folder)?;
        println!("{kind} round {round}: {} fsync'ed files", kept.len());
    }
    let device = LoopDevice::attach(&daemon.uri("disk"), daemon.scratch())?;
    let _mount = Mount::on(&device.device, &folder, if kind == "xfs" { "nouuid" } else { "" })?;
    assert!(!kept.is_empty());
    check_files(&folder, &kept)
}

/// Makes, renames and removes files, with fsync, until the daemon is killed under it. Returns the
/// names of files that were durable (file and folder fsync'ed) before the kill.
fn work_until_killed(
    daemon: &Daemon,
    folder: &Path,
    round: usize,
    delay: Duration,
) -> Result<Vec<String>> {
    let killed = AtomicBool::new(false);
    let worker = daemon.worker()?;
    let kept = std::thread::scope(|scope| {
        let killed = &killed;
        let killer = scope.spawn(move || {
            std::thread::sleep(delay);
            killed.store(true, Ordering::SeqCst);
            daemon.kill_worker()
        });
        let mut kept = Vec::new();
        for number in 0.. {
            if killed.load(Ordering::SeqCst) {
                break;
            }
            match one_file(folder, round, number) {
                Ok(name) if !killed.load(Ordering::SeqCst) => kept.push(name),
                Ok(_) => {}
                Err(_) if killed.load(Ordering::SeqCst) => break,
                Err(error) => return Err(error),
            }
        }
        killer.join().expect("the killer does not panic")?;
        anyhow::Ok(kept)
    })?;
    daemon.wait_for_worker_after(worker)?;
    Ok(kept)
}

fn one_file(folder: &Path, round: usize, number: usize) -> Result<String> {
    let name = format!("r{round}-{number}");
    let temporary = folder.join(format!("{name}.tmp"));
    let mut file = std::fs::File::create(&temporary)?;
    file.write_all(&content(&name))?;
    file.sync_all()?;
    std::fs::rename(&temporary, folder.join(&name))?;
    std::fs::File::open(folder)?.sync_all()?;
    if number.is_multiple_of(3) {
        std::fs::write(folder.join(format!("{name}.unsynced")), content("noise"))?;
    }
    Ok(name)
}

fn content(name: &str) -> Vec<u8> {
    let seed =
        name.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut random = Random::new(seed);
    let length = 1000 + random.below(40_000) as usize;
    random.bytes(length)
}

fn check_files(folder: &Path, kept: &[String]) -> Result<()> {
    for name in kept {
        let found = std::fs::read(folder.join(name))
            .with_context(|| format!("fsync'ed file {name} is gone"))?;
        if found != content(name) {
            bail!("fsync'ed file {name} is not what was written");
        }
    }
    Ok(())
}

/// Mounts the file system, which replays its journal, and expects the checker to find no errors.
fn fsck(daemon: &Daemon, kind: &str, folder: &Path) -> Result<()> {
    let device = LoopDevice::attach(&daemon.uri("disk"), daemon.scratch())?;
    let options = if kind == "xfs" { "nouuid" } else { "" };
    Mount::on(&device.device, folder, options)?.unmount()?;
    let check = match kind {
        "xfs" => Shell::new("xfs_repair").arg("-n").arg(&device.device),
        _ => Shell::new("fsck.ext4").args(["-fn"]).arg(&device.device),
    };
    check.run().map(|_| ()).context("fsck after the crash")
}
