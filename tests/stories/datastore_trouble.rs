//! The datastore is slow, fails, or is gone for a minute: no client error, no loss, and the backlog
//! is reported.

use anyhow::Result;
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::shell::wait_until;
use e2e::{Daemon, Options};
use rekindle_nbd_client::NbdClient;
use std::time::{Duration, Instant};

#[test]
fn a_slow_datastore_is_not_felt() -> Result<()> {
    ride_through("latency=100ms", Duration::from_secs(3))
}

#[test]
fn a_datastore_that_fails_one_time_in_five_is_not_felt() -> Result<()> {
    ride_through("latency=5ms,fail=20%", Duration::from_secs(4))
}

#[test]
fn a_datastore_that_is_gone_for_a_minute_is_not_felt() -> Result<()> {
    ride_through("gone=60s@6s", Duration::from_secs(10))
}

fn ride_through(fault: &str, duration: Duration) -> Result<()> {
    let mut random = for_story(fault);
    let options = Options {
        arguments: ["--store-fault", fault].map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let mut daemon = Daemon::start_with("datastore-trouble", options)?;
    daemon.create("disk", "256M", &[])?;
    let mut promises = Promises::new(16_384);
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    let end = Instant::now() + duration;
    let mut backlog_seen = 0;
    while Instant::now() < end || promises.acknowledged() <= 100 || backlog_seen == 0 {
        let pause = Instant::now() + Duration::from_millis(500);
        promises.write_until(&mut client, 8, &mut random, |_| Instant::now() > pause)?;
        backlog_seen = backlog_seen.max(daemon.backlog_bytes("disk")?);
    }
    let show = daemon.cli(&["volume", "show", "disk"])?;
    println!("{fault}: {} acknowledged, backlog {}", promises.acknowledged(), show["backlog"]);
    // The backlog drains once the store is well again, or well enough.
    wait_until("the backlog to drain", || {
        daemon.backlog_bytes("disk").is_ok_and(|bytes| bytes == 0)
    })?;
    promises.check(&mut client)?;
    daemon.stop()?;
    daemon.set_arguments([]);
    daemon.up()?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    promises.check(&mut client)?;
    Ok(())
}

#[test]
fn a_worker_that_dies_while_the_store_is_away_comes_back_with_it() -> Result<()> {
    let mut daemon = Daemon::start("store-away-kill")?;
    daemon.create("disk", "64M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    client.write(0, b"early")?;
    daemon.drain("disk")?;
    let worker = daemon.worker()?;
    for is_mount_point in [false, true] {
        daemon.store_goes()?;
        let place = daemon.dir.join("store");
        if is_mount_point {
            std::fs::create_dir(&place)?;
        }
        client.write(4096, b"late")?;
        client.flush()?;
        daemon.kill_worker()?;
        let mut said = String::new();
        wait_until("the reason to be said", || {
            said = daemon
                .status()
                .map_or_else(|_| String::new(), |status| status["health"]["reasons"].to_string());
            said.contains("Clients wait with it")
        })?;
        println!("{said}");
        anyhow::ensure!(said.contains("is it mounted"), "{said}");
        // The empty mount point is left as it is.
        if is_mount_point {
            anyhow::ensure!(std::fs::read_dir(&place)?.count() == 0, "something was made in it");
            std::fs::remove_dir(&place)?;
        }
        anyhow::ensure!(!place.exists(), "a folder was made in the place of the store");
        daemon.store_comes_back()?;
        daemon.wait_for_worker_after(worker)?;
        client = NbdClient::connect(&daemon.socket(), "disk")?;
        anyhow::ensure!(client.read(0, 5)? == b"early" && client.read(4096, 4)? == b"late");
    }
    daemon.stop()
}
