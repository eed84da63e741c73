//! Networks that break between the hosts of a cluster, each of which has a network namespace of its
//! own. The store can be reached all the time: with it, one side goes on.

use crate::cluster::{Hosts, NAMES, check_at, write_for};
use crate::forwarding::write_through;
use crate::lives::Shared;
use anyhow::{Context, Result, ensure};
use e2e::network::{Network, PROGRAMS};
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::skip_without;
use rekindle_nbd_client::NbdClient;
use std::time::{Duration, Instant};

const BLOCKS: u64 = 2048;
/// Time for which the network is broken.
const BROKEN: Duration = Duration::from_secs(6);
/// Time for the clients before and after that.
const WHOLE: Duration = Duration::from_secs(2);
/// Longest stall of a client elsewhere: the break, a takeover, and a new connection.
const STALL_MAX: Duration = Duration::from_secs(30);

/// The places of three hosts: the owner of two volumes, the holder of its copies, and the other.
struct Places {
    owner: usize,
    holder: usize,
    other: usize,
}

/// Breaks a network amid the writes of two clients: `near` is at the owner's host, `far` at a host
/// that neither owns the volumes nor has copies. One node owns the volumes at any time: what either
/// client was told is kept, is there afterwards, and `far` keeps its connection.
fn break_amid_writes(name: &str, broken: impl Fn(&Network, &Places) -> Result<()>) -> Result<()> {
    if skip_without(PROGRAMS, true) {
        return Ok(());
    }
    let hosts = Hosts::over(Shared::new(name)?, name, 3, Some(Network::new(3)?))?;
    let network = hosts.network.as_ref().context("a network")?;
    let (mut near, mut far) = (Promises::new(BLOCKS), Promises::new(BLOCKS));
    for (volume, promises) in [("near", &mut near), ("far", &mut far)] {
        hosts.hosts[0].create(volume, "8M", &["--copies", "1"])?;
        write_for(promises, &hosts.hosts[0], volume, Duration::from_millis(200))?;
    }
    let holder = hosts.wait_for_holder(0)?;
    let holder = NAMES.iter().position(|name| *name == holder).context("a host")?;
    let places = Places { owner: 0, holder, other: 3 - holder };
    let mut client = NbdClient::connect(&hosts.hosts[places.other].socket(), "far")?;
    let before = (near.acknowledged(), far.acknowledged());
    let begun = Instant::now();
    let stalled = std::thread::scope(|scope| -> Result<Duration> {
        let (near, far, client) = (&mut near, &mut far, &mut client);
        let is_over = move || begun.elapsed() > WHOLE + BROKEN + WHOLE;
        let owner = hosts.hosts[places.owner].socket();
        let near = scope.spawn(move || -> Result<()> {
            let mut client = NbdClient::connect(&owner, "near")?;
            near.write_until(&mut client, 16, &mut for_story("near"), |_| is_over())
        });
        let far = scope.spawn(move || write_through(far, client, "far", is_over));
        std::thread::sleep(WHOLE);
        broken(network, &places)?;
        std::thread::sleep(BROKEN);
        network.heal()?;
        near.join().expect("it does not panic")?;
        far.join().expect("it does not panic")
    })?;
    let after = (near.acknowledged(), far.acknowledged());
    println!(
        "near: {} writes, far: {}, stalled for {} ms",
        after.0 - before.0,
        after.1 - before.1,
        stalled.as_millis()
    );
    ensure!(stalled < STALL_MAX, "{stalled:?}");
    far.check(&mut client)?;
    drop(client);
    for (volume, promises) in [("near", &mut near), ("far", &mut far)] {
        check_at(promises, &hosts.hosts[places.other], volume)?;
        write_for(promises, &hosts.hosts[places.other], volume, Duration::from_millis(200))?;
        check_at(promises, &hosts.hosts[places.holder], volume)?;
    }
    hosts.end(&[])
}

#[test]
fn an_owner_that_is_cut_off_from_all_others_and_its_taker_are_never_both_owners() -> Result<()> {
    break_amid_writes("pt-owner", |network, places| network.unplug(places.owner))
}

#[test]
fn an_owner_that_hears_others_and_is_not_heard_is_no_second_owner() -> Result<()> {
    break_amid_writes("pt-deaf", |network, places| {
        network.cut(places.owner, places.holder)?;
        network.cut(places.owner, places.other)
    })
}

#[test]
fn an_owner_that_is_heard_and_hears_nothing_is_no_second_owner() -> Result<()> {
    break_amid_writes("pt-mute", |network, places| {
        network.cut(places.holder, places.owner)?;
        network.cut(places.other, places.owner)
    })
}

#[test]
fn an_owner_and_a_holder_that_do_not_hear_each_other_are_never_both_owners() -> Result<()> {
    break_amid_writes("pt-between", |network, places| {
        network.cut(places.owner, places.holder)?;
        network.cut(places.holder, places.owner)
    })
}

#[test]
fn a_holder_that_is_cut_off_from_all_others_is_replaced_and_takes_nothing_over() -> Result<()> {
    break_amid_writes("pt-holder", |network, places| network.unplug(places.holder))
}
