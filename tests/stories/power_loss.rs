//! Power loss: the daemon's folder is on a disk that forgets what was not flushed and tears
//! sectors.

use anyhow::Result;
use e2e::power::PowerLab;
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::shell::skip_without;
use e2e::{Daemon, Options};
use rekindle_nbd_client::NbdClient;
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
