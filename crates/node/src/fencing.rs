//! The end of a node that another copy of its folder has replaced: it acknowledges nothing more, its clients are hung up on,
//! and it says why until somebody stops it.
//!
//! Three ways to find out: a volume's vault names a newer start of this node, a look into the node's record does, or somebody
//! has dismissed this start, so that no sweep waits for it. The node
//! looks while it acknowledges writes, every few seconds; an idle one asks nobody.

use crate::assemble::Node;
use crate::{limits, record};
use base::Incarnation;
use std::sync::Arc;

/// What a look into the record came to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sight {
    Ours,
    /// Why this node is not the one any more.
    Replaced(String),
    /// It cannot be known now.
    Unknown,
}

/// Waits until this node is not the one any more; gives why. Acknowledging has ended by then.
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
            () = news => true,
            () = node.env.sleep(limits::RECORD_LOOK_INTERVAL) => false,
        };
        let worked = worked(node);
        if !is_met && worked == looked {
            continue;
        }
        looked = worked;
        if let Sight::Replaced(reason) = look(node).await {
            node.staging.fence(&reason);
            return reason;
        }
    }
}

/// Grows with all that is acknowledged.
fn worked(node: &Node) -> u64 {
    let destaged: u64 = node.staging.volumes().iter().map(|one| one.backlog().serial).sum();
    node.log.usage().appended_bytes.wrapping_add(destaged)
}

async fn look(node: &Node) -> Sight {
    // A commit may have found out that this start was dismissed.
    if let Some(error) = node.staging.fenced() {
        return Sight::Replaced(error.to_string());
    }
    match content::sweep::is_dismissed(&node.writer).await {
        Ok(true) => return Sight::Replaced(content::Error::Dismissed.to_string()),
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
        // A store that is away replaces nobody.
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
