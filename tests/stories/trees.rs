//! Trees of files, into a file system and out of it, without a mount.

use anyhow::{Result, ensure};
use e2e::Daemon;
use e2e::mounted::{Mounted, skipped, under_kills};
use e2e::random::for_story;
use e2e::shell::Shell;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

/// Makes a folder that has one of each.
fn make(top: &Path) -> Result<()> {
    std::fs::create_dir_all(top.join("a/empty"))?;
    let repository = e2e::shell::repository().join("crates");
    Shell::new("cp").arg("-r").arg(repository).arg(top.join("a/crates")).run()?;
    std::fs::write(top.join("a/large"), for_story("large").bytes((20 << 20) + 3))?;
    let sparse = File::create(top.join("sparse"))?;
    sparse.write_all_at(b"amid holes", 5 << 20)?;
    sparse.set_len(64 << 20)?;
    std::fs::hard_link(top.join("sparse"), top.join("a/another name"))?;
    symlink("../nowhere\n", top.join("a/link"))?;
    std::fs::write(top.join("a").join("line\nbreak"), b"")?;
    let sh = |script: &str| Shell::new("sh").args(["-c", script]).run();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(top.join("a"), "user.colour", b"red", flags)?;
    let top = top.display();
    sh(&format!("cd '{top}' && mkfifo pipe && echo x > set && chmod 6751 set"))?;
    sh(&format!("cd '{top}' && chmod 1770 a/empty"))?;
    sh(&format!("cd '{top}' && chown 1234:4321 set -h a/link && mknod a/null c 1 3"))?;
    sh(&format!("cd '{top}' && touch -h -d '2001-02-03 04:05:06.789' a/link sparse a/empty ."))?;
    Ok(())
}

/// The sum of a folder's content, names, owners, modes, times, links and attributes.
fn sum(folder: &Path) -> Result<String> {
    let pax = "--pax-option=exthdr.name=%d/%f,delete=atime,delete=ctime";
    let tar = "tar --sort=name --format=posix --numeric-owner --xattrs";
    let script = format!("{tar} {pax} -C '{}' -cf - . | sha256sum", folder.display());
    Shell::new("sh").args(["-c", &script]).run()
}

#[test]
fn a_tree_goes_in_and_comes_out_as_it_was_over_kill_9() -> Result<()> {
    if skipped(&["cp", "tar", "sha256sum"]) {
        return Ok(());
    }
    let daemon = Daemon::start("trees")?;
    daemon.cli(&["fs", "create", "home"])?;
    let (here, there) = (daemon.scratch().join("here"), daemon.scratch().join("there"));
    make(&here)?;
    let wanted = sum(&here)?;
    let path = |path: &Path| path.display().to_string();
    let said = under_kills(&daemon, 2, || daemon.cli(&["fs", "import", &path(&here), "home"]))?;
    let files = said["files"].as_u64().unwrap_or_default();
    ensure!(files > 300, "{said}");
    assert_eq!((&said["hard_links"], &said["others"]), (&1.into(), &2.into()), "{said}");
    let mounted = Mounted::new(&daemon, "home")?;
    assert_eq!(sum(&mounted.folder)?, wanted, "as it is mounted");
    ensure!(std::fs::metadata(mounted.folder.join("sparse"))?.blocks() < 2048, "holes are holes");
    // Again: what is there stays, and another file is replaced.
    std::fs::write(mounted.folder.join("a/large"), b"another one")?;
    let refused = daemon.cli(&["fs", "import", &path(&here), "home"]);
    ensure!(refused.is_err_and(|error| error.to_string().contains("not empty")));
    let said = daemon.cli(&["fs", "import", &path(&here), "home", "--merge"])?;
    assert_eq!((&said["files"], &said["same"]), (&1.into(), &(files - 1).into()), "{said}");
    assert_eq!(sum(&mounted.folder)?, wanted, "after a merge");
    daemon.cli(&["snapshot", "take", "home", "monday"])?;
    std::fs::remove_file(mounted.folder.join("set"))?;
    mounted.unmount()?;
    let snapshot = ["fs", "export", "home", &path(&there), "--snapshot", "monday"];
    under_kills(&daemon, 2, || daemon.cli(&snapshot))?;
    assert_eq!(sum(&there)?, wanted, "as it is exported");
    ensure!(std::fs::metadata(there.join("sparse"))?.blocks() < 2048, "holes are holes");
    let part = daemon.scratch().join("part");
    daemon.cli(&["fs", "export", "home", &path(&part), "--from", "/a/empty"])?;
    assert_eq!(std::fs::read_dir(&part)?.count(), 0);
    let refused = daemon.cli(&["fs", "export", "home", &path(&there)]);
    ensure!(refused.is_err_and(|error| error.to_string().contains("is not empty")));
    Ok(())
}
