//! `kill -9` at any moment: every acknowledged write is there.

use anyhow::Result;
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::{Daemon, Options};
use rekindle_nbd_client::NbdClient;
use std::time::{Duration, Instant};

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() -> Result<()> {
    for (name, arguments) in [("flash", vec![]), ("memory", vec!["--ack", "memory"])] {
        let daemon = Daemon::start(&format!("kill-{name}"))?;
        daemon.create("disk", "64M", &arguments)?;
        rounds(&daemon, name, 6)?;
    }
    Ok(())
}

#[test]
fn the_same_without_a_supervisor_and_without_warm_memory() -> Result<()> {
    let mut random = for_story("kill-all");
    let mut daemon = Daemon::start("kill-all")?;
    daemon.create("disk", "64M", &[])?;
    let mut promises = Promises::new(2048);
    for round in 0..4 {
        let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
        let end = Instant::now() + Duration::from_millis(100 + random.below(300));
        promises.write_until(&mut client, 16, &mut random, |_| Instant::now() > end)?;
        daemon.kill_all()?;
        if round % 2 == 1 {
            // Only flash is left, as after a reboot of the host.
            let _ = std::fs::remove_file(daemon.warm());
        }
        daemon.up()?;
        let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
        promises.check(&mut client)?;
    }
    Ok(())
}

#[test]
fn every_policy_keeps_its_word() -> Result<()> {
    for policy in ["through", "uncached"] {
        let daemon = Daemon::start(&format!("kill-{policy}"))?;
        daemon.create("disk", "64M", &["--policy", policy])?;
        rounds(&daemon, policy, 2)?;
    }
    Ok(())
}

#[test]
fn destaging_all_the_while() -> Result<()> {
    let options = Options {
        arguments: ["--store-fault", "latency=2ms,fail=5%"].map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let daemon = Daemon::start_with("kill-destage", options)?;
    daemon.create("disk", "64M", &[])?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let drains = std::thread::scope(|scope| {
        let (stop, daemon) = (&stop, &daemon);
        let drainer = scope.spawn(move || {
            let mut drains = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                drains += usize::from(daemon.drain("disk").is_ok());
            }
            drains
        });
        let result = rounds(daemon, "destage", 5);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let drains = drainer.join().unwrap_or(0);
        result.map(|()| drains)
    })?;
    assert!(drains > 0, "nothing was ever destaged");
    Ok(())
}

/// Writes, kills the worker at a random moment, reconnects and checks, again and again on the same
/// volume.
fn rounds(daemon: &Daemon, story: &str, rounds: usize) -> Result<()> {
    let mut random = for_story(story);
    let mut promises = Promises::new(4096);
    // On a busy machine, a kill may come before the first reply of a slow policy.
    for round in 0..rounds + 6 {
        if round >= rounds && promises.acknowledged() > 0 {
            break;
        }
        let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
        let worker = daemon.worker()?;
        let delay = Duration::from_millis(20 + random.below(400));
        std::thread::scope(|scope| {
            let killer = scope.spawn(move || {
                std::thread::sleep(delay);
                daemon.kill_worker()
            });
            let end = Instant::now() + e2e::shell::PATIENCE;
            let written =
                promises.write_until(&mut client, 16, &mut random, |_| Instant::now() > end);
            killer.join().expect("the killer does not panic")?;
            written
        })?;
        daemon.wait_for_worker_after(worker)?;
        let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
        let acknowledged = promises.acknowledged();
        let lost = promises.check(&mut client)?;
        println!(
            "{story} round {round}: {acknowledged} acknowledged, all there; {lost} un-acknowledged lost"
        );
    }
    assert!(promises.acknowledged() > 0);
    Ok(())
}
