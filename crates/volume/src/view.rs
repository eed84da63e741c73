//! Volumes as people see them on a live node: everything that the registry knows, and nothing that it would have to ask
//! the datastore for.

use crate::Vault;
use crate::collector::{Decision, Generation};
use crate::entry::Entry;
use crate::machine::State;
use crate::registry::Inner;
use env::Moment;
use serde::Serialize;
use staging::StagedView;
use std::sync::Arc;
use std::time::Duration;

/// A volume that somebody has asked for since the start.
#[derive(Debug, Clone, Serialize)]
pub struct VolumeView {
    pub volume: String,
    pub state: State,
    /// How long it has been there.
    pub since_ms: u64,
    /// Why it is there, when that is not plain.
    pub reason: Option<String>,
    pub sessions: u64,
    /// Attaches begun since the start.
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
    /// For how long nobody has held it; 0 while somebody does.
    pub idle_ms: u64,
    pub pinned: bool,
    /// When it is looked at next, at the earliest.
    pub next_look_ms: u64,
    /// What the last look came to.
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
    // With the entry's lock free again: this takes others.
    if let Some(live) = live {
        view.staged = Some(live.staged.view());
        if let Some(collector) = &mut view.collector {
            collector.pinned = live.staged.is_pinned();
        }
    }
    view
}

/// A volume of which something cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impaired {
    pub volume: String,
    /// What waits for the store, for time, or for a person; since when it is said, microseconds since 1970.
    pub unreadable: Option<(u64, String)>,
    /// Bytes that were given up: reads of them are errors until they are written again.
    pub lost_bytes: u64,
}

/// Volumes of which something cannot be read, by name: of those that are known since the start.
pub(crate) fn impaired(inner: &Inner) -> Vec<Impaired> {
    let clock = inner.env.wall_clock().0;
    let of = |entry: &Arc<Entry>| {
        let (unreadable, live, noted) = {
            let inside = entry.inside.lock();
            let since = inside.waits.as_ref().map_or(clock, |waits| waits.since);
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

/// Bytes that were given up.
pub(crate) fn lost_bytes(vault: &Vault) -> u64 {
    vault.lost.iter().map(|lost| lost.span).sum()
}

/// The volumes whose names begin with `prefix`, by name, at most `most`; and how many there are.
pub(crate) fn volumes(inner: &Inner, prefix: &str, most: usize) -> (Vec<VolumeView>, u64) {
    let mut entries = inner.all();
    entries.retain(|entry| entry.name.starts_with(prefix));
    let total = entries.len() as u64;
    entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let (now, clock) = (inner.env.now(), inner.env.wall_clock().0);
    (entries.iter().take(most).map(|entry| of(entry, now, clock)).collect(), total)
}
