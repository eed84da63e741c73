//! `rekindle lab`: a cluster of a few nodes on this machine, over one folder, for people to try.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use super::cluster::token_in;
use crate::arguments::{Common, Lab};
use crate::client::{Client, Interrupts};
use rekindle_base::Kind;
use rekindle_front::http::api::Cluster;
use rekindle_supervise::endpoints;
use rekindle_supervise::sockets::NBD_SOCKET;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output::{self, quoted};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];
/// Budgets of a node that is tried out: several share one machine. The environment has a say.
const BUDGETS: [(&str, &str); 4] = [
    ("REKINDLE_FLASH_BUDGET", "512M"),
    ("REKINDLE_HOLD_BUDGET", "4G"),
    ("REKINDLE_CACHE", "64M"),
    ("REKINDLE_WARM_SIZE", "64M"),
];
/// Settings of one daemon, which several cannot share.
const OWN: [&str; 4] = ["REKINDLE_NBD", "REKINDLE_HTTP", "REKINDLE_DOMAIN", "REKINDLE_JOIN"];
/// Longest wait for a node to serve, or to have a holder of its copies.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// Longest path of a Unix socket, bytes.
const SOCKET_BYTES_MAX: usize = 107;

/// A node of the lab.
#[derive(Serialize)]
struct Node {
    name: &'static str,
    dir: PathBuf,
    /// The process of `rekindle up`.
    pid: u32,
    nbd: PathBuf,
    /// That process, while it runs and if this command has started it.
    #[serde(skip)]
    child: Option<Child>,
}

/// Runs the command until a signal comes, or until all nodes have ended.
pub fn run(common: &Common, lab: &Lab) -> Outcome<u8> {
    let dir = common.dir.clone().unwrap_or_else(|| PathBuf::from("rekindle-lab"));
    let dir = std::path::absolute(&dir)?;
    check(&dir)?;
    rekindle_env::real::access::keep_private();
    std::fs::create_dir_all(&dir)
        .map_err(|error| Failure::new("the lab's folder cannot be made").because(error))?;
    let first = Client::new(dir.join(NAMES[0]))?;
    // Signals are caught before the first node is started, so that none is left behind.
    let mut interrupts = first.interrupts()?;
    let mut nodes = Vec::new();
    let served = serve(common, lab, &dir, &mut nodes, &mut interrupts);
    let stopped = stop(&mut nodes);
    served?;
    stopped.map(|()| 0)
}

/// Refuses a folder in which the nodes' sockets would have no room.
fn check(dir: &Path) -> Outcome {
    let longest = place(&dir.join("three"));
    if longest.as_os_str().len() > SOCKET_BYTES_MAX || longest.to_str().is_none() {
        return Err(Failure::usage(format!(
            "the path {} is too long for sockets in it, or is not text",
            dir.display()
        ))
        .next("rekindle lab --dir /tmp/lab"));
    }
    Ok(())
}

/// The warm memory of a node's folder. A node that another one takes over has a file by the node's
/// id on the same machine, and keeps that after a new node has begun in the folder.
fn warm_memory(dir: &Path, name: &str) -> Outcome<PathBuf> {
    let lab = dir.metadata()?.ino();
    Ok(Path::new("/dev/shm").join(format!("rekindle-lab-{lab:x}-{name}.warm")))
}

/// The address of a node for its peers.
fn place(dir: &Path) -> PathBuf {
    dir.join("peers.sock")
}

fn serve(
    common: &Common,
    lab: &Lab,
    dir: &Path,
    nodes: &mut Vec<Node>,
    interrupts: &mut Interrupts<'_>,
) -> Outcome {
    let bar = output::progress();
    for &name in &NAMES[..usize::from(lab.nodes)] {
        output::show_count(&bar, &format!("node {name} starts"));
        let token = match nodes.first() {
            Some(first) if !is_member(&dir.join(name)) => token_in(&first.dir)?,
            _ => None,
        };
        if let Some(runs) = running(dir, name)? {
            nodes.push(runs);
            continue;
        }
        let (node, ready) = start(dir, name, token.as_deref())?;
        nodes.push(node);
        if !wait_until_ready(nodes.last_mut().expect("it was pushed"), &ready, interrupts)? {
            return Ok(());
        }
        if nodes.len() == 1 && !is_member(&nodes[0].dir) {
            let first = Client::new(nodes[0].dir.clone())?;
            first.post::<Value>("/api/v1/cluster/init", &json!({}))?;
        }
    }
    output::show_count(&bar, "the nodes find holders of their copies");
    let ready = lab.nodes == 1 || wait_for_holders(nodes, interrupts)?;
    bar.finish_and_clear();
    if !ready {
        return Ok(());
    }
    if common.json {
        // One line: the command goes on.
        output::line(&json!({ "nodes": nodes }).to_string());
    } else {
        tell(dir, nodes);
    }
    while !interrupts.interrupted() && nodes.iter().any(|node| node.child.is_some()) {
        look(nodes);
        interrupts.pause(LOOK);
    }
    Ok(())
}

fn is_member(dir: &Path) -> bool {
    dir.join("cluster/member.json").exists()
}

/// A node that another `rekindle lab` has started, and that runs.
fn running(dir: &Path, name: &'static str) -> Outcome<Option<Node>> {
    let dir = dir.join(name);
    if !Client::new(dir.clone())?.is_there() {
        return Ok(None);
    }
    let pid = endpoints::read(&dir).map_or(0, |found| found.pid);
    let nbd = dir.join(NBD_SOCKET);
    Ok(Some(Node { name, dir, pid, nbd, child: None }))
}

/// Starts the daemon of a node; the receiver hears when it serves.
fn start(dir: &Path, name: &'static str, token: Option<&str>) -> Outcome<(Node, Receiver<()>)> {
    let own = dir.join(name);
    let failed = |error: std::io::Error| {
        Failure::new(format!("node {name} cannot be started")).because(error)
    };
    let words = File::options().create(true).append(true).open(dir.join(format!("{name}.log")));
    let mut command = Command::new("/proc/self/exe");
    command.arg("up").arg("--json").arg("--dir").arg(&own);
    command.arg("--store").arg(format!("file://{}", dir.join("store").display()));
    command.arg("--advertise").arg(format!("unix:{}", place(&own).display()));
    command.args(["--node-name", name]).arg("--warm").arg(warm_memory(dir, name)?);
    for own in OWN {
        command.env_remove(own);
    }
    if let Some(token) = token {
        // Not among the arguments, which every user of the machine may read.
        command.env("REKINDLE_JOIN", token);
    }
    for (key, value) in BUDGETS {
        if std::env::var_os(key).is_none() {
            command.env(key, value);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(words.map_err(failed)?);
    // Ctrl-C is for `lab`, which stops each node once.
    let mut child = command.process_group(0).spawn().map_err(failed)?;
    let (sender, ready) = channel();
    let mut said = BufReader::new(child.stdout.take().expect("it is a pipe"));
    std::thread::spawn(move || {
        let mut line = String::new();
        while said.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            let _ = sender.send(());
            line.clear();
        }
    });
    let nbd = own.join(NBD_SOCKET);
    Ok((Node { name, dir: own, pid: child.id(), nbd, child: Some(child) }, ready))
}

/// Waits until a node serves; `false` when a signal came.
fn wait_until_ready(
    node: &mut Node,
    ready: &Receiver<()>,
    interrupts: &mut Interrupts<'_>,
) -> Outcome<bool> {
    let begin = Instant::now();
    while !interrupts.interrupted() {
        if ready.try_recv().is_ok() {
            return Ok(true);
        }
        look(std::slice::from_mut(node));
        if node.child.is_none() || begin.elapsed() > PATIENCE {
            let log = node.dir.with_extension("log");
            return Err(Failure::new(format!("node {} does not serve", node.name))
                .kind(Kind::Unavailable)
                .next(format!("tail {}", quoted(&log))));
        }
        interrupts.pause(LOOK);
    }
    Ok(false)
}

/// Waits until each node could be taken over by another; `false` when a signal came.
fn wait_for_holders(nodes: &[Node], interrupts: &mut Interrupts<'_>) -> Outcome<bool> {
    let begin = Instant::now();
    for node in nodes {
        let client = Client::new(node.dir.clone())?;
        loop {
            let cluster: Cluster = client.get("/api/v1/cluster")?;
            if cluster.holders.iter().any(|holder| holder.ready) {
                break;
            }
            if begin.elapsed() > PATIENCE {
                let what = format!("no other node has copies of the log of {}", node.name);
                let next = format!("rekindle cluster show --dir {}", quoted(&node.dir));
                return Err(Failure::new(what).kind(Kind::Unavailable).next(next));
            }
            interrupts.pause(LOOK);
            if interrupts.interrupted() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn tell(dir: &Path, nodes: &[Node]) {
    output::line(&format!(
        "{} nodes serve; the lab's folder is {}, and each has a log there (one.log, ...)",
        nodes.len(),
        dir.display()
    ));
    for node in nodes {
        let (nbd, folder) = (node.nbd.display(), quoted(&node.dir));
        output::line(&format!("  {:<6} pid {}, --dir {folder}, nbd {nbd}", node.name, node.pid));
    }
    let folder = |at: usize| quoted(&nodes[at].dir);
    output::line("Next, in another terminal:");
    output::line(&format!("  rekindle cluster ls --dir {}", folder(0)));
    let copies = if nodes.len() > 1 { " --copies 1" } else { "" };
    output::line(&format!("  rekindle volume create vm1 --size 1G{copies} --dir {}", folder(0)));
    if let Some(other) = nodes.get(1) {
        let through = quoted(&other.nbd);
        let dir = folder(0);
        output::line(&format!("  rekindle drill failover one --dir {dir} --through {through}"));
    }
    output::line(
        "Ctrl-C stops what this command has started; another `rekindle lab` here starts what",
    );
    output::line("has ended, and goes on where it was.");
}

/// Notes the nodes that have ended.
fn look(nodes: &mut [Node]) {
    for node in nodes {
        let ended = node.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if let Some(status) = ended {
            node.child = None;
            output::tell(&format!("node {} has ended: {status}", node.name));
        }
    }
}

/// Stops the nodes that this command has started, and waits until they are gone.
fn stop(nodes: &mut [Node]) -> Outcome {
    look(nodes);
    let mut children: Vec<Child> = nodes.iter_mut().filter_map(|node| node.child.take()).collect();
    for child in &children {
        kill_process(Pid::from_child(child), Signal::TERM).map_err(std::io::Error::from)?;
    }
    for child in &mut children {
        let status = child.wait()?;
        if !status.success() {
            output::tell(&format!("a node has ended: {status}"));
        }
    }
    Ok(())
}
