//! Memory that outlives the daemon: a restart is warm, and whatever happens to that memory, the
//! data is right.

use anyhow::{Context, Result, ensure};
use e2e::Daemon;
use e2e::shell::wait_until;
use rekindle_base::checksum::crc32c;
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use serde_json::Value;
use std::os::unix::fs::FileExt;

const BLOCK: u64 = 16 << 10;
/// Distance of the written blocks, so that the tree has many nodes for little data.
const STRIDE: u64 = 5;
const BLOCKS: u64 = 3000;

fn content(block: u64) -> Vec<u8> {
    Random::new(block).bytes(4096)
}

/// Starts a daemon with a volume whose tree has many nodes, all in the store.
fn filled(name: &str) -> Result<Daemon> {
    let daemon = Daemon::start(name)?;
    fill(&daemon)?;
    Ok(daemon)
}

fn fill(daemon: &Daemon) -> Result<()> {
    daemon.create("disk", "1G", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    for block in 0..BLOCKS {
        client.write(block * STRIDE * BLOCK, &content(block))?;
    }
    daemon.drain("disk")?;
    daemon.create("tail", "16M", &["--ack", "memory"])
}

fn check(daemon: &Daemon) -> Result<()> {
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    for block in 0..BLOCKS {
        ensure!(client.read(block * STRIDE * BLOCK, 4096)? == content(block), "block {block}");
    }
    Ok(())
}

fn frames(daemon: &Daemon) -> Result<Value> {
    Ok(daemon.cli(&["warm", "show"])?["frames"].clone())
}

fn misses(frames: &Value) -> u64 {
    frames["misses"].as_object().map_or(u64::MAX, |misses| {
        misses.values().map(|count| count.as_u64().unwrap_or(u64::MAX / 8)).sum()
    })
}

#[test]
fn after_a_kill_no_tree_node_is_fetched_from_the_store() -> Result<()> {
    let mut daemon = filled("warm-restart")?;
    for round in 0..3 {
        if round == 2 {
            daemon.stop()?;
        } else {
            daemon.kill_all()?;
        }
        daemon.up()?;
        check(&daemon)?;
        let found = frames(&daemon)?;
        assert_eq!(found["began"], "kept", "{found}");
        assert_eq!(misses(&found), 0, "{found}");
        assert!(found["verifications"].as_u64() >= Some(BLOCKS / 256), "{found}");
    }
    Ok(())
}

#[test]
fn dropped_frames_are_cold_once_and_segments_stay() -> Result<()> {
    let mut daemon = filled("warm-drop")?;
    NbdClient::connect(&daemon.socket(), "tail")?.write(0, &content(7))?;
    let dropped = daemon.cli(&["warm", "drop"])?;
    assert!(dropped["frames"].as_u64() > Some(BLOCKS / 256), "{dropped}");
    // The tail may be on its way to the store, which leaves its records in warm memory again: they
    // are dropped, too.
    wait_until("no frame to be left", || {
        let is_empty = frames(&daemon).is_ok_and(|found| found["frames"] == 0);
        if !is_empty {
            // A failure leaves frames, and is tried again.
            let _ = daemon.cli(&["warm", "drop"]);
        }
        is_empty
    })?;
    for cold in [true, false] {
        daemon.kill_all()?;
        daemon.up()?;
        check(&daemon)?;
        let found = frames(&daemon)?;
        assert_eq!((found["began"].as_str(), misses(&found) > 0), (Some("kept"), cold), "{found}");
        assert_eq!(NbdClient::connect(&daemon.socket(), "tail")?.read(0, 4096)?, content(7));
    }
    Ok(())
}

/// A damage of the file of the warm memory, given where its frames lie and how long it is.
type Damage = fn(&std::fs::File, u64, u64) -> Result<()>;

/// Damages of the memory while the daemon is dead, and how the frames begin afterwards.
const DAMAGES: [(&str, &str, Damage); 6] = [
    ("a flipped byte in every kilobyte of the frames", "kept", |file, start, end| {
        (start..end).step_by(1000).try_for_each(|at| flip(file, at))
    }),
    ("a flipped byte in the header of the frames", "damaged", |file, _, _| flip(file, 2048 + 33)),
    ("an older layout of the frames", "other-layout", |file, _, _| version(file, 2048, 128, 0)),
    ("a newer layout of the frames", "other-layout", |file, _, _| version(file, 2048, 128, 9)),
    ("cut off within the frames", "kept", |file, start, end| {
        Ok(file.set_len(start + (end - start) / 3)?)
    }),
    ("cut off within the header page", "new", |file, _, _| Ok(file.set_len(100)?)),
];

#[test]
fn damaged_memory_of_every_kind_leads_to_a_correct_start_and_correct_data() -> Result<()> {
    // A change that is destaged meanwhile, by the clock, would be a miss of its own.
    let text = "[destage]\nage = '1h'\nbytes = '1G'\n";
    let options = e2e::Options::with_settings("warm-damage", text, &[])?;
    let mut daemon = Daemon::start_with("warm-damage", options)?;
    fill(&daemon)?;
    for (round, (what, began, damage)) in DAMAGES.into_iter().enumerate() {
        // This write is acknowledged from memory, and perhaps nowhere else.
        let tail = content(round as u64 + 100);
        NbdClient::connect(&daemon.socket(), "tail")?.write(round as u64 * 4096, &tail)?;
        if what.contains("header page") {
            // This damage takes the segments in memory as well, so the write is drained first.
            daemon.drain("tail")?;
        }
        daemon.kill_all()?;
        let file = std::fs::File::options().read(true).write(true).open(daemon.warm())?;
        let mut start = [0; 8];
        file.read_exact_at(&mut start, 2048 + 48)?;
        let length = file.metadata()?.len();
        damage(&file, u64::from_le_bytes(start), length).context(what)?;
        drop(file);
        daemon.up().context(what)?;
        check(&daemon).context(what)?;
        let found = frames(&daemon)?;
        assert_eq!(found["began"], began, "{what}: {found}");
        assert!(misses(&found) > 0, "{what}: {found}");
        let read = NbdClient::connect(&daemon.socket(), "tail")?.read(round as u64 * 4096, 4096)?;
        assert_eq!(read, tail, "{what}");
        // The next start is warm again.
        daemon.kill_all()?;
        daemon.up()?;
        check(&daemon)?;
        let found = frames(&daemon)?;
        assert_eq!((found["began"].as_str(), misses(&found)), (Some("kept"), 0), "{what}: {found}");
    }
    let (verified, warm) = (daemon.cli(&["verify"])?, daemon.warm());
    assert_eq!(verified["state"], "done", "{verified}");
    assert!(warm.is_file());
    Ok(())
}

#[test]
fn segments_of_a_newer_binary_are_left_alone() -> Result<()> {
    let mut daemon = Daemon::start("warm-newer")?;
    daemon.create("tail", "16M", &["--ack", "memory"])?;
    NbdClient::connect(&daemon.socket(), "tail")?.write(0, &content(1))?;
    daemon.kill_all()?;
    let file = std::fs::File::options().read(true).write(true).open(daemon.warm())?;
    version(&file, 0, 64, 2)?;
    let refused = daemon.up().err().context("it started")?.to_string();
    assert!(refused.contains("upgrade rekindle"), "{refused}");
    version(&file, 0, 64, 1)?;
    drop(file);
    daemon.up()?;
    assert_eq!(NbdClient::connect(&daemon.socket(), "tail")?.read(0, 4096)?, content(1));
    Ok(())
}

#[test]
fn without_frames_everything_works_and_nothing_is_said_of_them() -> Result<()> {
    let options = e2e::Options {
        arguments: ["--warm-frames", "0"].map(str::to_owned).to_vec(),
        ..e2e::Options::default()
    };
    let mut daemon = Daemon::start_with("warm-off", options)?;
    daemon.create("disk", "64M", &[])?;
    NbdClient::connect(&daemon.socket(), "disk")?.write(0, &content(1))?;
    daemon.drain("disk")?;
    daemon.kill_all()?;
    daemon.up()?;
    assert_eq!(NbdClient::connect(&daemon.socket(), "disk")?.read(0, 4096)?, content(1));
    assert_eq!(daemon.cli(&["warm", "show"])?["frames"], Value::Null);
    assert!(
        daemon
            .cli(&["warm", "drop"])
            .is_err_and(|why| format!("{why:#}").contains("--warm-frames"))
    );
    Ok(())
}

#[test]
fn memory_without_a_file_lives_as_long_as_the_supervisor() -> Result<()> {
    let options = e2e::Options {
        arguments: ["--warm", "memfd"].map(str::to_owned).to_vec(),
        ..e2e::Options::default()
    };
    let mut daemon = Daemon::start_with("warm-memfd", options)?;
    fill(&daemon)?;
    for round in 0..3u64 {
        NbdClient::connect(&daemon.socket(), "tail")?.write(round * 4096, &content(round))?;
        let worker = daemon.worker()?;
        daemon.kill_worker()?;
        daemon.wait_for_worker_after(worker)?;
        check(&daemon)?;
        let found = frames(&daemon)?;
        assert_eq!((found["began"].as_str(), misses(&found)), (Some("kept"), 0), "{found}");
        let tail = NbdClient::connect(&daemon.socket(), "tail")?.read(0, 4096)?;
        assert_eq!(tail, content(0));
    }
    let path = daemon.cli(&["warm", "show"])?["path"].as_str().unwrap_or_default().to_owned();
    assert!(path.starts_with("/proc/"), "{path}");
    let inspected = daemon.cli(&["inspect", &path])?;
    assert_eq!(inspected["format"], "warm memory", "{inspected}");
    assert!(!daemon.warm().exists());
    daemon.stop()?;
    daemon.up()?;
    check(&daemon)?;
    assert_eq!(frames(&daemon)?["began"], "new");
    assert_eq!(NbdClient::connect(&daemon.socket(), "tail")?.read(8192, 4096)?, content(2));
    Ok(())
}

fn flip(file: &std::fs::File, at: u64) -> Result<()> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    Ok(file.write_all_at(&[byte[0] ^ 0x10], at)?)
}

/// Gives a header another version, with a sound checksum, as another binary would write it.
fn version(file: &std::fs::File, at: u64, length: usize, version: u32) -> Result<()> {
    let mut header = vec![0; length];
    file.read_exact_at(&mut header, at)?;
    header[8..12].copy_from_slice(&version.to_le_bytes());
    let crc = crc32c(&header[..length - 4]);
    header[length - 4..].copy_from_slice(&crc.to_le_bytes());
    Ok(file.write_all_at(&header, at)?)
}
