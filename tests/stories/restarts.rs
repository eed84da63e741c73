//! Back before the client notices: kills at random under load, starts that read nothing, attaches
//! that ask no other node.
//!
//! `REKINDLE_NIGHTLY=1` makes the long versions: 1,000 kills, a million volumes.

use anyhow::{Context, Result};
use e2e::daemon::{objects, unsealed};
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::{Daemon, Options};
use rekindle_nbd_client::NbdClient;
use std::fs;
use std::time::Duration;

fn is_nightly() -> bool {
    std::env::var("REKINDLE_NIGHTLY").is_ok_and(|word| word == "1")
}

#[test]
fn kills_at_random_under_load_lose_nothing() -> Result<()> {
    const BLOCKS: u64 = 4096;
    let kills = if is_nightly() { 1000 } else { 30 };
    let mut random = for_story("kills");
    for ack in ["flash", "memory"] {
        let daemon = Daemon::start(&format!("kills-{ack}"))?;
        daemon.create("vm1", "16M", &["--ack", ack])?;
        let mut promises = Promises::new(BLOCKS);
        for kill in 0..kills / 2 {
            let worker = daemon.worker()?;
            let mut client = NbdClient::connect(&daemon.socket(), "vm1")?;
            promises.check(&mut client)?;
            // The supervisor takes the third short life in a row for a worker that cannot live, and
            // waits before the next start.
            let least = if kill % 3 == 2 { 1000 } else { 20 };
            let time = Duration::from_millis(least + random.below(400));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(time);
                    daemon.kill_worker()
                });
                // The writer goes on until the connection breaks.
                promises.write_until(&mut client, 16, &mut random, |_| false)
            })?;
            daemon.wait_for_worker_after(worker)?;
        }
        let mut client = NbdClient::connect(&daemon.socket(), "vm1")?;
        promises.check(&mut client)?;
        let kept = promises.acknowledged();
        println!("ack={ack}: {} kills, {kept} acknowledged writes, none lost", kills / 2);
    }
    Ok(())
}

/// A start makes the same few calls to the store, however many volumes there are, and a volume's
/// first client attaches that volume only.
#[test]
fn a_start_with_sixty_thousand_volumes_reads_none_of_them() -> Result<()> {
    let volumes: u64 = if is_nightly() { 1_000_000 } else { 60_000 };
    let mut daemon = Daemon::start("many-volumes")?;
    daemon.create("volume-0", "64M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "volume-0")?;
    client.write(0, &[7; 4096])?;
    drop(client);
    daemon.drain("volume-0")?;
    daemon.stop()?;
    // The records are written into the store as they are: through the API it would take minutes.
    let store = daemon.dir.join("store");
    let name = unsealed(&fs::read_to_string(store.join("names/volume-0"))?);
    let vaults = objects(&store.join("volumes"))?;
    let vault = vaults.first().context("a vault")?;
    let id = vault.file_name().context("an id")?.to_string_lossy().into_owned();
    let vault = unsealed(&fs::read_to_string(vault)?);
    for number in 1..volumes {
        let (other, other_id) = (format!("volume-{number}"), format!("{:032x}", number + 1));
        let quoted = format!("\"{other}\"");
        let renamed =
            |record: &str| record.replace(&id, &other_id).replace("\"volume-0\"", &quoted);
        fs::write(store.join("names").join(&other), renamed(&name))?;
        fs::write(store.join("volumes").join(&other_id), renamed(&vault))?;
    }
    daemon.up()?;
    let mut random = for_story("many-volumes");
    for _ in 0..20 {
        let name = format!("volume-{}", random.below(volumes));
        let mut client = NbdClient::connect(&daemon.socket(), &name)?;
        anyhow::ensure!(client.read(0, 4096)? == [7; 4096], "{name} has the content of the first");
    }
    let calls = store_calls(&daemon)?;
    println!("{volumes} volumes, 20 of them used: {calls} calls to the store");
    // The calls are: identity, node record and its write; for each volume, name, vault, tree and
    // chunk. Nothing is listed.
    anyhow::ensure!(
        calls < 200,
        "{calls} calls to the store are more than a start and 20 attaches need"
    );
    let listed = daemon.cli(&["volume", "ls"])?;
    let count = listed.as_array().map_or(0, Vec::len) as u64;
    assert_eq!(count, volumes);
    Ok(())
}

fn store_calls(daemon: &Daemon) -> Result<u64> {
    let text = daemon.get("/metrics")?;
    let lines = text.lines().filter(|line| line.starts_with("rekindle_store_calls_total{"));
    let calls: Vec<u64> = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    anyhow::ensure!(!calls.is_empty(), "no calls are counted:\n{text}");
    Ok(calls.iter().sum())
}

/// After a kill, the volumes that a node owned are served while the store is away: their vaults,
/// trees and unfinished changes are in warm memory.
#[test]
fn after_a_kill_owned_volumes_are_served_while_the_store_is_away() -> Result<()> {
    // The changes stay in the log: bytes that are only in the store cannot be read while it is
    // away.
    let settings = Options::with_settings("store-away", "[destage]\nage = '1h'\n", &[])?;
    let daemon = Daemon::start_with("store-away", settings)?;
    let name = |number: u8| format!("vm{number}");
    for number in 0..20 {
        daemon.create(&name(number), "16M", &[])?;
        NbdClient::connect(&daemon.socket(), &name(number))?.write(0, &[number + 1; 4096])?;
    }
    for _ in 0..2 {
        let worker = daemon.worker()?;
        daemon.kill_worker()?;
        daemon.wait_for_worker_after(worker)?;
        daemon.store_goes()?;
        for number in 0..20 {
            let mut client = NbdClient::connect(&daemon.socket(), &name(number))?;
            assert_eq!(client.read(0, 4096)?, [number + 1; 4096]);
            client.write(4096, &[0x55; 4096])?;
        }
        daemon.create("vm20", "16M", &[]).expect_err("the store is away");
        daemon.store_comes_back()?;
    }
    Ok(())
}
