//! Hosts of a cluster on this machine, over one folder store.

use crate::rounds::Bench;
use crate::servers::Rekindle;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Longest wait until each host has holders of copies.
const PATIENCE: Duration = Duration::from_secs(60);

/// Running hosts; the first one writes.
pub struct Hosts(pub Vec<Rekindle>);

impl Hosts {
    /// Starts hosts in fresh folders, and waits until each can be taken over by another.
    pub fn start(bench: &Bench, name: &str, count: usize) -> Result<Self> {
        Self::start_with(bench, name, count, "", &[])
    }

    /// The same with further settings, and with further arguments of the first.
    pub fn start_with(
        bench: &Bench,
        name: &str,
        count: usize,
        settings: &str,
        first: &[&str],
    ) -> Result<Self> {
        let store = bench.scratch.join(format!("{name}-store"));
        let _ = std::fs::remove_dir_all(&store);
        let store = format!("file://{}", store.display());
        let settings = format!("{settings}follow_clients = 'off'\n[destage]\nage = '1h'\n");
        let mut hosts: Vec<Rekindle> = Vec::new();
        for number in 0..count {
            let (own, address) = (format!("{name}-{number}"), address());
            let mut words =
                vec!["--store", &store, "--advertise", &address, "--node-name", own.as_str()];
            let token = hosts.first().map(|first| token(bench, first)).transpose()?;
            words.extend(token.iter().flat_map(|token| ["--join", token.as_str()]));
            if number == 0 {
                words.extend(first);
            }
            let host = Rekindle::start_with(bench, &own, &settings, &words)?;
            if number == 0 {
                host.api("POST", "/api/v1/cluster/init", Some(&json!({})))?;
            }
            hosts.push(host);
        }
        let hosts = Self(hosts);
        for host in &hosts.0 {
            wait_for_holder(host)?;
        }
        Ok(hosts)
    }

    /// Returns the host that writes.
    pub fn owner(&self) -> &Rekindle {
        &self.0[0]
    }

    /// Creates a volume with copies on other hosts, and waits until they follow.
    pub fn create(&self, name: &str, mebibytes: u64, ack: &str, copies: usize) -> Result<()> {
        let size = mebibytes << 20;
        let body = json!({ "name": name, "size": size, "ack": ack, "copies": copies });
        self.owner().api("POST", "/api/v1/volumes", Some(&body)).map(drop)
    }

    /// Returns the CPU seconds that all hosts have used.
    pub fn cpu_seconds(&self) -> Result<f64> {
        self.0.iter().map(Rekindle::cpu_seconds).sum()
    }
}

/// Returns an address of this machine: the whole network 127 is its own.
fn address() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{}.{}:7733", high | 1, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

fn token(bench: &Bench, host: &Rekindle) -> Result<String> {
    let mut command = Command::new(&bench.binary);
    let output = command.args(["cluster", "token", "--json", "--dir"]).arg(host.dir()).output()?;
    let said: Value = serde_json::from_slice(&output.stdout).context("cluster token")?;
    Ok(said["token"].as_str().context("a token")?.to_owned())
}

fn wait_for_holder(host: &Rekindle) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let cluster = host.api("GET", "/api/v1/cluster", None)?;
        let holders = cluster["holders"].as_array().cloned().unwrap_or_default();
        if holders.iter().any(|holder| holder["ready"] == true) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("no host holds copies of {}", host.dir().display())
}
