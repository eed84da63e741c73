//! The long work that the jobs are made of, and the counters that people ask for.

use crate::assemble::Node;
use crate::jobs::{Jobs, Progress};
use crate::status::{last_done, refused};
use base::Kind;
use datastore::layer::meter::Call;
use front::http::api::{ApiError, JobState, StartSweep, StartVerify, SweepStatus};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use volume::Handle;

/// How often a job looks how far it is.
const INTERVAL: Duration = Duration::from_millis(200);

/// Brings what a volume owes into the store.
pub async fn drain(node: Arc<Node>, handle: Handle, progress: Progress) -> Result<Value, ApiError> {
    let staged = handle.staged().clone();
    let owed = staged.backlog().bytes;
    progress.set(0, Some(owed));
    let mut drained = std::pin::pin!(staged.drain());
    let checkpoint = loop {
        tokio::select! {
            checkpoint = &mut drained => break checkpoint,
            () = node.env.sleep(INTERVAL) => {
                progress.set(owed.saturating_sub(staged.backlog().bytes), Some(owed));
            }
        }
    };
    let checkpoint = checkpoint.map_err(|error| refused(&volume::Error::Staging(error)))?;
    progress.set(owed, Some(owed));
    Ok(json!({ "checkpoint": checkpoint.0, "bytes": owed }))
}

/// Reads what volumes reach and compares it with its names.
pub async fn verify(
    node: Arc<Node>,
    request: StartVerify,
    progress: Progress,
) -> Result<Value, ApiError> {
    let _ = (node, request, progress);
    Err(ApiError::new(Kind::Unsupported, "verify is not there yet"))
}

/// Gives back what no volume reaches.
pub async fn sweep(
    node: Arc<Node>,
    request: StartSweep,
    progress: Progress,
) -> Result<Value, ApiError> {
    let _ = (node, request, progress);
    Err(ApiError::new(Kind::Unsupported, "the sweep is not there yet"))
}

/// What the sweep does and did.
pub fn sweep_status(node: &Node, jobs: &Jobs) -> SweepStatus {
    let _ = node;
    let last = last_done(jobs, "sweep");
    SweepStatus {
        running: jobs.latest("sweep", JobState::Running).map(|job| job.id),
        finished: last.as_ref().and_then(|job| job.finished),
        next: None,
        last: last.map_or(Value::Null, |job| job.result),
    }
}

/// What only makes things faster, after the first reply.
pub fn in_background(node: &Arc<Node>) {
    let _ = node;
}

/// What content has written and kept.
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
        "cache_bytes": stats.cache_bytes,
        "index_bytes": stats.index_bytes,
    })
}

/// Content's counters, and what the store was asked for.
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
    json!({ "content": content_counters(node), "calls": calls })
}
