//! File volumes, mounted: programs see a file system like any other, and a `kill -9` of the daemon
//! as a stall.

use anyhow::{Context, Result, ensure};
use e2e::Daemon;
use e2e::daemon::binary;
use e2e::mounted::{Mounted, skipped, under_kills};
use e2e::random::for_story;
use e2e::shell::{Shell, wait_until};
use e2e::tree::same_trees;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn start(name: &str) -> Result<Daemon> {
    let daemon = Daemon::start(name)?;
    daemon.cli(&["fs", "create", "home"])?;
    Ok(daemon)
}

#[test]
fn a_mounted_volume_is_a_file_system_like_any_other() -> Result<()> {
    if skipped(&["diff", "cp"]) {
        return Ok(());
    }
    let daemon = start("files")?;
    let mounted = Mounted::new(&daemon, "home")?;
    let root = mounted.folder.clone();
    let file = root.join("a");
    std::fs::write(&file, b"hello")?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640))?;
    std::fs::create_dir(root.join("d"))?;
    std::fs::rename(&file, root.join("d/b"))?;
    std::fs::hard_link(root.join("d/b"), root.join("c"))?;
    symlink("d/b", root.join("l"))?;
    assert_eq!(std::fs::read(root.join("l"))?, b"hello");
    let found = std::fs::metadata(root.join("c"))?;
    assert_eq!((found.nlink(), found.len(), found.mode()), (2, 5, 0o100_640));
    // What another user writes is not run as its owner.
    let program = root.join("program");
    for (change, mode, left) in [
        ("echo x >> program", 0o6777, 0o777),
        ("truncate -s 1 program", 0o6777, 0o777),
        ("fallocate -l 4096 program", 0o6777, 0o777),
        ("echo x >> program", 0o2766, 0o2766),
    ] {
        std::fs::write(&program, b"x")?;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode))?;
        // The folders above may be closed to that user, so it begins inside.
        let other = "exec setpriv --reuid=65534 --clear-groups sh -c";
        let script = format!("cd {} && {other} '{change}'", root.display());
        Shell::new("sh").args(["-c", &script]).run()?;
        assert_eq!(std::fs::metadata(&program)?.mode() & 0o7777, left, "{change}");
    }
    std::fs::remove_file(&program)?;
    let sparse =
        File::options().create_new(true).write(true).read(true).open(root.join("sparse"))?;
    sparse.write_all_at(b"end", 10 << 20)?;
    sparse.set_len((10 << 20) + 2)?;
    let mut byte = [1; 3];
    assert_eq!(sparse.read_at(&mut byte, (10 << 20) - 1)?, 3);
    assert_eq!(&byte, b"\0en");
    drop(sparse);
    for number in 0..3000 {
        File::create(root.join(format!("d/{number}")))?;
    }
    assert_eq!(std::fs::read_dir(root.join("d"))?.count(), 3001);
    assert!(std::fs::remove_dir(root.join("d")).is_err(), "it is not empty");
    let repository = e2e::shell::repository().join("crates");
    Shell::new("cp").arg("-a").arg(&repository).arg(root.join("copy")).run()?;
    same_trees(&repository, &root.join("copy"))?;
    mounted.unmount()?;
    let mounted = Mounted::new(&daemon, "home")?;
    same_trees(&repository, &root.join("copy"))?;
    std::fs::remove_dir_all(root.join("copy"))?;
    std::fs::remove_dir_all(root.join("d"))?;
    let mut left: Vec<_> =
        std::fs::read_dir(&root)?.flatten().map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, ["c", "l", "sparse"]);
    mounted.unmount()
}

#[test]
fn programs_that_write_only_and_programs_that_map_a_file_see_the_same_bytes() -> Result<()> {
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = start("files-mapped")?;
    let mounted = Mounted::new(&daemon, "home")?;
    let path = mounted.folder.join("a");
    std::fs::write(&path, vec![b'a'; 1 << 20])?;
    let both = File::options().read(true).write(true).open(&path)?;
    // SAFETY: every change of the file is one of this function, between its looks.
    let mut map = unsafe { memmap2::MmapMut::map_mut(&both) }?;
    assert!(map.iter().all(|byte| *byte == b'a'));
    let writer = File::options().write(true).open(&path)?;
    for at in (0..200_u64).map(|number| number * 5000 + 1) {
        let place = usize::try_from(at)?;
        // In one page: what was mapped and written stays, and what was written is seen in the map.
        map[place + 100] = b'm';
        writer.write_all_at(b"new", at)?;
        assert_eq!(&map[place - 1..place + 4], b"anewa", "at {at}");
        assert_eq!(map[place + 100], b'm', "at {at}");
        let mut read = [0; 5];
        both.read_exact_at(&mut read, at - 1)?;
        assert_eq!(&read, b"anewa", "at {at}");
    }
    map.flush()?;
    let bytes = std::fs::read(&path)?;
    assert!(bytes == map[..], "the file has what was mapped");
    assert_eq!(bytes.iter().filter(|byte| **byte == b'm').count(), 200);
    // Ends of a program's memory and of the file fall between pages.
    let long = for_story("long").bytes((3 << 20) + 7);
    writer.write_all_at(&long, 13)?;
    File::options().append(true).open(&path)?.write_all(b"end")?;
    let bytes = std::fs::read(&path)?;
    assert!(bytes[13..] == [&long[..], b"end"].concat(), "{} bytes", bytes.len());
    // A program that reads and appends maps its file, too.
    let mut appender = File::options().read(true).append(true).open(&path)?;
    // SAFETY: as above.
    let mut own = unsafe { memmap2::MmapMut::map_mut(&appender) }?;
    assert!(own[..] == bytes[..], "{} bytes", own.len());
    own[20] = b'm';
    appender.write_all(b"more")?;
    map[30] = b'm';
    assert_eq!((own[30], map[20]), (b'm', b'm'), "both programs have the same pages");
    let bytes = std::fs::read(&path)?;
    assert_eq!((bytes[20], bytes[30]), (b'm', b'm'));
    assert!(bytes.ends_with(b"endmore"), "{} bytes", bytes.len());
    drop((own, appender, map, both, writer));
    mounted.unmount()
}

#[test]
fn room_is_counted_exactly_and_what_is_reserved_is_there() -> Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    const MIB: u64 = 1 << 20;
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = Daemon::start("files-room")?;
    daemon.cli(&["fs", "create", "home", "--size", "64M"])?;
    let mounted = Mounted::new(&daemon, "home")?;
    let noise = for_story("room").bytes(1 << 20);
    let reserved = File::create_new(mounted.folder.join("reserved"))?;
    fallocate(&reserved, FallocateFlags::empty(), 0, 40 * MIB)?;
    // Beyond its end, so that half a MiB is left in the end.
    fallocate(&reserved, FallocateFlags::KEEP_SIZE, 40 * MIB, MIB / 2)?;
    let fill = mounted.folder.join("fill");
    let mut filling = File::create_new(&fill)?;
    let (mut filled, full) = (0, std::io::ErrorKind::StorageFull);
    let mut last = noise.len();
    loop {
        match filling.write(&noise[..]).and_then(|length| filling.sync_all().map(|()| length)) {
            Ok(length) => (filled, last) = (filled + length as u64, length),
            Err(error) if error.kind() == full => break,
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(filled == 47 * MIB / 2, "{filled} bytes fit beside 40.5 MiB reserved of 64");
    ensure!(last == noise.len() / 2, "the last write wrote what fitted, and not {last} bytes");
    daemon.kill_worker()?;
    for at in 0..40 {
        reserved.write_all_at(&noise, at * MIB).with_context(|| format!("MiB {at}"))?;
    }
    reserved.sync_all()?;
    ensure!(reserved.metadata()?.blocks() * 512 == 81 * MIB / 2);
    drop(filling);
    std::fs::remove_file(&fill)?;
    // Every second page, again and again: each is taken once.
    let sparse = File::create_new(mounted.folder.join("sparse"))?;
    for _ in 0..30 {
        for page in 0..200 {
            sparse.write_all_at(&noise[..4096], page * 8192)?;
        }
    }
    sparse.sync_all()?;
    ensure!(sparse.metadata()?.blocks() == 1600, "{} blocks", sparse.metadata()?.blocks());
    drop((reserved, sparse));
    mounted.unmount()
}

#[test]
fn what_is_open_and_was_removed_has_attributes_and_set_id_bits_go_with_a_chown() -> Result<()> {
    use rustix::fs::{CWD, FileType, Mode, chown, mknodat};
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = start("files-removed")?;
    let mounted = Mounted::new(&daemon, "home")?;
    let (pipe, folder) = (mounted.folder.join("pipe"), mounted.folder.join("folder"));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    std::fs::create_dir(&folder)?;
    let open_pipe = File::options().read(true).write(true).open(&pipe)?;
    let open_folder = File::open(&folder)?;
    std::fs::remove_file(&pipe)?;
    std::fs::remove_dir(&folder)?;
    for _ in 0..2 {
        ensure!(open_pipe.metadata()?.nlink() == 0 && open_folder.metadata()?.nlink() == 0);
        daemon.kill_worker()?;
    }
    for (mode, after) in [(0o4755, 0o755), (0o2755, 0o755), (0o2745, 0o2745), (0o6755, 0o755)] {
        let path = mounted.folder.join(format!("{mode:o}"));
        std::fs::write(&path, b"#!/bin/sh")?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode))?;
        chown(&path, None, None)?;
        let found = std::fs::metadata(&path)?.mode() & 0o7777;
        ensure!(found == after, "{mode:o} becomes {found:o}, not {after:o}");
    }
    drop((open_pipe, open_folder));
    mounted.unmount()
}

#[test]
fn a_copy_goes_on_over_kill_9_of_the_daemon_without_an_error() -> Result<()> {
    if skipped(&["diff", "cp", "dd", "cmp"]) {
        return Ok(());
    }
    let daemon = start("files-killed")?;
    let mounted = Mounted::new(&daemon, "home")?;
    let root = &mounted.folder;
    let repository = e2e::shell::repository().join("crates");
    let image = daemon.scratch().join("image");
    std::fs::write(&image, for_story("image").bytes(24 << 20))?;
    under_kills(&daemon, 4, || {
        for round in 0..4 {
            Shell::new("cp").arg("-r").arg(&repository).arg(root.join(format!("{round}"))).run()?;
            Shell::new("dd")
                .arg(format!("if={}", image.display()))
                .arg(format!("of={}", root.join(format!("image{round}")).display()))
                .args(["bs=1M", "conv=fsync"])
                .run()?;
        }
        Ok(())
    })?;
    for round in 0..4 {
        same_trees(&repository, &root.join(format!("{round}")))?;
        e2e::tree::same(&image, &root.join(format!("image{round}")))?;
    }
    assert!(mounted.told().contains("is back after"), "{}", mounted.told());
    mounted.unmount()
}

/// Copies a file by `copy_file_range` alone, as far as that goes. Returns the count of calls.
fn copy_by_range(from: &Path, to: &Path) -> Result<u64> {
    let (from, to) = (File::open(from)?, File::create(to)?);
    let (mut left, mut calls) = (from.metadata()?.len(), 0);
    while left > 0 {
        let length = usize::try_from(left)?;
        let copied = rustix::fs::copy_file_range(&from, None, &to, None, length)?;
        ensure!(copied > 0, "{left} bytes are left");
        (left, calls) = (left - copied as u64, calls + 1);
    }
    Ok(calls)
}

#[test]
fn a_copy_within_a_volume_takes_one_call_and_goes_on_over_kill_9() -> Result<()> {
    if skipped(&["cp", "cmp"]) {
        return Ok(());
    }
    let daemon = start("files-ranges")?;
    let mounted = Mounted::new(&daemon, "home")?;
    let root = &mounted.folder;
    let file = root.join("file");
    std::fs::write(&file, for_story("file").bytes((48 << 20) + 5))?;
    File::open(&file)?.sync_all()?;
    daemon.drain("home")?;
    assert_eq!(copy_by_range(&file, &root.join("one"))?, 1, "the store has all of it");
    under_kills(&daemon, 3, || {
        for number in 0..12 {
            let to = root.join(format!("copy{number}"));
            // Some bytes are newer than the store's.
            File::options().write(true).open(&file)?.write_all_at(&[7; 100], number << 20)?;
            Shell::new("cp").arg(&file).arg(&to).run()?;
            e2e::tree::same(&file, &to)?;
        }
        Ok(())
    })?;
    daemon.drain("home")?;
    Shell::new("cp").arg(&file).arg(root.join("last")).run()?;
    std::fs::remove_file(root.join("copy7"))?;
    e2e::tree::same(&file, &root.join("last"))?;
    e2e::tree::same(&file, &root.join("copy11"))?;
    mounted.unmount()
}

#[test]
fn names_change_once_over_kill_9_of_the_daemon() -> Result<()> {
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = start("files-names")?;
    let mounted = Mounted::new(&daemon, "home")?;
    let root = &mounted.folder;
    let rounds = under_kills(&daemon, 5, || {
        let begin = std::time::Instant::now();
        let mut rounds = 0;
        while begin.elapsed() < Duration::from_secs(4) {
            let (one, two, dir) = (root.join("one"), root.join("two"), root.join("dir"));
            let mut file = File::options().write(true).create_new(true).open(&one)?;
            file.write_all(rounds.to_string().as_bytes())?;
            std::fs::create_dir(&dir).context("mkdir")?;
            std::fs::rename(&one, &two).context("rename")?;
            std::fs::hard_link(&two, dir.join("three")).context("link")?;
            symlink("two", &one).context("symlink")?;
            assert_eq!(std::fs::read(&one)?, rounds.to_string().as_bytes());
            for path in [&one, &two, &dir.join("three")] {
                std::fs::remove_file(path).context("unlink")?;
            }
            std::fs::remove_dir(&dir).context("rmdir")?;
            rounds += 1;
        }
        Ok(rounds)
    })?;
    println!("{rounds} rounds");
    assert_eq!(std::fs::read_dir(root)?.count(), 0);
    mounted.unmount()
}

#[test]
fn a_file_without_a_name_survives_a_restart_while_it_is_open() -> Result<()> {
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = start("files-unlinked")?;
    let mounted = Mounted::new(&daemon, "home")?;
    let path = mounted.folder.join("a");
    let mut file = File::options().create_new(true).read(true).write(true).open(&path)?;
    file.write_all(b"before ")?;
    std::fs::remove_file(&path)?;
    let worker = daemon.worker()?;
    daemon.kill_worker()?;
    daemon.wait_for_worker_after(worker)?;
    file.write_all(b"after")?;
    file.sync_all()?;
    file.rewind()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    assert_eq!(text, "before after");
    drop(file);
    mounted.unmount()
}

#[test]
fn a_database_goes_on_over_kill_9_of_the_daemon() -> Result<()> {
    if skipped(&["sqlite3"]) {
        return Ok(());
    }
    let daemon = start("files-sqlite")?;
    let mounted = Mounted::new(&daemon, "home")?;
    let database = mounted.folder.join("db");
    let ask = |words: &str| Shell::new("sqlite3").arg(&database).arg(words).run();
    ask("create table t (n integer primary key, text)")?;
    under_kills(&daemon, 3, || {
        for number in 0..300 {
            ask(&format!("insert into t values ({number}, hex(randomblob(500)))"))?;
        }
        Ok(())
    })?;
    assert_eq!(ask("select count(*), sum(n) from t")?.trim(), "300|44850");
    assert_eq!(ask("pragma integrity_check")?.trim(), "ok");
    mounted.unmount()
}

#[test]
fn what_cannot_be_mounted_is_refused_with_the_reason() -> Result<()> {
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = start("files-refused")?;
    daemon.create("disk", "64M", &[])?;
    let refused = |volume: &str, folder: &Path| -> Result<String> {
        let command = Shell::new(binary()).args(["mount", volume]).arg(folder);
        let output = command.arg("--dir").arg(&daemon.dir).output()?;
        assert!(!output.status.success());
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let folder = daemon.scratch().to_owned();
    let told = refused("disk", &folder)?;
    assert!(told.contains("and no file system") && told.contains("fs create"), "{told}");
    let told = refused("hoem", &folder)?;
    assert!(told.contains("did you mean 'home'?"), "{told}");
    let told = refused("home", &folder.join("nowhere"))?;
    assert!(told.contains("there is no folder") && told.contains("mkdir"), "{told}");
    let mounted = Mounted::new(&daemon, "home")?;
    let told = refused("home", &mounted.folder)?;
    assert!(told.contains("already"), "{told}");
    mounted.unmount()
}

#[test]
fn a_mount_ends_where_its_volume_is_another_one_or_went_back() -> Result<()> {
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = start("files-another")?;
    let others = daemon.scratch().join("others");
    std::fs::create_dir(&others)?;
    std::fs::write(others.join("victim"), b"another's bytes")?;
    let others = others.display().to_string();
    daemon.cli(&["fs", "snapshot", "home", "before"])?;
    for (what, words) in [("went back", "went back to"), ("is another", "is not the one")] {
        let folder = daemon.scratch().join(what.replace(' ', "-"));
        let mut mounted = Mounted::at(&daemon, "home", folder)?;
        // Another process has it open: a child of this one would close it while the mount stands
        // still.
        let script = "exec 3<>\"$0\"; printf mine >&3; echo ready; read go; \
                      printf over >&3 && echo wrote; cat <&3";
        let mut holder = Command::new("sh");
        holder.args(["-c", script]).arg(mounted.folder.join("secret"));
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut said = BufReader::new(holder.stdout.take().context("its output")?);
        said.read_line(&mut String::new())?;
        mounted.while_it_stands_still(|| {
            match what {
                "went back" => {
                    daemon.kill_worker()?;
                    daemon.cli(&["volume", "rollback", "home", "--to", "before"])?;
                }
                _ => {
                    daemon.cli(&["volume", "rm", "home", "--now", "--force"])?;
                    daemon.cli(&["fs", "create", "home"])?;
                }
            }
            daemon.cli(&["fs", "import", &others, "home"]).map(drop)
        })?;
        writeln!(holder.stdin.take().context("its input")?, "go")?;
        let mut rest = String::new();
        said.read_to_string(&mut rest)?;
        ensure!(rest.is_empty() && !holder.wait()?.success(), "{what}: {rest}");
        let told = mounted.ended()?;
        ensure!(told.contains(words) && told.contains("umount"), "{told}");
        let below = std::fs::write(mounted.folder.join("new"), b"");
        ensure!(below.is_err(), "{what}: no one writes into the folder below");
        Shell::new("umount").arg(&mounted.folder).run()?;
        let copy = daemon.scratch().join(format!("{what} copy"));
        daemon.cli(&["fs", "export", "home", &copy.display().to_string()])?;
        assert_eq!(std::fs::read(copy.join("victim"))?, b"another's bytes", "{what}");
    }
    Ok(())
}

#[test]
fn a_mount_begins_to_wait_while_the_store_is_away() -> Result<()> {
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = start("files-waits")?;
    daemon.store_goes()?;
    let mut ended = Mounted::begin(&daemon, "home", daemon.scratch().join("ended"))?;
    let mut mounted = Mounted::begin(&daemon, "home", daemon.scratch().join("mnt"))?;
    for mount in [&ended, &mounted] {
        wait_until("the mount to say that it waits", || mount.told().contains("mount waits"))?;
    }
    let told = ended.terminate()?;
    ensure!(told.contains("broken off before the file system was mounted"), "{told}");
    daemon.store_comes_back()?;
    mounted.wait()?;
    std::fs::write(mounted.folder.join("new"), b"bytes")?;
    mounted.unmount()
}

#[test]
fn a_sync_fails_when_the_memory_is_lost_that_had_what_it_was_to_make_durable() -> Result<()> {
    if skipped(&[]) {
        return Ok(());
    }
    let mut daemon = Daemon::start("files-memory")?;
    daemon.cli(&["fs", "create", "home"])?;
    let mounted = Mounted::new(&daemon, "home")?;
    let path = mounted.folder.join("file");
    let mut file = File::create(&path)?;
    let other = File::create(mounted.folder.join("other"))?;
    file.write_all(&[1; 4096])?;
    file.sync_all()?;
    // A kill alone loses nothing.
    file.write_all(&[2; 4096])?;
    daemon.kill_all()?;
    daemon.up()?;
    file.sync_all()?;
    assert_eq!(std::fs::metadata(&path)?.len(), 8192);
    // The file of the memory goes, as at the end of an ordinary user's session.
    file.write_all(&[3; 4096])?;
    daemon.kill_all()?;
    daemon.remove_warm();
    daemon.up()?;
    let told = |synced: std::io::Result<()>| synced.err().and_then(|error| error.raw_os_error());
    assert_eq!(told(file.sync_all()), Some(5), "EIO, since it may not be there");
    file.sync_all()?;
    assert_eq!(told(other.sync_all()), Some(5), "each file that was open");
    assert_eq!(told(File::open(&mounted.folder)?.sync_all()), Some(5));
    file.write_all(&[4; 4096])?;
    file.sync_all()?;
    drop((file, other));
    mounted.unmount()?;
    daemon.stop()
}
