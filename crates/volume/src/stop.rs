//! Stopping all volumes: parallel, easiest first, within bounded time.

use crate::entry::Entry;
use crate::machine::State;
use crate::registry::Inner;
use crate::{Error, limits, offline};
use env::Moment;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StopProgress {
    /// Volumes to take out of service.
    pub volumes: u64,
    /// Of these, done.
    pub done: u64,
    /// Bytes that the rest owes to the datastore, as of the last look.
    pub backlog_bytes: u64,
    /// Whether these bytes are waited for.
    pub draining: bool,
}

/// Stops.
pub(crate) async fn stop(inner: &Arc<Inner>, drain: bool) -> Result<(), Error> {
    inner.stopping.store(true, Ordering::Release);
    let mut entries: Vec<Arc<Entry>> =
        inner.all().into_iter().filter(|entry| is_to_stop(entry)).collect();
    // Those who owe least are done first, so that the others may have the datastore's bandwidth.
    entries.sort_by_key(|entry| owed(entry));
    let volumes = entries.len() as u64;
    let backlog_bytes = entries.iter().map(|entry| owed(entry)).sum();
    *inner.progress.lock() =
        Some(StopProgress { volumes, done: 0, backlog_bytes, draining: drain });

    let deadline = inner.env.now() + limits::DRAIN_TIME_MAX;
    let work = |entry: Arc<Entry>| async move {
        let owing = owed(&entry);
        let outcome = stop_one(inner, &entry, drain.then_some(deadline)).await;
        if let Some(progress) = inner.progress.lock().as_mut() {
            progress.done += 1;
            progress.backlog_bytes = progress.backlog_bytes.saturating_sub(owing);
        }
        outcome.map_err(|error| (entry.name.clone(), error))
    };
    let outcomes: Vec<_> =
        stream::iter(entries).map(work).buffer_unordered(limits::STOPS_MAX).collect().await;
    let failed: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    match failed.first() {
        None => Ok(()),
        Some((name, error)) => Err(Error::Undrained {
            volumes: failed.len() as u64,
            name: name.clone(),
            reason: error.to_string(),
        }),
    }
}

fn is_to_stop(entry: &Entry) -> bool {
    let state = entry.inside.lock().machine.state();
    state.is_in_service() || state.is_exclusive()
}

/// Bytes that a volume owes to the datastore.
fn owed(entry: &Entry) -> u64 {
    let live = entry.inside.lock().live.clone();
    live.map_or(0, |live| live.staged.backlog().bytes)
}

async fn stop_one(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    drain_until: Option<Moment>,
) -> Result<(), Error> {
    wait_for_exclusive(inner, entry).await;
    let live = entry.inside.lock().live.clone();
    let Some(live) = live else { return Ok(()) };
    let drained = match drain_until {
        None => Ok(()),
        Some(until) => {
            match inner.env.timeout(until.since(inner.env.now()), live.staged.drain()).await {
                Ok(drained) => drained.map(drop).map_err(Error::from),
                Err(_elapsed) => Err(Error::Interrupted(entry.name.clone())),
            }
        }
    };
    let closing = offline::detach(inner, &entry.name, true, "stop");
    match inner.env.timeout(limits::CLOSE_TIME_MAX, closing).await {
        Ok(closed) => closed?,
        Err(_elapsed) => return Err(Error::Interrupted(entry.name.clone())),
    }
    drained
}

/// An attach (or the like) that was under way when the stop began ends first.
async fn wait_for_exclusive(inner: &Inner, entry: &Entry) {
    let ends = async {
        loop {
            let mut changes = {
                let inside = entry.inside.lock();
                if !inside.machine.state().is_exclusive()
                    || inside.machine.state() == State::Deleted
                {
                    return;
                }
                entry.subscribe()
            };
            let _ = changes.changed().await;
        }
    };
    // What does not end in time is left behind; the log has its changes.
    let _ = inner.env.timeout(limits::CLOSE_TIME_MAX, ends).await;
}
