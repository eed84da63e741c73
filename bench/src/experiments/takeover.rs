//! A client's view of a host's death: `rekindle drill failover` kills the owner's host, and its
//! client goes on through another one.

use crate::hosts::Hosts;
use crate::machine::pinned;
use crate::rounds::{Bench, short};
use crate::table::{Row, Wanted};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

const NAME: &str = "takeover";
const HOSTS: usize = 3;
/// Deaths in a round.
const KILLS: usize = 2;

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let (mut stalls, mut written, mut others) = (Vec::new(), 0.0, 0.0f64);
    for _ in 0..bench.rounds * KILLS {
        // A host that was taken over goes on as another node: each death has a cluster of its own.
        let hosts = Hosts::start(bench, NAME, HOSTS)?;
        let report = bench.run(|| drill(bench, &hosts))?;
        let count = |what: &str| report.value[what].as_f64().context("a count");
        ensure!(count("acknowledged_writes_lost")? == 0.0, "writes are lost: {}", report.value);
        ensure!(count("connections_lost")? == 0.0, "the client was hung up on: {}", report.value);
        stalls.push(count("stalled_ms")?);
        written += count("writes_acknowledged")?;
        others = others.max(report.others);
    }
    stalls.sort_by(f64::total_cmp);
    let all: Vec<String> = stalls.iter().map(|stall| short(*stall)).collect();
    let row = |which: &str, value: f64, most: f64| {
        let what = format!(
            "{which} stall of a client at another host, from the kill of the owner's host; \
             {HOSTS} hosts, depth 16, 4 KiB"
        );
        Row::new(NAME, what)
            .ours(format!("{} kills, {} writes, 0 lost", stalls.len(), short(written)))
            .value(value, "ms")
            .wanted(Wanted::AtMost(most))
            .others(others)
            .note(format!("all, ms: {}", all.join(" ")))
    };
    Ok(vec![
        row("middle", stalls[(stalls.len() - 1) / 2], 1000.0),
        row("worst", stalls[stalls.len() - 1], 1500.0),
    ])
}

fn drill(bench: &Bench, hosts: &Hosts) -> Result<Value> {
    let mut command = pinned(&bench.layout.client, &bench.binary);
    command.args(["drill", "failover", "--yes", "--json", "--depth", "16", "--through"]);
    command.arg(hosts.0[1].socket()).arg("--dir").arg(hosts.owner().dir());
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_str(&said)?)
}
