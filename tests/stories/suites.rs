//! Foreign suites on a mount: pjdfstest asks for each call of POSIX, fsx for the bytes of a file,
//! git for a repository.

use anyhow::{Context, Result, ensure};
use e2e::Daemon;
use e2e::mounted::{Mounted, skipped, under_kills};
use e2e::shell::{Shell, find, repository, skip};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Tests of pjdfstest that need another mount than a story has: they make it read-only. Each front
/// says why that cannot be.
const REMOUNTS: &[&str] = &[
    "chmod::erofs_named",
    "chown::erofs_named",
    "chown::lchown::erofs_named",
    "link::erofs_named",
    "mkdir::erofs_new_file",
    "mkfifo::erofs_new_file",
    "open::erofs_named",
    "open::erofs_new_file",
    "rename::erofs_named",
    "rmdir::erofs_named",
    "symlink::erofs_new_file",
    "truncate::erofs_named",
    "unlink::erofs_named",
];
/// The test that asks for `LINK_MAX`.
const LINK_COUNT: &str = "link::link_count_max";

/// FUSE has no way to tell this; a file takes four billion links.
const LINKS: &str = "the suite asks for LINK_MAX, which is not told";
/// mount(8) runs `mount.fuse3` for a remount, which wants to start the server anew.
const REMOUNT: &str = "the suite remounts by `mount -o remount`, which no mount of FUSE takes";

/// Settings of pjdfstest: what Linux has. The second user and group are Debian's.
pub const SETTINGS: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Settings of fsx: operations, and how often each comes.
pub const FSX_SETTINGS: &str = "flen = 1048576\n[weights]\nclose_open = 1\nread = 10\nwrite = 10\nmapread = 10\nmapwrite = 10\ninvalidate = 1\n\
     truncate = 3\nfsync = 1\nfdatasync = 1\npunch_hole = 3\nposix_fallocate = 1\nsendfile = 3\nposix_fadvise = 1\n\
     copy_file_range = 3\n";

/// Whether a suite of `cargo x tools` is missing.
pub fn lacks(suite: &str) -> bool {
    let fetched = e2e::shell::tools().join("bin").join(suite).is_file();
    skip(&if fetched || find(suite).is_some() { vec![] } else { vec![suite.to_owned()] })
}

pub fn program(suite: &str) -> PathBuf {
    let fetched = e2e::shell::tools().join("bin").join(suite);
    if fetched.is_file() { fetched } else { PathBuf::from(suite) }
}

/// A folder in which pjdfstest does not panic by itself: it makes the longest path of pieces of 127
/// bytes, and fails where no byte is left for the last one.
pub fn suitable(root: &Path) -> PathBuf {
    const LONGEST: usize = 4095;
    /// What the suite adds: two temporary folders.
    const ADDED: usize = 2 * "/.tmpXXXXXX".len();
    let folder = |length| root.join("p".repeat(length));
    let is_fine = |length: &usize| {
        let path = folder(*length).as_os_str().len() + ADDED;
        (LONGEST - path) % 127 >= 2
    };
    folder((1..9).find(is_fine).unwrap_or(1))
}

#[test]
fn pjdfstest_passes_on_a_mount_but_for_a_list_with_reasons() -> Result<()> {
    if skipped(&[]) || lacks("pjdfstest") {
        return Ok(());
    }
    let daemon = Daemon::start("suites-posix")?;
    daemon.cli(&["fs", "create", "home"])?;
    // The path of a socket has at most 107 bytes.
    let short = std::env::temp_dir().join(format!("rekindle-posix-{}", std::process::id()));
    let mounted = Mounted::at(&daemon, "home", short.clone())?;
    let folder = suitable(&mounted.folder);
    std::fs::create_dir(&folder)?;
    let settings = daemon.scratch().join("pjdfstest.toml");
    std::fs::write(&settings, SETTINGS)?;
    let suite = Shell::new(program("pjdfstest")).arg("--configuration-file").arg(&settings);
    // Another file system, for what cannot be done across two.
    let output = suite.arg("--path").arg(&folder).args(["--secondary-fs", "/dev/shm"]).output()?;
    judge(&String::from_utf8_lossy(&output.stdout), &exceptions(REMOUNT, LINKS, &[]))?;
    ensure!(std::fs::read_dir(&folder)?.count() == 0, "the suite has left something");
    mounted.unmount()?;
    Ok(std::fs::remove_dir(short)?)
}

/// Tests of pjdfstest that do not pass, and why: those that remount, the one about links, and more.
/// A test that does pass must not be here: the list only shrinks.
pub fn exceptions<'a>(
    remount: &'a str,
    links: &'a str,
    more: &[(&'a str, &'a str)],
) -> Vec<(&'a str, &'a str)> {
    let remounts = REMOUNTS.iter().map(|name| (*name, remount));
    remounts.chain([(LINK_COUNT, links)]).chain(more.iter().copied()).collect()
}

/// Judges what pjdfstest has told: all that does not pass is listed, and nothing else.
pub fn judge(told: &str, exceptions: &[(&str, &str)]) -> Result<()> {
    let mut verdicts = BTreeMap::new();
    for line in told.lines().filter(|line| line.starts_with(|first: char| first.is_alphabetic())) {
        if let Some((name, verdict)) = line.split_once(' ') {
            verdicts.insert(name, verdict.trim());
        }
    }
    let passed = verdicts.values().filter(|verdict| **verdict == "ok").count();
    println!("{passed} pass; {}", told.lines().last().unwrap_or_default());
    let bad: Vec<_> = verdicts
        .iter()
        .filter(|(_, verdict)| ["FAILED", "skipped"].contains(verdict))
        .map(|(name, _)| *name)
        .collect();
    let listed: Vec<_> = exceptions.iter().map(|(name, _)| *name).collect();
    let new: Vec<_> = bad.iter().filter(|name| !listed.contains(name)).collect();
    ensure!(new.is_empty(), "not in the list of exceptions: {new:?}\n{told}");
    let fine: Vec<_> = listed.iter().filter(|name| !bad.contains(name)).collect();
    ensure!(fine.is_empty(), "take these off the list of exceptions: {fine:?}");
    ensure!(passed + bad.len() >= 398, "{passed} pass: is it another version?\n{told}");
    Ok(())
}

#[test]
fn fsx_finds_every_byte_on_a_mount_also_under_kill_9_of_the_daemon() -> Result<()> {
    if skipped(&[]) || lacks("fsx") {
        return Ok(());
    }
    let daemon = Daemon::start("suites-fsx")?;
    daemon.cli(&["fs", "create", "home"])?;
    let mounted = Mounted::new(&daemon, "home")?;
    let settings = daemon.scratch().join("fsx.toml");
    std::fs::write(&settings, FSX_SETTINGS)?;
    let run = |seed: u32, operations: u32| -> Result<()> {
        let suite =
            Shell::new(program("fsx")).arg("-f").arg(&settings).arg("-P").arg(daemon.scratch());
        let suite = suite.args(["-S", &seed.to_string(), "-N", &operations.to_string()]);
        suite.arg(mounted.folder.join(format!("fsx{seed}"))).run().map(drop)
    };
    run(1, 5000)?;
    under_kills(&daemon, 4, || run(2, 10_000))?;
    ensure!(mounted.told().contains("is back after"), "{}", mounted.told());
    mounted.unmount()
}

#[test]
fn git_clones_packs_and_checks_a_repository_under_kill_9_of_the_daemon() -> Result<()> {
    if skipped(&["git", "diff"]) {
        return Ok(());
    }
    let daemon = Daemon::start("suites-git")?;
    daemon.cli(&["fs", "create", "home"])?;
    let mounted = Mounted::new(&daemon, "home")?;
    let source = daemon.scratch().join("source");
    make_repository(&source)?;
    let clone = mounted.folder.join("clone");
    let git = |words: &[&str]| Shell::new("git").arg("-C").arg(&clone).args(words).run();
    under_kills(&daemon, 5, || {
        // Not by links to the objects of the source.
        let cloning = Shell::new("git").args(["clone", "--quiet", "--no-local", "--no-hardlinks"]);
        cloning.arg(&source).arg(&clone).run()?;
        for round in 0..6 {
            std::fs::write(clone.join("round"), format!("{round}"))?;
            git(&["add", "-A"])?;
            commit(&clone, &format!("round {round}"))?;
            git(&["gc", "--quiet", "--prune=now"])?;
            git(&["fsck", "--full", "--strict"])?;
        }
        Ok(())
    })?;
    ensure!(mounted.told().contains("is back after"), "{}", mounted.told());
    ensure!(git(&["status", "--porcelain"])?.is_empty(), "the tree is not as it was committed");
    std::fs::remove_file(clone.join("round"))?;
    Shell::new("diff").args(["-r", "--exclude=.git"]).arg(&source).arg(&clone).run()?;
    let count = git(&["rev-list", "--count", "HEAD"])?;
    ensure!(count.trim() == "9", "{count}");
    mounted.unmount()
}

/// Makes a repository of this one's crates, in three commits.
fn make_repository(folder: &Path) -> Result<()> {
    Shell::new("git").args(["init", "--quiet", "--initial-branch=main"]).arg(folder).run()?;
    for name in ["base", "file", "front"] {
        let from = repository().join("crates").join(name);
        Shell::new("cp").arg("-r").arg(from).arg(folder.join(name)).run()?;
        Shell::new("git").arg("-C").arg(folder).args(["add", "-A"]).run()?;
        commit(folder, name).with_context(|| format!("the commit of {name}"))?;
    }
    Ok(())
}

fn commit(folder: &Path, message: &str) -> Result<()> {
    let who = ["-c", "user.name=story", "-c", "user.email=story@localhost", "-c", "gc.auto=0"];
    let commit = Shell::new("git").arg("-C").arg(folder).args(who);
    commit.args(["commit", "--quiet", "--message", message]).run().map(drop)
}
