//! From exec to the first reply of any volume, on a node with few volumes and with very many: a
//! start must not read all of them.

use crate::nbd::Client;
use crate::rounds::{Bench, Run, median, middle, times};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::{Context, Result};
use std::fs;
use std::time::{Duration, Instant};

const NAME: &str = "many";
const FEW: u64 = 60;
/// The number of volumes with which the file server that invented attaching on demand started.
const MANY: u64 = 60_000;
const VERY_MANY: u64 = 1_000_000;
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut few = populated(bench, FEW)?;
    let mut many = populated(bench, MANY)?;
    let (mut with_few, mut with_many) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds as u64 * 4 {
        with_few.push(bench.run(|| first_reply(&mut few, FEW, round))?);
        with_many.push(bench.run(|| first_reply(&mut many, MANY, round))?);
    }
    drop((few, many));
    let mut rows =
        vec![row(MANY, &with_many).wanted(Wanted::AtMost(50.0)), ratio(&with_few, &with_many)];
    if bench.nightly {
        let mut server = populated(bench, VERY_MANY)?;
        let runs = (0..bench.rounds as u64 * 4)
            .map(|round| bench.run(|| first_reply(&mut server, VERY_MANY, round)))
            .collect::<Result<Vec<_>>>()?;
        rows.push(row(VERY_MANY, &runs).wanted(Wanted::AtMost(100.0)));
    }
    Ok(rows)
}

/// Starts a node whose store has that many volumes. Their records are written into the store
/// directly, all with the content of the first: creating them one by one through the API would take
/// minutes.
pub fn populated(bench: &Bench, count: u64) -> Result<Rekindle> {
    let name = format!("{NAME}{count}");
    let mut server = Rekindle::start(bench, &name, &[])?;
    server.create("volume-0", 64, "flash")?;
    server.fill(bench, "volume-0", 1)?;
    server.stop()?;
    let store = bench.scratch.join(&name).join("store");
    let name_record = unsealed(&fs::read_to_string(store.join("names/volume-0"))?);
    let id = fs::read_dir(store.join("volumes"))?
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .find(|name| !name.to_string_lossy().starts_with('.'))
        .context("a vault")?;
    let id = id.to_string_lossy().into_owned();
    let vault = unsealed(&fs::read_to_string(store.join("volumes").join(&id))?);
    for number in 1..count {
        let (other, other_id) = (format!("volume-{number}"), format!("{:032x}", number + 1));
        let renamed = |record: &str| {
            record.replace(&id, &other_id).replace("\"volume-0\"", &format!("\"{other}\""))
        };
        fs::write(store.join("names").join(&other), renamed(&name_record))?;
        fs::write(store.join("volumes").join(&other_id), renamed(&vault))?;
    }
    Ok(server)
}

/// Measures the time from exec to the reply, ms, of another volume each time.
fn first_reply(server: &mut Rekindle, count: u64, round: u64) -> Result<f64> {
    server.stop()?;
    let volume = format!("volume-{}", (round + 1) * 7_919 % count);
    let begin = Instant::now();
    server.up()?;
    let mut client = Client::connect_soon(&server.socket(), &volume, PATIENCE)?;
    client.read(0)?;
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}

fn row(count: u64, runs: &[Run<f64>]) -> Row {
    let run = middle(runs, |ms| *ms);
    let what = format!("{count} volumes: exec of `rekindle up` to the first reply of any of them");
    Row::new(NAME, what).ours(times(runs)).value(run.value, "ms").others(run.others)
}

fn ratio(few: &[Run<f64>], many: &[Run<f64>]) -> Row {
    let (of_few, of_many) = (median(few, |ms| *ms), median(many, |ms| *ms));
    let others = middle(few, |ms| *ms).others.max(middle(many, |ms| *ms).others);
    Row::new(NAME, format!("the same with {MANY} volumes against {FEW}, medians"))
        .ours(times(many))
        .theirs(times(few))
        .value(of_many / of_few, "x")
        .wanted(Wanted::AtMost(1.2))
        .others(others)
}

/// Returns a record's text without its seal, so that it may be changed: older versions wrote
/// records like that.
fn unsealed(record: &str) -> String {
    let sealed = |line: &&str| {
        !["  \"incarnation\": ", "  \"proof\": ", "  \"sum\": "]
            .iter()
            .any(|name| line.starts_with(name))
    };
    record.lines().filter(sealed).collect::<Vec<_>>().join("\n").replace("},\n}", "}\n}")
}
