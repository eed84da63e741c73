//! Nodes that a user names, and the refusals of commands about them.

use crate::assemble::Node;
use crate::cluster::{Member, Membership};
use rekindle_base::Kind;
use rekindle_cluster::roster::{Entry, Roster};
use rekindle_front::http::api::ApiError;
use std::sync::Arc;

pub(super) fn invalid(message: String) -> ApiError {
    ApiError::new(Kind::Invalid, message)
}

pub(super) fn conflict(why: String) -> ApiError {
    ApiError::new(Kind::Conflict, why)
}

/// The part in a cluster that a command needs.
pub(super) fn member_of(node: &Node) -> Result<&Membership, ApiError> {
    node.membership().ok_or_else(|| {
        invalid(
            "this node is in no cluster: `rekindle cluster init` makes one, `rekindle up --join TOKEN` joins one"
                .to_owned(),
        )
    })
}

/// The node that a user means by its id, the beginning of its id, or its name.
pub(super) async fn meant(member: &Member, word: &str) -> Result<Arc<Entry>, ApiError> {
    let all = member.roster.read_all().await;
    let all = all.map_err(|why| ApiError::new(Kind::Unavailable, why))?;
    let is_meant = |entry: &&Arc<Entry>| {
        let has_name = entry.contact.is_some() && entry.name() == word;
        has_name || entry.node.to_string().starts_with(word)
    };
    let found: Vec<_> = all.iter().filter(is_meant).cloned().collect();
    // A host that has come back bears the name that its old node has still.
    let is_at_home = |entry: &&Arc<Entry>| entry.host == entry.node && !entry.is_removed;
    let at_home: Vec<_> = found.iter().filter(is_at_home).cloned().collect();
    match (&found[..], &at_home[..]) {
        ([one], _) | (_, [one]) if !word.is_empty() => Ok(one.clone()),
        ([] | [_], _) => Err(ApiError::new(
            Kind::NotFound,
            format!("the cluster has no node '{word}': see `rekindle cluster ls`"),
        )),
        _ => Err(invalid(format!("'{word}' may be {} nodes: give more of the id", found.len()))),
    }
}
