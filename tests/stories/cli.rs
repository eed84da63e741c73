//! The commands that a new user types in the first five minutes.

use anyhow::{Context, Result};
use e2e::Daemon;
use e2e::daemon::binary;
use e2e::shell::Shell;
use rekindle_nbd_client::NbdClient;
use std::io::{Read, Write};

#[test]
fn up_prints_every_endpoint_and_the_next_command() -> Result<()> {
    let daemon = Daemon::start("endpoints")?;
    // The daemon serves before it has printed: its first line may be behind its first answer.
    for part in ["nbd.sock", "http", "rekindle volume create"] {
        e2e::shell::wait_until(part, || daemon.trace().contains(part))?;
    }
    Ok(())
}

#[test]
fn a_volume_is_made_listed_shown_and_removed() -> Result<()> {
    let daemon = Daemon::start("volumes")?;
    daemon.create("vm1", "20G", &["--policy", "back", "--ack", "memory", "--block-size", "16K"])?;
    let list = daemon.cli(&["volume", "ls"])?;
    assert!(list.to_string().contains("vm1"), "{list}");
    let show = daemon.cli(&["volume", "show", "vm1"])?;
    assert_eq!(show["size"], 20u64 << 30);
    assert_eq!(show["ack"], "memory");
    assert_eq!(show["block_size"], 16 << 10);
    let client = NbdClient::connect(&daemon.socket(), "vm1")?;
    assert_eq!(client.size, 20 << 30);
    let busy = daemon.cli(&["volume", "rm", "vm1"]).expect_err("a client holds it");
    assert!(format!("{busy:#}").contains("client"), "{busy:#}");
    drop(client);
    e2e::shell::wait_until("the client to be gone", || {
        daemon.cli(&["volume", "rm", "vm1"]).is_ok()
    })?;
    assert!(NbdClient::connect(&daemon.socket(), "vm1").is_err());
    Ok(())
}

#[test]
fn the_restart_drill_loses_nothing() -> Result<()> {
    let daemon = Daemon::start("drill")?;
    let drill = daemon.cli(&["drill", "restart", "--seconds", "2", "--rounds", "2"])?;
    println!("{drill}");
    assert_eq!(drill["acknowledged_writes_lost"], 0, "{drill}");
    assert!(drill["writes_acknowledged"].as_u64().context("writes_acknowledged")? > 0, "{drill}");
    assert!(drill["stalled_ms_max"].as_f64().is_some(), "{drill}");
    Ok(())
}

#[test]
fn http_answers_health_metrics_and_openapi() -> Result<()> {
    let daemon = Daemon::start("http")?;
    daemon.create("disk", "1M", &[])?;
    let get = |path| daemon.get(path);
    assert!(get("/healthz")?.starts_with("HTTP/1.1 200"));
    let metrics = get("/metrics")?;
    assert!(metrics.contains("rekindle_"), "{metrics}");
    let openapi = get("/openapi.json")?;
    assert!(openapi.contains("/api/v1/volumes"), "{openapi}");
    assert!(get("/api/v1/volumes/none")?.starts_with("HTTP/1.1 404"));
    Ok(())
}

#[test]
fn inspect_reads_every_format_offline() -> Result<()> {
    let mut daemon = Daemon::start("inspect")?;
    daemon.create("disk", "16M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    for block in 0..100 {
        client.write(block * 65_536, &[block as u8 + 1; 65_536])?;
    }
    drop(client);
    daemon.drain("disk")?;
    daemon.stop()?;
    let store = daemon.dir.join("store");
    let mut seen = 0;
    for folder in [
        "flash",
        "store/packs/data",
        "store/packs/meta",
        "store/volumes",
        "store/names",
        "store/nodes",
    ] {
        let folder = daemon.dir.join(folder);
        let found = Shell::new("find").arg(&folder).args(["-type", "f", "-size", "+0"]).run()?;
        for file in found.lines().take(2) {
            let text = Shell::new(binary()).args(["inspect", file]).run()?;
            assert!(!text.trim().is_empty(), "inspect {file} says nothing");
            seen += 1;
        }
    }
    Shell::new(binary()).arg("inspect").arg(store.join("rekindle.json")).run()?;
    assert!(seen >= 6, "only {seen} files to inspect");
    Ok(())
}

#[test]
fn completions_and_help_are_there() -> Result<()> {
    for shell in ["bash", "zsh", "fish"] {
        assert!(Shell::new(binary()).args(["completions", shell]).run()?.len() > 500);
    }
    let commands = [
        "up",
        "volume",
        "status",
        "stop",
        "drill",
        "verify",
        "sweep",
        "inspect",
        "debug",
        "completions",
    ];
    let help = Shell::new(binary()).arg("--help").run()?;
    for command in commands {
        assert!(help.contains(command), "--help does not name {command}");
        assert!(Shell::new(binary()).args([command, "--help"]).run()?.len() > 100);
    }
    Ok(())
}

#[test]
fn a_thousand_idle_volumes_take_little_memory() -> Result<()> {
    let daemon = Daemon::start("thousand")?;
    for number in 0..1000 {
        let body = format!("{{\"name\":\"v{number}\",\"size\":1073741824}}");
        let mut stream = std::os::unix::net::UnixStream::connect(daemon.dir.join("rekindle.sock"))?;
        let length = body.len();
        write!(
            stream,
            "POST /api/v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        assert!(text.starts_with("HTTP/1.1 20"), "{text}");
    }
    let list = daemon.cli(&["volume", "ls"])?;
    let count = list.as_array().or_else(|| list["volumes"].as_array()).map_or(0, Vec::len);
    assert_eq!(count, 1000);
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.worker()?))?;
    let kib: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok())
        .context("no VmRSS")?;
    println!("resident with 1,000 idle volumes: {} MiB", kib / 1024);
    assert!(kib <= 64 * 1024, "{kib} KiB resident");
    Ok(())
}
