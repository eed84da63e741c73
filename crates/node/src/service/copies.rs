//! Copies of logs over the network, for peers and for users.

use super::guests::folder;
use crate::Error;
use crate::assemble::Node;
use crate::copies::secret;
use crate::guests::Guest as State;
use crate::health;
use crate::service::Service;
use rekindle_base::{Kind, Life, NodeId};
use rekindle_cluster::Identity;
use rekindle_env::Address;
use rekindle_front::http::api::{ApiError, Copies, Guest, HeldCopies, ReplicaStatus};
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
pub(crate) async fn list(service: &Service, node: &Node) -> Copies {
    let held = match &node.holder {
        Some(holder) => holder.list().await,
        None => Vec::new(),
    };
    let held = held.into_iter().map(|one| HeldCopies {
        node: one.node.to_string(),
        folder: folder(&node.config, one.node).display().to_string(),
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
    let guests = service.guests().all().into_iter();
    let guests = guests.map(|(id, guest)| describe(node, id, &guest)).collect();
    Copies { held: held.collect(), replicas: replicas.collect(), guests }
}

/// Lets the copies of a node's log go, for ever: a daemon may start from their folder then.
pub(crate) async fn release(
    service: &Service,
    node: &Node,
    name: &str,
) -> Result<HeldCopies, ApiError> {
    let owner = let_go(node, name).await?;
    let held = list(service, node).await.held;
    let released = held.into_iter().find(|one| one.node == owner.to_string());
    released.ok_or_else(|| invalid(format!("there are no copies of node {owner} here")))
}

/// Lets the copies of a lost node's log go, and has that node go on here.
pub(crate) async fn take_over(
    service: &Service,
    host: &Arc<Node>,
    name: &str,
) -> Result<Guest, ApiError> {
    let owner = let_go(host, name).await?;
    super::guests::take_over(service, host, owner).await?;
    let guest = service.guests().all().remove(&owner);
    let guest = guest.ok_or_else(|| invalid(format!("node {owner} is no guest any more")))?;
    Ok(describe(host, owner, &guest))
}

async fn let_go(node: &Node, name: &str) -> Result<NodeId, ApiError> {
    let owner: NodeId = name.parse().map_err(|_| invalid(format!("'{name}' is no node's id")))?;
    let Some(holder) = &node.holder else {
        return Err(invalid("this node keeps no copies: see `rekindle up --hold`".to_owned()));
    };
    holder.release(owner).await.map_err(|reason| ApiError::new(Kind::Conflict, reason))?;
    Ok(owner)
}

fn invalid(message: String) -> ApiError {
    ApiError::new(Kind::Invalid, message)
}

fn describe(host: &Node, id: NodeId, guest: &State) -> Guest {
    let place = folder(&host.config, id).display().to_string();
    let empty = Guest { node: id.to_string(), folder: place, ..Guest::default() };
    match guest {
        State::Starting(reason) => {
            Guest { state: "starting".to_owned(), reason: reason.clone(), ..empty }
        }
        State::Replaced(reason) => {
            Guest { state: "replaced".to_owned(), reason: Some(reason.clone()), ..empty }
        }
        State::Serving(node) => {
            let volumes = node.staging.volumes();
            let owed = volumes.iter().map(|staged| health::acknowledged(staged, &staged.backlog()));
            Guest {
                state: "serving".to_owned(),
                incarnation: node.incarnation.0,
                start_us: node.phases.iter().map(|(_, time)| time).sum(),
                log_bytes: node.log.usage().flash_bytes,
                volumes: volumes.len() as u64,
                backlog_bytes: owed.sum(),
                ..empty
            }
        }
    }
}
