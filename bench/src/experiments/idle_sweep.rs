//! The requests of a sweep when nothing has changed since the last one.

use crate::nbd::Client;
use crate::rounds::Bench;
use crate::servers::{Rekindle, Requests};
use crate::table::{Row, Wanted};
use anyhow::{Result, ensure};
use rekindle_datastore::limits::TAG_AGE_MIN;

const NAME: &str = "idle-sweep";
const VOLUMES: u64 = 100;
/// Sweeps until there is nothing left to do, at most.
const SWEEPS_MAX: usize = 8;

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let settings = "[sweep]\ninterval = \"off\"\npercent = 100\ngrace = \"0s\"\n";
    let server = Rekindle::start_with(bench, NAME, settings, &[])?;
    let size = (bench.size / 8 / VOLUMES).next_multiple_of(1 << 20);
    for number in 0..VOLUMES {
        let name = format!("v{number}");
        server.create(&name, size >> 20, "flash")?;
        // The second time makes garbage of the first.
        for seed in 0..2 {
            Client::connect(&server.socket(), &name)?.fill(size, number * 2 + seed)?;
            server.drain(&name)?;
        }
    }
    let settle = || -> Result<bool> {
        Ok(server.finish("/api/v1/sweep")?["packs_deleted"] == 0
            && server.finish("/api/v1/sweep")?["is_unchanged"] == true)
    };
    // A folder tells by its list that a record has not changed once the record has some age.
    std::thread::sleep(TAG_AGE_MIN);
    let mut is_settled = false;
    for _ in 0..SWEEPS_MAX {
        is_settled = is_settled || settle()?;
    }
    ensure!(is_settled, "sweeps find something to do each time");
    let before = server.requests()?;
    server.finish("/api/v1/sweep")?;
    let after = server.requests()?;
    let made = |kinds: &[&str]| after.count(kinds) - before.count(kinds);
    // The sweep's own records are its lease, and what is condemned.
    let own = after.of("sweep", Requests::GETS) - before.of("sweep", Requests::GETS);
    let parts = Requests::PARTS.map(|part| {
        format!("{part} {}", after.of(part, Requests::GETS) - before.of(part, Requests::GETS))
    });
    let what = format!(
        "a sweep over {VOLUMES} volumes with {} MiB in which nothing has changed: GETs of volumes and packs",
        (VOLUMES * size) >> 20
    );
    Ok(vec![
        Row::new(NAME, what)
            .ours(format!(
                "{} GETs, {} LISTs, {} PUTs",
                made(Requests::GETS),
                made(&["list"]),
                made(Requests::PUTS)
            ))
            .value((made(Requests::GETS) - own) as f64, "GETs")
            .wanted(Wanted::AtMost(0.0))
            .note(format!("GETs by part: {}", parts.join(", "))),
    ])
}
