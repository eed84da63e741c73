//! The cost of a thousand volumes without use.

use crate::nbd::Client;
use crate::rounds::{Bench, short};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::{Context, Result};
use std::time::Duration;

const NAME: &str = "idle";
const VOLUMES: usize = 1000;
const WANTED: Wanted = Wanted::AtMost(64.0);

/// Measures the daemon when it knows the volumes; when each was attached once by a client that has
/// left; then with a connected client each.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut server = Rekindle::start(bench, NAME, &[])?;
    for number in 0..VOLUMES {
        server.create(&format!("v{number}"), 1024, "flash")?;
    }
    server.stop()?;
    server.up()?;
    server.wait_until_it_serves()?;
    let mut rows = vec![row(&server, "exist, none was used since the start")?.wanted(WANTED)];
    for number in 0..VOLUMES {
        Client::connect(&server.socket(), &format!("v{number}"))?.read(0)?;
    }
    rows.push(row(&server, "were read once by a client that has left")?.wanted(WANTED));
    let clients: Result<Vec<Client>> = (0..VOLUMES)
        .map(|number| Client::connect(&server.socket(), &format!("v{number}")))
        .collect();
    rows.push(row(&server, "have a connected client each")?);
    drop(clients?);
    Ok(rows)
}

fn row(server: &Rekindle, what: &str) -> Result<Row> {
    // The allocator gives memory back that was in use for a moment.
    std::thread::sleep(Duration::from_secs(1));
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", server.worker()?.as_raw_nonzero()))?;
    let mebibytes = |name: &str| -> Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("VmRSS")?;
        let kibibytes: f64 = line.split_whitespace().nth(1).context("a number")?.parse()?;
        Ok(kibibytes / 1024.0)
    };
    Ok(Row::new(NAME, format!("{VOLUMES} volumes that {what}: resident memory of the worker"))
        .ours(format!(
            "{} MiB anonymous, {} MiB of files, {} MiB shared",
            short(mebibytes("RssAnon")?),
            short(mebibytes("RssFile")?),
            short(mebibytes("RssShmem")?)
        ))
        .value(mebibytes("VmRSS")?, "MiB"))
}
