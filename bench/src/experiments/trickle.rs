//! Many volumes that each write 4 KiB every few seconds: what their commits ask of the store, and
//! what of its space is waste. Destage and sweep go at a faster pace than by default, so that
//! minutes show what hours do. The requests of the first companies, which owe nothing to the pace
//! yet, are not counted.

use crate::live;
use crate::machine::folder_bytes;
use crate::nbd::{BLOCK, Client};
use crate::rounds::{Bench, short};
use crate::servers::{Rekindle, Requests};
use crate::table::{Row, Wanted};
use anyhow::{Context, Result, ensure};
use rekindle_base::random::Random;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const NAME: &str = "trickle";
const VOLUMES: usize = 100;
const MEBIBYTES: u64 = 64;
/// The pause of each volume between two writes.
const PAUSE: Duration = Duration::from_secs(3);
/// The part of the run that is counted: two rounds of all volumes, at 50 writes a minute.
const COUNTED_FROM: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(265);
const SETTINGS: &str = "[destage]\nage = \"1s\"\n\
                        [sweep]\ninterval = \"60s\"\npercent = 100\ngrace = \"1s\"\n";

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let server = Rekindle::start_with(bench, NAME, SETTINGS, &[])?;
    let mut clients = Vec::new();
    for number in 0..VOLUMES {
        let name = format!("v{number}");
        server.create(&name, MEBIBYTES, "flash")?;
        clients.push(Client::connect(&server.socket(), &name)?);
    }
    let begin = Instant::now();
    let mut before = None;
    let mut random = Random::new(1);
    let mut writes = 0;
    while begin.elapsed() < COUNTED_FROM + LONG {
        if before.is_none() && begin.elapsed() >= COUNTED_FROM {
            before = Some((server.requests()?, Instant::now()));
        }
        let block = random.bytes(BLOCK);
        let block = block.as_slice().try_into().context("a block")?;
        let at = random.below(MEBIBYTES << 8) * BLOCK as u64;
        clients[writes % VOLUMES].write_each(&[at], block)?;
        writes += 1;
        let next = PAUSE * writes as u32 / VOLUMES as u32;
        std::thread::sleep(next.saturating_sub(begin.elapsed()));
    }
    let after = server.requests()?;
    let (before, since) = before.context("the run is longer than its beginning")?;
    let seconds = since.elapsed().as_secs_f64();
    for number in 0..VOLUMES {
        server.drain(&format!("v{number}"))?;
    }
    server.finish("/api/v1/sweep")?;
    let (bytes, live) = (folder_bytes(&server.store())? as f64, live::count(&server.store())?);
    let bill = bill(bench, server.dir())?;
    let made = |kinds: &[&str]| (after.count(kinds) - before.count(kinds)) as f64 / seconds;
    let kinds = [("PUTs", Requests::PUTS), ("GETs", Requests::GETS), ("LISTs", &["list"])];
    let parts = Requests::PARTS.map(|part| {
        let count = |(name, kinds): (&str, &[&str])| {
            format!("{} {name}", after.of(part, kinds) - before.of(part, kinds))
        };
        format!("{part} {}", kinds.map(count).join(", "))
    });
    let what = format!("{VOLUMES} volumes, a 4 KiB write each {} s", PAUSE.as_secs());
    let requests = Row::new(NAME, format!("{what}: PUTs a second"))
        .ours(format!("{} PUTs, {} GETs a second", short(made(Requests::PUTS)), short(made(Requests::GETS))))
        .value(made(Requests::PUTS), "PUTs/s")
        .wanted(Wanted::AtMost(1.0))
        .note(format!("{writes} writes; requests by part: {}", parts.join("; ")))
        .note(format!(
            "`rekindle cost`: {} a day like this, with the sweeps (one each 60 s), at the default prices",
            short(bill["total_per_day"].as_f64().context("a bill has a total")?)
        ));
    let space = Row::new(NAME, format!("{what}: space of the store against what is live, after a last sweep"))
        .ours(format!("{} kB in {} packs", short(bytes / 1e3), packs(&server.store())?))
        .theirs(format!("{} kB live", short(live.kept as f64 / 1e3)))
        .value(bytes / live.kept as f64, "x")
        .wanted(Wanted::AtMost(1.1))
        .note(format!(
            "live are the present and the earlier contents that are kept; the present ones alone: {} kB. All other \
             objects count as space, too: vaults and names",
            short(live.present as f64 / 1e3)
        ));
    Ok(vec![requests, space])
}

/// Asks `rekindle cost`.
fn bill(bench: &Bench, dir: &Path) -> Result<Value> {
    let output = Command::new(&bench.binary).args(["cost", "--json", "--dir"]).arg(dir).output()?;
    ensure!(output.status.success(), "rekindle cost: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn packs(store: &Path) -> Result<usize> {
    let mut count = 0;
    for class in ["packs/data", "packs/meta"] {
        for entry in std::fs::read_dir(store.join(class))? {
            count += usize::from(!entry?.file_name().as_encoded_bytes().starts_with(b"."));
        }
    }
    Ok(count)
}
