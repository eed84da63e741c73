//! Stopping all volumes: in parallel, the cheapest first, within bounded time.
//!
//! A quick stop asks the datastore for nothing. First it tells the destager to begin no batch. Then
//! each volume closes, which touches only memory, apart from one commit of the log that covers all
//! of them. A volume with a batch in hand comes last: the batch has a short grace to end.
//!
//! A draining stop waits until each volume's changes are in the datastore before it closes the
//! volume. It can be turned into a quick one at any time ([`abort_drain`]).

pub(crate) mod offline;

use crate::registry::Inner;
use crate::registry::entry::Entry;
use crate::registry::machine::State;
use crate::registry::transitional;
use crate::repair::salvage;
use crate::{Error, limits};
use futures_util::future::{Either, select};
use futures_util::{StreamExt, stream};
use rekindle_base::units::format_size;
use rekindle_env::Moment;
use serde::{Deserialize, Serialize};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use utoipa::ToSchema;

/// The progress of a stop.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Stopping)]
#[serde(default)]
pub struct StopProgress {
    /// `serving` (no stop was asked for), `sessions`, `volumes`, `log`, `ended`.
    pub phase: String,
    /// Volumes to take out of service.
    pub volumes: u64,
    /// Volumes that are out of service.
    pub done: u64,
    /// Bytes that the other volumes owe to the datastore.
    pub backlog_bytes: u64,
    /// Bytes that the volumes out of service still owed; they are in the log.
    pub kept_bytes: u64,
    /// Volumes that were not in service, and of which the log has changes; `None`: not known (yet).
    pub kept_volumes: Option<u64>,
    /// Whether the stop waits for the backlog.
    pub draining: bool,
    /// Time until the backlog is in the datastore, if known.
    pub eta_ms: Option<u64>,
    /// What the stop waits for, for users.
    pub waits_for: String,
}

impl StopProgress {
    /// Adds the stop of another node of the same process.
    pub fn add(&mut self, other: StopProgress) {
        self.volumes += other.volumes;
        self.done += other.done;
        self.backlog_bytes += other.backlog_bytes;
        self.kept_bytes += other.kept_bytes;
        self.draining |= other.draining;
        self.eta_ms = self.eta_ms.max(other.eta_ms);
        if self.waits_for.is_empty() {
            self.waits_for = other.waits_for;
        }
    }
}

/// A stop under way.
pub(crate) struct Stopping {
    entries: Vec<Arc<Entry>>,
    done: AtomicU64,
    kept_bytes: AtomicU64,
    draining: AtomicBool,
    began: Moment,
    /// Bytes that all volumes owed at the beginning.
    owed_bytes: u64,
}

impl Stopping {
    fn progress(&self, inner: &Inner) -> StopProgress {
        let volumes = self.entries.len() as u64;
        let done = self.done.load(Ordering::Relaxed);
        let backlog_bytes = self.entries.iter().map(|entry| owed_bytes(entry)).sum();
        let draining = self.draining.load(Ordering::Relaxed) && done < volumes;
        let elapsed = inner.env.now().since(self.began).as_millis();
        let brought = self.owed_bytes.saturating_sub(backlog_bytes);
        let eta = (draining && brought > 0)
            .then(|| elapsed * u128::from(backlog_bytes) / u128::from(brought));
        let waits_for = if draining {
            let left = volumes.saturating_sub(done);
            format!("{} of {left} volume(s) to reach the store", format_size(backlog_bytes))
        } else {
            let first = transitional::look(inner).0.into_iter().next();
            first.map_or_else(String::new, |one| one.sentence())
        };
        StopProgress {
            phase: "volumes".to_owned(),
            volumes,
            done,
            backlog_bytes,
            kept_bytes: self.kept_bytes.load(Ordering::Relaxed),
            kept_volumes: None,
            draining,
            eta_ms: eta.map(|eta| u64::try_from(eta).unwrap_or(u64::MAX)),
            waits_for,
        }
    }
}

/// Returns the progress of a stop; `None` before a stop has begun.
pub(crate) fn progress(inner: &Inner) -> Option<StopProgress> {
    let stopping = inner.stop.lock().clone();
    stopping.map(|stopping| stopping.progress(inner))
}

/// Turns a draining stop into a quick one, now or when it begins.
pub(crate) fn abort_drain(inner: &Inner) {
    inner.abort_drain.send_replace(true);
}

/// Stops all volumes.
pub(crate) async fn stop(inner: &Arc<Inner>, drain: bool) -> Result<(), Error> {
    inner.stopping.store(true, Ordering::Release);
    inner.active_volumes.end();
    salvage::stop(inner);
    if !drain {
        inner.staging.begin_no_batch();
    }
    let mut entries: Vec<Arc<Entry>> =
        inner.all().into_iter().filter(|entry| is_to_stop(entry)).collect();
    // The later volumes then have the datastore's bandwidth for themselves, and a volume that hangs
    // delays no other.
    entries.sort_by_cached_key(|entry| effort(entry));
    let stopping = Arc::new(Stopping {
        owed_bytes: entries.iter().map(|entry| owed_bytes(entry)).sum(),
        entries: entries.clone(),
        done: AtomicU64::new(0),
        kept_bytes: AtomicU64::new(0),
        draining: AtomicBool::new(drain),
        began: inner.env.now(),
    });
    *inner.stop.lock() = Some(stopping.clone());

    let deadline = inner.env.now() + limits::DRAIN_TIME_MAX;
    let work = |entry: Arc<Entry>| {
        let stopping = &stopping;
        async move {
            let outcome = stop_one(inner, &entry, stopping, deadline).await;
            stopping.done.fetch_add(1, Ordering::Relaxed);
            outcome.map_err(|error| (entry.name.clone(), error))
        }
    };
    let at_once = inner.stops_max.load(Ordering::Relaxed);
    let outcomes: Vec<_> =
        stream::iter(entries).map(work).buffer_unordered(at_once).collect().await;
    salvage::stopped(inner).await;
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
    state.is_in_service() || state.is_transitional()
}

/// The effort of stopping a volume: whether another task must end first, whether a batch is in
/// hand, and the bytes owed.
fn effort(entry: &Entry) -> (bool, bool, u64) {
    let (claim, live) = {
        let inside = entry.inside.lock();
        (inside.machine.state().is_transitional(), inside.live.clone())
    };
    let (in_hand, owed) =
        live.map_or((false, 0), |live| (live.staged.is_in_hand(), live.staged.owed_bytes()));
    (claim, in_hand, owed)
}

/// Bytes that a volume owes to the datastore.
fn owed_bytes(entry: &Entry) -> u64 {
    let live = entry.inside.lock().live.clone();
    live.map_or(0, |live| live.staged.owed_bytes())
}

async fn stop_one(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    stopping: &Stopping,
    deadline: Moment,
) -> Result<(), Error> {
    wait_for_transition(inner, entry).await;
    let live = entry.inside.lock().live.clone();
    let Some(live) = live else { return Ok(()) };
    let drained = if stopping.draining.load(Ordering::Relaxed) {
        let mut abort_drain = inner.abort_drain.subscribe();
        // The sender lives as long as the registry.
        let drain_aborted = pin!(abort_drain.wait_for(|abort_drain| *abort_drain));
        let limit = deadline.since(inner.env.now());
        let drain = pin!(inner.env.timeout(limit, live.staged.drain()));
        match select(drain_aborted, drain).await {
            Either::Left(_) => {
                stopping.draining.store(false, Ordering::Relaxed);
                inner.staging.begin_no_batch();
                Ok(())
            }
            Either::Right((Ok(drained), _)) => drained.map(drop).map_err(Error::from),
            Either::Right((Err(_elapsed), _)) => Err(Error::Interrupted(entry.name.clone())),
        }
    } else {
        Ok(())
    };
    let closing = offline::detach(inner, &entry.name, true, "stop");
    let closed = inner.env.timeout(limits::CLOSE_TIME_MAX, closing).await;
    stopping.kept_bytes.fetch_add(live.staged.kept_bytes(), Ordering::Relaxed);
    match closed {
        Ok(closed) => closed?,
        Err(_elapsed) => return Err(Error::Interrupted(entry.name.clone())),
    }
    drained
}

/// Waits for the end of a transitional state, such as an attach that was under way when the stop
/// began.
async fn wait_for_transition(inner: &Inner, entry: &Entry) {
    let ends = async {
        loop {
            let changes = {
                let inside = entry.inside.lock();
                if !inside.machine.state().is_transitional()
                    || inside.machine.state() == State::Deleted
                {
                    return;
                }
                entry.subscribe()
            };
            changes.changed().await;
        }
    };
    // A task that does not end in time is left behind; its changes are in the log.
    let _ = inner.env.timeout(limits::CLOSE_TIME_MAX, ends).await;
}
