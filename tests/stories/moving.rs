//! A volume moves from one host of a cluster to another, or gets other settings, while its clients
//! go on.

use crate::cluster::{Hosts, NAMES, check_at, refusal, write_for};
use crate::forwarding::{row, write_through};
use crate::lives::Shared;
use anyhow::{Context, Result, ensure};
use e2e::daemon::binary;
use e2e::promises::Promises;
use e2e::shell::wait_until;
use e2e::{Daemon, Shell};
use rekindle_nbd_client::NbdClient;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Moves a volume amid the writes of a client. Returns the result of the move, and the client's
/// longest stall.
fn move_amid_writes(
    (promises, client): (&mut Promises, &mut NbdClient),
    hosts: &Hosts,
    (from, to): (usize, usize),
    story: &str,
) -> Result<(Value, Duration)> {
    std::thread::scope(|scope| {
        let begun = Instant::now();
        let writer = scope.spawn(move || {
            let end = || begun.elapsed() > Duration::from_secs(4);
            write_through(promises, client, story, end)
        });
        std::thread::sleep(Duration::from_millis(1000));
        let moved = hosts.hosts[from].cli(&["volume", "move", "disk", NAMES[to]]);
        let longest = writer.join().expect("it does not panic")?;
        let moved = moved?;
        println!(
            "moved from {} to {}: stalled for {} ms; {}",
            NAMES[from],
            NAMES[to],
            longest.as_millis(),
            moved["result"]["told"]
        );
        Ok((moved, longest))
    })
}

fn owner(hosts: &Hosts, host: usize) -> Result<String> {
    let shown = hosts.hosts[host].cli(&["volume", "show", "disk"])?;
    Ok(shown["owner"].as_str().context("an owner")?.to_owned())
}

#[test]
fn a_volume_moves_while_a_client_of_another_host_writes_and_its_old_owner_is_killed() -> Result<()>
{
    let mut hosts = Hosts::new("mv-moves", 3)?;
    let mut promises = Promises::new(2048);
    hosts.hosts[0].create("disk", "8M", &["--copies", "1"])?;
    write_for(&mut promises, &hosts.hosts[0], "disk", Duration::from_millis(300))?;
    let nodes = [hosts.node(0)?, hosts.node(1)?, hosts.node(2)?];
    let mut client = NbdClient::connect(&hosts.hosts[2].socket(), "disk")?;
    promises.check(&mut client)?;
    let (moved, _) = move_amid_writes((&mut promises, &mut client), &hosts, (0, 1), "mv-moves")?;
    ensure!(moved["state"] == "done" && moved["kind"] == "move", "{moved}");
    ensure!(moved["result"]["owner"] == nodes[1].as_str(), "{moved}");
    for host in 0..3 {
        ensure!(owner(&hosts, host)? == nodes[1], "host {host}");
    }
    promises.check(&mut client)?;
    let shown = hosts.cluster(2)?;
    ensure!(row(&shown, "forwarded", "disk")["name"] == "two", "{shown}");
    // A command at another host says where to give it, and how.
    let refused = hosts.hosts[0].cli(&["volume", "move", "disk", "three"]);
    refusal(refused, "at host two: rekindle volume move disk three")?;
    let offered = Shell::new(binary()).args(["volume-names", "--nodes", "--dir"]);
    let offered = offered.arg(&hosts.hosts[2].dir).run()?;
    ensure!(offered.lines().collect::<Vec<_>>() == ["one", "three", "two"], "{offered}");
    let history = hosts.hosts[0].cli(&["volume", "history", "disk"])?;
    let events: Vec<_> =
        history.as_array().context("a list")?.iter().map(|one| one["event"].clone()).collect();
    ensure!(events.ends_with(&["hand-over".into(), "handed-over".into()]), "{history}");

    // The old owner is not needed any more.
    let before = promises.acknowledged();
    std::thread::scope(|scope| -> Result<()> {
        let (promises, client) = (&mut promises, &mut client);
        let begun = Instant::now();
        let writer = scope.spawn(move || {
            let end = || begun.elapsed() > Duration::from_secs(3);
            write_through(promises, client, "mv-killed", end)
        });
        std::thread::sleep(Duration::from_millis(500));
        hosts.lose(0)?;
        let longest = writer.join().expect("it does not panic")?;
        println!("stalled for {} ms when the old owner was killed", longest.as_millis());
        Ok(())
    })?;
    ensure!(promises.acknowledged() > before + 100, "{} {before}", promises.acknowledged());
    promises.check(&mut client)?;
    check_at(&mut promises, &hosts.hosts[1], "disk")?;
    // It moves on, to the host of its client.
    move_amid_writes((&mut promises, &mut client), &hosts, (1, 2), "mv-home")?;
    ensure!(owner(&hosts, 1)? == nodes[2], "it is at home");
    promises.check(&mut client)?;
    drop(client);
    check_at(&mut promises, &hosts.hosts[1], "disk")?;
    hosts.end(&[0])
}

#[test]
fn a_client_of_the_owners_host_keeps_its_connection_when_its_volume_goes_and_comes_back()
-> Result<()> {
    let hosts = Hosts::new("mv-local", 2)?;
    for (policy, more) in [("back", &["--copies", "1"][..]), ("through", &[]), ("uncached", &[])] {
        let mut promises = Promises::new(2048);
        hosts.hosts[0].create("disk", "8M", &[&["--policy", policy], more].concat())?;
        let mut client = NbdClient::connect(&hosts.hosts[0].socket(), "disk")?;
        for (from, to) in [(0, 1), (1, 0), (0, 1)] {
            let writes = (&mut promises, &mut client);
            move_amid_writes(writes, &hosts, (from, to), &format!("mv-local-{policy}"))?;
            promises.check(&mut client)?;
            let shown = hosts.cluster(0)?;
            ensure!(row(&shown, "forwarded", "disk")["name"] == NAMES[to], "{shown}");
        }
        client.flush()?;
        drop(client);
        check_at(&mut promises, &hosts.hosts[0], "disk")?;
        // The owner's host may hear later that the client has gone.
        hosts.hosts[1].remove_now("disk")?;
    }
    hosts.end(&[])
}

#[test]
fn a_volume_of_a_guest_moves_home_and_what_cannot_move_says_why() -> Result<()> {
    let mut hosts = Hosts::new("mv-guest", 2)?;
    let mut promises = Promises::new(2048);
    hosts.hosts[0].create("disk", "8M", &["--copies", "1"])?;
    write_for(&mut promises, &hosts.hosts[0], "disk", Duration::from_millis(300))?;
    let own = hosts.node(1)?;
    let lost = hosts.node(0)?;
    let moves =
        |host: usize, words: &[&str]| hosts.hosts[host].cli(&[&["volume", "move"], words].concat());
    refusal(moves(1, &["disk", "two"]), "runs at the host one (")?;
    refusal(moves(0, &["disk", "one"]), "is at node one already")?;
    refusal(moves(0, &["disk", "four"]), "the cluster has no node 'four'")?;
    refusal(moves(0, &["nothing", "two"]), "no volume is called 'nothing'")?;
    hosts.hosts[0].create("old", "1M", &[])?;
    hosts.hosts[0].cli(&["volume", "rm", "old"])?;
    refusal(moves(0, &["old", "two"]), "is in the trash")?;
    hosts.hosts[1].cli(&["cluster", "drain", "two"])?;
    refusal(moves(0, &["disk", "two"]), "node two is draining")?;
    hosts.hosts[1].cli(&["cluster", "drain", "two", "--off"])?;

    hosts.lose(0)?;
    hosts.wait_for_guest(1, &lost)?;
    let mut client = NbdClient::connect(&hosts.hosts[1].socket(), "disk")?;
    promises.check(&mut client)?;
    ensure!(owner(&hosts, 1)? == lost, "the guest owns it");
    let refused = hosts.hosts[1].cli(&["volume", "move", "disk", &lost]);
    refusal(refused, "already")?;
    // Both are in one process: the client keeps its connection nevertheless.
    let (moved, _) = move_amid_writes((&mut promises, &mut client), &hosts, (1, 1), "mv-guest")?;
    ensure!(moved["result"]["owner"] == own.as_str(), "{moved}");
    ensure!(owner(&hosts, 1)? == own, "it has come home");
    promises.check(&mut client)?;
    drop(client);
    check_at(&mut promises, &hosts.hosts[1], "disk")?;
    write_for(&mut promises, &hosts.hosts[1], "disk", Duration::from_millis(300))?;
    check_at(&mut promises, &hosts.hosts[1], "disk")?;
    // The guest owns nothing any more: its node can go.
    wait_until("the old node to be removed", || {
        let removed = hosts.hosts[1].cli(&["cluster", "remove", &lost]);
        removed.inspect_err(|why| println!("{why:#}")).is_ok()
    })?;
    check_at(&mut promises, &hosts.hosts[1], "disk")?;
    hosts.end(&[0])
}

#[test]
fn a_volume_follows_its_client_to_another_host() -> Result<()> {
    let shared = Shared::with_settings("mv-follows", "follow_clients = '2s'")?;
    let mut hosts = Hosts::over(shared, "mv-follows", 2, None)?;
    let mut promises = Promises::new(2048);
    hosts.hosts[0].create("disk", "8M", &["--copies", "1"])?;
    write_for(&mut promises, &hosts.hosts[0], "disk", Duration::from_millis(300))?;
    let own = hosts.node(1)?;
    let mut client = NbdClient::connect(&hosts.hosts[1].socket(), "disk")?;
    let begun = Instant::now();
    let is_home = || {
        let is_owner = owner(&hosts, 1).is_ok_and(|owner| owner == own);
        is_owner || begun.elapsed() > Duration::from_secs(60)
    };
    let longest = write_through(&mut promises, &mut client, "mv-follows", is_home)?;
    println!(
        "there after {} ms, stalled for {} ms",
        begun.elapsed().as_millis(),
        longest.as_millis()
    );
    ensure!(owner(&hosts, 1)? == own, "it stays where it was");
    promises.check(&mut client)?;
    // Its own host's loss is one of the client, too; another host's is not.
    hosts.lose(0)?;
    let before = promises.acknowledged();
    let begun = Instant::now();
    let end = || begun.elapsed() > Duration::from_secs(2);
    write_through(&mut promises, &mut client, "mv-follows-on", end)?;
    ensure!(promises.acknowledged() > before, "{before}");
    drop(client);
    check_at(&mut promises, &hosts.hosts[1], "disk")?;
    hosts.end(&[0])
}

/// Settings of a volume, one after the other.
const SETTINGS: [&[&str]; 5] = [
    &["--copies", "1"],
    &["--policy", "through", "--copies", "0"],
    &["--policy", "uncached", "--copies", "0"],
    &["--policy", "back", "--copies", "0", "--ack", "memory"],
    &["--policy", "back", "--copies", "1", "--ack", "flash"],
];

#[test]
fn settings_change_while_clients_here_and_elsewhere_go_on() -> Result<()> {
    let hosts = Hosts::new("mv-set", 2)?;
    let (mut near, mut far) = (Promises::new(2048), Promises::new(2048));
    for (volume, promises) in [("near", &mut near), ("far", &mut far)] {
        hosts.hosts[0].create(volume, "8M", &[])?;
        write_for(promises, &hosts.hosts[0], volume, Duration::from_millis(200))?;
    }
    let mut here = NbdClient::connect(&hosts.hosts[0].socket(), "near")?;
    let mut there = NbdClient::connect(&hosts.hosts[1].socket(), "far")?;
    let is_done = AtomicBool::new(false);
    let stalls = std::thread::scope(|scope| -> Result<[Duration; 2]> {
        let is_done = &is_done;
        let (near, far) = (&mut near, &mut far);
        let (here, there) = (&mut here, &mut there);
        let end = || is_done.load(Ordering::Relaxed);
        let near = scope.spawn(move || write_through(near, here, "mv-set-near", end));
        let far = scope.spawn(move || write_through(far, there, "mv-set-far", end));
        let set = || -> Result<()> {
            for settings in SETTINGS {
                for volume in ["near", "far"] {
                    std::thread::sleep(Duration::from_millis(300));
                    hosts.hosts[0].cli(&[&["volume", "set", volume], settings].concat())?;
                }
            }
            Ok(())
        };
        let done = set();
        is_done.store(true, Ordering::Relaxed);
        let stalls = [near, far].map(|client| client.join().expect("it does not panic"));
        done?;
        let [near, far] = stalls;
        Ok([near?, far?])
    })?;
    println!(
        "stalled for {} ms here, {} ms elsewhere",
        stalls[0].as_millis(),
        stalls[1].as_millis()
    );
    for volume in ["near", "far"] {
        let shown = hosts.hosts[0].cli(&["volume", "show", volume])?;
        ensure!(
            shown["copies"] == 1 && shown["policy"] == "back" && shown["ack"] == "flash",
            "{shown}"
        );
        ensure!(shown["clients"] == 1, "{shown}");
    }
    near.check(&mut here)?;
    far.check(&mut there)?;

    drop(here);
    drop(there);
    check_at(&mut near, &hosts.hosts[1], "near")?;
    check_at(&mut far, &hosts.hosts[0], "far")?;
    hosts.end(&[])
}

/// The settings of a volume, as `--policy`, `--ack` and `--copies` name them.
fn settings(daemon: &Daemon, volume: &str) -> Result<BTreeMap<String, String>> {
    let shown = daemon.cli(&["volume", "show", volume])?;
    let word = |name: &str| (format!("--{name}"), shown[name].to_string().replace('"', ""));
    Ok(["policy", "ack", "copies"].map(word).into())
}

/// Kills the daemon when it hands the volume over to itself with these settings. Returns whether it
/// met that moment.
fn kill_amid_set(daemon: &Daemon, volume: &str, settings: &[&str]) -> Result<bool> {
    let worker = daemon.worker()?;
    let met = std::thread::scope(|scope| -> Result<bool> {
        let words = [&["volume", "set", volume], settings].concat();
        let set = scope.spawn(move || daemon.cli(&words));
        let is_amid = || -> Result<bool> {
            Ok(daemon.cli(&["volume", "show", volume])?["state"] == "handing-over")
        };
        while !set.is_finished() {
            if is_amid()? {
                let worker = Pid::from_raw(worker.try_into()?).context("a process")?;
                kill_process(worker, Signal::KILL)?;
                let told = set.join().expect("it does not panic");
                ensure!(told.is_err(), "it was done when its daemon died: {told:?}");
                return Ok(true);
            }
        }
        set.join().expect("it does not panic").map(|_| false)
    })?;
    if met {
        daemon.wait_for_worker_after(worker)?;
    }
    Ok(met)
}

#[test]
fn a_daemon_that_is_killed_amid_other_settings_has_the_old_ones_or_the_new_ones() -> Result<()> {
    let mut hosts = Hosts::new("mv-set-killed", 1)?;
    // The moment lasts as long as its writes to the store.
    hosts.join(&["--store-fault", "latency=150ms"])?;
    hosts.wait_for_holder(1)?;
    let owner = &hosts.hosts[1];
    let mut promises = Promises::new(2048);
    owner.create("disk", "8M", &[])?;
    write_for(&mut promises, owner, "disk", Duration::from_millis(200))?;
    let mut client = NbdClient::connect(&hosts.hosts[0].socket(), "disk")?;
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let (promises, client) = (&mut promises, &mut client);
        let end = || is_done.load(Ordering::Relaxed);
        let writer = scope.spawn(move || write_through(promises, client, "mv-set-killed", end));
        let kill = || -> Result<()> {
            let mut met = 0;
            for change in SETTINGS {
                let old = settings(owner, "disk")?;
                let mut new = old.clone();
                new.extend(change.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())));
                let is_met = kill_amid_set(owner, "disk", change)?;
                let found = settings(owner, "disk")?;
                println!("{change:?}: amid it: {is_met}; then {found:?}");
                ensure!(found == new || is_met && found == old, "{found:?}: {old:?} {new:?}");
                met += u32::from(is_met);
            }
            ensure!(met > 0, "no kill met a change");
            Ok(())
        };
        let killed = kill();
        is_done.store(true, Ordering::Relaxed);
        let longest = writer.join().expect("it does not panic");
        killed?;
        println!("stalled for {} ms", longest?.as_millis());
        Ok(())
    })?;
    promises.check(&mut client)?;
    drop(client);
    check_at(&mut promises, owner, "disk")?;
    hosts.end(&[])
}
