//! The datastore is slow, fails, or is gone for a minute: no client error, no loss, and the backlog is reported.

use anyhow::Result;
use e2e::nbd_client::{NbdClient, Promises};
use e2e::random::Random;
use e2e::shell::wait_until;
use e2e::{Daemon, Options};
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
    let mut random = Random::for_story(fault);
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
    while Instant::now() < end {
        let pause = Instant::now() + Duration::from_millis(500);
        promises.write_until(&mut client, 8, &mut random, |_| Instant::now() > pause)?;
        backlog_seen = backlog_seen.max(daemon.backlog_bytes("disk")?);
    }
    assert!(
        promises.acknowledged() > 100,
        "only {} writes in {duration:?}",
        promises.acknowledged()
    );
    assert!(backlog_seen > 0, "the backlog was never reported");
    let show = daemon.cli(&["volume", "show", "disk"])?;
    println!("{fault}: {} acknowledged, backlog {}", promises.acknowledged(), show["backlog"]);
    // It drains once the store is well again, or well enough.
    wait_until("the backlog to drain", Duration::from_secs(120), || {
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
