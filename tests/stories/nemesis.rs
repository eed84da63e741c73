//! Troubles at random, one after the other, beside clients that check every promise.

use crate::cluster::{Hosts, NAMES, check_at, write_for};
use crate::lives::Shared;
use anyhow::{Context, Result, ensure};
use e2e::network::{Network, PROGRAMS};
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::skip_without;
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HOSTS: usize = 3;
const VOLUMES: [&str; 3] = ["a", "b", "c"];
/// Time for troubles.
const TIME: Duration = Duration::from_secs(25);
/// Pause of a client before it connects anew. Within it, what its last connection has sent is
/// carried out or gone: NBD does not say which client comes back.
const PAUSE: Duration = Duration::from_millis(1500);

const SETTINGS: [&[&str]; 3] = [
    &["--policy", "through", "--copies", "0"],
    &["--policy", "back", "--copies", "1", "--ack", "flash"],
    &["--policy", "back", "--copies", "1", "--ack", "memory"],
];

/// Writes until the end, at one host after the other; returns how often it was hung up on.
fn client(
    hosts: &Hosts,
    volume: &str,
    promises: &mut Promises,
    mut dice: Random,
    is_over: &AtomicBool,
) -> Result<u32> {
    let mut connections = 0;
    while !is_over.load(Ordering::Relaxed) {
        let host = &hosts.hosts[dice.below(HOSTS as u64) as usize];
        if let Ok(mut client) = NbdClient::connect(&host.socket(), volume) {
            connections += 1;
            let until = Instant::now() + Duration::from_millis(2000 + dice.below(8000));
            promises.write_until(&mut client, 8, &mut dice, |_| {
                is_over.load(Ordering::Relaxed) || Instant::now() > until
            })?;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(connections)
}

/// Makes one trouble, and ends it. Commands may be refused amid others.
fn trouble(hosts: &Hosts, network: &Network, dice: &mut Random) -> Result<String> {
    let host = dice.below(HOSTS as u64) as usize;
    let time = Duration::from_millis(200 + dice.below(2500));
    let (daemon, name) = (&hosts.hosts[host], NAMES[host]);
    let volume = VOLUMES[dice.below(VOLUMES.len() as u64) as usize];
    let asked = |words: &[&str]| {
        let done = hosts.hosts.iter().any(|daemon| daemon.cli(words).is_ok());
        format!("{}: {}", words.join(" "), if done { "done" } else { "refused" })
    };
    Ok(match dice.below(7) {
        0 => {
            daemon.kill_worker()?;
            format!("{name}'s worker is killed")
        }
        1 => {
            let worker = Pid::from_raw(i32::try_from(daemon.worker()?)?).context("a pid")?;
            kill_process(worker, Signal::STOP)?;
            std::thread::sleep(time);
            kill_process(worker, Signal::CONT)?;
            format!("{name} stands still for {} ms", time.as_millis())
        }
        2 => {
            network.unplug(host)?;
            std::thread::sleep(time);
            network.heal()?;
            format!("{name} is unplugged for {} ms", time.as_millis())
        }
        3 => {
            let other = (host + 1 + dice.below(2) as usize) % HOSTS;
            network.cut(host, other)?;
            std::thread::sleep(time);
            network.heal()?;
            format!("{} does not hear {name} for {} ms", NAMES[other], time.as_millis())
        }
        4 | 5 => asked(&["volume", "move", volume, name]),
        _ => {
            let settings = SETTINGS[dice.below(SETTINGS.len() as u64) as usize];
            asked(&[&["volume", "set", volume], settings].concat())
        }
    })
}

#[test]
fn no_promise_is_broken_by_troubles_one_after_the_other() -> Result<()> {
    if skip_without(PROGRAMS, true) {
        return Ok(());
    }
    let shared = Shared::with_settings("nemesis", "follow_clients = '3s'")?;
    let hosts = Hosts::over(shared, "nemesis", HOSTS, Some(Network::new(HOSTS)?))?;
    let network = hosts.network.as_ref().context("a network")?;
    let mut promises = VOLUMES.map(|_| Promises::new(1024));
    for (number, (volume, promises)) in VOLUMES.iter().zip(&mut promises).enumerate() {
        hosts.hosts[number % HOSTS].create(volume, "4M", &["--copies", "1"])?;
        write_for(promises, &hosts.hosts[number % HOSTS], volume, Duration::from_millis(200))?;
    }
    let mut dice = for_story("nemesis");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let (is_over, hosts) = (&is_over, &hosts);
        let clients: Vec<_> = VOLUMES
            .iter()
            .zip(&mut promises)
            .map(|(volume, promises)| {
                let dice = dice.fork();
                scope.spawn(move || client(hosts, volume, promises, dice, is_over))
            })
            .collect();
        let (begun, mut outcome) = (Instant::now(), Ok(()));
        while begun.elapsed() < TIME {
            std::thread::sleep(Duration::from_millis(dice.below(1500)));
            let at = begun.elapsed().as_millis();
            match trouble(hosts, network, &mut dice) {
                Ok(what) => println!("at {at} ms: {what}"),
                // A worker that is being started has no pid yet.
                Err(error) => println!("at {at} ms: {error:#}"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            let ended = client.join().expect("it does not panic");
            outcome = outcome.and(ended.map(|connections| println!("{connections} connections")));
        }
        outcome
    })?;
    for (volume, promises) in VOLUMES.iter().zip(&mut promises) {
        let kept = promises.acknowledged();
        println!("{volume}: {kept} writes");
        ensure!(kept > 500, "{volume}: {kept}");
        for host in &hosts.hosts {
            check_at(promises, host, volume)?;
        }
    }
    hosts.end(&[])
}
