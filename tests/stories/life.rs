//! The life of volumes: stuck volumes are named, idle ones are detached, and a stop tells its
//! progress.

use anyhow::{Context, Result};
use e2e::daemon::binary;
use e2e::s3::{Kind, S3Server};
use e2e::shell::{Shell, interruptible, skip, wait_until};
use e2e::{Daemon, Options};
use rekindle_nbd_client::NbdClient;
use serde_json::Value;
use std::io::Read;
use std::time::Duration;

#[test]
fn a_volume_that_hangs_is_named_with_what_it_waits_for() -> Result<()> {
    if skip(&Kind::Versitygw.missing()) {
        return Ok(());
    }
    let server = S3Server::start(Kind::Versitygw, "hangs")?;
    let options = server.options("hangs").and_settings("hangs", "stuck_after = '1s'")?;
    let daemon = Daemon::start_with("hangs", options)?;
    daemon.create("vm1", "64M", &[])?;
    let held = server.hold()?;
    let socket = daemon.socket();
    let client = std::thread::spawn(move || NbdClient::connect(&socket, "vm1").map(drop));
    let mut stuck = Value::Null;
    wait_until("the watchdog to name it", || {
        let status = daemon.cli(&["status"]).unwrap_or_default();
        stuck = status["detail"]["stuck"]["volumes"][0].clone();
        stuck["volume"] == "vm1" && status["health"].to_string().contains("waits for the store")
    })?;
    assert_eq!(stuck["state"], "attaching", "{stuck}");
    drop(held);
    client.join().ok().context("the client panicked")??;
    assert!(daemon.trace().contains("volume 'vm1' is attaching for"), "{}", daemon.trace());
    let history = daemon.cli(&["volume", "history", "vm1"])?;
    assert_eq!(
        (&history[0]["event"], &history[1]["event"]),
        (&"attach".into(), &"attach-done".into())
    );
    let status = daemon.cli(&["status"])?;
    assert_eq!(status["detail"]["states"]["attached"], 1);
    assert_eq!(status["detail"]["transitions"][0]["event"], "attach", "{status}");
    wait_until("the watchdog to look again", || {
        daemon.cli(&["status"]).is_ok_and(|status| status["detail"]["stuck"]["total"] == 0)
    })
}

#[test]
fn an_idle_volume_goes_out_of_service_a_pinned_one_stays() -> Result<()> {
    let options = Options::with_settings(
        "idle",
        "[collector]\nidle = '1s'\ninterval = '100ms'\n[destage]\nage = '100ms'\n",
        &[],
    )?;
    let daemon = Daemon::start_with("idle", options)?;
    for name in ["idle", "kept", "used"] {
        daemon.create(name, "16M", &[])?;
    }
    assert_eq!(daemon.cli(&["volume", "pin", "kept"])?["pinned"], true);
    let write = |name: &str, byte: u8| -> Result<NbdClient> {
        let mut client = NbdClient::connect(&daemon.socket(), name)?;
        client.write(4096, &[byte; 4096])?;
        Ok(client)
    };
    drop((write("idle", 1)?, write("kept", 2)?));
    let used = write("used", 3)?;
    let row = |name: &str| -> Value {
        let found = daemon.cli(&["debug", "volumes", name]).unwrap_or_default();
        found["volumes"][0].clone()
    };
    wait_until("the idle one to go", || row("idle")["state"] == "preattached")?;
    wait_until("the decisions", || {
        row("kept")["collector"]["decision"] == "pinned"
            && row("used")["collector"]["decision"] == "in-use"
    })?;
    assert_eq!(
        (&row("kept")["state"], &row("used")["state"]),
        (&"attached".into(), &"attached".into())
    );
    // The next client notices nothing.
    let mut client = NbdClient::connect(&daemon.socket(), "idle")?;
    assert_eq!(client.read(4096, 4096)?, [1; 4096]);
    drop((client, used));
    daemon.cli(&["volume", "unpin", "kept"])?;
    wait_until("all to go", || {
        daemon.cli(&["debug", "volumes"]).is_ok_and(|found| found["states"]["preattached"] == 3)
    })?;
    let history = daemon.cli(&["volume", "history", "kept"])?;
    assert!(history.to_string().contains("collector: idle for"), "{history}");
    Ok(())
}

#[test]
fn the_inside_of_a_live_daemon_can_be_seen() -> Result<()> {
    let options = Options::with_settings("debug", "[destage]\nage = '1h'\n", &[])?;
    let daemon = Daemon::start_with("debug", options)?;
    daemon.create("vm1", "16M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "vm1")?;
    for block in 0..8 {
        client.write(block * 4096, &[1; 4096])?;
    }
    let volumes = daemon.cli(&["debug", "volumes"])?;
    let row = &volumes["volumes"][0];
    assert_eq!((&row["volume"], &row["sessions"]), (&"vm1".into(), &1.into()), "{volumes}");
    assert_eq!((&row["staged"]["serial"], &row["staged"]["checkpoint"]), (&8.into(), &0.into()));
    assert_eq!(row["staged"]["overlay_pieces"], 8, "{volumes}");
    let queue = daemon.cli(&["debug", "queue"])?;
    assert_eq!(queue["destager"]["ring"][0], "vm1", "{queue}");
    assert_eq!((&queue["volumes"][0]["changes"], &queue["total"]), (&8.into(), &1.into()));
    let log = daemon.cli(&["debug", "log"])?;
    assert!(log["head"]["filled"].as_u64().context("head")? >= 8 * 4096, "{log}");
    assert_eq!(log["head"]["volumes"], 1);
    assert_eq!(log["appended"], log["committed"], "{log}");
    let warm = daemon.cli(&["debug", "warm"])?;
    let head = &log["head"]["segment"];
    let slots = warm["slots"].as_array().context("slots")?;
    assert!(slots.iter().any(|row| row["segment"] == *head && row["state"] == "head"), "{warm}");
    let sets = warm["frames"]["sets_by_small_frames"].as_array().context("sets")?;
    assert!(sets.len() == 9 && sets.iter().any(|sets| sets.as_u64() > Some(0)), "{warm}");
    assert_eq!(daemon.cli(&["debug", "locks"])?["total"], 0);
    for what in ["volumes", "queue", "log", "warm", "locks"] {
        let dir = daemon.dir.display().to_string();
        let text = Shell::new(binary()).args(["debug", what, "--dir", &dir]).run()?;
        assert!(!text.trim().is_empty(), "debug {what} says nothing");
    }
    Ok(())
}

/// Starts a daemon that destages only on demand, with a volume that owes some blocks.
fn owing(name: &str, more: &[&str]) -> Result<Daemon> {
    let daemon =
        Daemon::start_with(name, Options::with_settings(name, "[destage]\nage = '1h'\n", more)?)?;
    daemon.create("vm1", "16M", &[])?;
    let mut client = NbdClient::connect(&daemon.socket(), "vm1")?;
    for block in 0..64 {
        client.write(block * 4096, &[7; 4096])?;
    }
    Ok(daemon)
}

fn all_is_there(daemon: &mut Daemon) -> Result<()> {
    daemon.stop()?;
    daemon.set_arguments([]);
    daemon.up()?;
    let mut client = NbdClient::connect(&daemon.socket(), "vm1")?;
    assert_eq!(client.read(0, 64 * 4096)?, [7; 64 * 4096]);
    Ok(())
}

#[test]
fn a_stop_keeps_what_is_unfinished_and_a_draining_one_empties_first() -> Result<()> {
    for drain in [false, true] {
        let mut daemon = owing("stop", &[])?;
        let words: &[&str] = if drain { &["stop", "--drain"] } else { &["stop"] };
        let ended = daemon.cli(words)?;
        assert_eq!((&ended["stopped"], &ended["volumes"]), (&true.into(), &1.into()), "{ended}");
        assert_eq!(ended["kept_bytes"] == 0, drain, "{ended}");
        assert!(!daemon.dir.join("endpoints.json").exists(), "it is gone");
        daemon.stop()?;
        daemon.set_arguments([]);
        daemon.up()?;
        let checkpoint = daemon.cli(&["volume", "show", "vm1"])?["checkpoint"].clone();
        assert_eq!(checkpoint, if drain { 64 } else { 0 });
        all_is_there(&mut daemon)?;
    }
    Ok(())
}

#[test]
fn a_stop_right_after_a_start_knows_what_the_last_life_left() -> Result<()> {
    let mut daemon = owing("stop-early", &[])?;
    daemon.cli(&["stop"])?;
    daemon.stop()?;
    for words in [&["stop"][..], &["stop", "--drain"]] {
        daemon.up()?;
        let ended = daemon.cli(words)?;
        let is_empty = ended["kept_bytes"] == 0 && ended["kept_volumes"] == 0;
        assert_eq!(is_empty, words.len() > 1, "{ended}");
        daemon.stop()?;
    }
    daemon.up()?;
    assert_eq!(daemon.cli(&["volume", "show", "vm1"])?["checkpoint"], 64);
    all_is_there(&mut daemon)
}

#[test]
fn ctrl_c_makes_a_quick_stop_of_one_that_drains_into_a_store_that_is_away() -> Result<()> {
    let mut daemon = owing("abort_drain", &[])?;
    daemon.store_goes()?;
    wait_until("the store to be away", || {
        daemon.cli(&["status"]).is_ok_and(|status| status["store_detail"]["reachable"] == false)
    })?;
    let mut stop = interruptible(&binary())
        .args(["stop", "--drain", "--json", "--dir"])
        .arg(&daemon.dir)
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    wait_until("it to drain", || {
        let status = Shell::new(binary()).args(["status", "--json", "--dir"]).arg(&daemon.dir);
        // Exit code 1: the daemon does not serve.
        status.output().is_ok_and(|found| {
            String::from_utf8_lossy(&found.stdout).contains("1 volume(s) to reach the store")
        })
    })?;
    wait_until("up to say so", || {
        daemon.trace().contains("stopping: 0 of 1 volume(s); waiting for")
    })?;
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&stop),
        rustix::process::Signal::INT,
    )?;
    let mut text = String::new();
    stop.stdout.take().context("piped")?.read_to_string(&mut text)?;
    assert_eq!(stop.wait()?.code(), Some(1), "a script must not take it for drained: {text}");
    let ended: Value = serde_json::from_str(&text)?;
    assert_eq!((&ended["stopped"], &ended["drained"]), (&true.into(), &false.into()), "{ended}");
    assert!(ended["kept_bytes"].as_u64().context("kept")? > 64 * 4096, "{ended}");
    daemon.store_comes_back()?;
    all_is_there(&mut daemon)
}

#[test]
fn a_client_that_comes_back_while_its_volume_is_collected_never_notices() -> Result<()> {
    let options = Options::with_settings(
        "collected",
        "[collector]\nidle = '1ms'\ninterval = '1ms'\n\
         [destage]\nage = '10ms'\nwrites_per_minute = 0\n",
        &["--store-fault", "latency=2ms"],
    )?;
    let daemon = Daemon::start_with("collected", options)?;
    let names = ["v0", "v1", "v2"];
    names.iter().try_for_each(|name| daemon.create(name, "16M", &[]).map(drop))?;
    let mut collected = 0;
    // On a busy machine the clients leave few pauses that are long enough: they come again then.
    for _ in 0..5 {
        visit(&daemon, &names)?;
        let status = daemon.cli(&["status"])?;
        let transitions = status["detail"]["transitions"].as_array().context("transitions")?;
        let row = transitions.iter().find(|row| row["event"] == "collected");
        collected = row.and_then(|row| row["count"].as_u64()).unwrap_or(0);
        if collected > 20 {
            break;
        }
    }
    anyhow::ensure!(collected > 20, "the collector was hardly ever there: {collected}");
    wait_until("all to go", || {
        daemon.cli(&["debug", "volumes"]).is_ok_and(|found| found["states"]["preattached"] == 3)
    })
}

/// Writes to each volume through one connection after the other, with pauses between them.
fn visit(daemon: &Daemon, names: &[&'static str]) -> Result<()> {
    let clients: Vec<_> = names
        .iter()
        .map(|&name| {
            let socket = daemon.socket();
            std::thread::spawn(move || -> Result<()> {
                for visit in 0..60_u8 {
                    let mut client = NbdClient::connect(&socket, name)?;
                    if visit > 0 {
                        anyhow::ensure!(client.read(4096, 512)? == [visit; 512], "visit {visit}");
                    }
                    client.write(4096, &[visit + 1; 512])?;
                    drop(client);
                    // The pauses reach from before the collector comes to after it has gone.
                    std::thread::sleep(Duration::from_millis(u64::from(visit) * 7 % 60));
                }
                Ok(())
            })
        })
        .collect();
    for client in clients {
        client.join().ok().context("a client panicked")??;
    }
    Ok(())
}

#[test]
fn a_stop_in_the_middle_of_the_start_is_a_stop() -> Result<()> {
    let mut daemon = Daemon::start("early-stop")?;
    daemon.create("vm1", "16M", &[])?;
    NbdClient::connect(&daemon.socket(), "vm1")?.write(4096, &[7; 4096])?;
    daemon.stop()?;
    for milliseconds in [0, 20, 100, 400, 1500] {
        let mut up = std::process::Command::new(binary())
            .args([
                "up",
                "--store-fault",
                "latency=1s",
                "--warm-size",
                "64M",
                "--http",
                "127.0.0.1:0",
            ])
            .args(["--warm", &daemon.warm().display().to_string()])
            .args(["--nbd", &format!("unix:{}", daemon.socket().display()), "--dir"])
            .arg(&daemon.dir)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_millis(milliseconds));
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&up),
            rustix::process::Signal::TERM,
        )?;
        wait_until("it to end", || up.try_wait().is_ok_and(|ended| ended.is_some()))?;
    }
    // The next start finds no process in its way, and everything where it was.
    daemon.up()?;
    let mut client = NbdClient::connect(&daemon.socket(), "vm1")?;
    assert_eq!(client.read(4096, 4096)?, [7; 4096]);
    Ok(())
}
