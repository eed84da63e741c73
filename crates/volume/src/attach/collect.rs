//! The collector at work: passes over the volumes in service and takes out those that are due.
//!
//! The decision and the change to `offlining` happen under one lock of the volume, and a client
//! takes its hold under the same lock. So the collector either sees the client, or the client finds
//! the volume on its way out, waits for the end, and attaches it again. A client never sees an
//! error.

use crate::attach::collector::{Decision, Facts, Pace, Settings, decide};
use crate::limits;
use crate::registry::entry::{Entry, Inside};
use crate::registry::machine::{Event, State};
use crate::registry::{Claim, Inner};
use crate::stop::offline;
use futures_util::{StreamExt, stream};
use rekindle_env::Moment;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Runs passes until the registry is gone or stops.
pub(crate) async fn run(inner: Weak<Inner>, settings: Settings) {
    let Some(idle) = settings.idle else { return };
    if let Some(inner) = inner.upgrade() {
        inner.collected.lock().idle_ms = u64::try_from(idle.as_millis()).ok();
    }
    let mut pace = Pace::default();
    loop {
        let Some(env) = inner.upgrade().map(|inner| inner.env.clone()) else { return };
        env.sleep(settings.interval).await;
        let Some(inner) = inner.upgrade().filter(|inner| !inner.is_stopping()) else { return };
        pass(&inner, &settings, idle, &mut pace).await;
    }
}

/// Runs one pass. Returns the number of volumes taken out of service.
pub(crate) async fn pass(
    inner: &Arc<Inner>,
    settings: &Settings,
    idle: Duration,
    pace: &mut Pace,
) -> u64 {
    let mut due = Vec::new();
    if inner.count_of(State::Attached) > 0 {
        for some in inner.all().chunks(limits::COLLECT_SLICE) {
            let now = inner.env.now();
            due.extend(
                some.iter()
                    .filter_map(|entry| Some((look(inner, entry, now, idle)?, entry.clone()))),
            );
            // Lets other tasks run.
            inner.env.sleep(Duration::ZERO).await;
        }
    }
    // The longest idle go first.
    due.sort_by_key(|(since, _)| *since);
    let quota = pace.quota(due.len() as u64, settings);
    let quota = usize::try_from(quota).unwrap_or(usize::MAX).min(due.len());
    let later = due.split_off(quota);
    for (_, entry) in &later {
        note(&mut entry.inside.lock(), Decision::NextPass);
    }
    let all = (due.len() + later.len()) as u64;
    let (mut detached, mut rescued, mut failed) = (0, 0, 0);
    let mut outcomes = stream::iter(due)
        .map(|(_, entry)| async move { take(inner, &entry, idle).await })
        .buffer_unordered(limits::STOPS_MAX);
    while let Some(outcome) = outcomes.next().await {
        match outcome {
            Outcome::Detached => detached += 1,
            Outcome::Rescued => rescued += 1,
            Outcome::Failed => failed += 1,
        }
    }
    metrics::counter!("rekindle_collector_detached_total").increment(detached);
    let mut collected = inner.collected.lock();
    collected.passes += 1;
    collected.detached += detached;
    collected.rescued += rescued;
    collected.failed += failed;
    collected.due = all;
    detached
}

fn facts(inside: &Inside) -> Option<Facts> {
    let live = inside.live.as_ref()?;
    (inside.machine.state() == State::Attached).then(|| Facts {
        clients: live.clients(),
        idle_since: live.idle_since(),
        pinned: live.staged.is_pinned(),
        owes: live.staged.owes(),
    })
}

/// Looks at a volume if its time has come. Returns since when it is idle, if it is due.
fn look(inner: &Inner, entry: &Entry, now: Moment, idle: Duration) -> Option<Moment> {
    let mut inside = entry.inside.lock();
    if inside.aging.next_look > now {
        return None;
    }
    inner.observe(entry, &mut inside);
    let facts = facts(&inside)?;
    let decision = inside.aging.look(&facts, now, idle);
    note(&mut inside, decision);
    (decision == Decision::Due).then_some(facts.idle_since)
}

fn note(inside: &mut Inside, decision: Decision) {
    inside.aging.decision = Some(decision);
    metrics::counter!("rekindle_collector_decisions_total", "decision" => decision.as_str())
        .increment(1);
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Detached,
    Rescued,
    Failed,
}

/// Takes a volume out of service, if it is still due.
pub(crate) async fn take(inner: &Arc<Inner>, entry: &Arc<Entry>, idle: Duration) -> Outcome {
    let claimed = {
        let mut inside = entry.inside.lock();
        let now = inner.env.now();
        let due = facts(&inside).filter(|facts| decide(facts, now, idle) == Decision::Due);
        let Some(facts) = due.filter(|_| !inner.is_stopping()) else {
            note(&mut inside, Decision::Rescued);
            return Outcome::Rescued;
        };
        let cause = format!("collector: idle for {} s", now.since(facts.idle_since).as_secs());
        match Claim::enter(inner, entry, &mut inside, Event::Offline, &cause) {
            Ok(claimed) => claimed,
            // The refusal was logged and counted where it happened.
            Err(_unlawful) => return Outcome::Failed,
        }
    };
    let closed = offline::close(&claimed).await;
    if let Err(error) = &closed {
        tracing::warn!(volume = entry.name, "was collected, but not in good order: {error}");
    }
    match claimed.finish(closed, (Event::Collected, Event::OfflineFailed), "collector") {
        Ok(()) => Outcome::Detached,
        Err(_) => Outcome::Failed,
    }
}
