//! The report of the start, for users and programs. Each part of the start has recorded its own
//! phases ([`rekindle_env::Env::watch`]).

use crate::assemble::Node;
use crate::warm_status;
use rekindle_env::Moment;
use rekindle_env::boot::{Boot, Fetch, Phase};
use rekindle_front::http::api::{BootFetch, BootFetched, BootPhase, BootReport};
use std::time::Duration;

/// Reports the start of this process.
pub(crate) async fn report(node: &Node) -> BootReport {
    let frames = match node.warm.frames.clone() {
        // Blocking: it reads every set.
        Some(frames) => Some(node.env.blocking(move || warm_status::frames(&frames)).await),
        None => None,
    };
    BootReport {
        incarnation: node.incarnation.0,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        frames,
        ..told(node.env.boot())
    }
}

/// Puts the recorded phases into the words of the API.
fn told(boot: Boot) -> BootReport {
    let clock = Clock::of(&boot);
    let listening_us = clock.end_of(&boot, "listening");
    let fetched = |fetch: &Fetch| BootFetch {
        what: fetch.what.to_owned(),
        name: fetch.name.clone(),
        source: fetch.source.as_str().to_owned(),
        began_us: clock.at(fetch.began),
        took_us: fetch.took.as_nanos() as f64 / 1000.0,
    };
    let mut fetches: Vec<BootFetch> = boot.fetches.iter().map(fetched).collect();
    fetches.sort_by_key(|fetch| fetch.began_us);
    let [ram, warm, store] = boot.fetched;
    let missed = |cause: rekindle_warm::Miss| {
        let counted = boot.missed.iter().find(|(known, _)| *known == cause.as_str());
        counted.map_or(0, |(_, count)| *count)
    };
    BootReport {
        born_by: boot.before.map(|(_, by)| by.to_owned()),
        listening_us,
        first_reply_us: clock.end_of(&boot, "first-reply"),
        phases: phases(&boot, &clock, listening_us),
        phases_left_out: boot.phases_left_out,
        fetches,
        fetched: BootFetched { ram, warm, store },
        misses: warm_status::misses(missed),
        ..BootReport::default()
    }
}

/// The clock of the report, which begins when the process was started: before it could record
/// anything.
struct Clock {
    before: Duration,
}

impl Clock {
    fn of(boot: &Boot) -> Self {
        Self { before: boot.before.map_or(Duration::ZERO, |(before, _)| before) }
    }

    fn at(&self, moment: Moment) -> u64 {
        microseconds(self.before + (moment - Moment(Duration::ZERO)))
    }

    fn end_of(&self, boot: &Boot, name: &str) -> Option<u64> {
        let found = boot.phases.iter().find(|phase| phase.name == name && phase.part_of.is_none());
        found.map(|phase| self.at(phase.ended))
    }

    fn phase(&self, phase: &Phase) -> BootPhase {
        let (began, ended) = (self.at(phase.began), self.at(phase.ended));
        took(&phase.name, phase.part_of.clone(), began, ended)
    }
}

fn took(name: &str, part_of: Option<String>, began: u64, ended: u64) -> BootPhase {
    let took_us = ended.saturating_sub(began);
    BootPhase { name: name.to_owned(), part_of, began_us: began, took_us, bytes: None }
}

/// Puts the phases into order, each before its parts.
fn phases(boot: &Boot, clock: &Clock, listening_us: Option<u64>) -> Vec<BootPhase> {
    let mut phases = Vec::new();
    let before = microseconds(clock.before);
    if boot.before.is_some() {
        phases.push(took("exec", None, 0, before));
    }
    if let Some(first) = boot.phases.iter().map(|phase| clock.at(phase.began)).min() {
        phases.push(took("settings", None, before, first));
    }
    let parts_of = |whole: Option<&str>| {
        let parts = boot.phases.iter().filter(move |phase| phase.part_of.as_deref() == whole);
        let mut parts: Vec<&Phase> = parts.collect();
        parts.sort_by_key(|phase| phase.began);
        parts
    };
    for top in parts_of(None) {
        let mut told = clock.phase(top);
        if top.name == "first-connection" {
            // The connection itself is only a moment: users want to see the wait for it.
            let began = listening_us.unwrap_or(told.began_us).min(told.began_us);
            told = took(&top.name, None, began, told.began_us + told.took_us);
        }
        phases.push(told);
        phases.extend(parts_of(Some(&top.name)).into_iter().map(|part| clock.phase(part)));
    }
    phases
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str, part_of: Option<&str>, began: u64, ended: u64) -> Phase {
        let at = |milliseconds| Moment(Duration::from_millis(milliseconds));
        let part_of = part_of.map(str::to_owned);
        Phase { name: name.to_owned(), part_of, began: at(began), ended: at(ended) }
    }

    #[test]
    fn phases_are_told_in_order_with_what_came_before_and_while_waiting() {
        let boot = Boot {
            before: Some((Duration::from_millis(5), "supervisor")),
            phases: vec![
                phase("scanned", Some("log"), 3, 4),
                phase("log", None, 2, 5),
                phase("listening", None, 5, 6),
                phase("first-connection", None, 20, 20),
                phase("first-reply", None, 21, 22),
            ],
            missed: vec![("cold", 3)],
            ..Boot::default()
        };
        let report = told(boot);
        let seen: Vec<_> = report
            .phases
            .iter()
            .map(|phase| (phase.name.as_str(), phase.began_us / 1000, phase.took_us / 1000))
            .collect();
        let expected = [
            ("exec", 0, 5),
            ("settings", 5, 2),
            ("log", 7, 3),
            ("scanned", 8, 1),
            ("listening", 10, 1),
            ("first-connection", 11, 14),
            ("first-reply", 26, 1),
        ];
        assert_eq!(seen, expected);
        assert_eq!((report.listening_us, report.first_reply_us), (Some(11_000), Some(27_000)));
        assert_eq!((report.misses.cold, report.misses.absent), (3, 0));
        assert_eq!(told(Boot::default()), BootReport::default());
    }
}
