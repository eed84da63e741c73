//! Fencing: the end of a node that another copy of its folder has replaced. It acknowledges nothing
//! more, disconnects its clients, and reports the reason until an operator stops it.
//!
//! The node finds out in four ways: a volume's vault names a newer start of this node, the node's
//! record does, a holder of its copies refuses it, or an operator has dismissed this start, so that
//! no sweep waits for it. The node looks every few seconds while it acknowledges writes; an idle
//! node asks nothing. A node whose log has copies elsewhere may be replaced there: it also looks
//! while volumes are in service. Its reads end sooner, with the lease of its holders; volumes
//! without copies go on while the store knows of no other life.

use crate::assemble::Node;
use crate::record::NodeRecord;
use crate::{limits, own_record, record};
use rekindle_base::NodeId;
use std::convert::Infallible;
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
    tokio::select! {
        reason = until_replaced(node) => reason,
        never = stand(node) => match never {},
    }
}

/// Asks the store whether this life goes on, again and again while its lease does not hold: volumes
/// without copies read and acknowledge only while it stands. A store that does not answer does not
/// stop them: no other life begins without it, and a user who gives up what the lost machine has is
/// believed.
async fn stand(node: &Arc<Node>) -> Infallible {
    let (env, lease) = (&node.env, &node.lease);
    loop {
        lease.lapses(env).await;
        let began = env.now();
        if !node.staging.volumes().is_empty() {
            match env.timeout(limits::STAND_WAIT, look_into_store(node)).await {
                Ok(Sight::Ours) => lease.stand(began + limits::STANDS),
                Ok(Sight::Replaced(_)) => node.doubt.notify_one(),
                Ok(Sight::Unknown) | Err(_) => lease.stand(env.now() + limits::STAND_WAIT),
            }
        }
        env.sleep(limits::STAND_PAUSE).await;
    }
}

async fn until_replaced(node: &Arc<Node>) -> String {
    let mut met = node.staging.met();
    let mut looked = 0;
    loop {
        let news = async {
            if met.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let (is_met, source) = tokio::select! {
            biased;
            () = news => (true, "vault"),
            () = node.doubt.notified() => (true, "doubt"),
            () = node.env.sleep(limits::RECORD_LOOK_INTERVAL) => (false, "look"),
        };
        let worked = worked(node);
        let is_fenced = node.staging.fenced().is_some();
        if !is_met && !is_fenced && worked == looked && !may_be_replaced_elsewhere(node) {
            continue;
        }
        looked = worked;
        let sight = look(node).await;
        if is_met && sight == Sight::Ours {
            // A doubt may come again with each beat.
            node.env.sleep(limits::DOUBT_PAUSE).await;
        }
        if let Sight::Replaced(reason) = sight {
            tracing::debug!("replaced, as a {source} says");
            if let Some(membership) = node.membership() {
                membership.keeping.end();
            }
            if node.staging.fenced().is_some() {
                // The commit that has fenced it said less.
                tracing::error!("this start of the node is over: {reason}");
            }
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
    node.log.progress().copies.required > 0 && !node.staging.volumes().is_empty()
}

async fn look(node: &Node) -> Sight {
    let Some(error) = node.staging.fenced() else { return look_into_store(node).await };
    // A commit has met the end of this start. The store says more: who goes on, and the way back.
    match node.env.timeout(limits::FENCED_LOOK_WAIT, look_into_store(node)).await {
        Ok(Sight::Replaced(reason)) => Sight::Replaced(reason),
        Ok(Sight::Ours | Sight::Unknown) | Err(_) => Sight::Replaced(error.to_string()),
    }
}

async fn look_into_store(node: &Node) -> Sight {
    match rekindle_content::sweep::is_dismissed(&node.writer).await {
        Ok(true) => return Sight::Replaced(rekindle_content::Error::Dismissed.to_string()),
        Ok(false) => {}
        Err(error) => {
            tracing::debug!(%error, "it is not known now whether this start was dismissed")
        }
    }
    match record::read(&node.writer).await {
        Ok(Some(held)) => judge(node, &held.value).await,
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

/// The node whose process goes on as this one, if another one does.
pub(crate) async fn successor(node: &Node) -> Option<NodeId> {
    node.membership()?;
    let found = record::read(&node.writer).await.ok()??;
    let is_other = found.value.nonce != Some(node.nonce) && !found.value.removed;
    found.value.host.filter(|host| is_other && *host != node.id)
}

async fn judge(node: &Node, found: &NodeRecord) -> Sight {
    let ours = node.own.value().await;
    if let Some(why) = own_record::why_over(node.id, &ours, found) {
        return Sight::Replaced(why);
    }
    if found.nonce == Some(node.nonce) {
        return Sight::Ours;
    }
    tracing::error!(found = %found.incarnation, ours = %node.incarnation, "the record of this node was set back");
    Sight::Unknown
}
