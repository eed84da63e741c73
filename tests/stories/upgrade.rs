//! Another binary takes over under load: every connection is taken, every acknowledged write is
//! there.

use anyhow::{Context, Result};
use e2e::daemon::{binary, scratch};
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::shell::{PATIENCE, Shell, repository};
use e2e::{Daemon, Options};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn an_upgrade_under_load_loses_nothing_and_refuses_nobody() -> Result<()> {
    for (name, arguments) in [("file", vec![]), ("memfd", vec!["--warm", "memfd"])] {
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        let options = Options { arguments, ..Options::default() };
        let daemon = Daemon::start_with(&format!("upgrade-{name}"), options)?;
        daemon.create("disk", "64M", &[])?;
        rounds(&daemon, name, 5)?;
    }
    Ok(())
}

#[test]
fn a_bad_binary_leaves_the_service_as_it_is() -> Result<()> {
    let daemon = Daemon::start("upgrade-bad")?;
    daemon.create("disk", "64M", &[])?;
    let worker = daemon.worker()?;
    let mut random = for_story("upgrade-bad");
    let mut promises = Promises::new(2048);
    // One connection lives from beginning to end: nothing may break it.
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    for (round, bad) in ["/no/such/file", "/bin/true", "/etc/hostname"].into_iter().enumerate() {
        let upgrade = || daemon.cli(&["upgrade", "--binary", bad]);
        let refused = std::thread::scope(|scope| {
            let upgrade = scope.spawn(upgrade);
            let end = Instant::now() + Duration::from_millis(300);
            promises.write_until(&mut client, 16, &mut random, |sent| {
                Instant::now() > end && sent > 50 * (round + 1)
            })?;
            anyhow::Ok(upgrade.join().expect("it does not panic"))
        })?;
        let error = refused.expect_err("it is no rekindle");
        assert!(format!("{error:#}").contains("nothing was touched"), "{error:#}");
    }
    let acknowledged = promises.acknowledged();
    assert_eq!(promises.check(&mut client)?, 0);
    assert!(acknowledged > 100, "{acknowledged} writes");
    assert_eq!(daemon.worker()?, worker);
    Ok(())
}

/// `tests/fixtures/data-481c6f3.tar.gz`: the folder of a daemon of that commit, killed with -9. Its
/// memory is gone, so flash has the only copy of all that was not drained. The volume `gone` was
/// drained and removed. `drained` (blocks of 16 KiB) was written 64 KiB at a time with the bytes 1
/// to 32, then zeroed and trimmed in one place each, and drained; 4 KiB of 200 at 0 came later.
/// `owed` (blocks of 4 KiB) was never drained: every other 4 KiB has a byte from 100 on, and FUA
/// put 12 KiB of 99 at 1 MiB.
#[test]
fn a_folder_of_an_old_version_starts_with_all_that_it_has() -> Result<()> {
    let folder = scratch("upgrade-old-folder")?;
    let fixture = repository().join("tests/fixtures/data-481c6f3.tar.gz");
    Shell::new("tar").arg("xzSf").arg(&fixture).arg("-C").arg(&folder).run()?;
    let options = Options { dir: Some(folder.join("data")), ..Options::default() };
    let mut daemon = Daemon::start_with("upgrade-old", options)?;
    for round in ["at the first start", "after a kill", "after a drain and a stop"] {
        let mut client = NbdClient::connect(&daemon.socket(), "drained")?;
        for index in 0..64_u64 {
            let mut expected = vec![0; 65536];
            if index < 32 && index != 2 && index != 4 {
                expected.fill(u8::try_from(index)? + 1);
            }
            if index == 0 {
                expected[..4096].fill(200);
            }
            let found = client.read(index * 65536, 65536)?;
            assert!(found == expected, "{round}: 64 KiB number {index} of 'drained'");
        }
        let mut client = NbdClient::connect(&daemon.socket(), "owed")?;
        for index in 0..1024_u64 {
            let byte = match index {
                0..80 if index % 2 == 0 => 100 + u8::try_from(index / 2)?,
                256..259 => 99,
                _ => 0,
            };
            let found = client.read(index * 4096, 4096)?;
            assert!(found == vec![byte; 4096], "{round}: 4 KiB number {index} of 'owed'");
        }
        drop(client);
        let error = daemon.cli(&["volume", "show", "gone"]).expect_err("it was removed");
        assert!(format!("{error:#}").contains("gone"), "{error:#}");
        if round == "at the first start" {
            daemon.kill_all()?;
            daemon.up()?;
        } else if round == "after a kill" {
            daemon.drain("drained")?;
            daemon.drain("owed")?;
            daemon.stop()?;
            daemon.up()?;
        }
    }
    daemon.cli(&["verify"])?;
    assert_eq!(daemon.backlog_bytes("owed")?, 0);
    Ok(())
}

/// Upgrades to a fresh copy of the binary, again and again, under load.
fn rounds(daemon: &Daemon, story: &str, rounds: usize) -> Result<()> {
    let mut random = for_story(story);
    let mut promises = Promises::new(4096);
    let endpoints = std::fs::read_to_string(daemon.dir.join("endpoints.json"))?;
    let supervisor = serde_json::from_str::<serde_json::Value>(&endpoints)?["pid"].clone();
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let knocks = std::thread::scope(|scope| {
        let knocking = scope.spawn(|| knock(daemon, &stop, &served));
        let upgraded = (0..rounds).try_for_each(|round| {
            let stalled = upgrade(daemon, round, &mut random, &mut promises, &supervisor)?;
            println!(
                "{story} round {round}: {stalled} ms without a worker, {} writes acknowledged",
                promises.acknowledged()
            );
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        let knocks = knocking.join().expect("it does not panic");
        upgraded.and(knocks)
    })?;
    println!("{story}: {knocks} connections, none refused, {} answered", served.into_inner());
    assert!(promises.acknowledged() > 100);
    Ok(())
}

/// Upgrades once in the middle of writing; returns the milliseconds without a worker.
fn upgrade(
    daemon: &Daemon,
    round: usize,
    random: &mut Random,
    promises: &mut Promises,
    supervisor: &serde_json::Value,
) -> Result<u64> {
    let copy = daemon.scratch().join(format!("rekindle-{round}"));
    Shell::new("install").args(["-m", "755"]).arg(binary()).arg(&copy).run()?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    let delay = Duration::from_millis(50 + random.below(300));
    let answer = std::thread::scope(|scope| {
        let upgrading = scope.spawn(|| {
            std::thread::sleep(delay);
            daemon.cli(&["upgrade", "--binary", copy.to_str().context("text")?])
        });
        let end = Instant::now() + PATIENCE;
        // The client writes until the old worker hangs up; an error in a reply is a failure.
        promises.write_until(&mut client, 16, random, |_| Instant::now() > end)?;
        // A client that connects now, before the command has said anything, waits.
        let mut client = connect(daemon)?;
        let end = Instant::now() + Duration::from_millis(200);
        promises.check(&mut client)?;
        promises.write_until(&mut client, 16, random, |_| Instant::now() > end)?;
        upgrading.join().expect("it does not panic")
    })?;
    assert_eq!(answer["outcome"], "upgraded", "{answer}");
    assert_eq!(&answer["supervisor"], supervisor);
    let image = std::fs::read_link(format!("/proc/{supervisor}/exe"))?;
    assert_eq!(image.canonicalize()?, copy.canonicalize()?);
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    promises.check(&mut client)?;
    answer["stalled_ms"].as_u64().context("stalled_ms")
}

/// Connects as a client that comes back: the connection is always taken, but the old worker may
/// hang up on it while it stops.
fn connect(daemon: &Daemon) -> Result<NbdClient> {
    let end = Instant::now() + PATIENCE;
    loop {
        UnixStream::connect(daemon.socket()).context("refused")?;
        match NbdClient::connect(&daemon.socket(), "disk") {
            Ok(client) => return Ok(client),
            Err(error) if Instant::now() > end => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Connects all the while, and returns how many times; not one connection may be refused.
fn knock(daemon: &Daemon, stop: &AtomicBool, served: &AtomicUsize) -> Result<usize> {
    let mut knocks = 0;
    while !stop.load(Ordering::Relaxed) {
        let stream = UnixStream::connect(daemon.socket()).context("a connection was refused")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut greeting = [0; 18];
        if std::io::Read::read_exact(&mut &stream, &mut greeting).is_ok() {
            served.fetch_add(1, Ordering::Relaxed);
        }
        knocks += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(knocks)
}
