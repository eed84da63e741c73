//! Packs with parity get back what a disk of the store loses; packs without parity do not.

use anyhow::{Context, Result, ensure};
use e2e::daemon::objects;
use e2e::random::for_story;
use e2e::{Daemon, Options};
use rekindle_nbd_client::NbdClient;
use std::path::PathBuf;

const BLOCK: usize = 16 << 10;
/// A damaged chunk is one block.
const FIXED: [&str; 2] = ["--block-size", "16K"];
const BLOCKS: usize = 160;
const PARITY: [&str; 2] = ["--parity", "4+1"];

/// Lists the packs of a class in the folder store.
fn packs(daemon: &Daemon, class: &str) -> Result<Vec<PathBuf>> {
    let folder = daemon.dir.join("store/packs").join(class);
    Ok(objects(&folder)?)
}

/// Damages the packs: in each pack of data a stretch of zeros, a sixteenth of the pack, and a wrong
/// byte in each pack of tree nodes. Warm memory is removed, so that no cache has the lost bytes.
/// Returns the packs as they were before.
fn damage(daemon: &mut Daemon) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    daemon.stop()?;
    std::fs::remove_file(daemon.warm())?;
    let mut before = Vec::new();
    for (class, share) in [("data", 16), ("meta", 1 << 20)] {
        for path in packs(daemon, class)? {
            let whole = std::fs::read(&path)?;
            let mut damaged = whole.clone();
            let begin = whole.len() / 4;
            for byte in &mut damaged[begin..=begin + whole.len() / share] {
                *byte = if class == "data" { 0 } else { !*byte };
            }
            std::fs::write(&path, damaged)?;
            before.push((path, whole));
        }
    }
    daemon.up()?;
    Ok(before)
}

#[test]
fn what_a_disk_of_the_store_loses_comes_back_from_parity_and_without_it_is_quarantined()
-> Result<()> {
    for parity in [true, false] {
        let arguments = PARITY.map(str::to_owned).to_vec();
        let arguments = if parity { arguments } else { Vec::new() };
        let options = Options { arguments, ..Options::default() };
        let mut daemon = Daemon::start_with("parity", options)?;
        let image = for_story("parity").bytes(BLOCKS * BLOCK);
        daemon.create("hurt", "64M", &FIXED)?;
        NbdClient::connect(&daemon.socket(), "hurt")?.write(0, &image)?;
        daemon.drain("hurt")?;
        let before = damage(&mut daemon)?;
        ensure!(before.len() >= 2, "data and nodes");

        let run = ["salvage", "run", "hurt"];
        let done = if parity { daemon.cli(&run)? } else { daemon.cli_that_fails(&run)? };
        let done = done["result"]["done"].as_str().context("done")?.to_owned();
        let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
        let history = daemon.cli(&["salvage", "history", "hurt"])?.to_string();
        if !parity {
            ensure!(done.contains("0 from parity"), "{done}");
            ensure!(history.contains("lost: bytes"), "{history}");
            ensure!(client.read(0, image.len()).is_err(), "an error, not zeros");
            continue;
        }
        ensure!(done.contains("0 bytes are lost") && !done.contains("0 from parity"), "{done}");
        ensure!(history.contains("it came back from parity"), "{history}");
        ensure!(!history.contains("lost: bytes"), "{history}");
        assert!(client.read(0, image.len())? == image, "everything is back");
        for (path, whole) in &before {
            ensure!(std::fs::read(path)? == *whole, "{} is whole again", path.display());
        }
        assert_eq!(daemon.cli(&["verify"])?["result"]["damaged"], 0);
        // A daemon that knows the store only finds all of it sound, too.
        drop(client);
        daemon.stop()?;
        std::fs::remove_file(daemon.warm())?;
        daemon.up()?;
        let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
        assert!(client.read(0, image.len())? == image);
    }
    Ok(())
}

#[test]
fn parity_is_switched_on_and_off_for_new_packs_and_old_ones_go_on_being_read() -> Result<()> {
    let mut daemon = Daemon::start("parity-switch")?;
    let mut random = for_story("parity-switch");
    let mut volumes = Vec::new();
    let mut seen = packs(&daemon, "data").unwrap_or_default();
    for (name, parity) in [("before", "none"), ("with", "4+1"), ("after", "none")] {
        daemon.stop()?;
        match parity {
            "none" => daemon.set_arguments([]),
            _ => daemon.set_arguments(PARITY),
        }
        daemon.up()?;
        let image = random.bytes(BLOCKS * BLOCK);
        daemon.create(name, "64M", &FIXED)?;
        NbdClient::connect(&daemon.socket(), name)?.write(0, &image)?;
        daemon.drain(name)?;
        volumes.push((name, image));
        let all = packs(&daemon, "data")?;
        for path in all.iter().filter(|path| !seen.contains(path)) {
            let inspected = daemon.cli(&["inspect", &path.display().to_string()])?;
            assert_eq!(inspected["facts"]["parity"], parity, "{inspected}");
        }
        ensure!(all.len() > seen.len());
        seen = all;
        for (name, image) in &volumes {
            let mut client = NbdClient::connect(&daemon.socket(), name)?;
            assert!(client.read(0, image.len())? == *image, "{name}");
        }
    }
    // The sweep copies the live chunks out of packs of either kind, and comes to rest.
    daemon.remove_now("with")?;
    for _ in 0..3 {
        daemon.cli(&["sweep", "run"])?;
    }
    volumes.remove(1);
    assert_eq!(daemon.cli(&["verify"])?["result"]["damaged"], 0);
    for (name, image) in &volumes {
        let mut client = NbdClient::connect(&daemon.socket(), name)?;
        assert!(client.read(0, image.len())? == *image, "{name}");
    }
    daemon.stop()?;
    daemon.set_arguments(["--parity", "16"]);
    let refused = daemon.up().err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(refused.contains("write 16+1"), "{refused}");
    Ok(())
}
