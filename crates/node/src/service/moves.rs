//! Moves of volumes to other nodes of the cluster.

use super::Service;
use super::named::{meant, member_of};
use crate::assemble::Node;
use crate::cluster::Member;
use crate::jobs::Progress;
use crate::limits;
use rekindle_base::{Kind, Life, NodeId};
use rekindle_cluster::roster::{Entry, Roster};
use rekindle_env::BoxFuture;
use rekindle_front::http::api::{ApiError, Job};
use rekindle_volume::{Confirm, Error};
use serde_json::{Value, json};
use std::sync::Arc;

/// Begins to move a volume of `node`, which runs here, to the node that `word` means.
pub(super) async fn begin(
    service: &Service,
    node: Arc<Node>,
    volume: &str,
    word: &str,
) -> Result<Job, ApiError> {
    let member = member_of(&node)?.member.clone();
    let to = meant(&member, word).await?;
    let id = to.node;
    if id == node.id {
        let message = format!("volume '{volume}' is at node {} already", to.label());
        return Err(ApiError::new(Kind::Invalid, message));
    }
    // What is wrong from the beginning is told at once.
    next_owner(&member, id).await?;
    let (asked, name) = ((member, id), to.label());
    let subject = format!("{volume} to {name}");
    let (volume, jobs) = (volume.to_owned(), service.jobs());
    let work = |progress| carry(node, volume, (asked, name), progress);
    Ok(jobs.begin("move", &subject, "bytes", work))
}

async fn carry(
    node: Arc<Node>,
    volume: String,
    ((member, id), name): ((Arc<Member>, NodeId), String),
    progress: Progress,
) -> Result<Value, ApiError> {
    let confirm: Confirm = Box::new(move || -> BoxFuture<'static, Result<Life, Error>> {
        let member = member.clone();
        Box::pin(async move { next_owner(&member, id).await })
    });
    let told = move |done: u64, owed: u64| progress.set(done, Some(done + owed));
    let moved = node.volumes.move_to(&volume, confirm, told).await?;
    tracing::info!(volume, to = name, "{}", moved.sentence());
    let mut words = json!(moved);
    words["name"] = name.into();
    words["told"] = moved.sentence().into();
    Ok(words)
}

/// The present life of a node that a volume is to move to; an error when that node cannot serve it.
async fn next_owner(member: &Member, id: NodeId) -> Result<Life, Error> {
    let refused = |kind, reason| Err(Error::NoTarget { kind, reason });
    let entry = match member.roster.read(id).await {
        Ok(Some(entry)) => entry,
        Ok(None) => return refused(Kind::NotFound, format!("node {id} has no record any more")),
        Err(reason) => return refused(Kind::Unavailable, reason),
    };
    let name = entry.label();
    if let Some(why) = unfit(&entry) {
        return refused(Kind::Conflict, format!("node {name} {why}"));
    }
    if !member.calls.is_here(entry.host)
        && let Err(why) = member.calls.offer(entry.host, limits::ANSWER_WAIT).await
    {
        return refused(Kind::Unavailable, format!("node {name} does not answer: {why}"));
    }
    Ok(Life { node: id, incarnation: entry.incarnation })
}

/// Why no volume moves to a node, as far as its record says.
fn unfit(entry: &Entry) -> Option<String> {
    if entry.is_removed {
        return Some("was removed from the cluster".to_owned());
    }
    if entry.contact.is_none() {
        return Some("is in no cluster".to_owned());
    }
    if entry.is_resting {
        return Some("is stopped: start it first".to_owned());
    }
    if entry.host != entry.node {
        return Some(format!(
            "was taken over, and runs at the host of node {}: move the volume to that node",
            entry.host
        ));
    }
    entry.is_draining.then(|| {
        "is draining: choose another one, or end that with `rekindle cluster drain NODE --off`"
            .to_owned()
    })
}
