//! Snapshots and clones, of a mounted file system and of a disk that is written meanwhile.

use anyhow::Result;
use e2e::Daemon;
use e2e::mounted::{Mounted, skipped};
use e2e::random::for_story;
use e2e::shell::{Shell, repository, skip_without, wait_until};
use e2e::tree::same_trees;
use serde_json::Value;
use std::path::Path;

/// The names of a volume's snapshots, and whether the store has them.
fn listed(daemon: &Daemon, volume: &str) -> Result<Vec<(String, bool)>> {
    let rows = daemon.cli(&["snapshot", "ls", volume])?;
    let row =
        |row: &Value| (row["name"].as_str().unwrap_or_default().to_owned(), row["stored"] == true);
    Ok(rows.as_array().into_iter().flatten().map(row).collect())
}

#[test]
fn a_snapshot_of_files_is_seen_in_its_folder_and_a_clone_goes_its_own_way() -> Result<()> {
    if skipped(&["diff", "cp", "ls"]) {
        return Ok(());
    }
    let daemon = Daemon::start("snapshots")?;
    daemon.cli(&["fs", "create", "home"])?;
    let mounted = Mounted::new(&daemon, "home")?;
    let root = &mounted.folder;
    let source = repository().join("crates/file");
    Shell::new("cp").arg("-a").arg(&source).arg(root.join("tree")).run()?;
    daemon.cli(&["fs", "snapshot", "home", "monday"])?;
    std::fs::write(root.join("tree/Cargo.toml"), b"over")?;
    std::fs::remove_dir_all(root.join("tree/src"))?;
    let past = root.join(".snapshots/monday/tree");
    same_trees(&source, &past)?;
    let names = Shell::new("ls").arg("-A").arg(root).run()?;
    assert_eq!(names.trim(), "tree", "what is in the past is found, and not listed");
    let told = std::fs::write(past.join("new"), b"x").unwrap_err();
    assert_eq!(told.raw_os_error(), Some(30), "EROFS: {told}");
    let told = std::fs::File::options().append(true).open(past.join("Cargo.toml")).unwrap_err();
    assert_eq!(told.raw_os_error(), Some(30), "EROFS: {told}");
    // Over a kill the snapshot is as it was, and a clone has it, too.
    let worker = daemon.worker()?;
    daemon.kill_worker()?;
    daemon.wait_for_worker_after(worker)?;
    same_trees(&source, &past)?;
    daemon.cli(&["fs", "clone", "home", "monday", "other"])?;
    let clone = Mounted::at(&daemon, "other", daemon.scratch().join("clone"))?;
    same_trees(&source, &clone.folder.join("tree"))?;
    std::fs::write(clone.folder.join("tree/Cargo.toml"), b"the clone's")?;
    assert_eq!(std::fs::read(root.join("tree/Cargo.toml"))?, b"over");
    assert!(std::fs::read(past.join("Cargo.toml"))?.starts_with(b"[package]"));
    // Without the snapshot and its volume, the clone has all of its own.
    daemon.cli(&["snapshot", "rm", "home", "monday"])?;
    // The kernel looks again after a second.
    wait_until("the snapshot to go", || {
        std::fs::metadata(root.join(".snapshots/monday")).is_err()
    })?;
    mounted.unmount()?;
    daemon.remove_now("home")?;
    daemon.cli(&["volume", "drain", "other"])?;
    daemon.cli(&["sweep", "run"])?;
    std::fs::write(
        clone.folder.join("tree/Cargo.toml"),
        std::fs::read(source.join("Cargo.toml"))?,
    )?;
    same_trees(&source, &clone.folder.join("tree"))?;
    clone.unmount()?;
    let found = daemon.cli(&["verify"])?;
    assert_eq!(found["result"]["damaged"], 0, "{found}");
    Ok(())
}

#[test]
fn a_disk_goes_back_to_a_snapshot_that_was_taken_amid_writes_and_kills() -> Result<()> {
    if skip_without(&["nbdcopy", "cmp"], false) {
        return Ok(());
    }
    let mut daemon = Daemon::start("snapshots-disk")?;
    daemon.create("vm1", "48M", &[])?;
    let images: Vec<_> = (0..3).map(|n| daemon.scratch().join(format!("image{n}"))).collect();
    for image in &images {
        std::fs::write(image, for_story(&image.display().to_string()).bytes(48 << 20))?;
    }
    let fill = |daemon: &Daemon, image: &Path| {
        Shell::new("nbdcopy").arg("--flush").arg(image).arg(daemon.uri("vm1")).run().map(drop)
    };
    let is_as = |daemon: &Daemon, volume: &str, image: &Path| {
        let copy = daemon.scratch().join("copy");
        Shell::new("nbdcopy").arg(daemon.uri(volume)).arg(&copy).run()?;
        e2e::tree::same(image, &copy)
    };
    fill(&daemon, &images[0])?;
    daemon.cli(&["snapshot", "take", "vm1", "first"])?;
    fill(&daemon, &images[1])?;
    // The second snapshot is mostly in the log when everything is killed.
    daemon.cli(&["snapshot", "take", "vm1", "second"])?;
    daemon.kill_all()?;
    daemon.up()?;
    fill(&daemon, &images[2])?;
    daemon.cli(&["snapshot", "clone", "vm1", "second", "vm2"])?;
    is_as(&daemon, "vm2", &images[1])?;
    is_as(&daemon, "vm1", &images[2])?;
    daemon.cli(&["volume", "rollback", "vm1", "--to", "first"])?;
    is_as(&daemon, "vm1", &images[0])?;
    let all = vec![("first".to_owned(), true), ("second".to_owned(), true)];
    assert_eq!(listed(&daemon, "vm1")?, all);
    let found = daemon.cli(&["verify"])?;
    assert_eq!(found["result"]["damaged"], 0, "{found}");
    Ok(())
}

#[test]
fn a_disk_in_use_is_saved_by_its_snapshot_through_pipes() -> Result<()> {
    if skip_without(&["nbdcopy", "nbdinfo", "cmp"], false) {
        return Ok(());
    }
    let daemon = Daemon::start("snapshots-pipes")?;
    daemon.create("vm1", "40M", &[])?;
    let at = |name: &str| daemon.scratch().join(name);
    // With a hole in the middle, and one at the end.
    let mut bytes = for_story("first").bytes(40 << 20);
    bytes[10 << 20..20 << 20].fill(0);
    bytes[35 << 20..].fill(0);
    std::fs::write(at("first"), &bytes)?;
    std::fs::write(at("second"), for_story("second").bytes(40 << 20))?;
    let copy = |from: &str, to: &str| Shell::new("nbdcopy").args(["--flush", from, to]).run();
    let text = |name: &str| at(name).display().to_string();
    copy(&text("first"), &daemon.uri("vm1"))?;
    daemon.cli(&["snapshot", "take", "vm1", "monday"])?;
    copy(&text("second"), &daemon.uri("vm1"))?;
    let past = daemon.uri("vm1@monday");
    let info: Value = serde_json::from_str(&Shell::new("nbdinfo").args(["--json", &past]).run()?)?;
    assert_eq!(info["exports"][0]["is_read_only"], true, "{info}");
    assert!(copy(&text("second"), &past).is_err(), "a snapshot was written");
    copy(&past, &text("out"))?;
    e2e::tree::same(&at("first"), &at("out"))?;
    // The command line's export, in a file and in pipes: the second disk is made of the first.
    daemon.cli(&["volume", "export", "vm1", &text("out.img"), "--snapshot", "monday"])?;
    e2e::tree::same(&at("first"), &at("out.img"))?;
    let (binary, dir) = (e2e::daemon::binary(), &daemon.dir);
    let pipe = format!(
        "set -o pipefail; '{0}' volume export vm1 - --snapshot monday --dir '{1}' \
         | '{0}' volume import - vm2 --size 48M --dir '{1}'",
        binary.display(),
        dir.display()
    );
    Shell::new("bash").args(["-c", &pipe]).run()?;
    daemon.cli(&["volume", "export", "vm2", &text("vm2.img")])?;
    bytes.resize(48 << 20, 0);
    std::fs::write(at("wanted"), &bytes)?;
    e2e::tree::same(&at("wanted"), &at("vm2.img"))?;
    // Over another content, zeros count; and what is too long is told.
    let over = |source: &str, how: &str| {
        let command = format!(
            "'{}' volume import - vm1 {how} --dir '{}' < '{}'",
            binary.display(),
            dir.display(),
            at(source).display()
        );
        Shell::new("bash").args(["-c", &command]).run()
    };
    over("out", "--overwrite")?;
    daemon.cli(&["volume", "export", "vm1", &text("again.img")])?;
    e2e::tree::same(&at("first"), &at("again.img"))?;
    let longer = over("vm2.img", "--overwrite").unwrap_err().to_string();
    assert!(longer.contains("longer than the volume"), "{longer}");
    let resumed = over("out", "--resume").unwrap_err().to_string();
    assert!(resumed.contains("cannot be compared again"), "{resumed}");
    Ok(())
}
