//! The sweep as a job: first orphans, then unreachable content.

use crate::assemble::Node;
use crate::jobs::{Jobs, Progress};
use crate::limits;
use crate::prices::Price;
use rekindle_base::NodeId;
use rekindle_content::sweep::Phase;
use rekindle_front::http::api::{ApiError, JobState, SweepStatus};
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The cause of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A user: this node sweeps.
    User,
    /// The timer, with this interval: this node leaves the sweep to another one that did the last.
    Timer(Duration),
}

/// Gives back the space that no volume reaches.
pub async fn sweep(node: Arc<Node>, by: By, progress: Progress) -> Result<Value, ApiError> {
    let reaped = node.volumes.reap_orphans().await?;
    if let By::Timer(interval) = by
        && let Some(other) = left_to(&node, interval).await?
    {
        progress.set(STEPS, Some(STEPS));
        return Ok(json!({ "left_to": other.to_string(), "orphans": reaped }));
    }
    let mut swept = std::pin::pin!(node.sweeper.run());
    let status = loop {
        tokio::select! {
            biased;
            status = &mut swept => break status,
            () = node.env.sleep(super::INTERVAL) => progress.set(steps(node.sweeper.progress().phase), Some(STEPS)),
        }
    };
    let status = status.map_err(|error| ApiError::new(error.kind(), error.to_string()))?;
    progress.set(STEPS, Some(STEPS));
    let mut value = json!(status);
    value["orphans"] = json!(reaped);
    Ok(value)
}

/// Finds out what a sweep would do, and what that costs.
pub async fn plan(node: Arc<Node>, progress: Progress) -> Result<Value, ApiError> {
    let plan = node.sweeper.plan().await;
    let plan = plan.map_err(|error| ApiError::new(error.kind(), error.to_string()))?;
    progress.set(1, Some(1));
    let prices = node.config.prices;
    let mut value = json!(plan);
    let cost =
        prices.of_requests(plan.writes, plan.reads).0 + prices.of_reading(plan.bytes_copied).0;
    value["cost"] = json!(Price(cost).to_string());
    value["saves_a_month"] = json!(prices.of_a_month(plan.bytes_freed).to_string());
    Ok(value)
}

/// Returns the node that sweeps the store instead of this one: its counts are up to date, those of
/// this node are not.
async fn left_to(node: &Node, interval: Duration) -> Result<Option<NodeId>, ApiError> {
    let silence = interval * limits::SWEEPS_MISSED;
    let other = node.sweeper.left_to(silence).await;
    other.map_err(|error| ApiError::new(error.kind(), error.to_string()))
}

/// Steps of a sweep, for its progress: their durations are not known beforehand.
const STEPS: u64 = 6;

fn steps(phase: Phase) -> u64 {
    match phase {
        Phase::Idle | Phase::Marking => 0,
        Phase::Condemned => 1,
        Phase::Settling => 2,
        Phase::ReMarking => 3,
        Phase::Deleting => 4,
        Phase::Compacting => 5,
    }
}

/// Takes part in the sweeps of other nodes while the node lives. A look is one small read. A node
/// whose store is away keeps the others from deleting, and so loses nothing.
pub(super) async fn agree(node: Weak<Node>) {
    let Some((env, sweeper, scale)) = node
        .upgrade()
        .map(|node| (node.env.clone(), Arc::downgrade(&node.sweeper), node.kit.scale.clone()))
    else {
        return;
    };
    let mut pause = scale.sweep_agree;
    loop {
        env.sleep(pause).await;
        let Some(sweeper) = sweeper.upgrade() else { return };
        pause = match sweeper.acknowledge().await {
            Ok(true) => scale.sweep_agree,
            Ok(false) => scale.sweep_look,
            Err(error) => {
                tracing::debug!(%error, "it is not known now whether another node sweeps");
                scale.sweep_look
            }
        };
    }
}

/// Ends an orderly stop: tells the other nodes that no sweep need wait for this one.
pub async fn leave(node: &Node) {
    let told = match node.env.timeout(limits::LEAVE_WAIT, node.sweeper.leave()).await {
        Ok(told) => told.map_err(|error| error.to_string()),
        Err(_) => Err("the store gives no answer".to_owned()),
    };
    if let Err(error) = told {
        tracing::debug!(%error, "sweeps of other nodes wait for this one until it is started again or dismissed");
    }
}

/// Returns the status of the sweep, and the result of the last one.
pub fn status(node: &Node, jobs: &Jobs) -> SweepStatus {
    let last = jobs.latest("sweep", JobState::Done);
    let began = node.sweeper.progress().started_microseconds;
    let next = node.config.sweep.interval.map(|interval| {
        let from = began.unwrap_or(node.started.0);
        from.saturating_add(u64::try_from(interval.as_micros()).unwrap_or(u64::MAX))
    });
    SweepStatus {
        running: jobs.latest("sweep", JobState::Running).map(|job| job.id),
        finished: last.as_ref().and_then(|job| job.finished),
        next,
        last: last.map_or_else(|| json!(node.sweeper.progress()), |job| job.result),
    }
}
