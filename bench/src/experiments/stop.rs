//! A stop with as many attached volumes as the file server had that first stopped them in parallel.
//! That took 49.5 s with one thread and 6.3 s with 32, on its machine.

use crate::nbd::Client;
use crate::rounds::{Bench, middle, times};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::{Result, ensure};
use serde_json::Value;
use std::time::Instant;

const NAME: &str = "stop";
const VOLUMES: usize = 7_168;
/// Numbers of volumes that are detached at once.
const AT_ONCE: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let config = bench.scratch.join("stop.toml");
    let set = |at_once: usize| std::fs::write(&config, format!("stop_parallel = {at_once}\n"));
    set(AT_ONCE[0])?;
    let mut server = Rekindle::start(bench, NAME, &["--config", &config.display().to_string()])?;
    for number in 0..VOLUMES {
        server.create(&format!("volume-{number}"), 64, "flash")?;
    }
    let mut rows = Vec::new();
    for at_once in AT_ONCE {
        let mut runs = Vec::new();
        for _ in 0..bench.rounds {
            // The last stop had the previous setting.
            server.stop()?;
            set(at_once)?;
            server.up()?;
            server.wait_until_it_serves()?;
            for number in 0..VOLUMES {
                Client::connect(&server.socket(), &format!("volume-{number}"))?.read(0)?;
            }
            let status = server.api("GET", "/api/v1/status", None)?;
            ensure!(in_service(&status) >= VOLUMES as u64, "not all are attached: {status}");
            runs.push(bench.run(|| {
                let begin = Instant::now();
                server.stop()?;
                Ok(begin.elapsed().as_secs_f64() * 1e3)
            })?);
            server.up()?;
            server.wait_until_it_serves()?;
        }
        let run = middle(&runs, |ms| *ms);
        let what = format!(
            "SIGTERM to the end of the process, {VOLUMES} attached volumes, {at_once} at once"
        );
        let row = Row::new(NAME, what).ours(times(&runs)).others(run.others);
        rows.push(match at_once {
            64 => row.value(run.value, "ms").wanted(Wanted::AtMost(500.0)),
            _ => row.value(run.value, "ms"),
        });
    }
    Ok(rows)
}

fn in_service(status: &Value) -> u64 {
    status["volumes_attached"].as_u64().unwrap_or(0)
}
