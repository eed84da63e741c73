//! A client's view of a worker's death under load: `rekindle drill restart` reconnects, sends again
//! what was not acknowledged, and reads everything back at the end.

use crate::machine::pinned;
use crate::rounds::{Bench, short};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

const NAME: &str = "stall";
/// Number of kills in a round of the benchmark.
const KILLS: usize = 5;

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (ack, reads) in [("flash", 0), ("memory", 0), ("flash", 50)] {
        let server = Rekindle::start(bench, NAME, &[])?;
        let report = bench.run(|| drill(bench, &server, ack, reads))?;
        let stalls = report.value["stalled_ms"].as_array().context("stalls")?;
        let mut stalls: Vec<f64> = stalls.iter().filter_map(Value::as_f64).collect();
        stalls.sort_by(f64::total_cmp);
        let (middle, worst) = (stalls[stalls.len() / 2], stalls[stalls.len() - 1]);
        let lost = report.value["acknowledged_writes_lost"].as_u64().context("losses")?;
        let count = |what: &str| report.value[what].as_f64().context("a count");
        let (written, read) = (count("writes_acknowledged")?, count("reads_answered")?);
        ensure!(lost == 0, "acknowledged writes are lost: {}", report.value);
        let row = |which: &str, value: f64, most: f64| {
            let mix = if reads > 0 { format!(", {reads} % reads") } else { String::new() };
            let what = format!(
                "ack={ack}: {which} stall of a client over kill -9 and restart, depth 16, 4 KiB{mix}"
            );
            let (kills, written) = (stalls.len(), short(written));
            let read = if reads > 0 { format!(", {} reads", short(read)) } else { String::new() };
            Row::new(NAME, what)
                .ours(format!("{kills} kills, {written} writes{read}, 0 lost"))
                .value(value, "ms")
                .wanted(Wanted::AtMost(most))
                .others(report.others)
        };
        rows.push(row("middle", middle, 50.0));
        rows.push(row("worst", worst, 150.0));
    }
    Ok(rows)
}

fn drill(bench: &Bench, server: &Rekindle, ack: &str, reads: u32) -> Result<Value> {
    let mut command = pinned(&bench.layout.client, &bench.binary);
    command.args(["drill", "restart", "--json", "--depth", "16", "--ack", ack, "--dir"]);
    command.arg(server.dir()).arg("--rounds").arg((bench.rounds * KILLS).to_string());
    command.arg("--reads").arg(reads.to_string());
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_str(&said)?)
}
