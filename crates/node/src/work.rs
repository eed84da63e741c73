//! The long work behind the jobs, and the counters of the API.

mod attach;
mod recover;
mod salvage;
mod space;
mod sweep;
mod verify;

pub use attach::attach;
pub use recover::{bring_all, left_in_log};
pub use salvage::{rows as salvage_rows, salvage};
pub use space::space;
pub use sweep::{By, leave, plan as plan_sweep, status as sweep_status, sweep};
use verify::scrub;
pub use verify::verify;

use crate::assemble::Node;
use crate::jobs::{Jobs, Progress};
use crate::service::Service;
use rekindle_datastore::layer::meter::{Call, StorePart};
use rekindle_front::http::api::ApiError;
use rekindle_volume::Handle;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Pause between two reports of a job's progress.
const INTERVAL: Duration = Duration::from_millis(200);

/// Starts the background work, after the first reply.
pub fn in_background(node: &Arc<Node>, service: &Service) {
    let jobs = service.jobs();
    node.env.spawn("welcome", node.volumes.welcome());
    let (env, content) = (node.env.clone(), node.content.clone());
    let clients_first = node.kit.scale.clients_first;
    node.env.spawn("index-warm-up", async move {
        // The warm-up would take a core from the attaches of clients that come back at once.
        env.sleep(clients_first).await;
        match content.warm_index().await {
            Ok(done) => tracing::debug!(
                packs = done.packs,
                footers = done.footers,
                "the dedup index is warm"
            ),
            Err(error) => {
                tracing::warn!(%error, "the dedup index stays cold: new data may be stored twice")
            }
        }
    });
    node.env.spawn("volume-watchdog", node.volumes.watchdog(node.config.stuck_after));
    node.env.spawn("salvager", node.volumes.salvager());
    node.env.spawn("salvage-resume", salvage::resume(Arc::downgrade(node)));
    node.env.spawn("collector", node.volumes.collector(node.config.collector.clone()));
    node.env.spawn("recover", recover::recover(Arc::downgrade(node)));
    node.env.spawn("sweep-agree", sweep::agree(Arc::downgrade(node)));
    every(node, "sweep-timer", node.config.sweep.interval, jobs, |node, jobs| {
        let by = By::Timer(node.config.sweep.interval.unwrap_or_default());
        jobs.begin("sweep", "the store", "steps", |progress| sweep(node, by, progress));
    });
    let rate = node.config.scrub.bytes_per_second;
    every(node, "scrub-timer", node.config.scrub.interval, jobs, move |node, jobs| {
        jobs.begin("scrub", "the store", "chunks", |progress| scrub(node, rate, progress));
    });
}

/// Begins `begin` again and again while the node lives; `None`: never.
fn every(
    node: &Arc<Node>,
    name: &'static str,
    interval: Option<Duration>,
    jobs: &Jobs,
    begin: impl Fn(Arc<Node>, &Jobs) + Send + 'static,
) {
    let Some(interval) = interval else { return };
    // A weak reference: the node must end when the service releases it.
    let (node, env, jobs) = (Arc::downgrade(node), node.env.clone(), jobs.clone());
    env.clone().spawn(name, async move {
        loop {
            env.sleep(interval).await;
            let Some(node) = node.upgrade() else { return };
            begin(node, &jobs);
        }
    });
}

/// Destages the whole backlog of a volume.
pub async fn drain(node: Arc<Node>, handle: Handle, progress: Progress) -> Result<Value, ApiError> {
    let staged = handle.staged().clone();
    let owed = staged.backlog().bytes;
    progress.set(0, Some(owed));
    let mut drained = std::pin::pin!(staged.drain());
    let checkpoint = loop {
        tokio::select! {
            biased;
            checkpoint = &mut drained => break checkpoint,
            () = node.env.sleep(INTERVAL) => {
                progress.set(owed.saturating_sub(staged.backlog().bytes), Some(owed));
            }
        }
    };
    let checkpoint = checkpoint.map_err(rekindle_volume::Error::Staging)?;
    progress.set(owed, Some(owed));
    Ok(json!({ "checkpoint": checkpoint.0, "bytes": owed }))
}

/// Returns the counters of the content store.
pub fn content_counters(node: &Node) -> Value {
    let stats = node.content.stats();
    json!({
        "chunks_written": stats.chunks_written,
        "chunks_deduplicated": stats.chunks_deduplicated,
        "bytes_in": stats.bytes_in,
        "bytes_deduplicated": stats.bytes_deduplicated,
        "bytes_stored": stats.bytes_stored,
        "packs_written": stats.packs_written,
        "cache_hits": stats.cache_hits,
        "cache_misses": stats.cache_misses,
        "data_waits": stats.data_waits,
        "metadata_waits": stats.metadata_waits,
        "fetched_ahead": stats.fetched_ahead,
        "fetched_in_vain": stats.fetched_in_vain,
        "cache_bytes": stats.cache_bytes,
        "index_bytes": stats.index_bytes,
    })
}

/// Returns the counters of the content store and of the calls to the datastore.
pub fn store_counters(node: &Node) -> Value {
    let calls: serde_json::Map<_, _> = Call::ALL
        .into_iter()
        .map(|call| {
            let reading = node.meter.read(call);
            let latency = u64::try_from(reading.latency.as_micros()).unwrap_or(u64::MAX);
            let value = json!({
                "calls": reading.calls, "errors": reading.errors, "bytes": reading.bytes, "latency_us": latency,
            });
            (call.name().to_owned(), value)
        })
        .collect();
    let of_part = |part: StorePart| {
        let counted = Call::ALL.into_iter().map(|call| (call, node.meter.requests(part, call)));
        let made = counted.filter(|(_, count)| *count > 0);
        let made: serde_json::Map<_, _> =
            made.map(|(call, count)| (call.name().to_owned(), count.into())).collect();
        (part.name().to_owned(), Value::from(made))
    };
    let requests: serde_json::Map<_, _> = StorePart::ALL.into_iter().map(of_part).collect();
    json!({
        "content": content_counters(node),
        "calls": calls,
        "requests": requests,
        "prices": node.config.prices,
    })
}
