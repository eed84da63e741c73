//! `cargo x bench SUITE`: speed as ratios against the usual alternatives, measured side by side in
//! one run.
//!
//! Each file of `experiments/` answers one question. Sides alternate and are pinned alike. The
//! middle of several rounds counts, with the best one beside it. No run fails because it was slow:
//! the table says which figure was wanted and whether it was reached.
#![expect(clippy::disallowed_methods, reason = "a benchmark works on the real machine")]

mod arguments;
mod data;
mod experiments;
mod fio;
mod hosts;
mod http;
mod images;
mod inside;
mod live;
mod machine;
mod mounted;
mod nbd;
mod nfs;
mod null_fuse;
mod rivals;
mod round_trip;
mod rounds;
mod servers;
mod table;

use anyhow::Result;
use rounds::Bench;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // Ingest is measured in a process of its own, so that it can be pinned as a whole.
    if words.first().is_some_and(|word| word == experiments::ingest::WORKER) {
        return experiments::ingest::work(&words[1..]);
    }
    let Some(arguments) = arguments::parse(&words)? else {
        print!("{}{}", arguments::HELP, experiments::list());
        return Ok(());
    };
    let chosen = experiments::chosen(&arguments.suite, &arguments.only)?;
    let bench = Bench::new(&arguments)?;
    let mut rows = Vec::new();
    for experiment in chosen {
        println!("\n== {}: {}", experiment.name, experiment.question);
        match (experiment.run)(&bench) {
            Ok(found) => {
                found.iter().for_each(table::Row::print);
                rows.extend(found);
            }
            // A failed experiment does not end the run, since the others are worth having.
            Err(error) => rows.push(table::Row::failed(experiment.name, &error)),
        }
    }
    if arguments.json {
        println!("{:#}", table::json(&rows));
    } else {
        println!("\n{}", table::markdown(&rows));
    }
    if arguments.writes() {
        table::write(&arguments.suite, &table::section(&bench, &arguments, &rows))?;
    }
    Ok(())
}
