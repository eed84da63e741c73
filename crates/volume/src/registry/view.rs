//! Views of volumes on a live node: all that the registry knows without asking the datastore.

use crate::attach::collector::{Decision, Generation};
use crate::registry::Inner;
use crate::registry::entry::Entry;
use crate::registry::machine::State;
use rekindle_env::Moment;
use rekindle_staging::{StagedView, Vault};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// A volume that the registry has an entry of.
#[derive(Debug, Clone, Serialize)]
pub struct VolumeView {
    pub volume: String,
    pub state: State,
    /// Time in the state.
    pub since_ms: u64,
    /// Reason of the state, if the state alone does not tell.
    pub reason: Option<String>,
    pub sessions: u64,
    /// Attaches, and salvages out of service, begun since the start.
    pub attaches: u64,
    /// Only in service.
    pub staged: Option<StagedView>,
    /// Only in service.
    pub collector: Option<CollectorView>,
}

/// A volume in service, as the collector sees it.
#[derive(Debug, Clone, Serialize)]
pub struct CollectorView {
    pub generation: Generation,
    /// Idle time; 0 while a client holds it.
    pub idle_ms: u64,
    pub pinned: bool,
    /// Time until the next look, at the earliest.
    pub next_look_ms: u64,
    /// The decision of the last look.
    pub decision: Option<Decision>,
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn of(entry: &Entry, now: Moment, clock: u64) -> VolumeView {
    let (mut view, live) = {
        let inside = entry.inside.lock();
        let collector = inside.live.as_ref().map(|live| CollectorView {
            generation: inside.aging.generation,
            idle_ms: if live.clients() > 0 {
                0
            } else {
                milliseconds(now.since(live.idle_since()))
            },
            pinned: false,
            next_look_ms: milliseconds(inside.aging.next_look.since(now)),
            decision: inside.aging.decision,
        });
        let view = VolumeView {
            volume: entry.name.clone(),
            state: inside.machine.state(),
            since_ms: milliseconds(now.since(inside.machine.since())),
            reason: inside.told(clock),
            sessions: inside.clients(),
            attaches: inside.attempts,
            staged: None,
            collector,
        };
        (view, inside.live.clone())
    };
    // After the entry's lock is free again: this takes other locks.
    if let Some(live) = live {
        view.staged = Some(live.staged.view());
        if let Some(collector) = &mut view.collector {
            collector.pinned = live.staged.is_pinned();
        }
    }
    view
}

/// A volume of which a part cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impaired {
    pub volume: String,
    /// The fault that waits for the store, for time, or for an operator, in words; and since when,
    /// microseconds since 1970.
    pub unreadable: Option<(u64, String)>,
    /// Bytes that were given up: reads of them are errors until they are written again.
    pub lost_bytes: u64,
}

/// Lists the volumes of which a part cannot be read, by name, among those that have an entry.
pub(crate) fn impaired(inner: &Inner) -> Vec<Impaired> {
    let clock = inner.env.wall_clock().0;
    let of = |entry: &Arc<Entry>| {
        let (unreadable, live, noted) = {
            let inside = entry.inside.lock();
            let noted = inside.found.as_ref().map(|(since, _)| *since);
            let waits = inside.waits.as_ref().map(|waits| waits.since);
            let since = waits.or(noted).unwrap_or(clock);
            let told = inside.unreadable(clock).map(|told| (since, told));
            (told, inside.live.clone(), inside.lost_bytes)
        };
        let lost_bytes = live.map_or(noted, |live| lost_bytes(&live.staged.vault()));
        let is_whole = unreadable.is_none() && lost_bytes == 0;
        (!is_whole).then(|| Impaired { volume: entry.name.clone(), unreadable, lost_bytes })
    };
    let mut found: Vec<_> = inner.all().iter().filter_map(of).collect();
    found.sort_unstable_by(|one, other| one.volume.cmp(&other.volume));
    found
}

/// Counts the bytes that were given up.
pub(crate) fn lost_bytes(vault: &Vault) -> u64 {
    vault.lost.iter().map(|lost| lost.span).sum()
}

/// Views the volumes whose names begin with `prefix`, by name, at most `most`; the number counts
/// all of them.
pub(crate) fn volumes(inner: &Inner, prefix: &str, most: usize) -> (Vec<VolumeView>, u64) {
    let mut entries = inner.all();
    entries.retain(|entry| entry.name.starts_with(prefix));
    let total = entries.len() as u64;
    entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let (now, clock) = (inner.env.now(), inner.env.wall_clock().0);
    (entries.iter().take(most).map(|entry| of(entry, now, clock)).collect(), total)
}
