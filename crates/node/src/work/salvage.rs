//! Salvages that an operator requests, and the API's rows of all salvages.

use super::INTERVAL;
use crate::assemble::Node;
use crate::jobs::Progress;
use rekindle_front::http::api::ApiError;
use rekindle_volume::Salvage;
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Salvages a volume for an operator. The result says what was done, and whether damage is left.
pub async fn salvage(
    node: Arc<Node>,
    name: String,
    accept_losses: bool,
    progress: Progress,
) -> Result<Value, ApiError> {
    let mut work = std::pin::pin!(node.volumes.salvage(&name, accept_losses));
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut work => break outcome,
            () = node.env.sleep(INTERVAL) => {
                let running = node.volumes.salvages().into_iter().find(|one| one.volume == name);
                progress.set(running.map_or(0, |one| one.chunks), None);
            }
        }
    };
    let done = outcome?;
    Ok(json!({ "volume": name, "done": done.told, "damage_left": done.is_left }))
}

/// Pauses between the looks for interrupted salvages: the next attempt may only be due after a
/// while.
const RESUME_PAUSES: [Duration; 4] = [
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(600),
    Duration::from_secs(600),
];

/// Resumes salvages that the last life could not end.
pub async fn resume(node: Weak<Node>) {
    let first = |node: Arc<Node>| (node.env.clone(), node.kit.scale.clients_first);
    let Some((env, first)) = node.upgrade().map(first) else { return };
    for pause in std::iter::once(first).chain(RESUME_PAUSES) {
        env.sleep(pause).await;
        let Some(node) = node.upgrade() else { return };
        match node.volumes.resume_salvages().await {
            Ok(0) => return,
            Ok(resumed) => tracing::info!(resumed, "salvages that were cut off go on"),
            Err(rekindle_volume::Error::Stopping) => return,
            Err(error) => tracing::warn!(%error, "it is not known which salvages were cut off"),
        }
    }
}

/// Lists the queue, then the volumes that wait outside it, for an operator or for the store.
pub fn rows(node: &Node) -> Vec<Salvage> {
    let mut rows = node.volumes.salvages();
    let now = node.env.wall_clock().0;
    for impaired in node.volumes.impaired() {
        let Some((since, reason)) = impaired.unreadable else { continue };
        if rows.iter().any(|row| row.volume == impaired.volume) {
            continue;
        }
        rows.push(Salvage {
            volume: impaired.volume,
            device: node.store.describe(),
            reason,
            age_ms: now.saturating_sub(since) / 1000,
            ..Salvage::default()
        });
    }
    rows
}
