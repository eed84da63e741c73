//! The flash budget is full: flow control, then a stall with its reason, then recovery. The client
//! never gets an error.

use anyhow::{Context, Result};
use e2e::shell::wait_until;
use e2e::{Daemon, Options};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use std::time::{Duration, Instant};

#[test]
fn a_full_flash_budget_delays_then_stalls_then_recovers() -> Result<()> {
    let options = Options {
        arguments: ["--flash-budget", "64M"].map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let daemon = Daemon::start_with("flash-full", options)?;
    daemon.create("disk", "512M", &[])?;
    let begin = Instant::now();
    // The client attaches before the store goes away, since attaching needs the store.
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    daemon.store_goes()?;
    let (delayed, stalled) = std::thread::scope(|scope| -> Result<(bool, Option<String>)> {
        let daemon = &daemon;
        let client = &mut client;
        let writer = scope.spawn(move || -> Result<()> {
            for block in 0..1600u64 {
                client.write(block << 16, &Random::new(block).bytes(1 << 16))?;
            }
            Ok(())
        });
        let (mut delayed, mut stalled) = (false, None);
        while !writer.is_finished() {
            let show = daemon.cli(&["volume", "show", "disk"])?;
            delayed |= show["backlog"]["delay_ms"].as_u64().unwrap_or(0) > 0;
            if let Some(reason) = show["backlog"]["stalled"].as_str() {
                // 100 MB do not go into 64 MB, so the stall comes before the writer's end.
                if stalled.is_none() {
                    daemon.store_comes_back()?;
                }
                stalled = Some(reason.to_owned());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        writer.join().expect("the writer does not panic").context("a client saw an error")?;
        Ok((delayed, stalled))
    })?;
    println!("delayed {delayed}, stalled {stalled:?}, all written after {:?}", begin.elapsed());
    assert!(delayed, "flow control never delayed");
    let reason = stalled.context("it never stalled")?;
    assert!(reason.contains("flash") || reason.contains("full"), "the reason is not one: {reason}");
    wait_until("the backlog to drain", || {
        daemon.backlog_bytes("disk").is_ok_and(|bytes| bytes == 0)
    })?;
    let show = daemon.cli(&["volume", "show", "disk"])?;
    assert!(show["backlog"]["stalled"].is_null());
    for block in 0..1600u64 {
        assert!(
            client.read(block << 16, 1 << 16)? == Random::new(block).bytes(1 << 16),
            "block {block}"
        );
    }
    Ok(())
}
