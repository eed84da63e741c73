//! A cluster: nodes find one another, keep copies of one another's logs, and take lost ones over.

use crate::lives::{Shared, check, fill};
use anyhow::{Context, Result, ensure};
use e2e::daemon::binary;
use e2e::network::Network;
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::shell::wait_until;
use e2e::{Daemon, Options, Shell};
use rekindle_nbd_client::NbdClient;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// An address of this machine for each host: the whole network 127 is its own.
fn address() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{}.{}:7733", high | 1, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Hosts over one store. Each has a name of its own in the cluster: one, two, three.
pub struct Hosts {
    shared: Shared,
    /// The network between them; `None`: loopback addresses of this machine.
    pub network: Option<Network>,
    /// Words in front of each host's binary, where there is no network.
    prefix: Vec<String>,
    pub hosts: Vec<Daemon>,
    token: String,
    name: String,
}

pub const NAMES: [&str; 4] = ["one", "two", "three", "four"];

impl Hosts {
    /// Starts so many, and waits until each has a holder of its copies, if there are others.
    pub fn new(name: &str, count: usize) -> Result<Self> {
        Self::over(Shared::new(name)?, name, count, None)
    }

    /// The same, over this store and on this network.
    pub fn over(
        shared: Shared,
        name: &str,
        count: usize,
        network: Option<Network>,
    ) -> Result<Self> {
        Self { network, ..Self::none(shared, name) }.begin(count)
    }

    /// The first one, over this store, which runs behind these words as all that join it do.
    pub fn inside(shared: Shared, name: &str, prefix: Vec<String>) -> Result<Self> {
        Self { prefix, ..Self::none(shared, name) }.begin(1)
    }

    fn none(shared: Shared, name: &str) -> Self {
        let (hosts, token, name) = (Vec::new(), String::new(), name.to_owned());
        Self { shared, network: None, prefix: Vec::new(), hosts, token, name }
    }

    fn begin(mut self, count: usize) -> Result<Self> {
        let options = self.options(0, &[], None);
        let first = Daemon::start_with(&format!("{}-one", self.name), options)?;
        let made = first.cli(&["cluster", "init"])?;
        ensure!(made["member"] == true && made["name"] == "one", "{made}");
        self.token =
            first.cli(&["cluster", "token"])?["token"].as_str().context("a token")?.to_owned();
        self.hosts.push(first);
        for _ in 1..count {
            self.join(&[])?;
        }
        for host in (0..count).filter(|_| count > 1) {
            self.wait_for_holder(host)?;
        }
        Ok(self)
    }

    fn options(&self, number: usize, more: &[&str], dir: Option<&Path>) -> Options {
        let network = self.network.as_ref();
        let place = network.map_or_else(address, |net| format!("{}:7733", net.address(number)));
        let prefix = network.map_or_else(|| self.prefix.clone(), |network| network.prefix(number));
        let own = ["--advertise", &place, "--node-name", NAMES[number]];
        Options { prefix, ..self.shared.options(dir, &[&own[..], more].concat()) }
    }

    /// Has another host join.
    pub fn join(&mut self, more: &[&str]) -> Result<()> {
        self.join_in(None, more)
    }

    /// The same; its folder is `dir`.
    pub fn join_in(&mut self, dir: Option<&Path>, more: &[&str]) -> Result<()> {
        let number = self.hosts.len();
        let more = [&["--join", &self.token], more].concat();
        let options = self.options(number, &more, dir);
        self.hosts.push(Daemon::start_with(&format!("{}-{}", self.name, NAMES[number]), options)?);
        Ok(())
    }

    pub fn cluster(&self, host: usize) -> Result<Value> {
        self.hosts[host].cli(&["cluster", "ls"])
    }

    /// Waits until a host's own node has a holder that could take it over; returns its name.
    pub fn wait_for_holder(&self, host: usize) -> Result<String> {
        let mut found = None;
        wait_until("a holder that is ready", || {
            let Ok(cluster) = self.cluster(host) else { return false };
            let holders = cluster["holders"].as_array().cloned().unwrap_or_default();
            let ready = holders.iter().find(|holder| holder["ready"] == true);
            found = ready.and_then(|holder| holder["name"].as_str().map(str::to_owned));
            found.is_some()
        })?;
        found.context("a name")
    }

    pub fn node(&self, host: usize) -> Result<String> {
        Ok(self.hosts[host].cli(&["status"])?["node"].as_str().context("an id")?.to_owned())
    }

    /// Loses a host for good: its processes, its memory, its disk.
    pub fn lose(&mut self, host: usize) -> Result<()> {
        let lost = &mut self.hosts[host];
        lost.kill_all()?;
        std::fs::remove_dir_all(&lost.dir)?;
        lost.remove_warm();
        Ok(())
    }

    /// Waits until a host serves a node as a guest.
    pub fn wait_for_guest(&self, host: usize, node: &str) -> Result<()> {
        wait_until("the node to go on", || {
            self.cluster(host).is_ok_and(|cluster| is_guest(&cluster, node))
        })
    }

    pub fn end(mut self, without: &[usize]) -> Result<()> {
        for (number, host) in self.hosts.iter_mut().enumerate() {
            match without.contains(&number) {
                true => host.kill_all()?,
                false => host.stop()?,
            }
        }
        self.shared.remove()
    }
}

pub fn is_guest(cluster: &Value, node: &str) -> bool {
    let guests = cluster["guests"].as_array().cloned().unwrap_or_default();
    guests.iter().any(|guest| guest["node"] == node && guest["state"] == "serving")
}

/// The row of a node in a list of the cluster.
fn row(cluster: &Value, name: &str) -> Value {
    let nodes = cluster["nodes"].as_array().cloned().unwrap_or_default();
    nodes.into_iter().find(|node| node["name"] == name).unwrap_or_default()
}

/// Writes for a while at this depth, or until the connection breaks.
pub fn write_for(
    promises: &mut Promises,
    daemon: &Daemon,
    volume: &str,
    time: Duration,
) -> Result<()> {
    let mut client = NbdClient::connect(&daemon.socket(), volume)?;
    let end = Instant::now() + time;
    promises.write_until(&mut client, 16, &mut for_story(volume), |_| Instant::now() > end)
}

/// Checks a volume on a host that may still be about to serve it.
pub fn check_at(promises: &mut Promises, daemon: &Daemon, volume: &str) -> Result<()> {
    let mut client = None;
    wait_until("the volume to be served", || {
        client = NbdClient::connect(&daemon.socket(), volume).ok();
        client.is_some()
    })?;
    promises.check(&mut client.context("a client")?)?;
    Ok(())
}

pub fn refusal<T, E: Into<anyhow::Error>>(refused: Result<T, E>, why: &str) -> Result<()> {
    let refused = refused.map_err(Into::into);
    let told = format!("{:#}", refused.err().with_context(|| format!("it is not refused: {why}"))?);
    ensure!(told.contains(why), "{told}");
    Ok(())
}

#[test]
fn hosts_join_by_a_token_and_a_wrong_one_is_refused_by_name() -> Result<()> {
    let hosts = Hosts::new("cl-join", 2)?;
    let cluster = hosts.cluster(0)?;
    for name in ["one", "two"] {
        let found = row(&cluster, name);
        ensure!(found["state"] == "well", "{cluster}");
        ensure!(found["holders"].as_array().is_some_and(|all| all.len() == 1), "{cluster}");
    }
    let start = |name: &str, more: &[&str]| {
        let options = hosts.options(2, more, None);
        Daemon::start_with(&format!("cl-join-{name}"), options)
    };
    let mistyped = hosts.token.replace("rekindle1-", "rekindle1-0");
    refusal(start("mistyped", &["--join", &mistyped]), "mistyped")?;
    refusal(start("noise", &["--join", "hello"]), "a token begins with")?;
    // A token of another cluster.
    let elsewhere = Hosts::new("cl-join-else", 1)?;
    refusal(start("other", &["--join", &elsewhere.token]), "the token is of another cluster")?;
    refusal(hosts.hosts[0].cli(&["cluster", "init"]), "is in a cluster already")?;
    // Without --advertise, nothing listens and nothing is asked.
    let alone = Daemon::start_with("cl-join-alone", hosts.shared.options(None, &[]))?;
    refusal(alone.cli(&["cluster", "init"]), "--advertise")?;
    let shown = alone.cli(&["cluster", "ls"])?;
    ensure!(shown["member"] == false && shown["nodes"] == serde_json::json!([]), "{shown}");
    drop(alone);
    // The secret is for its owner only.
    let file = hosts.hosts[1].dir.join("cluster/member.json");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file)?.permissions());
    ensure!(mode & 0o077 == 0, "{mode:o}");
    elsewhere.end(&[])?;
    hosts.end(&[])
}

#[test]
fn a_host_that_is_lost_for_good_goes_on_in_its_holder_within_two_seconds_or_so() -> Result<()> {
    let mut hosts = Hosts::new("cl-lost", 2)?;
    let mut promises = Promises::new(2048);
    hosts.hosts[0].create("copied", "8M", &["--copies", "1"])?;
    hosts.hosts[0].create("alone", "8M", &[])?;
    hosts.hosts[0].create("given-up", "8M", &[])?;
    hosts.hosts[0].create("stored", "8M", &["--policy", "through"])?;
    hosts.hosts[1].create("own", "8M", &[])?;
    fill(&hosts.hosts[0], "stored", 1, 0..64)?;
    fill(&hosts.hosts[0], "alone", 2, 0..64)?;
    fill(&hosts.hosts[0], "given-up", 4, 0..64)?;
    fill(&hosts.hosts[1], "own", 3, 0..64)?;
    // The host that writes first has the volume.
    write_for(&mut promises, &hosts.hosts[0], "copied", Duration::from_millis(100))?;
    let node = hosts.node(0)?;
    // The host dies amid its writes, and with it everything it had.
    let lost = std::thread::scope(|scope| -> Result<Instant> {
        let socket = hosts.hosts[0].socket();
        let promises = &mut promises;
        let writer = scope.spawn(move || -> Result<()> {
            let mut client = NbdClient::connect(&socket, "copied")?;
            promises.write_until(&mut client, 16, &mut for_story("lost"), |_| false)
        });
        std::thread::sleep(Duration::from_millis(1500));
        let lost = Instant::now();
        hosts.lose(0)?;
        writer.join().expect("it does not panic")?;
        Ok(lost)
    })?;
    let holder = &hosts.hosts[1];
    let mut client = loop {
        ensure!(
            lost.elapsed() < Duration::from_secs(60),
            "it does not go on: {}",
            hosts.cluster(1)?
        );
        match NbdClient::connect(&holder.socket(), "copied") {
            Ok(client) => break client,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let block = client.read(0, 4096)?;
    println!("read again {} ms after the loss ({} bytes)", lost.elapsed().as_millis(), block.len());
    let kept = promises.acknowledged();
    promises.check(&mut client)?;
    drop(client);
    println!("{kept} acknowledged writes, none lost");
    ensure!(kept > 100, "{kept}");
    check(holder, "stored", 1, 0..64)?;
    check(holder, "own", 3, 0..64)?;
    // What asked for no copies may have been on the lost host alone: it is not served as if whole.
    let names = ["alone", "given-up"];
    let is_told = |name: &str| -> Result<bool> {
        let health = holder.cli(&["status"])?["health"].to_string();
        Ok(health.contains(&format!("'{name}' keeps its changes in the log")))
    };
    for name in names {
        refusal(NbdClient::connect(&holder.socket(), name), "lost machine")?;
        wait_until("the health to name the volume", || is_told(name).unwrap_or(false))?;
    }
    // A user goes on with what the copies have of one, and gives the other up: the log need not
    // keep them.
    refusal(holder.cli(&["salvage", "run", "alone"]), "with --accept-losses: ")?;
    refusal(NbdClient::connect(&holder.socket(), "alone"), "lost machine")?;
    holder.cli(&["salvage", "run", "alone", "--accept-losses"])?;
    check(holder, "alone", 2, 0..64)?;
    holder.remove_now("given-up")?;
    for name in names {
        wait_until("the health to be done with it", || is_told(name).is_ok_and(|told| !told))?;
    }
    // The volume goes on. Nothing keeps a copy now, so the store acknowledges.
    write_for(&mut promises, holder, "copied", Duration::from_secs(1))?;
    let shown = holder.cli(&["volume", "show", "copied"])?;
    ensure!(shown["owner"] == node.as_str() && shown["state"] == "attached", "{shown}");
    ensure!(shown["downgrade"].to_string().contains("policy through"), "{shown}");
    ensure!(shown["owner_host"] == "two", "{shown}");
    let reports = holder.cli(&["cluster", "recoveries"])?;
    println!(
        "{}",
        Shell::new(binary()).args(["cluster", "recoveries", "--dir"]).arg(&holder.dir).run()?
    );
    ensure!(reports[0]["how"] == "takeover" && reports[0]["from"] == "one", "{reports}");
    let phases = reports[0]["phases"].as_array().context("phases")?;
    let is_client = |phase: &&Value| phase["name"] == "copied" && phase["part_of"] == "clients";
    let brought = phases.iter().find(is_client).context("the volume")?["bytes"].as_u64();
    ensure!(brought > Some(0), "{reports}");
    // Another host joins, and holds the copies of both nodes.
    hosts.join(&[])?;
    hosts.wait_for_holder(1)?;
    wait_until("the guest to have a holder", || {
        hosts.cluster(1).is_ok_and(|cluster| cluster["guests"][0]["holders"][0]["ready"] == true)
    })?;
    let shown = hosts.hosts[1].cli(&["volume", "show", "copied"])?;
    ensure!(shown["downgrade"].is_null(), "{shown}");
    write_for(&mut promises, &hosts.hosts[1], "copied", Duration::from_millis(500))?;
    // The guest outlives its host's worker, and the host itself.
    let worker = hosts.hosts[1].worker()?;
    hosts.hosts[1].kill_worker()?;
    hosts.hosts[1].wait_for_worker_after(worker)?;
    hosts.wait_for_guest(1, &node)?;
    check_at(&mut promises, &hosts.hosts[1], "copied")?;
    check(&hosts.hosts[1], "alone", 2, 0..64)?;
    let kept = hosts.hosts[1].cli(&["cluster", "recoveries"])?;
    ensure!(kept[0]["at"] == reports[0]["at"], "{kept}");
    hosts.lose(1)?;
    hosts.wait_for_guest(2, &node)?;
    check_at(&mut promises, &hosts.hosts[2], "copied")?;
    check(&hosts.hosts[2], "stored", 1, 0..64)?;
    hosts.end(&[0, 1])
}

#[test]
fn a_worker_that_dies_is_back_before_it_is_missed() -> Result<()> {
    let hosts = Hosts::new("cl-worker", 2)?;
    let mut promises = Promises::new(2048);
    hosts.hosts[0].create("copied", "8M", &["--copies", "1"])?;
    let node = hosts.node(0)?;
    for _ in 0..3 {
        let worker = hosts.hosts[0].worker()?;
        std::thread::scope(|scope| -> Result<()> {
            let owner = &hosts.hosts[0];
            let killer = scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                owner.kill_worker()
            });
            write_for(&mut promises, owner, "copied", Duration::from_secs(1))?;
            killer.join().expect("it does not panic")
        })?;
        hosts.hosts[0].wait_for_worker_after(worker)?;
        check_at(&mut promises, &hosts.hosts[0], "copied")?;
    }
    ensure!(!is_guest(&hosts.cluster(1)?, &node), "{}", hosts.cluster(1)?);
    hosts.end(&[])
}

#[test]
fn a_host_that_stands_still_is_deposed_and_goes_on_as_a_new_node() -> Result<()> {
    let hosts = Hosts::new("cl-still", 2)?;
    let mut promises = Promises::new(2048);
    hosts.hosts[0].create("copied", "8M", &["--copies", "1"])?;
    let node = hosts.node(0)?;
    let worker = Pid::from_raw(i32::try_from(hosts.hosts[0].worker()?)?).context("a pid")?;
    // A client of the original writes on; what is acknowledged to it counts.
    let socket = hosts.hosts[0].socket();
    std::thread::scope(|scope| -> Result<()> {
        let promises = &mut promises;
        let writer = scope.spawn(move || -> Result<()> {
            let mut client = NbdClient::connect(&socket, "copied")?;
            promises.write_until(&mut client, 16, &mut for_story("still"), |_| false)
        });
        std::thread::sleep(Duration::from_millis(500));
        kill_process(worker, Signal::STOP)?;
        let taken = hosts.wait_for_guest(1, &node);
        kill_process(worker, Signal::CONT)?;
        taken?;
        writer.join().expect("it does not panic")
    })?;
    check_at(&mut promises, &hosts.hosts[1], "copied")?;
    // The host serves on, as a new node, and holds the copies of the old one.
    wait_until("the host to be a new node", || {
        hosts.hosts[0].status().is_ok_and(|status| {
            status["state"] == "serving" && status["node"].as_str() != Some(node.as_str())
        })
    })?;
    hosts.hosts[0].create("new", "8M", &["--copies", "1"])?;
    fill(&hosts.hosts[0], "new", 1, 0..64)?;
    wait_until("the guest to have a holder", || {
        hosts.cluster(1).is_ok_and(|cluster| cluster["guests"][0]["holders"][0]["ready"] == true)
    })?;
    write_for(&mut promises, &hosts.hosts[1], "copied", Duration::from_millis(500))?;
    // A client may come to the old host, too.
    check_at(&mut promises, &hosts.hosts[0], "copied")?;
    hosts.end(&[])
}

#[test]
fn a_host_that_stood_still_answers_nothing_of_what_a_user_has_let_go_on_elsewhere() -> Result<()> {
    let hosts = Hosts::new("cl-woken", 2)?;
    hosts.hosts[0].create("alone", "8M", &[])?;
    fill(&hosts.hosts[0], "alone", 1, 0..64)?;
    let mut old = NbdClient::connect(&hosts.hosts[0].socket(), "alone")?;
    old.read(0, 4096)?;
    let node = hosts.node(0)?;
    let worker = Pid::from_raw(i32::try_from(hosts.hosts[0].worker()?)?).context("a pid")?;
    kill_process(worker, Signal::STOP)?;
    let goes_on = hosts.wait_for_guest(1, &node).and_then(|()| {
        hosts.hosts[1].cli(&["salvage", "run", "alone", "--accept-losses"])?;
        fill(&hosts.hosts[1], "alone", 2, 0..64)
    });
    kill_process(worker, Signal::CONT)?;
    goes_on?;
    // At once, on the connection of before.
    if let Ok(block) = old.read(0, 4096) {
        ensure!(block != [1; 4096], "a read goes back in time");
    }
    let written = old.write(8192, &[3; 4096]);
    check(&hosts.hosts[1], "alone", 2, 0..64).with_context(|| format!("{written:?}"))?;
    ensure!(written.is_err(), "a write that nothing keeps is acknowledged");
    wait_until("the host to be a new node", || hosts.node(0).is_ok_and(|now| now != node))?;
    check(&hosts.hosts[0], "alone", 2, 0..64)?;
    // It stays with the node at its new host, over the next takeover, too.
    hosts.wait_for_holder(0)?;
    wait_until("the guest to have a holder", || {
        hosts.cluster(1).is_ok_and(|cluster| cluster["guests"][0]["holders"][0]["ready"] == true)
    })?;
    let mut hosts = hosts;
    hosts.hosts[1].kill_all()?;
    hosts.wait_for_guest(0, &node)?;
    wait_until("the volume to be served", || {
        NbdClient::connect(&hosts.hosts[0].socket(), "alone").is_ok()
    })?;
    check(&hosts.hosts[0], "alone", 2, 0..64)?;
    hosts.end(&[1])
}

#[test]
fn a_holder_that_is_lost_is_replaced_and_one_that_drains_is_let_go() -> Result<()> {
    let mut hosts = Hosts::new("cl-holder", 3)?;
    hosts.hosts[0].create("copied", "8M", &["--copies", "1"])?;
    let mut promises = Promises::new(2048);
    write_for(&mut promises, &hosts.hosts[0], "copied", Duration::from_millis(300))?;
    let first = hosts.wait_for_holder(0)?;
    hosts.hosts[0].cli(&["cluster", "drain", &first])?;
    wait_until("another holder", || {
        let cluster = hosts.cluster(0).unwrap_or_default();
        let holders = cluster["holders"].as_array().cloned().unwrap_or_default();
        holders.len() == 1 && holders[0]["ready"] == true && holders[0]["name"] != first.as_str()
    })?;
    ensure!(row(&hosts.cluster(0)?, &first)["state"] == "draining", "{}", hosts.cluster(0)?);
    write_for(&mut promises, &hosts.hosts[0], "copied", Duration::from_millis(300))?;
    hosts.hosts[0].cli(&["cluster", "drain", &first, "--off"])?;
    // The second holder is lost amid writes: they go on.
    let second = hosts.wait_for_holder(0)?;
    let lost = NAMES.iter().position(|name| *name == second).context("a host")?;
    let heir = hosts.wait_for_holder(lost)?;
    let heir = NAMES.iter().position(|name| *name == heir).context("a host")?;
    let before = promises.acknowledged();
    std::thread::scope(|scope| -> Result<()> {
        let (owner, rest) = hosts.hosts.split_first_mut().context("hosts")?;
        let promises = &mut promises;
        let writer =
            scope.spawn(move || write_for(promises, owner, "copied", Duration::from_secs(4)));
        std::thread::sleep(Duration::from_millis(500));
        rest[lost - 1].kill_all()?;
        writer.join().expect("it does not panic")
    })?;
    ensure!(promises.acknowledged() > before + 100, "{} {before}", promises.acknowledged());
    ensure!(hosts.wait_for_holder(0)? == first, "{}", hosts.cluster(0)?);
    // The lost one owns no volume: where it goes on now it can be removed, and is never started
    // again.
    let id = row(&hosts.cluster(0)?, &second)["node"].as_str().context("an id")?.to_owned();
    hosts.wait_for_guest(heir, &id)?;
    let elsewhere = 3 - lost - heir;
    refusal(hosts.hosts[elsewhere].cli(&["cluster", "remove", &second]), "remove it there")?;
    hosts.hosts[heir].cli(&["cluster", "remove", &second])?;
    wait_until("the guest to end", || {
        hosts.cluster(heir).is_ok_and(|cluster| !is_guest(&cluster, &id))
    })?;
    ensure!(row(&hosts.cluster(0)?, &second)["state"] == "removed", "{}", hosts.cluster(0)?);
    refusal(hosts.hosts[lost].up(), "removed")?;
    check_at(&mut promises, &hosts.hosts[0], "copied")?;
    hosts.end(&[lost])
}

#[test]
fn a_takeover_by_hand_a_rotation_and_a_folder_that_is_adopted() -> Result<()> {
    let mut hosts = Hosts::new("cl-hand", 2)?;
    hosts.hosts[0].create("copied", "8M", &["--copies", "1"])?;
    hosts.hosts[0].create("alone", "8M", &[])?;
    fill(&hosts.hosts[0], "alone", 1, 0..64)?;
    let mut promises = Promises::new(2048);
    write_for(&mut promises, &hosts.hosts[0], "copied", Duration::from_millis(300))?;
    hosts.hosts[0].cli(&["cluster", "rotate"])?;
    write_for(&mut promises, &hosts.hosts[0], "copied", Duration::from_millis(300))?;
    hosts.wait_for_holder(0)?;
    let node = hosts.node(0)?;
    let guest = hosts.hosts[1].cli(&["cluster", "takeover", "one"])?;
    ensure!(guest["state"] == "serving" && guest["node"] == node.as_str(), "{guest}");
    check_at(&mut promises, &hosts.hosts[1], "copied")?;
    // What is left of the node at its old host has the volume without copies, and brings it back.
    wait_until("the host to be a new node", || hosts.node(0).is_ok_and(|now| now != node))?;
    let left = hosts.hosts[0].dir.join("left").join(&node);
    ensure!(left.join("node.json").is_file(), "{}", left.display());
    wait_until("the volume to be back", || {
        NbdClient::connect(&hosts.hosts[1].socket(), "alone").is_ok()
    })?;
    check(&hosts.hosts[1], "alone", 1, 0..64)?;
    // A stop is no loss: nothing is taken over, and all is there again.
    hosts.hosts[1].stop()?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(!is_guest(&hosts.cluster(0)?, &node), "{}", hosts.cluster(0)?);
    hosts.hosts[1].up()?;
    hosts.wait_for_guest(1, &node)?;
    check_at(&mut promises, &hosts.hosts[1], "copied")?;
    hosts.end(&[])
}

#[test]
fn holders_that_cannot_be_reached_are_told() -> Result<()> {
    let mut hosts = Hosts::new("cl-away", 2)?;
    hosts.hosts[0].create("copied", "8M", &["--copies", "1"])?;
    hosts.hosts[0].create("stalls", "8M", &["--copies", "1", "--on-missing-copy", "stall"])?;
    hosts.hosts[0].create("freed", "8M", &["--copies", "1", "--on-missing-copy", "stall"])?;
    hosts.hosts[0].create("alone", "8M", &[])?;
    fill(&hosts.hosts[0], "copied", 1, 0..64)?;
    hosts.hosts[1].stop()?;
    fill(&hosts.hosts[0], "alone", 2, 0..64)?;
    // The store is waited for instead.
    fill(&hosts.hosts[0], "copied", 3, 0..64)?;
    let shown = hosts.hosts[0].cli(&["volume", "show", "copied"])?;
    ensure!(shown["downgrade"].to_string().contains("policy through"), "{shown}");
    let status = hosts.hosts[0].status()?["health"].to_string();
    ensure!(status.contains("copies"), "{status}");
    // A volume that would rather wait does.
    let mut client = NbdClient::connect(&hosts.hosts[0].socket(), "stalls")?;
    std::thread::scope(|scope| -> Result<()> {
        let waiting = scope.spawn(move || -> Result<()> {
            client.write(0, &[7; 4096])?;
            Ok(client.flush()?)
        });
        std::thread::sleep(Duration::from_secs(2));
        ensure!(!waiting.is_finished(), "it was acknowledged without a copy");
        // What the store has needs no copy: it has nothing of these that is missing.
        hosts.hosts[0].cli(&["volume", "drain", "freed"])?;
        hosts.hosts[0].cli(&["snapshot", "take", "freed", "now"])?;
        // Another one is let go on, with the write that waits.
        let mut client = NbdClient::connect(&hosts.hosts[0].socket(), "freed")?;
        let freed = scope.spawn(move || -> Result<()> {
            client.write(0, &[8; 4096])?;
            client.flush()?;
            ensure!(client.read(0, 4096)? == [8; 4096], "other bytes");
            Ok(client.write(4096, &[9; 4096])?)
        });
        std::thread::sleep(Duration::from_secs(1));
        ensure!(!freed.is_finished(), "it was acknowledged without a copy");
        hosts.hosts[0].cli(&["volume", "set", "freed", "--on-missing-copy", "step-down"])?;
        freed.join().expect("it does not panic")?;
        ensure!(!waiting.is_finished(), "it was acknowledged without a copy");
        hosts.hosts[1].up()?;
        waiting.join().expect("it does not panic")
    })?;
    hosts.wait_for_holder(0)?;
    wait_until("health to be well again", || {
        hosts.hosts[0].status().is_ok_and(|status| status["health"]["state"] == "well")
    })?;
    check(&hosts.hosts[0], "copied", 3, 0..64)?;
    check(&hosts.hosts[0], "alone", 2, 0..64)?;
    hosts.end(&[])
}

#[test]
fn a_host_that_is_back_brings_its_volumes_without_copies_with_it() -> Result<()> {
    let mut hosts = Hosts::new("cl-back", 2)?;
    let mut promises = Promises::new(2048);
    hosts.hosts[0].create("alone", "8M", &[])?;
    hosts.hosts[0].create("idle", "8M", &[])?;
    hosts.hosts[0].create("binned", "8M", &[])?;
    fill(&hosts.hosts[0], "idle", 2, 0..64)?;
    fill(&hosts.hosts[0], "binned", 3, 0..64)?;
    hosts.hosts[0].drain("idle")?;
    hosts.hosts[0].cli(&["volume", "rm", "binned"])?;
    let node = hosts.node(0)?;
    // Twice: what came back goes on at the host's new node, and comes back once more.
    for _ in 0..2 {
        std::thread::scope(|scope| -> Result<()> {
            let socket = hosts.hosts[0].socket();
            let promises = &mut promises;
            let writer = scope.spawn(move || -> Result<()> {
                let mut client = NbdClient::connect(&socket, "alone")?;
                promises.write_until(&mut client, 16, &mut for_story("back"), |_| false)
            });
            std::thread::sleep(Duration::from_millis(700));
            let lost = hosts.node(0)?;
            hosts.hosts[0].kill_all()?;
            writer.join().expect("it does not panic")?;
            // Longer than any lease.
            hosts.wait_for_guest(1, &lost)
        })?;
        for name in ["alone", "idle"] {
            refusal(NbdClient::connect(&hosts.hosts[1].socket(), name), "lost machine")?;
        }
        hosts.hosts[0].up()?;
        check_at(&mut promises, &hosts.hosts[1], "alone")?;
        let home = hosts.node(0)?;
        for name in ["alone", "idle"] {
            wait_until("the host's new node to have it", || {
                let shown = hosts.hosts[1].cli(&["volume", "show", name]);
                shown.is_ok_and(|shown| shown["owner"] == home.as_str())
            })?;
        }
        check(&hosts.hosts[0], "idle", 2, 0..64)?;
        hosts.wait_for_holder(0)?;
    }
    let kept = promises.acknowledged();
    ensure!(kept > 100, "{kept}");
    let reports = hosts.hosts[0].cli(&["cluster", "recoveries"])?;
    ensure!(reports[0]["how"] == "return" && reports[1]["node"] == node.as_str(), "{reports}");
    // What is in the trash keeps the log that may have some of it, and comes back by a restore.
    let left = hosts.hosts[0].dir.join("left").join(&node).join("flash");
    ensure!(std::fs::read_dir(&left)?.count() > 1, "{}", left.display());
    hosts.hosts[1].cli(&["volume", "restore", "binned"])?;
    wait_until("the volume to be back", || {
        NbdClient::connect(&hosts.hosts[1].socket(), "binned").is_ok()
    })?;
    check(&hosts.hosts[1], "binned", 3, 0..64)?;
    wait_until("the log to be gone", || {
        std::fs::read_dir(&left).is_ok_and(|files| files.count() <= 1)
    })?;
    let health = hosts.hosts[0].status()?["health"].clone();
    ensure!(health["state"] == "well", "{health}");
    hosts.end(&[])
}

#[test]
fn a_volume_that_gets_copies_later_survives_its_host() -> Result<()> {
    let mut hosts = Hosts::new("cl-set", 2)?;
    let mut promises = Promises::new(2048);
    hosts.hosts[0].create("disk", "8M", &[])?;
    write_for(&mut promises, &hosts.hosts[0], "disk", Duration::from_millis(300))?;
    let set = ["volume", "set", "disk", "--copies", "1"];
    let shown = hosts.hosts[0].cli(&set)?;
    ensure!(shown["copies"] == 1 && shown["policy"] == "back", "{shown}");
    refusal(hosts.hosts[1].cli(&["volume", "set", "disk", "--copies", "0"]), "one")?;
    refusal(hosts.hosts[0].cli(&["volume", "set", "disk", "--copies", "4"]), "4")?;
    write_for(&mut promises, &hosts.hosts[0], "disk", Duration::from_millis(300))?;
    let node = hosts.node(0)?;
    hosts.lose(0)?;
    hosts.wait_for_guest(1, &node)?;
    check_at(&mut promises, &hosts.hosts[1], "disk")?;
    hosts.end(&[0])
}

#[test]
fn a_disk_in_the_trash_of_a_lost_host_comes_back_at_its_holder() -> Result<()> {
    let mut hosts = Hosts::new("cl-trash", 2)?;
    hosts.wait_for_holder(0)?;
    for name in ["disk", "junk"] {
        hosts.hosts[0].cli(&["volume", "create", name, "--size", "8M", "--copies", "1"])?;
    }
    let mut promises = Promises::new(2048);
    write_for(&mut promises, &hosts.hosts[0], "disk", Duration::from_millis(300))?;
    for name in ["disk", "junk"] {
        hosts.hosts[0].cli(&["volume", "rm", name, "--force"])?;
    }
    let node = hosts.node(0)?;
    hosts.lose(0)?;
    hosts.wait_for_guest(1, &node)?;
    hosts.hosts[1].cli(&["volume", "restore", "disk"])?;
    check_at(&mut promises, &hosts.hosts[1], "disk")?;
    hosts.hosts[1].cli(&["volume", "purge", "junk"])?;
    let trash = hosts.hosts[1].cli(&["volume", "trash"])?;
    ensure!(trash.as_array().is_some_and(Vec::is_empty), "{trash}");
    hosts.end(&[0])
}
