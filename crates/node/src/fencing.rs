//! Fencing: the end of a node that another copy of its folder has replaced. It acknowledges nothing
//! more, disconnects its clients, and reports the reason until an operator stops it.
//!
//! The node finds out in three ways: a volume's vault names a newer start of this node, the node's
//! record does, or an operator has dismissed this start, so that no sweep waits for it. The node
//! looks every few seconds while it acknowledges writes; an idle node asks nothing. A node whose
//! log has replicas may be replaced on another machine: it also looks while volumes are in service.

use crate::assemble::Node;
use crate::{limits, record};
use rekindle_base::Incarnation;
use std::sync::Arc;

/// The result of a look into the record.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sight {
    Ours,
    /// Another start has replaced this one; the reason.
    Replaced(String),
    /// The record proves nothing: it is absent, too old, or cannot be read now.
    Unknown,
}

/// Waits until this node is replaced, and returns the reason. Acknowledging has ended by then.
pub async fn replaced(node: &Arc<Node>) -> String {
    let mut met = node.staging.met();
    let mut looked = 0;
    loop {
        let news = async {
            if met.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let is_met = tokio::select! {
            biased;
            () = news => true,
            () = node.env.sleep(limits::RECORD_LOOK_INTERVAL) => false,
        };
        let worked = worked(node);
        if !is_met && worked == looked && !may_be_replaced_elsewhere(node) {
            continue;
        }
        looked = worked;
        if let Sight::Replaced(reason) = look(node).await {
            tracing::debug!("replaced, as a {} says", if is_met { "vault" } else { "look" });
            node.staging.fence(&reason);
            return reason;
        }
    }
}

/// Returns a number that grows with every acknowledged change.
fn worked(node: &Node) -> u64 {
    let destaged: u64 = node.staging.volumes().iter().map(|one| one.backlog().serial).sum();
    node.log.usage().appended_bytes.wrapping_add(destaged)
}

fn may_be_replaced_elsewhere(node: &Node) -> bool {
    node.log.replicas() > 0 && !node.staging.volumes().is_empty()
}

async fn look(node: &Node) -> Sight {
    // A commit may have met the dismissal of this start.
    if let Some(error) = node.staging.fenced() {
        return Sight::Replaced(error.to_string());
    }
    match rekindle_content::sweep::is_dismissed(&node.writer).await {
        Ok(true) => return Sight::Replaced(rekindle_content::Error::Dismissed.to_string()),
        Ok(false) => {}
        Err(error) => {
            tracing::debug!(%error, "it is not known now whether this start was dismissed")
        }
    }
    match record::read(&node.writer).await {
        Ok(Some(held)) => judge(node, held.value.incarnation, held.value.nonce),
        Ok(None) => {
            tracing::error!(node = %node.id, "the store has no record of this node any more: was it set back?");
            Sight::Unknown
        }
        // A failed read proves no replacement.
        Err(error) => {
            tracing::debug!(%error, "the node's record cannot be read now");
            Sight::Unknown
        }
    }
}

fn judge(node: &Node, incarnation: Incarnation, nonce: Option<u64>) -> Sight {
    if nonce == Some(node.nonce) {
        return Sight::Ours;
    }
    if incarnation < node.incarnation {
        tracing::error!(found = %incarnation, ours = %node.incarnation, "the record of this node was set back");
        return Sight::Unknown;
    }
    Sight::Replaced(format!(
        "another copy of this folder was started as the same node ({}, start {incarnation}; this is start {}): this one \
         acknowledges nothing any more, what it has not in the store stays in its log. Stop it and remove the folder, or go on \
         with this copy by `rekindle up --take-identity`, which stops the other",
        node.id, node.incarnation
    ))
}
