//! What is wrong is said: with its age, and with what still works. What is not known is not said.

use anyhow::{Context, Result};
use e2e::nbd_client::NbdClient;
use e2e::random::Random;
use e2e::shell::wait_until;
use e2e::{Daemon, Options};
use serde_json::Value;
use std::time::Duration;

fn health(daemon: &Daemon) -> Result<Value> {
    Ok(daemon.cli(&["status"])?["health"].clone())
}

fn says(health: &Value, what: &str) -> Option<String> {
    let troubles = health["troubles"].as_array()?;
    let found = troubles.iter().find(|trouble| trouble["what"] == what)?;
    found["message"].as_str().map(str::to_owned)
}

#[test]
fn a_store_that_is_away_is_never_well_and_no_time_is_promised() -> Result<()> {
    let options = Options {
        arguments: ["--store-fault", "gone=25s@4s"].map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let daemon = Daemon::start_with("health-store", options)?;
    daemon.create("disk", "64M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    client.write(0, &Random::new(1).bytes(1 << 20))?;
    let mut message = String::new();
    wait_until("the store's absence to be said", Duration::from_secs(20), || {
        let Ok(health) = health(&daemon) else { return false };
        message = says(&health, "store-away").unwrap_or_default();
        !message.is_empty() && health["state"] == "degraded" && health["ok"] == true
    })?;
    println!("{message}");
    for word in ["has not answered for", "wait safely on flash", "room for"] {
        assert!(message.contains(word), "{word}: {message}");
    }
    // Writes go on, and no time is named until they are in the store.
    client.write(1 << 20, &Random::new(2).bytes(1 << 20))?;
    let show = daemon.cli(&["volume", "show", "disk"])?;
    assert!(show["backlog"]["eta_ms"].is_null(), "{show}");
    wait_until("the store's return to be said", Duration::from_secs(60), || {
        health(&daemon).is_ok_and(|health| says(&health, "store-away").is_none())
    })?;
    daemon.drain("disk")?;
    let after = health(&daemon)?;
    assert_eq!(after["state"], "well", "{after}");
    Ok(())
}

#[test]
fn while_a_write_waits_the_health_is_failing() -> Result<()> {
    let options = Options {
        arguments: ["--flash-budget", "64M", "--store-fault", "gone=20s@4s"]
            .map(str::to_owned)
            .to_vec(),
        ..Options::default()
    };
    let daemon = Daemon::start_with("health-flash", options)?;
    daemon.create("disk", "512M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    std::thread::sleep(Duration::from_secs(4));
    let said = std::thread::scope(|scope| -> Result<String> {
        let client = &mut client;
        let writer = scope.spawn(move || -> Result<()> {
            for block in 0..1600u64 {
                client.write(block << 16, &Random::new(block).bytes(1 << 16))?;
            }
            Ok(())
        });
        let mut said = None;
        while !writer.is_finished() {
            let now = health(&daemon)?;
            let stalled = says(&now, "volume-stalled");
            if stalled.is_some() {
                assert_eq!(
                    (&now["state"], &now["ok"]),
                    (&"failing".into(), &false.into()),
                    "{now}"
                );
            }
            said = said.or(stalled);
            std::thread::sleep(Duration::from_millis(100));
        }
        writer.join().expect("the writer does not panic").context("a client saw an error")?;
        said.context("writes waited, and nobody said so")
    })?;
    println!("{said}");
    assert!(said.contains("writes wait"), "{said}");
    Ok(())
}
