//! Buckets: at another S3 server, and at the far end of a narrow way.

use anyhow::{Result, ensure};
use e2e::Daemon;
use e2e::daemon::stored_bytes;
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::s3::{Kind, S3Server, options_at};
use e2e::shell::skip;
use e2e::uplink::{Uplink, Way};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use std::time::{Duration, Instant};

#[test]
#[ignore = "Ceph's OSD hangs at some of its starts: cargo x tools --ceph, then with --ignored"]
fn no_promise_is_broken_on_ceph() -> Result<()> {
    if skip(&Kind::Ceph.missing()) {
        return Ok(());
    }
    let server = S3Server::start(Kind::Ceph, "ceph")?;
    let mut daemon = Daemon::start_with("ceph", server.options("story"))?;
    daemon.create("disk", "64M", &[])?;
    let (mut random, mut promises) = (for_story("ceph"), Promises::new(4096));
    for _ in 0..3 {
        let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
        let end = promises.acknowledged() + 300;
        let mut killed = None;
        promises.write_until(&mut client, 8, &mut random, |sent| {
            if sent > end && killed.is_none() {
                killed = daemon.worker().ok().filter(|_| daemon.kill_worker().is_ok());
            }
            false
        })?;
        daemon.wait_for_worker_after(killed.expect("it was killed"))?;
        promises.check(&mut NbdClient::connect(&daemon.socket(), "disk")?)?;
        daemon.drain("disk")?;
    }
    // After a drain and a restart only the store has the blocks.
    daemon.stop()?;
    daemon.up()?;
    promises.check(&mut NbdClient::connect(&daemon.socket(), "disk")?)?;
    daemon.stop()
}

#[test]
fn a_far_and_narrow_store_that_fails_at_times_gets_each_byte_once() -> Result<()> {
    const BYTES: usize = 10 << 20;
    if skip(&Kind::Versitygw.missing()) {
        return Ok(());
    }
    let server = S3Server::start(Kind::Versitygw, "uplink")?;
    let way = Way {
        rate: 800_000,
        latency: Duration::from_millis(300),
        refuses_one_of: 50,
        breaks_after: usize::MAX,
    };
    let uplink = Uplink::open(&server.address(), way)?;
    let mut daemon = Daemon::start_with("uplink", options_at(uplink.address(), "far"))?;
    daemon.create("disk", "64M", &[])?;
    let before = uplink.sent();
    let data = Random::new(7).bytes(BYTES);
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    for (index, piece) in data.chunks(64 << 10).enumerate() {
        client.write((index * (64 << 10)) as u64, piece)?;
    }
    client.flush()?;
    let begin = Instant::now();
    daemon.drain("disk")?;
    let (took, sent) = (begin.elapsed(), uplink.sent());
    let (stored, bytes) = (stored_bytes(&server.bucket().join("far")), sent.bytes - before.bytes);
    println!("{stored} bytes stored, {bytes} sent, {took:.1?}: {sent:?}");
    ensure!(daemon.backlog_bytes("disk")? == 0 && stored > BYTES as u64, "it is not drained");
    ensure!(sent.refused > 0, "no request was refused");
    ensure!(bytes <= stored + stored / 10, "{bytes} bytes sent for {stored} stored");
    ensure!(sent.packs.values().all(|(_, whole)| *whole == 1), "a pack was sent twice: {sent:?}");
    comes_back(&mut daemon, &data)
}

/// Starts the daemon again: the drained disk has these bytes.
fn comes_back(daemon: &mut Daemon, data: &[u8]) -> Result<()> {
    daemon.stop()?;
    daemon.up()?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    for (index, piece) in data.chunks(1 << 20).enumerate() {
        ensure!(client.read((index << 20) as u64, piece.len())? == piece, "MiB {index} differs");
    }
    daemon.stop()
}

/// A pack has up to 16 MiB, and no request with more than 6 MiB ever gets through.
#[test]
fn packs_go_up_in_parts_where_connections_break_before_a_pack_is_through() -> Result<()> {
    const BYTES: usize = 40 << 20;
    const BREAK: usize = 6 << 20;
    if skip(&Kind::Versitygw.missing()) {
        return Ok(());
    }
    let server = S3Server::start(Kind::Versitygw, "parts")?;
    let latency = Duration::from_millis(5);
    let way = Way { rate: 40_000_000, latency, refuses_one_of: 0, breaks_after: BREAK };
    let uplink = Uplink::open(&server.address(), way)?;
    let mut daemon = Daemon::start_with("parts", options_at(uplink.address(), "broken"))?;
    daemon.create("disk", "128M", &[])?;
    let data = Random::new(8).bytes(2 * BYTES);
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    let mut lost = Vec::new();
    for (number, half) in data.chunks(BYTES).enumerate() {
        let (before, had) = (uplink.sent(), stored_bytes(&server.bucket().join("broken")));
        for (index, piece) in half.chunks(1 << 20).enumerate() {
            client.write((number * BYTES + (index << 20)) as u64, piece)?;
        }
        client.flush()?;
        daemon.drain("disk")?;
        let stored = stored_bytes(&server.bucket().join("broken")) - had;
        let sent = uplink.sent().bytes - before.bytes;
        ensure!(stored >= BYTES as u64, "{stored} bytes are no content of {BYTES}");
        lost.push(sent.saturating_sub(stored));
    }
    println!("{lost:?} bytes sent in vain");
    let packs = uplink.sent().packs;
    ensure!(packs.keys().any(|key| key.contains("partNumber=2")), "no second part: {packs:?}");
    ensure!(packs.values().all(|(_, whole)| *whole <= 1), "a part was sent twice: {packs:?}");
    ensure!(lost[0] >= BREAK as u64, "no upload broke off, so nothing was shown");
    ensure!(lost[1] <= BYTES as u64 / 10, "it breaks off again and again");
    comes_back(&mut daemon, &data)
}
