//! Copies of logs over the network, for peers and for users.

use crate::Error;
use crate::assemble::Node;
use crate::copies::{FOLDER, secret};
use rekindle_base::{Kind, Life, NodeId};
use rekindle_cluster::Identity;
use rekindle_env::Address;
use rekindle_front::http::api::{ApiError, Copies, HeldCopies, ReplicaStatus};
use std::path::PathBuf;
use std::sync::Arc;

/// Lets peers send their copies.
pub async fn serve(node: &Arc<Node>) -> Result<(), Error> {
    let (Some(place), Some(holder)) = (&node.config.hold, &node.holder) else { return Ok(()) };
    let address: Address = place.parse().map_err(|bad| Error::Usage(format!("{bad}")))?;
    let acceptor = node
        .env
        .net()
        .listen(&address)
        .await
        .map_err(|error| Error::Usage(format!("copies cannot be taken at {place}: {error}")))?;
    let identity = Identity {
        secret: secret(&node.identity),
        store: node.identity.store,
        life: Life { node: node.id, incarnation: node.incarnation },
    };
    let serve = rekindle_cluster::serve(node.env.clone(), acceptor, holder.clone(), identity);
    node.env.spawn("copies", serve);
    Ok(())
}

/// The copies on both sides, for a user.
pub(crate) async fn list(node: &Node) -> Copies {
    let held = match &node.holder {
        Some(holder) => holder.list().await,
        None => Vec::new(),
    };
    let held = held.into_iter().map(|one| HeldCopies {
        node: one.node.to_string(),
        folder: folder(node, one.node).display().to_string(),
        bytes: one.held.map_or(0, |held| held.bytes),
        segments: one.held.map_or(0, |held| held.segments as u64),
        incarnation: one.held.and_then(|held| held.newest).unwrap_or_default().0,
        last_copy: one.last_copy.map(|at| at.0),
        released: one.is_released,
    });
    let behind = node.log.replicas_behind();
    let replicas = node.config.copy_to.iter().map(|address| {
        let lacks = behind.iter().find(|(name, _)| name == address);
        ReplicaStatus {
            address: address.clone(),
            behind: lacks.is_some(),
            problem: lacks.and_then(|(_, problem)| problem.clone()),
        }
    });
    Copies { held: held.collect(), replicas: replicas.collect() }
}

/// Lets the copies of a node's log go, for ever: a daemon may start from their folder then.
pub(crate) async fn release(node: &Node, name: &str) -> Result<HeldCopies, ApiError> {
    let invalid = |message: String| ApiError::new(Kind::Invalid, message);
    let owner: NodeId = name.parse().map_err(|_| invalid(format!("'{name}' is no node's id")))?;
    let Some(holder) = &node.holder else {
        return Err(invalid("this node keeps no copies: see `rekindle up --hold`".to_owned()));
    };
    holder.release(owner).await.map_err(|reason| ApiError::new(Kind::Conflict, reason))?;
    let held = list(node).await.held;
    let released = held.into_iter().find(|one| one.node == owner.to_string());
    released.ok_or_else(|| invalid(format!("there are no copies of node {owner} here")))
}

fn folder(node: &Node, owner: NodeId) -> PathBuf {
    node.config.dir.join(FOLDER).join(owner.to_string())
}
