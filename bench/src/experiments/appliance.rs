//! The appliance paper's experiment in a real virtual machine: the time of a start until 50 to 400
//! volumes have answered their first reads, without and with RAM of the host that has outlived the
//! machine.
//!
//! The *storage part* is the daemon's own start and the time right after it, until every volume is
//! open and has answered reads spread over it. These need all of the tree's nodes and none of the
//! data. The daemon sends the reads to itself, so that neither clients nor the guest's network have
//! a part in it. The *whole boot* is from QEMU's start to the first reply of the API outside.

use crate::http;
use crate::machine::pinned;
use crate::nbd::{BLOCK, Client};
use crate::rounds::{Bench, middle, short};
use crate::servers::{Process, Rekindle};
use crate::table::{Row, Wanted};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const NAME: &str = "appliance";
const VOLUMES: [usize; 5] = [50, 100, 200, 300, 400];
const MEBIBYTES: u64 = 32;
const VOLUME_BLOCK: u64 = 16 << 10;
/// Every second block of a volume is written: a tree of four leaves and a root.
const BLOCKS: u64 = (MEBIBYTES << 20) / VOLUME_BLOCK / 2;
/// Reads of a volume, at places that were not written, so that the tree is asked and no data is
/// read; at least one a leaf.
const READS: u64 = 16;
/// Patience for a guest without help of the processor, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// The paper's appliance came to 22 %, and to a hit rate of 89 %.
const CUT_WANTED: f64 = 90.0;
const HITS_WANTED: f64 = 99.0;

/// A way to start: its name, further arguments of `up`, and whether the RAM is kept.
struct Way {
    name: &'static str,
    arguments: &'static [&'static str],
    keeps_memory: bool,
}

const WAYS: [Way; 4] = [
    Way { name: "cold", arguments: &[], keeps_memory: false },
    Way { name: "warm", arguments: &[], keeps_memory: true },
    Way {
        name: "warm without direct call",
        arguments: &["--direct-path", "off"],
        keeps_memory: true,
    },
    Way { name: "warm with read-ahead", arguments: &["--read-ahead", "on"], keeps_memory: true },
];

/// Place of the store when memory has not outlived the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Store {
    /// On the data disk, and in the host's page cache.
    Cached,
    /// On the data disk only.
    Disk,
    /// At a distance: each call takes 5 ms.
    Distant,
}

impl Store {
    fn name(self) -> &'static str {
        match self {
            Store::Cached => "host page cache kept",
            Store::Disk => "host page cache dropped",
            Store::Distant => "store 5 ms away",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        if self == Store::Distant { &["--store-fault", "latency=5ms"] } else { &[] }
    }
}

/// Times of one start, ms, and the hit rate of warm memory, %.
#[derive(Debug, Clone, Copy)]
struct Seen {
    storage: f64,
    boot: f64,
    hits: f64,
}

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let folder = built(bench)?;
    let mut rows = Vec::new();
    let most = VOLUMES.len() - 1;
    let cases = [
        (Store::Cached, &VOLUMES[..]),
        (Store::Disk, &VOLUMES),
        (Store::Distant, &VOLUMES[most..]),
    ];
    for (store, numbers) in cases {
        for &volumes in numbers {
            let mut seen = Vec::new();
            for way in &WAYS {
                let found = measured(bench, &folder, way, volumes, store)?;
                let (store, way) = (store.name(), way.name);
                println!("{NAME:<12}   {volumes} volumes, {store}, {way}: {found:?}");
                seen.push((way, found));
            }
            rows.extend(rows_of(volumes, store, &seen)?);
        }
    }
    forget(&folder)?;
    Ok(rows)
}

/// Measures a start: the middle of several starts where a verdict is given, one start elsewhere.
fn measured(bench: &Bench, folder: &Path, way: &Way, volumes: usize, store: Store) -> Result<Seen> {
    let is_judged = VOLUMES.iter().all(|&number| number <= volumes);
    let rounds = if is_judged { bench.rounds } else { 1 };
    let runs: Result<Vec<_>> =
        (0..rounds).map(|_| bench.run(|| start(bench, folder, way, volumes, store))).collect();
    Ok(middle(&runs?, |seen| seen.storage).value)
}

/// Builds an appliance whose disk holds all the volumes. A daemon of this machine writes them,
/// which is faster.
fn built(bench: &Bench) -> Result<PathBuf> {
    let most = VOLUMES.into_iter().max().unwrap_or_default();
    let mut server = Rekindle::start(bench, "rekindle", &[])?;
    for number in 0..most {
        let name = format!("volume-{number:03}");
        server.create(&name, MEBIBYTES, "memory")?;
        let mut block = [0; BLOCK];
        // Each volume has its own bytes, so that no two share a node of their trees.
        block[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        let offsets: Vec<u64> = (0..BLOCKS).map(|at| (at * 2 + 1) * VOLUME_BLOCK).collect();
        Client::connect(&server.socket(), &name)?.write_each(&offsets, &block)?;
    }
    tool(Command::new(&bench.binary).args(["stop", "--drain", "--dir"]).arg(server.dir()))?;
    server.stop()?;
    let folder = bench.scratch.join(NAME);
    let mut build = Command::new(&bench.binary);
    build.args(["appliance", "build", "--memory", "512M", "--out"]).arg(&folder);
    if let Some(kernel) = kernel() {
        build.arg("--kernel").arg(kernel);
    }
    tool(&mut build)?;
    // The daemon's folder becomes the one in the guest: /data/rekindle.
    let content = bench.scratch.join("disk");
    std::fs::create_dir_all(&content)?;
    std::fs::rename(server.dir(), content.join("rekindle"))?;
    let disk = folder.join("data.img");
    tool(Command::new("mkfs.ext4").args(["-q", "-F", "-d"]).arg(&content).arg(&disk))?;
    std::fs::remove_dir_all(&content)?;
    Ok(folder)
}

/// Finds the kernel that `cargo x tools` has unpacked; `None` means the installed one.
fn kernel() -> Option<PathBuf> {
    let tools = PathBuf::from(std::env::var_os("REKINDLE_TOOLS")?).join("kernel");
    tools.join("boot").is_dir().then_some(tools)
}

fn tool(command: &mut Command) -> Result<()> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A running `rekindle appliance run`; its QEMU dies with it.
struct Running {
    process: Process,
    said: PathBuf,
}

/// Measures one start, after the machine before has died without notice.
fn start(bench: &Bench, folder: &Path, way: &Way, volumes: usize, store: Store) -> Result<Seen> {
    if !way.keeps_memory {
        forget(folder)?;
    }
    if store == Store::Disk {
        rustix::fs::sync();
        std::fs::write("/proc/sys/vm/drop_caches", "3")
            .context("only root drops the page cache")?;
    }
    let console = folder.join("console.log");
    let _ = std::fs::remove_file(&console);
    let said = folder.join("said.txt");
    let output = std::fs::File::create(&said)?;
    let mut command = pinned(&bench.layout.server, &bench.binary);
    command.args(["appliance", "run", "--json", "--nbd", "off", "--http", "off", "--then"]);
    command.arg(format!("drill attach --json --first {volumes} --reads {READS}")).arg(folder);
    command.arg("--").args(store.arguments()).args(way.arguments);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut running = Running { process: Process::start(&mut command)?, said };
    let serves = running.wait_for(&running.said.clone(), |line| line["event"] == "serves")?;
    let drill = running.wait_for(&console, |line| line["volumes"].is_u64())?;
    ensure!(drill["volumes"] == volumes, "not every volume was there: {drill}");
    let number = |value: &Value| value.as_f64().context("a number");
    let warm = http::request(&folder.join("rekindle.sock"), "GET", "/api/v1/warm", None)?;
    let began = &warm["frames"]["began"];
    let wanted = if way.keeps_memory { "kept" } else { "new" };
    ensure!(
        began == wanted,
        "{}: the memory was {began} and not {wanted}: is /dev/shm cleaned by another program?",
        way.name
    );
    Ok(Seen {
        storage: number(&drill["start_ms"])? + number(&drill["took_ms"])?,
        boot: number(&serves["after_ms"])?,
        hits: hit_rate(&warm["frames"]),
    })
}

impl Running {
    /// Waits for the first JSON line of a file of which `is_it` is true.
    fn wait_for(&mut self, path: &Path, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
        let begin = Instant::now();
        loop {
            let text =
                String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
            // On a console a progress bar may stand before the object.
            let objects = text.lines().filter_map(|line| Some(&line[line.find('{')?..]));
            let mut values = objects.filter_map(|text| serde_json::from_str(text.trim()).ok());
            let found = values.find(&is_it);
            if let Some(found) = found {
                return Ok(found);
            }
            if self.process.is_over()? || begin.elapsed() > PATIENCE {
                bail!(
                    "{}: {}",
                    path.display(),
                    std::fs::read_to_string(&self.said).unwrap_or(text)
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Computes the share of requested blocks that were cached, %.
fn hit_rate(frames: &Value) -> f64 {
    let count = |value: &Value| value.as_f64().unwrap_or(0.0);
    let hits = count(&frames["hits"]);
    let misses: f64 =
        frames["misses"].as_object().into_iter().flatten().map(|(_, missed)| count(missed)).sum();
    if hits > 0.0 { hits / (hits + misses) * 100.0 } else { 0.0 }
}

/// Removes the memory, as if the host had lost it.
fn forget(folder: &Path) -> Result<()> {
    let text = std::fs::read(folder.join("appliance.json"))?;
    let description: Value = serde_json::from_slice(&text)?;
    let path = description["memory"]["path"].as_str().context("a path")?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn rows_of(volumes: usize, store: Store, seen: &[(&str, Seen)]) -> Result<Vec<Row>> {
    let of = |wanted: &str| seen.iter().find(|(name, _)| *name == wanted).map(|(_, seen)| *seen);
    let (cold, warm) = (of("cold").context("a cold start")?, of("warm").context("a warm start")?);
    let store = store.name();
    let most = VOLUMES.into_iter().max() == Some(volumes);
    let text = |seen: Seen| {
        format!("storage {} ms, whole boot {} ms", short(seen.storage), short(seen.boot))
    };
    let what = format!("{volumes} volumes, {store}: storage part of a start; cold");
    let mut row = Row::new(NAME, what)
        .ours(text(warm))
        .theirs(text(cold))
        .value((1.0 - warm.storage / cold.storage) * 100.0, "% less");
    for (name, seen) in seen.iter().skip(2) {
        row = row.note(format!("{name}: {}, hit rate {} %", text(*seen), short(seen.hits)));
    }
    if !most {
        return Ok(vec![row]);
    }
    let what = format!("{volumes} volumes, {store}: blocks asked for that warm memory had");
    let hits = Row::new(NAME, what)
        .ours(format!("warm start {} %", short(warm.hits)))
        .theirs(format!("cold start {} %", short(cold.hits)))
        .value(warm.hits, "%")
        .wanted(Wanted::AtLeast(HITS_WANTED));
    Ok(vec![row.wanted(Wanted::AtLeast(CUT_WANTED)), hits])
}
