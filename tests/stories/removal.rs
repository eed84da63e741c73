//! Removed volumes leave nothing behind: not in the log, not after restarts, however often.

use anyhow::{Context, Result, ensure};
use e2e::shell::{Shell, wait_until};
use e2e::{Daemon, Options};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;

const BLOCK: u64 = 1 << 20;

#[test]
fn removals_and_restarts_leave_the_log_empty_and_writable() -> Result<()> {
    let arguments = ["--flash-budget", "64M"].map(str::to_owned).to_vec();
    let mut daemon = Daemon::start_with("removal", Options { arguments, ..Options::default() })?;
    for round in 0..5u64 {
        daemon.create("disk", "64M", &[])?;
        fill(&daemon, round)?;
        daemon.drain("disk")?;
        daemon.remove_now("disk")?;
        if round % 2 == 0 {
            let dir = daemon.dir.display().to_string();
            Shell::new(e2e::daemon::binary()).args(["stop", "--drain", "--dir", &dir]).run()?;
            daemon.stop()?;
        } else {
            daemon.kill_all()?;
        }
        daemon.up()?;
        // The log's remains of the volume are looked for beside the first clients.
        let empty = || flash_bytes(&daemon).is_ok_and(|used| used <= 16 << 20);
        wait_until("the log to be empty", empty).with_context(|| {
            format!("round {round}: {:?} bytes of flash for no volume at all", flash_bytes(&daemon))
        })?;
    }
    ensure!(
        !daemon.trace().contains("vault is gone"),
        "changes of removed volumes came back: {}",
        daemon.trace()
    );
    // All of the flash is free for new writes.
    daemon.create("disk", "64M", &[])?;
    fill(&daemon, 9)?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    for block in 0..48 {
        let found = client.read(block * BLOCK, BLOCK as usize)?;
        ensure!(found == Random::new(900 + block).bytes(BLOCK as usize), "block {block}");
    }
    Ok(())
}

fn fill(daemon: &Daemon, round: u64) -> Result<()> {
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    for block in 0..48 {
        client.write(block * BLOCK, &Random::new(round * 100 + block).bytes(BLOCK as usize))?;
    }
    Ok(client.flush()?)
}

fn flash_bytes(daemon: &Daemon) -> Result<u64> {
    let status = daemon.cli(&["status"])?;
    status["log"]["flash_bytes"].as_u64().ok_or_else(|| anyhow::anyhow!("no log in {status}"))
}
