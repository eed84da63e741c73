//! `cargo x bench SUITE`: how fast, as ratios against what one would use instead, taken side by side in one run.
//!
//! Each file of `experiments/` answers one question. Sides alternate, are pinned alike, and the middle of several
//! rounds counts, with the best one beside it. Nothing here fails because it was slow: the table says
//! what was wanted and whether it was reached.
#![expect(clippy::disallowed_methods, reason = "a benchmark works on the real machine")]

mod arguments;
mod data;
mod experiments;
mod fio;
mod http;
mod machine;
mod nbd;
mod rounds;
mod servers;
mod table;

use anyhow::Result;
use rounds::Bench;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // Measured in a process of its own, so that it can be pinned as a whole.
    if words.first().is_some_and(|word| word == experiments::ingest::WORKER) {
        return experiments::ingest::work(&words[1..]);
    }
    let Some(arguments) = arguments::parse(&words)? else { return Ok(()) };
    let bench = Bench::new(&arguments)?;
    let mut rows = Vec::new();
    let suite = experiments::SUITES.iter().find(|suite| suite.name == arguments.suite);
    for experiment in suite.into_iter().flat_map(|suite| suite.experiments) {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|name| name == experiment.name)
        {
            continue;
        }
        println!("\n== {}: {}", experiment.name, experiment.question);
        match (experiment.run)(&bench) {
            Ok(found) => {
                found.iter().for_each(table::Row::print);
                rows.extend(found);
            }
            // The others are worth having.
            Err(error) => rows.push(table::Row::failed(experiment.name, &error)),
        }
    }
    if arguments.json {
        println!("{:#}", table::json(&rows));
    } else {
        println!("\n{}", table::markdown(&rows));
    }
    if arguments.writes() {
        table::write(arguments.suite, &table::section(&bench, &arguments, &rows))?;
    }
    Ok(())
}
