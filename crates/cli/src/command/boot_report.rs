//! `rekindle boot-report`: what the last start took, from the first instruction to the first reply.

use super::client;
use super::timeline::{self, Timeline, milliseconds};
use crate::arguments::{BootReport as Arguments, Common};
use rekindle_front::http::api::BootReport;
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;

/// Fetches that are listed one by one; `--json` has more.
const FETCHES_SHOWN: usize = 20;

/// Runs the command.
pub fn run(common: &Common, arguments: &Arguments) -> Outcome {
    let report: BootReport = client(common)?.get("/api/v1/boot")?;
    if let Some(path) = &arguments.svg {
        timeline::write(path, &drawn(&report))?;
    }
    common.shown(&report, || show(&report));
    Ok(())
}

fn drawn(report: &BootReport) -> Timeline<'_> {
    let first = match report.first_reply_us {
        Some(time) => format!("first reply after {} ms", milliseconds(time)),
        None => "no client has been answered yet".to_owned(),
    };
    let read = &report.fetched;
    Timeline {
        title: format!("rekindle {}, start {}: {first}", report.version, report.incarnation),
        since: since(report),
        phases: &report.phases,
        read: format!(
            "read for it: {} in RAM, {} in warm memory (hits {}), {} from the store",
            read.ram,
            read.warm,
            super::warm::rate(read.warm, super::warm::missed(&report.misses)),
            read.store
        ),
        fetches: &report.fetches,
    }
}

fn show(report: &BootReport) {
    let first = match report.first_reply_us {
        Some(time) => format!("{} ms", milliseconds(time)),
        None => "none yet: no client has been answered".to_owned(),
    };
    let listening =
        report.listening_us.map_or("-".to_owned(), |time| format!("{} ms", milliseconds(time)));
    output::pairs(&[
        (
            "start",
            format!("{} of version {}, pid {}", report.incarnation, report.version, report.pid),
        ),
        ("listening", listening),
        ("first reply", first),
        ("times", since(report).to_owned()),
    ]);
    output::line("");
    timeline::print(&report.phases);
    output::line("");
    let (read, misses) = (&report.fetched, &report.misses);
    output::pairs(&[
        (
            "read for it",
            format!(
                "{} in RAM, {} in warm memory, {} from the store",
                read.ram, read.warm, read.store
            ),
        ),
        ("warm hits", super::warm::rate(read.warm, super::warm::missed(misses))),
        ("warm misses", super::warm::causes(misses)),
    ]);
    if report.fetches.is_empty() {
        return;
    }
    output::line("");
    let mut fetches = output::table(["READ", "NAME", "FROM", "BEGAN MS", "TOOK US"]);
    for fetch in report.fetches.iter().take(FETCHES_SHOWN) {
        fetches.add_row([
            fetch.what.clone(),
            fetch.name.clone(),
            fetch.source.clone(),
            milliseconds(fetch.began_us),
            format!("{:.1}", fetch.took_us),
        ]);
    }
    output::rows(&fetches);
    let all = read.ram + read.warm + read.store;
    let more = all.saturating_sub(FETCHES_SHOWN.min(report.fetches.len()) as u64);
    if more > 0 {
        output::line(&format!("and {more} more; --json lists the first {}", report.fetches.len()));
    }
}

/// Returns the origin of the times, in words.
fn since(report: &BootReport) -> &'static str {
    match report.born_by.as_deref() {
        Some("supervisor") => "since the supervisor started the process",
        Some(_) => "since the process was started, known to 10 ms",
        None => "since the first instruction",
    }
}
