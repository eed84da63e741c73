//! Health reports what is wrong, with its age, and what still works. What is not known is not said.

use anyhow::{Context, Result, ensure};
use e2e::daemon::damage;
use e2e::shell::wait_until;
use e2e::{Daemon, Options};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
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
    let daemon = Daemon::start("health-store")?;
    daemon.create("disk", "64M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    daemon.store_goes()?;
    client.write(0, &Random::new(1).bytes(1 << 20))?;
    let mut message = String::new();
    wait_until("the store's absence to be said", || {
        let Ok(health) = health(&daemon) else { return false };
        message = says(&health, "store-away").unwrap_or_default();
        !message.is_empty() && health["state"] == "degraded" && health["ok"] == true
    })?;
    println!("{message}");
    for word in ["has not answered for", "wait safely on flash", "room for"] {
        assert!(message.contains(word), "{word}: {message}");
    }
    // Writes go on, and no time until they are in the store is promised.
    client.write(1 << 20, &Random::new(2).bytes(1 << 20))?;
    let show = daemon.cli(&["volume", "show", "disk"])?;
    assert!(show["backlog"]["eta_ms"].is_null(), "{show}");
    // A list says since when the store is away, and which volumes are served.
    let refused = daemon.cli(&["volume", "ls"]).expect_err("the store is away").to_string();
    println!("{refused}");
    for word in ["has not answered for", "in service are disk"] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    daemon.store_comes_back()?;
    wait_until("the store's return to be said", || {
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
        arguments: ["--flash-budget", "64M"].map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let daemon = Daemon::start_with("health-flash", options)?;
    daemon.create("disk", "512M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    // The client attaches before the store goes away, since attaching needs the store.
    daemon.store_goes()?;
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
            if stalled.is_some() && said.is_none() {
                daemon.store_comes_back()?;
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

#[test]
fn a_client_that_waits_for_the_store_makes_the_health_failing_and_nothing_is_called_safe()
-> Result<()> {
    let daemon = Daemon::start("health-through")?;
    daemon.create("disk", "64M", &["--policy", "through"])?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    client.write(0, &[1; 4096])?;
    daemon.store_goes()?;
    // The first answer already shows the outage, although the store has answered a moment ago.
    let first = health(&daemon)?;
    ensure!(says(&first, "store-away").is_some(), "{first}");
    std::thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| client.write(4096, &[2; 4096]));
        let mut said = String::new();
        let waits = wait_until("the waiting client to be said", || {
            let Ok(health) = health(&daemon) else { return false };
            said = health.to_string();
            says(&health, "clients-wait").is_some() && health["ok"] == false
        });
        let backlog = daemon.cli(&["status"]).map(|status| status["backlog_bytes"].clone());
        daemon.store_comes_back()?;
        writer.join().expect("the writer does not panic")?;
        println!("{said}");
        waits?;
        ensure!(!said.contains("safely"), "{said}");
        assert_eq!(backlog?, 0, "what nobody acknowledged is called acknowledged");
        Ok(())
    })
}

#[test]
fn bytes_that_cannot_be_read_are_said_before_and_after_a_restart_and_once_they_are_given_up()
-> Result<()> {
    let mut daemon = Daemon::start("health-damage")?;
    daemon.create("disk", "1M", &[])?;
    NbdClient::connect(&daemon.socket(), "disk")?.write(0, &Random::new(1).bytes(64 << 10))?;
    daemon.drain("disk")?;
    daemon.stop()?;
    damage(&daemon.data_pack()?)?;
    daemon.up()?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    ensure!((0..4).any(|block| client.read(block << 14, 1 << 14).is_err()), "no block is damaged");
    drop(client);
    for restart in [false, true] {
        if restart {
            daemon.stop()?;
            daemon.up()?;
        }
        wait_until("the damage to be said", || {
            health(&daemon).is_ok_and(|health| says(&health, "volume-unreadable").is_some())
        })?;
        let (queue, list) = (daemon.cli(&["salvage", "queue"])?, daemon.cli(&["volume", "ls"])?);
        assert_eq!(queue[0]["volume"], "disk", "restart {restart}: {queue}");
        ensure!(!list[0]["unreadable"].is_null(), "restart {restart}: {list}");
    }
    daemon.cli(&["salvage", "run", "disk", "--accept-losses"])?;
    for restart in [false, true] {
        if restart {
            daemon.stop()?;
            daemon.up()?;
        }
        let mut now = Value::Null;
        wait_until("what was given up to be said", || {
            now = health(&daemon).unwrap_or_default();
            says(&now, "volume-lost-bytes").is_some()
        })?;
        ensure!(says(&now, "volume-unreadable").is_none(), "{now}");
        let show = daemon.cli(&["volume", "show", "disk"])?;
        ensure!(show["lost_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{show}");
    }
    Ok(())
}
