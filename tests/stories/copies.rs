//! Copies of the log on another node: what was acknowledged with them outlives the host.

use crate::lives::{Shared, check, fill};
use anyhow::{Context, Result, ensure};
use e2e::daemon::scratch;
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::shell::wait_until;
use e2e::{Daemon, Options};
use rekindle_nbd_client::NbdClient;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Two nodes on one store: the second holds copies of the first one's log.
struct Hosts {
    shared: Shared,
    owner: Daemon,
    holder: Daemon,
    name: String,
}

impl Hosts {
    fn new(name: &str) -> Result<Self> {
        let shared = Shared::new(name)?;
        let place = scratch(&format!("{name}-place"))?.join("copies.sock");
        let place = format!("unix:{}", place.display());
        let holds = shared.options(None, &["--hold", &place]);
        let holder = Daemon::start_with(&format!("{name}-holder"), holds)?;
        let copies = shared.options(None, &["--copy-to", &place]);
        let owner = Daemon::start_with(&format!("{name}-owner"), copies)?;
        Ok(Self { shared, owner, holder, name: name.to_owned() })
    }

    /// Loses the owner's host for good: its processes, its memory, its disk.
    fn lose_owner(&mut self) -> Result<String> {
        let node = self.owner.cli(&["status"])?["node"].as_str().context("an id")?.to_owned();
        self.owner.kill_all()?;
        std::fs::remove_dir_all(&self.owner.dir)?;
        let _ = std::fs::remove_file(self.owner.warm());
        Ok(node)
    }

    /// Starts a daemon from the copies of this node's log.
    fn start_from_copies(&self, node: &str) -> Result<Daemon> {
        let folder = self.holder.dir.join("copies").join(node);
        let early = self.start_at(&folder).err().context("its holder still takes copies")?;
        ensure!(format!("{early:#}").contains("copies release"), "{early:#}");
        let released = self.holder.cli(&["copies", "release", node])?;
        ensure!(released["released"] == true, "{released}");
        ensure!(released["folder"] == folder.display().to_string(), "{released}");
        self.start_at(&folder)
    }

    fn start_at(&self, folder: &Path) -> Result<Daemon> {
        let options = self.shared.options(Some(folder), &["--take-identity"]);
        Daemon::start_with(&format!("{}-again", self.name), options)
    }

    fn end(self, mut again: Daemon) -> Result<()> {
        let Self { shared, mut holder, mut owner, .. } = self;
        again.stop()?;
        holder.stop()?;
        owner.kill_all()?;
        shared.remove()
    }
}

/// Writes for a while at this depth, or until the connection breaks.
fn write_for(promises: &mut Promises, daemon: &Daemon, volume: &str, time: Duration) -> Result<()> {
    let mut client = NbdClient::connect(&daemon.socket(), volume)?;
    let end = Instant::now() + time;
    promises.write_until(&mut client, 16, &mut for_story(volume), |_| Instant::now() > end)
}

#[test]
fn a_host_that_is_lost_for_good_comes_back_from_its_copies() -> Result<()> {
    let mut hosts = Hosts::new("copies-lost")?;
    let mut promises = Promises::new(2048);
    hosts.owner.create("copied", "8M", &["--copies", "1"])?;
    hosts.owner.create("alone", "8M", &[])?;
    hosts.owner.create("stored", "8M", &["--policy", "through"])?;
    fill(&hosts.owner, "stored", 1, 0..64)?;
    write_for(&mut promises, &hosts.owner, "alone", Duration::from_millis(200))?;
    let mut promises = Promises::new(2048);
    // The holder dies twice amid the writes: they wait for it, and go on.
    for _ in 0..2 {
        let (before, worker) = (promises.acknowledged(), hosts.holder.worker()?);
        std::thread::scope(|scope| -> Result<()> {
            let killer = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(700));
                hosts.holder.kill_worker()
            });
            write_for(&mut promises, &hosts.owner, "copied", Duration::from_secs(3))?;
            killer.join().expect("it does not panic")
        })?;
        hosts.holder.wait_for_worker_after(worker)?;
        ensure!(promises.acknowledged() > before, "nothing was acknowledged");
    }
    // The owner dies amid its writes, and with it everything it had.
    let node = std::thread::scope(|scope| -> Result<String> {
        let socket = hosts.owner.socket();
        let promises = &mut promises;
        let writer = scope.spawn(move || -> Result<()> {
            let mut client = NbdClient::connect(&socket, "copied")?;
            promises.write_until(&mut client, 16, &mut for_story("lost"), |_| false)
        });
        std::thread::sleep(Duration::from_millis(700));
        let node = hosts.lose_owner()?;
        writer.join().expect("it does not panic")?;
        Ok(node)
    })?;
    let mut again = hosts.start_from_copies(&node)?;
    let kept = promises.acknowledged();
    let mut client = NbdClient::connect(&again.socket(), "copied")?;
    promises.check(&mut client)?;
    drop(client);
    println!("{kept} acknowledged writes, none lost");
    ensure!(kept > 100, "{kept}");
    check(&again, "stored", 1, 0..64)?;
    // What asked for no copies may have been on the lost host alone: it is not served as if whole.
    let refused = NbdClient::connect(&again.socket(), "alone").err().context("it is served")?;
    ensure!(format!("{refused:#}").contains("lost machine"), "{refused:#}");
    // The volume goes on. Nothing here keeps a copy, so the store acknowledges.
    write_for(&mut promises, &again, "copied", Duration::from_secs(1))?;
    let shown = again.cli(&["volume", "show", "copied"])?;
    ensure!(shown["downgrade"].to_string().contains("policy through"), "{shown}");
    again.kill_all()?;
    again.set_options(hosts.shared.options(Some(&again.dir.clone()), &[]));
    again.up()?;
    let mut client = NbdClient::connect(&again.socket(), "copied")?;
    promises.check(&mut client)?;
    drop(client);
    hosts.end(again)
}

#[test]
fn a_lost_host_goes_on_in_its_holder_and_in_that_ones_next_lives() -> Result<()> {
    let mut hosts = Hosts::new("taken")?;
    let mut promises = Promises::new(2048);
    hosts.owner.create("copied", "8M", &["--copies", "1"])?;
    hosts.owner.create("alone", "8M", &[])?;
    hosts.holder.create("own", "8M", &[])?;
    fill(&hosts.holder, "own", 1, 0..64)?;
    fill(&hosts.owner, "alone", 2, 0..64)?;
    write_for(&mut promises, &hosts.owner, "copied", Duration::from_secs(1))?;
    let refused = NbdClient::connect(&hosts.holder.socket(), "copied").err();
    ensure!(refused.is_some(), "the owner still has it");
    let node = hosts.lose_owner()?;
    let guest = hosts.holder.cli(&["copies", "takeover", &node])?;
    ensure!(guest["state"] == "serving" && guest["node"] == node.as_str(), "{guest}");
    let again = hosts.holder.cli(&["copies", "takeover", &node])?;
    ensure!(again["incarnation"] == guest["incarnation"], "{again}: asked twice is asked once");
    let refused = NbdClient::connect(&hosts.holder.socket(), "alone").err().context("served")?;
    ensure!(format!("{refused:#}").contains("lost machine"), "{refused:#}");
    // Clients go on at the holder. Its worker dies amid the writes, and the guest with it.
    let worker = hosts.holder.worker()?;
    std::thread::scope(|scope| -> Result<()> {
        let holder = &hosts.holder;
        let killer = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            holder.kill_worker()
        });
        write_for(&mut promises, &hosts.holder, "copied", Duration::from_secs(2))?;
        killer.join().expect("it does not panic")
    })?;
    hosts.holder.wait_for_worker_after(worker)?;
    write_for(&mut promises, &hosts.holder, "copied", Duration::from_millis(500))?;
    let shown = hosts.holder.cli(&["volume", "show", "copied"])?;
    ensure!(shown["owner"] == node.as_str() && shown["state"] == "attached", "{shown}");
    hosts.holder.drain("copied")?;
    // A stop in order, and a kill of all of it.
    hosts.holder.stop()?;
    hosts.holder.up()?;
    write_for(&mut promises, &hosts.holder, "copied", Duration::from_millis(500))?;
    hosts.holder.kill_all()?;
    hosts.holder.up()?;
    let mut client = NbdClient::connect(&hosts.holder.socket(), "copied")?;
    promises.check(&mut client)?;
    drop(client);
    check(&hosts.holder, "own", 1, 0..64)?;
    let copies = hosts.holder.cli(&["copies", "ls"])?;
    ensure!(copies["guests"][0]["state"] == "serving", "{copies}");
    let Hosts { shared, mut owner, mut holder, .. } = hosts;
    check(&holder, "own", 1, 0..64)?;
    holder.stop()?;
    owner.kill_all()?;
    shared.remove()
}

#[test]
fn an_owner_that_still_runs_is_deposed_by_the_holder_that_takes_it_over() -> Result<()> {
    let hosts = Hosts::new("taken-alive")?;
    let mut promises = Promises::new(2048);
    hosts.owner.create("copied", "8M", &["--copies", "1"])?;
    write_for(&mut promises, &hosts.owner, "copied", Duration::from_secs(1))?;
    let node = hosts.owner.cli(&["status"])?["node"].as_str().context("an id")?.to_owned();
    // A client of the original writes on; what is acknowledged to it counts.
    let socket = hosts.owner.socket();
    std::thread::scope(|scope| -> Result<()> {
        let promises = &mut promises;
        let writer = scope.spawn(move || -> Result<()> {
            let mut client = NbdClient::connect(&socket, "copied")?;
            promises.write_until(&mut client, 16, &mut for_story("late"), |_| false)
        });
        std::thread::sleep(Duration::from_millis(300));
        hosts.holder.cli(&["copies", "takeover", &node])?;
        writer.join().expect("it does not panic")
    })?;
    wait_until("the original to know", || {
        hosts.owner.status().is_ok_and(|status| status["state"] == "fenced")
    })?;
    let mut client = NbdClient::connect(&hosts.holder.socket(), "copied")?;
    promises.check(&mut client)?;
    drop(client);
    // Another daemon goes on as that node in its turn: the guest ends, its host serves on.
    let Hosts { shared, mut owner, mut holder, .. } = hosts;
    owner.kill_all()?;
    let back = shared.options(Some(&owner.dir.clone()), &["--take-identity"]);
    owner.set_options(back);
    owner.up()?;
    holder.create("own", "8M", &[])?;
    wait_until("the guest to be replaced", || {
        holder.cli(&["copies", "ls"]).is_ok_and(|copies| copies["guests"][0]["state"] == "replaced")
    })?;
    fill(&holder, "own", 1, 0..64)?;
    ensure!(NbdClient::connect(&holder.socket(), "copied").is_err(), "it is served in two places");
    let mut client = NbdClient::connect(&owner.socket(), "copied")?;
    promises.check(&mut client)?;
    drop(client);
    owner.stop()?;
    holder.stop()?;
    shared.remove()
}

#[test]
fn an_owner_whose_copies_were_released_loses_nothing_and_is_deposed() -> Result<()> {
    let hosts = Hosts::new("copies-rel")?;
    hosts.owner.create("copied", "8M", &["--copies", "1"])?;
    let mut promises = Promises::new(2048);
    write_for(&mut promises, &hosts.owner, "copied", Duration::from_secs(1))?;
    let node = hosts.owner.cli(&["status"])?["node"].as_str().context("an id")?.to_owned();
    let held = hosts.holder.cli(&["copies", "ls"])?;
    ensure!(held["held"][0]["node"] == node.as_str(), "{held}");
    ensure!(held["held"][0]["bytes"].as_u64() > Some(0), "{held}");
    let again = hosts.start_from_copies(&node)?;
    // The original still runs. No copy is made any more: what it acknowledges is in the store.
    if let Ok(mut client) = NbdClient::connect(&hosts.owner.socket(), "copied") {
        promises.write_until(&mut client, 1, &mut for_story("late"), |_| false)?;
    }
    wait_until("the original to know", || {
        hosts.owner.status().is_ok_and(|status| status["state"] == "fenced")
    })?;
    let mut client = NbdClient::connect(&again.socket(), "copied")?;
    promises.check(&mut client)?;
    drop(client);
    again.drain("copied")?;
    hosts.end(again)
}

#[test]
fn a_holder_that_is_away_is_told_and_costs_volumes_without_copies_nothing() -> Result<()> {
    let mut hosts = Hosts::new("copies-away")?;
    hosts.owner.create("copied", "8M", &["--copies", "1"])?;
    hosts.owner.create("alone", "8M", &[])?;
    fill(&hosts.owner, "copied", 1, 0..64)?;
    hosts.holder.stop()?;
    fill(&hosts.owner, "alone", 2, 0..64)?;
    // The store is waited for instead.
    fill(&hosts.owner, "copied", 3, 0..64)?;
    let status = hosts.owner.status()?["health"].to_string();
    ensure!(status.contains("volumes that ask for copies wait for the store"), "{status}");
    let copies = hosts.owner.cli(&["copies", "ls"])?;
    ensure!(copies["replicas"][0]["behind"] == true, "{copies}");
    hosts.holder.up()?;
    wait_until("health to be well again", || {
        hosts.owner.status().is_ok_and(|status| status["health"]["state"] == "well")
    })?;
    check(&hosts.owner, "copied", 3, 0..64)?;
    check(&hosts.owner, "alone", 2, 0..64)?;
    let Hosts { shared, mut owner, mut holder, .. } = hosts;
    owner.stop()?;
    holder.stop()?;
    shared.remove()
}

#[test]
fn copies_that_have_never_become_whole_are_not_taken_for_the_newest() -> Result<()> {
    let mut hosts = Hosts::new("copies-part")?;
    hosts.owner.create("copied", "8M", &["--copies", "1"])?;
    let mut promises = Promises::new(2048);
    write_for(&mut promises, &hosts.owner, "copied", Duration::from_secs(1))?;
    hosts.owner.kill_all()?;
    // The next start sends its log elsewhere, where there is no room for it.
    let place = scratch("copies-part-full")?.join("copies.sock");
    let place = format!("unix:{}", place.display());
    let holds = hosts.shared.options(None, &["--hold", &place, "--hold-budget", "1M"]);
    let mut full = Daemon::start_with("copies-part-full-holder", holds)?;
    hosts.owner.set_options(hosts.shared.options(None, &["--copy-to", &place]));
    hosts.owner.up()?;
    wait_until("the holder to refuse", || {
        let copies = hosts.owner.cli(&["copies", "ls"]);
        copies.is_ok_and(|copies| copies.to_string().contains("--hold-budget"))
    })?;
    let node = hosts.lose_owner()?;
    full.cli(&["copies", "release", &node])?;
    let refused = hosts.start_at(&full.dir.join("copies").join(&node)).err();
    let refused =
        format!("{:#}", refused.context("what these copies lack is not known to be gone")?);
    ensure!(
        refused.contains("no copy of the log") && refused.contains("--older-copies"),
        "{refused}"
    );
    let folder = hosts.holder.dir.join("copies").join(&node);
    hosts.holder.cli(&["copies", "release", &node])?;
    // On another machine, they may lie in a folder of any name.
    let moved = scratch("copies-part-moved")?.join("moved");
    std::fs::rename(&folder, &moved)?;
    let options = hosts.shared.options(Some(&moved), &["--take-identity", "--older-copies"]);
    let again = Daemon::start_with("copies-part-again", options)?;
    let mut client = NbdClient::connect(&again.socket(), "copied")?;
    promises.check(&mut client)?;
    drop(client);
    full.stop()?;
    hosts.end(again)
}

#[test]
fn copies_beyond_this_machine_are_meant_or_refused() -> Result<()> {
    for (option, place) in [("--copy-to", "192.0.2.1:7733"), ("--hold", "0.0.0.0:7733")] {
        let options =
            Options { arguments: vec![option.to_owned(), place.to_owned()], ..Options::default() };
        let refused = Daemon::start_with("copies-far", options).err().context("it is not meant")?;
        ensure!(format!("{refused:#}").contains("--insecure"), "{refused:#}");
    }
    let _: PathBuf = scratch("copies-far")?;
    Ok(())
}
