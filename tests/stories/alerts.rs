//! Metrics in Prometheus's format, and alert rules that fire when a part is broken and are silent
//! when all is well.

use anyhow::{Context, Result, ensure};
use e2e::daemon::{damage, scratch};
use e2e::mount::Mount;
use e2e::prometheus::{self, Scrape, alerts, firing, promtool, scrape, value};
use e2e::s3::{Kind, S3Server};
use e2e::shell::{Shell, skip, skip_without, wait_until};
use e2e::{Daemon, Options};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use std::collections::BTreeSet;
use std::path::Path;

/// Minutes after which the wait of every rule is over.
const LATE: usize = 80;

fn is_missing() -> bool {
    skip(&prometheus::missing())
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Scrapes until `holds` is true of a scrape.
fn scrape_when(what: &str, daemon: &Daemon, holds: impl Fn(&Scrape) -> bool) -> Result<Scrape> {
    let mut seen = Scrape::new();
    wait_until(what, || {
        seen = scrape(daemon);
        holds(&seen)
    })?;
    Ok(seen)
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics_and_the_rules() -> Result<()> {
    if is_missing() {
        return Ok(());
    }
    let daemon = Daemon::start("metrics")?;
    daemon.create("disk", "16M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    client.write(0, &Random::new(1).bytes(1 << 20))?;
    client.read(0, 4096)?;
    client.flush()?;
    daemon.drain("disk")?;
    let file = daemon.scratch().join("metrics.txt");
    std::fs::write(&file, prometheus::metrics(&daemon)?)?;
    let promtool = promtool().context("promtool")?.display().to_string();
    let check = format!("'{promtool}' check metrics < '{}'", file.display());
    let said = Shell::script(&check).run()?;
    ensure!(said.trim().is_empty(), "{said}");
    Shell::new(&promtool).args(["check", "rules"]).arg(prometheus::rules()).run()?;
    Ok(())
}

#[test]
fn no_alert_fires_while_all_is_well_and_one_does_when_nobody_answers() -> Result<()> {
    if is_missing() {
        return Ok(());
    }
    ensure!(alerts()?.len() >= 11, "a rule without a story");
    let mut daemon = Daemon::start("alerts-well")?;
    daemon.create("disk", "16M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    client.write(0, &Random::new(1).bytes(1 << 20))?;
    daemon.drain("disk")?;
    let well = scrape_when("the health to be known", &daemon, |seen| {
        value(seen, "rekindle_health{state=\"well\"}") == 1.0
            && value(seen, "rekindle_disk_free_bytes") > 0.0
    })?;
    assert_eq!(firing(daemon.scratch(), &[well], LATE)?, set(&[]));
    drop(client);
    daemon.kill_all()?;
    assert_eq!(firing(daemon.scratch(), &[scrape(&daemon)], LATE)?, set(&["RekindleGone"]));
    Ok(())
}

#[test]
fn a_store_that_is_gone_alerts_for_all_that_follows_from_it() -> Result<()> {
    if is_missing() {
        return Ok(());
    }
    let text = "[destage]\nage = '1s'\ndeadline = '2s'\n";
    let options = Options::with_settings("alerts-store", text, &["--flash-budget", "64M"])?;
    let daemon = Daemon::start_with("alerts-store", options)?;
    daemon.create("disk", "512M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    client.write(0, &[1; 4096])?;
    daemon.drain("disk")?;
    daemon.store_goes()?;
    client.write(0, &[2; 4096])?;
    let away = scrape_when("the store to be away for a minute", &daemon, |seen| {
        value(seen, "rekindle_store_away_seconds") > 60.0
            && value(seen, "rekindle_volumes_late") > 0.0
    })?;
    let expected = ["RekindleDegraded", "RekindleStoreAway", "RekindleBacklogLate"];
    assert_eq!(firing(daemon.scratch(), &[away], LATE)?, set(&expected));
    let full = std::thread::scope(|scope| -> Result<Scrape> {
        let writer = scope.spawn(|| -> Result<()> {
            for block in 0..1600u64 {
                client.write(block << 16, &Random::new(block).bytes(1 << 16))?;
            }
            Ok(())
        });
        let full = scrape_when("writes to wait", &daemon, |seen| {
            value(seen, "rekindle_volumes_stalled") > 0.0
                && value(seen, "rekindle_health{state=\"failing\"}") == 1.0
        });
        daemon.store_comes_back()?;
        writer.join().expect("it does not panic").context("a client saw an error")?;
        full
    })?;
    let expected = [
        "RekindleFailing",
        "RekindleStoreAway",
        "RekindleBacklogLate",
        "RekindleWritesWait",
        "RekindleFlashFillsUp",
    ];
    assert_eq!(firing(daemon.scratch(), &[full], LATE)?, set(&expected));
    daemon.drain("disk")?;
    let well = scrape_when("all to be well again", &daemon, |seen| {
        value(seen, "rekindle_health{state=\"well\"}") == 1.0
    })?;
    let left = firing(daemon.scratch(), &[well], LATE)?;
    // Room in the log comes back a while after the store has everything.
    ensure!(left.is_subset(&set(&["RekindleFlashFillsUp"])), "{left:?}");
    Ok(())
}

#[test]
fn a_volume_that_takes_too_long_alerts() -> Result<()> {
    if is_missing() || skip(&Kind::Versitygw.missing()) {
        return Ok(());
    }
    let server = S3Server::start(Kind::Versitygw, "alerts-stuck")?;
    let options = server.options("stuck").and_settings("alerts-stuck", "stuck_after = '1s'")?;
    let daemon = Daemon::start_with("alerts-stuck", options)?;
    daemon.create("disk", "16M", &[])?;
    let held = server.hold()?;
    let socket = daemon.socket();
    let client = std::thread::spawn(move || NbdClient::connect(&socket, "disk").map(drop));
    let stuck = scrape_when("the volume to be stuck", &daemon, |seen| {
        value(seen, "rekindle_volumes_stuck") > 0.0
    })?;
    let fired = firing(daemon.scratch(), &[stuck], LATE)?;
    ensure!(fired.contains("RekindleVolumeStuck"), "{fired:?}");
    drop(held);
    client.join().ok().context("the client panicked")??;
    Ok(())
}

#[test]
fn damage_that_waits_for_a_person_alerts() -> Result<()> {
    if is_missing() {
        return Ok(());
    }
    let mut daemon = Daemon::start("alerts-damage")?;
    daemon.create("disk", "1M", &[])?;
    NbdClient::connect(&daemon.socket(), "disk")?.write(0, &Random::new(1).bytes(64 << 10))?;
    daemon.drain("disk")?;
    daemon.stop()?;
    damage(&daemon.data_pack()?)?;
    daemon.up()?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    ensure!((0..4).any(|block| client.read(block << 14, 1 << 14).is_err()), "no block is damaged");
    wait_until("the salvage to wait for a person", || {
        let history = daemon.cli(&["salvage", "history", "disk"]).unwrap_or_default();
        history[0]["outcome"] == "waiting"
    })?;
    let waits = scrape_when("it to be counted", &daemon, |seen| {
        value(seen, "rekindle_volumes_unreadable") > 0.0
    })?;
    let fired = firing(daemon.scratch(), &[waits], LATE)?;
    ensure!(fired.contains("RekindleUnreadable"), "{fired:?}");
    daemon.cli(&["salvage", "run", "disk", "--accept-losses"])?;
    let decided = scrape_when("it not to wait any more", &daemon, |seen| {
        value(seen, "rekindle_volumes_unreadable") == 0.0
    })?;
    ensure!(!firing(daemon.scratch(), &[decided], LATE)?.contains("RekindleUnreadable"));
    Ok(())
}

#[test]
fn a_daemon_that_keeps_dying_alerts() -> Result<()> {
    if is_missing() {
        return Ok(());
    }
    let daemon = Daemon::start("alerts-restarts")?;
    let mut scrapes = vec![scrape(&daemon)];
    for deaths in 1..=4 {
        let worker = daemon.worker()?;
        daemon.kill_worker()?;
        daemon.wait_for_worker_after(worker)?;
        scrapes.push(scrape(&daemon));
        let fired = firing(daemon.scratch(), &scrapes, deaths)?;
        assert_eq!(fired.contains("RekindleKeepsRestarting"), deaths > 3, "{deaths}: {fired:?}");
    }
    ensure!(!firing(daemon.scratch(), &scrapes, LATE)?.contains("RekindleKeepsRestarting"));
    Ok(())
}

/// Mounts a file system of two gigabytes, for the daemon's folder.
fn small_disk(folder: &Path) -> Result<Mount> {
    let image = folder.join("disk.img");
    std::fs::File::create(&image)?.set_len(2 << 30)?;
    Shell::new("mkfs.ext4").arg("-qF").arg(&image).run()?;
    Mount::on(&image.display().to_string(), &folder.join("mnt"), "loop")
}

#[test]
fn a_disk_that_fills_up_alerts() -> Result<()> {
    if is_missing() || skip_without(&["mkfs.ext4", "losetup", "fallocate"], true) {
        return Ok(());
    }
    let folder = scratch("alerts-disk-image")?;
    let disk = small_disk(&folder)?;
    let options = Options {
        arguments: ["--flash-budget", "64M"].map(str::to_owned).to_vec(),
        dir: Some(disk.folder.join("data")),
        ..Options::default()
    };
    let mut daemon = Daemon::start_with("alerts-disk", options)?;
    let free = |least: f64, most: f64| {
        move |seen: &Scrape| (least..most).contains(&value(seen, "rekindle_disk_free_bytes"))
    };
    let well = scrape_when("the room to be known", &daemon, free(1e9, 1e12))?;
    // The store lies on the same small disk, which has less room than a store should have.
    assert_eq!(firing(daemon.scratch(), &[well], LATE)?, set(&["RekindleStoreFillsUp"]));
    Shell::new("fallocate").args(["-l", "1200M"]).arg(disk.folder.join("hog")).run()?;
    let full = scrape_when("the room to be little", &daemon, free(0.0, 1e9))?;
    assert_eq!(
        firing(daemon.scratch(), &[full], LATE)?,
        set(&["RekindleDiskFillsUp", "RekindleStoreFillsUp"])
    );
    daemon.stop()?;
    disk.unmount()?;
    Ok(std::fs::remove_dir_all(folder)?)
}
