//! Power loss: the daemon's folder is on a disk that forgets what was not flushed and tears
//! sectors.

use anyhow::{Context, Result, ensure};
use e2e::daemon::objects;
use e2e::power::PowerLab;
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::shell::{skip_without, wait_until};
use e2e::{Daemon, Options};
use rekindle_nbd_client::NbdClient;
use std::path::PathBuf;
use std::time::Duration;

#[test]
fn nothing_acknowledged_with_ack_flash_is_lost_when_the_power_goes() -> Result<()> {
    if skip_without(&["nbdfuse", "fusermount3", "losetup", "mkfs.ext4"], true) {
        return Ok(());
    }
    let mut random = for_story("power-loss");
    let scratch = e2e::daemon::scratch("power-loss-disk")?;
    let mut lab = PowerLab::new(&scratch, 2 << 30)?;
    let options = Options {
        arguments: vec!["--flash-budget".to_owned(), "512M".to_owned()],
        dir: Some(lab.folder().join("data")),
        ..Options::default()
    };
    let mut daemon = Daemon::start_with("power-loss", options)?;
    daemon.create("disk", "64M", &[])?;
    let mut promises = Promises::new(4096);
    for round in 0..5 {
        let depth = [1, 16][round % 2];
        let pause = Duration::from_millis(200 + random.below(800));
        let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut random = for_story("power-loss-writes");
                promises.write_until(&mut client, depth, &mut random, |_| false)
            });
            std::thread::sleep(pause);
            let failed = lab.fail_at_next_write();
            daemon.kill_all()?;
            // An error that the daemon returns for a write after the failure promises nothing.
            let _ = writer.join().expect("no panic in the writer");
            failed
        })?;
        drop(client);
        // The host's memory is gone too.
        let _ = std::fs::remove_file(daemon.warm());
        let percent = [0, 50, 100, 30, 0][round];
        let cut = lab.cut(percent, &mut random)?;
        assert!(cut.unflushed > 0, "the power failed between two writes");
        daemon.up()?;
        let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
        let acknowledged = promises.acknowledged();
        promises.check(&mut client)?;
        println!(
            "round {round}: {} sectors were not durable, {} of them survived; {acknowledged} acknowledged writes are all \
             there",
            cut.unflushed, cut.kept
        );
        if round == 2 {
            daemon.drain("disk")?;
        }
    }
    daemon.kill_all()?;
    drop(daemon);
    drop(lab);
    std::fs::remove_dir_all(scratch)?;
    Ok(())
}

/// Power went, and with it memory; the disk has not kept what it had said was flushed.
#[test]
fn an_end_of_the_log_that_the_disk_forgot_is_told_and_given_up_by_a_person_only() -> Result<()> {
    for how in ["zeros", "an older copy", "a torn sector"] {
        let mut daemon = Daemon::start("power-forgot")?;
        daemon.create("disk", "8M", &[])?;
        let bytes = for_story("power-forgot").bytes(128 << 10);
        let (first, second) = bytes.split_at(64 << 10);
        let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
        daemon.store_goes()?;
        client.write(0, first)?;
        client.flush()?;
        let (path, _, older) = written(&daemon, first)?.context("the log has the first write")?;
        client.write(1 << 20, second)?;
        client.flush()?;
        // The log records its end once a second.
        std::thread::sleep(Duration::from_secs(4));
        drop(client);
        daemon.kill_all()?;
        let _ = std::fs::remove_file(daemon.warm());
        let (again, at, mut content) = written(&daemon, second)?.context("and the second")?;
        ensure!(path == again, "both are in the open segment");
        match how {
            "zeros" => content[at - 64..].fill(0),
            "an older copy" => content = older,
            // With all that may lie behind it but the padding.
            _ => content[at - 64..at + (64 << 10) + 4096].fill(0xa5),
        }
        std::fs::write(&path, content)?;
        daemon.store_comes_back()?;
        for restart in [false, true] {
            daemon.up()?;
            // Without a client, as soon as the node has looked through its log.
            wait_until("the loss is told", || {
                daemon.cli(&["status"]).is_ok_and(|status| status["health"]["state"] != "well")
            })?;
            let refused = NbdClient::connect(&daemon.socket(), "disk").is_err();
            ensure!(refused, "{how}: the disk is served without what it had acknowledged");
            let reason = daemon.cli(&["volume", "show", "disk"])?["reason"].to_string();
            ensure!(reason.contains("--accept-losses"), "{how}: {reason}");
            // The proof outlives the record, which is of another segment by now.
            std::thread::sleep(Duration::from_secs(2));
            if !restart {
                daemon.kill_all()?;
                let _ = std::fs::remove_file(daemon.warm());
            }
        }
        daemon.cli(&["salvage", "run", "disk", "--accept-losses"])?;
        let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
        ensure!(client.read(0, first.len())? == first, "{how}: what is whole stays");
        ensure!(client.read(1 << 20, second.len())?.iter().all(|&byte| byte == 0), "{how}");
        let health = daemon.cli(&["status"])?["health"].clone();
        let troubles = health["troubles"].as_array().context("troubles")?;
        ensure!(troubles.iter().all(|one| one["what"] == "volume-lost-bytes"), "{how}: {health}");
    }
    Ok(())
}

/// The segment in which these bytes lie: its file, their place in it, and what it has.
fn written(daemon: &Daemon, bytes: &[u8]) -> Result<Option<(PathBuf, usize, Vec<u8>)>> {
    for path in objects(&daemon.dir.join("flash"))? {
        let content = std::fs::read(&path)?;
        if let Some(at) = content.windows(64).position(|found| *found == bytes[..64]) {
            return Ok(Some((path, at, content)));
        }
    }
    Ok(None)
}
