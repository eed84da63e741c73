//! Two daemons on one store: neither's sweep takes anything from the other, and a sweep waits for a
//! node that died.
//!
//! A sweep leaves young packs alone where other nodes are, so the stories begin an hour ago, by the
//! daemons' clocks.

use crate::lives::{BLOCKS, Shared, check, content, fill};
use anyhow::{Context, Result, ensure};
use e2e::clock::an_hour_ago;
use e2e::shell::wait_until;
use e2e::{Daemon, Options};
use rekindle_nbd_client::NbdClient;
use serde_json::Value;

const HALF: u64 = BLOCKS / 2;

/// Starts two nodes an hour ago. Each has a volume with the round of writes of its number, and one
/// that will be removed, all drained.
fn two_nodes(name: &str, shared: &Shared, clock: &[(String, String)]) -> Result<[Daemon; 2]> {
    let node = |number: u64| -> Result<Daemon> {
        let options = Options { environment: clock.to_vec(), ..shared.options(None, &[]) };
        let mut daemon = Daemon::start_with(&format!("{name}-{number}"), options)?;
        for (volume, round) in
            [(format!("kept{number}"), number), (format!("gone{number}"), number + 4)]
        {
            daemon.create(&volume, "16M", &[])?;
            fill(&daemon, &volume, round, 0..HALF)?;
            daemon.drain(&volume)?;
        }
        daemon.stop()?;
        Ok(daemon)
    };
    Ok([node(1)?, node(2)?])
}

/// Sweeps, and returns the count named `what`.
fn swept(daemon: &Daemon, what: &str) -> Result<u64> {
    let done = daemon.cli(&["sweep", "run"])?;
    done["result"][what].as_u64().with_context(|| format!("{what} of {done}"))
}

fn all_is_sound(daemon: &Daemon) -> Result<()> {
    let verified = daemon.cli(&["verify"])?;
    ensure!(verified["result"]["damaged"] == 0, "{verified}");
    Ok(())
}

#[test]
fn sweeps_of_two_nodes_leave_each_other_what_they_have() -> Result<()> {
    let Some(clock) = an_hour_ago() else { return Ok(()) };
    let shared = Shared::new("two-sweeps")?;
    let [mut one, mut two] = two_nodes("two-sweeps", &shared, &clock)?;
    one.set_options(shared.options(None, &[]));
    // The second node is slow, so that a sweep of the other finds it in the middle of a batch.
    two.set_options(shared.options(None, &["--store-fault", "latency=1s"]));
    one.up()?;
    two.up()?;
    // These are the bytes of the volume that goes: a batch of this node may point where the other
    // is about to delete.
    let mut client = NbdClient::connect(&two.socket(), "kept2")?;
    for block in 0..HALF {
        client.write((HALF + block) * 4096, &content(5, block))?;
    }
    drop(client);
    one.remove_now("gone1")?;
    std::thread::scope(|scope| -> Result<()> {
        let draining = scope.spawn(|| two.drain("kept2"));
        let deleted = swept(&one, "packs_deleted")?;
        draining.join().expect("it does not panic")?;
        ensure!(deleted > 0, "the packs of the volume that went are there");
        Ok(())
    })?;
    two.stop()?;
    two.set_options(shared.options(None, &[]));
    two.up()?;
    two.remove_now("gone2")?;
    ensure!(swept(&two, "packs_deleted")? > 0);
    // After a restart the caches of the processes do not help.
    one.stop()?;
    two.stop()?;
    one.up()?;
    two.up()?;
    check(&one, "kept1", 1, 0..HALF)?;
    check(&two, "kept2", 2, 0..HALF)?;
    let mut client = NbdClient::connect(&two.socket(), "kept2")?;
    for block in 0..HALF {
        let found = client.read((HALF + block) * 4096, 4096)?;
        ensure!(found == content(5, block), "block {block} of the removed volume's bytes");
    }
    all_is_sound(&one)?;
    drop((one, two));
    shared.remove()
}

#[test]
fn a_sweep_waits_for_a_node_that_died_until_somebody_says_that_it_is_gone() -> Result<()> {
    let Some(clock) = an_hour_ago() else { return Ok(()) };
    let shared = Shared::new("two-dead")?;
    let [mut one, mut two] = two_nodes("two-dead", &shared, &clock)?;
    one.set_options(shared.options(None, &[]));
    two.set_options(shared.options(None, &[]));
    two.up()?;
    let node = two.status()?["node"].as_str().context("a node")?.to_owned();
    // The writes are acknowledged, and in the node's log only, when it dies.
    fill(&two, "kept2", 3, 0..HALF)?;
    two.kill_all()?;
    one.up()?;
    one.remove_now("gone1")?;
    let begun = one.cli(&["sweep", "run", "--detach"])?;
    let sweep = |daemon: &Daemon| daemon.cli(&["sweep", "status"]).unwrap_or_default();
    wait_until("the sweep to say for whom it waits", || {
        sweep(&one)["last"]["waits_for"].to_string().contains(&node)
    })?;
    ensure!(sweep(&one)["last"]["packs_deleted"] == 0, "{}", sweep(&one));
    let told = one.cli(&["sweep", "dismiss", &node])?;
    ensure!(told["node"] == node.as_str(), "{told}");
    let mut ended = Value::Null;
    wait_until("the sweep to go on", || {
        let jobs = one.cli(&["jobs", "ls"]).unwrap_or_default();
        let rows = jobs.as_array().cloned().unwrap_or_default();
        ended = rows.into_iter().find(|job| job["id"] == begun["id"]).unwrap_or_default();
        ended["state"] != "running"
    })?;
    ensure!(ended["state"] == "done", "{ended}");
    ensure!(ended["result"]["packs_deleted"].as_u64() > Some(0), "{ended}");
    // The second node was not gone after all: it comes back as another start of the node, and
    // misses nothing.
    two.up()?;
    check(&two, "kept2", 3, 0..HALF)?;
    two.drain("kept2")?;
    ensure!(two.status()?["health"]["state"] == "well", "{}", two.status()?);
    check(&two, "kept2", 3, 0..HALF)?;
    check(&one, "kept1", 1, 0..HALF)?;
    all_is_sound(&one)?;
    drop((one, two));
    shared.remove()
}
