//! Any host of a cluster serves any volume: it forwards to the host at which the owner runs.

use crate::cluster::{Hosts, NAMES, check_at, refusal, write_for};
use anyhow::{Context, Result, ensure};
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::shell::wait_until;
use rekindle_nbd_client::wire::option;
use rekindle_nbd_client::{Handshake, NbdClient};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest stall of a client while its volume is taken over.
const STALL_MAX: Duration = Duration::from_secs(20);

/// Writes on one connection until `end` says so, which is asked now and then. Returns the longest
/// time between two acknowledgements. An end of the connection is a failure.
pub fn write_through(
    promises: &mut Promises,
    client: &mut NbdClient,
    story: &str,
    end: impl Fn() -> bool,
) -> Result<Duration> {
    let (mut last, mut longest, mut looked) = (Instant::now(), Duration::ZERO, Instant::now());
    let mut is_over = false;
    promises.write_until(client, 16, &mut for_story(story), |_| {
        longest = longest.max(last.elapsed());
        last = Instant::now();
        if looked.elapsed() > Duration::from_millis(200) {
            is_over = end();
            looked = Instant::now();
        }
        is_over
    })?;
    ensure!(is_over, "the client was hung up on");
    Ok(longest)
}

/// The row of the clients that a host forwards, or serves for others.
pub fn row(cluster: &Value, list: &str, volume: &str) -> Value {
    let rows = cluster[list].as_array().cloned().unwrap_or_default();
    rows.into_iter().find(|row| row["volume"] == volume).unwrap_or_default()
}

#[test]
fn a_client_goes_on_through_another_host_when_its_owner_stands_still_and_when_it_is_killed()
-> Result<()> {
    let mut hosts = Hosts::new("fw-killed", 3)?;
    let mut promises = Promises::new(2048);
    hosts.hosts[0].create("copied", "8M", &["--copies", "1"])?;
    write_for(&mut promises, &hosts.hosts[0], "copied", Duration::from_millis(300))?;
    let node = hosts.node(0)?;
    let holder = hosts.wait_for_holder(0)?;
    let holder = NAMES.iter().position(|name| *name == holder).context("a host")?;
    // The third host neither owns the volume nor has copies of it.
    let third = 3 - holder;
    let mut client = NbdClient::connect(&hosts.hosts[third].socket(), "copied")?;
    promises.check(&mut client)?;
    let shown = hosts.cluster(third)?;
    ensure!(row(&shown, "forwarded", "copied")["name"] == "one", "{shown}");
    let shown = hosts.cluster(0)?;
    ensure!(row(&shown, "visitors", "copied")["name"] == NAMES[third], "{shown}");
    let listed = hosts.hosts[0].cli(&["volume", "show", "copied"])?;
    ensure!(listed["clients"] == 1, "a forwarded client counts: {listed}");

    // Its owner stands still amid the writes: its connections stay.
    let worker = Pid::from_raw(i32::try_from(hosts.hosts[0].worker()?)?).context("a pid")?;
    let before = promises.acknowledged();
    let longest = std::thread::scope(|scope| -> Result<Duration> {
        let (promises, client) = (&mut promises, &mut client);
        let begun = Instant::now();
        let writer = scope.spawn(move || {
            let end = || begun.elapsed() > Duration::from_secs(8);
            write_through(promises, client, "fw-still", end)
        });
        std::thread::sleep(Duration::from_millis(1500));
        kill_process(worker, Signal::STOP)?;
        writer.join().expect("it does not panic")
    })?;
    println!("stalled for {} ms when the owner stood still", longest.as_millis());
    ensure!(longest < STALL_MAX, "{longest:?}");
    ensure!(promises.acknowledged() > before + 200, "{} {before}", promises.acknowledged());
    promises.check(&mut client)?;
    let shown = hosts.cluster(third)?;
    ensure!(row(&shown, "forwarded", "copied")["name"] == NAMES[holder], "{shown}");
    check_at(&mut promises, &hosts.hosts[holder], "copied")?;

    // A daemon that stands still answers no question.
    kill_process(worker, Signal::KILL)?;
    hosts.lose(0)?;

    // The host that has taken over is killed; this time the client's own host takes over.
    wait_until("the guest to have a holder", || {
        hosts.cluster(holder).is_ok_and(|shown| shown["guests"][0]["holders"][0]["ready"] == true)
    })?;
    let longest = std::thread::scope(|scope| -> Result<Duration> {
        let (promises, client) = (&mut promises, &mut client);
        let begun = Instant::now();
        let writer = scope.spawn(move || {
            let end = || begun.elapsed() > Duration::from_secs(8);
            write_through(promises, client, "fw-killed", end)
        });
        std::thread::sleep(Duration::from_millis(1500));
        hosts.lose(holder)?;
        writer.join().expect("it does not panic")
    })?;
    println!("stalled for {} ms when the owner was killed", longest.as_millis());
    ensure!(longest < STALL_MAX, "{longest:?}");
    hosts.wait_for_guest(third, &node)?;
    promises.check(&mut client)?;
    drop(client);
    // A new client needs no other host now.
    check_at(&mut promises, &hosts.hosts[third], "copied")?;
    ensure!(row(&hosts.cluster(third)?, "forwarded", "copied").is_null(), "it has left");
    hosts.end(&[0, holder])
}

#[test]
fn a_snapshot_is_read_through_another_host_before_and_after_that_takes_its_disk_over() -> Result<()>
{
    let mut hosts = Hosts::new("fw-snapshot", 2)?;
    hosts.hosts[0].create("copied", "8M", &["--copies", "1"])?;
    let node = hosts.node(0)?;
    hosts.wait_for_holder(0)?;
    let mut owner = NbdClient::connect(&hosts.hosts[0].socket(), "copied")?;
    let (before, after) = (for_story("before").bytes(1 << 20), for_story("after").bytes(1 << 20));
    owner.write(4096, &before)?;
    hosts.hosts[0].cli(&["snapshot", "take", "copied", "monday"])?;
    owner.write(4096, &after)?;
    // A client of the other host, over all that happens.
    let mut client = NbdClient::connect(&hosts.hosts[1].socket(), "copied@monday")?;
    let read_only = 1 << 1;
    ensure!(client.flags & read_only != 0 && owner.flags & read_only == 0, "{}", client.flags);
    ensure!(client.read(4096, 1 << 20)? == before, "through the other host");
    drop(owner);
    hosts.lose(0)?;
    hosts.wait_for_guest(1, &node)?;
    ensure!(client.read(4096, 1 << 20)? == before, "after the takeover");
    refusal(client.write(4096, &after), "permitted")?;
    let mut anew = NbdClient::connect(&hosts.hosts[1].socket(), "copied@monday")?;
    ensure!(anew.flags & read_only != 0 && anew.read(4096, 1 << 20)? == before, "as a guest's");
    let mut present = NbdClient::connect(&hosts.hosts[1].socket(), "copied")?;
    ensure!(present.read(4096, 1 << 20)? == after, "the present");
    refusal(NbdClient::connect(&hosts.hosts[1].socket(), "copied@friday"), "no snapshot 'friday'")?;
    drop((client, anew, present));
    hosts.end(&[0])
}

#[test]
fn every_host_lists_every_volume_and_says_where_commands_and_lost_volumes_are() -> Result<()> {
    let mut hosts = Hosts::new("fw-names", 2)?;
    hosts.hosts[0].create("first", "8M", &["--copies", "1"])?;
    hosts.hosts[1].create("second", "8M", &[])?;
    let mut promises = Promises::new(2048);
    write_for(&mut promises, &hosts.hosts[0], "first", Duration::from_millis(200))?;
    drop(NbdClient::connect(&hosts.hosts[1].socket(), "second")?);
    for host in &hosts.hosts {
        let mut client = Handshake::new(UnixStream::connect(host.socket())?)?;
        let listed = client.option(option::LIST, &[])?;
        let told =
            String::from_utf8_lossy(&listed.into_iter().flat_map(|one| one.1).collect::<Vec<_>>())
                .into_owned();
        ensure!(told.contains("first") && told.contains("second"), "{told}");
    }
    for command in [
        &["volume", "drain", "first"][..],
        &["volume", "resize", "first", "16M"],
        &["volume", "rename", "first", "third"],
        &["volume", "rm", "first"],
    ] {
        let refused = hosts.hosts[1].cli(command);
        refusal(refused, "runs at the host one (")?;
    }
    // The worker of the owner dies: the client of the other host does not notice.
    let mut client = NbdClient::connect(&hosts.hosts[1].socket(), "first")?;
    let begun = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let (promises, client) = (&mut promises, &mut client);
        let writer = scope.spawn(move || {
            let end = || begun.elapsed() > Duration::from_secs(4);
            write_through(promises, client, "fw-names", end)
        });
        std::thread::sleep(Duration::from_millis(800));
        hosts.hosts[0].kill_worker()?;
        let longest = writer.join().expect("it does not panic")?;
        println!("stalled for {} ms when the worker was killed", longest.as_millis());
        Ok(())
    })?;
    promises.check(&mut client)?;
    // An owner that stops in good order is not taken over; a new client is told who is away.
    drop(client);
    hosts.hosts[0].stop()?;
    let refused = NbdClient::connect(&hosts.hosts[1].socket(), "first");
    refusal(refused, "which owns it, runs at the host of node")?;
    refusal(NbdClient::connect(&hosts.hosts[1].socket(), "nothing"), "no volume is called")?;
    hosts.hosts[0].up()?;
    check_at(&mut promises, &hosts.hosts[1], "first")?;
    hosts.end(&[])
}

#[test]
fn a_drill_strikes_the_host_that_is_named_and_loses_nothing() -> Result<()> {
    let hosts = Hosts::new("fw-drill", 3)?;
    let through = hosts.hosts[2].socket().display().to_string();
    let own = hosts.hosts[0].socket().display().to_string();
    let drill = |host: usize, more: &[&str]| {
        hosts.hosts[host].cli(&[&["drill", "failover", "--seconds", "3"], more].concat())
    };
    refusal(drill(0, &["--through", &through]), "would be taken over by another host")?;
    refusal(drill(0, &["two", "--through", &through]), "the host here is 'one'")?;
    refusal(drill(0, &["one", "--through", &own]), "is not an NBD address of another host")?;
    let left = hosts.hosts[0].cli(&["volume", "ls"])?;
    ensure!(left == serde_json::json!([]), "a drill that was refused leaves its volume: {left}");
    for (host, how) in [(0, "stop"), (1, "kill")] {
        let report = drill(host, &[NAMES[host], "--through", &through, "--how", how])?;
        println!("{report}");
        ensure!(report["acknowledged_writes_lost"] == 0, "{report}");
        ensure!(report["connections_lost"] == 0, "{report}");
        ensure!(report["stalled_ms"].as_u64().is_some_and(|ms| ms > 500), "{report}");
        ensure!(
            report["writes_acknowledged"].as_u64().is_some_and(|count| count > 100),
            "{report}"
        );
        // The stopped host comes back as a new node, and holders find one another again.
        wait_until("the cluster to settle", || {
            let settled = |cluster: Value| cluster["holders"][0]["ready"] == true;
            how == "kill" || (0..3).all(|host| hosts.cluster(host).is_ok_and(settled))
        })?;
    }
    hosts.end(&[1])
}
