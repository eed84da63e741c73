//! A planned move: a client writes on while its volume goes to another host, and back.

use crate::hosts::Hosts;
use crate::machine;
use crate::nbd::{Client, Reply, Until};
use crate::rounds::{Bench, short};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const NAME: &str = "moves";
const MEBIBYTES: u64 = 64;
/// Moves in a round.
const MOVES: usize = 4;
/// Time before each move, and after it.
const PAUSE: Duration = Duration::from_millis(500);

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let hosts = Hosts::start(bench, NAME, 3)?;
    hosts.create("v", MEBIBYTES, "flash", 1)?;
    hosts.owner().fill(bench, "v", MEBIBYTES)?;
    let (mut all, mut others, mut at) = (Vec::new(), 0.0f64, 0);
    for round in 0..bench.rounds {
        let run = bench.run(|| stalls(bench, &hosts, &mut at, round as u64))?;
        all.extend(run.value);
        others = others.max(run.others);
    }
    all.sort_by(f64::total_cmp);
    let values: Vec<String> = all.iter().map(|stall| short(*stall)).collect();
    let row = |which: &str, value: f64| {
        let what = format!(
            "{which} stall of a client at a third host while its volume moves; depth 4, 4 KiB writes"
        );
        Row::new(NAME, what).ours(format!("{} moves", all.len())).value(value, "ms").others(others)
    };
    Ok(vec![
        row("middle", all[(all.len() - 1) / 2])
            .wanted(Wanted::AtMost(50.0))
            .note(format!("all, ms: {}", values.join(" "))),
        row("worst", all[all.len() - 1]),
    ])
}

/// The longest time between two replies around each move.
fn stalls(bench: &Bench, hosts: &Hosts, at: &mut usize, seed: u64) -> Result<Vec<f64>> {
    let socket = hosts.0[2].socket();
    let cores = bench.layout.client.clone();
    let time = PAUSE * 2 * MOVES as u32 + Duration::from_secs(2);
    let mut client = Client::connect(&socket, "v")?;
    let begin = Instant::now();
    let writer = std::thread::spawn(move || -> Result<Vec<Reply>> {
        machine::pin_this_thread(&cores)?;
        client.write_randomly(4, MEBIBYTES << 8, seed, Until::Passed(time))
    });
    let mut windows = Vec::new();
    for _ in 0..MOVES {
        std::thread::sleep(PAUSE);
        let from = begin.elapsed();
        let (owner, next) = (&hosts.0[*at], &hosts.0[1 - *at]);
        move_to(owner, &node(next)?)?;
        *at = 1 - *at;
        std::thread::sleep(PAUSE);
        windows.push(from..begin.elapsed());
    }
    let replies = writer.join().expect("no panic")?;
    Ok(windows
        .iter()
        .map(|window| {
            let times: Vec<_> =
                replies.iter().map(|reply| reply.at).filter(|at| window.contains(at)).collect();
            let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
            gaps.max().unwrap_or(window.end - window.start).as_secs_f64() * 1e3
        })
        .collect())
}

fn node(host: &Rekindle) -> Result<String> {
    let status = host.api("GET", "/api/v1/status", None)?;
    Ok(status["node"].as_str().context("a node has an id")?.to_owned())
}

fn move_to(owner: &Rekindle, to: &str) -> Result<Value> {
    owner.finish_with("/api/v1/volumes/v/move", &json!({ "to": to }))
}
