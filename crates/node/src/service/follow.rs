//! Volumes go to where their clients are: a volume whose clients are all at one other host, and
//! stay there, moves to that host's node ([`super::moves`]), which spares them the way.
//!
//! A client counts from the beginning of its session here. A move, a takeover and other settings
//! begin it anew, so no volume moves twice within the time.

use super::{Service, moves};
use crate::assemble::Node;
use crate::limits;
use rekindle_base::NodeId;
use rekindle_env::Moment;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The node that a volume should go to. `visitors`: its clients of other hosts, each with the home
/// node of its host and the time since it came. `clients`: the count of all its clients.
fn target(visitors: &[(NodeId, Duration)], clients: u64, after: Duration) -> Option<NodeId> {
    let (first, _) = *visitors.first()?;
    let is_all = visitors.len() as u64 == clients;
    let stays = |(node, since): &(NodeId, Duration)| *node == first && *since >= after;
    (is_all && visitors.iter().all(stays)).then_some(first)
}

/// Looks again and again while the node lives.
pub(super) async fn follow(service: Service, node: Weak<Node>, after: Duration) {
    let mut not_before: BTreeMap<String, Moment> = BTreeMap::new();
    loop {
        let Some(env) = node.upgrade().map(|node| node.env.clone()) else { return };
        env.sleep(limits::FOLLOW_LOOK_INTERVAL.min(after)).await;
        let now = env.now();
        not_before.retain(|_, until| *until > now);
        for (volume, visitors) in service.inner.visitors.of_volumes(now) {
            if not_before.contains_key(&volume) {
                continue;
            }
            let Some(owner) = owner(&service, &volume) else { continue };
            let Ok(Ok(info)) = env.timeout(limits::ANSWER_WAIT, owner.volumes.show(&volume)).await
            else {
                continue;
            };
            let Some(to) = target(&visitors, info.clients, after) else { continue };
            not_before.insert(volume.clone(), now + after);
            match moves::begin(&service, owner, &volume, &to.to_string()).await {
                Ok(_) => tracing::info!(volume, %to, "follows its clients"),
                Err(error) => {
                    tracing::debug!(volume, %to, %error, "does not follow its clients now");
                }
            }
        }
    }
}

/// The node in this process that has a volume in service.
fn owner(service: &Service, volume: &str) -> Option<Arc<Node>> {
    let has =
        |node: &Arc<Node>| node.staging.volumes().iter().any(|one| one.vault().name == volume);
    service.nodes().into_iter().find(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_goes_where_all_its_clients_are_and_stay() {
        let (one, two) = (NodeId([1; 16]), NodeId([2; 16]));
        let seconds = Duration::from_secs;
        let target = |from: &[(NodeId, u64)], clients| {
            let visitors = from.iter().map(|(node, since)| (*node, seconds(*since)));
            target(&visitors.collect::<Vec<_>>(), clients, seconds(30))
        };
        assert_eq!(target(&[(one, 30)], 1), Some(one));
        assert_eq!(target(&[(one, 29)], 1), None, "it may be gone soon");
        assert_eq!(target(&[(one, 40)], 2), None, "another client is here");
        assert_eq!(target(&[(one, 40), (one, 30)], 2), Some(one));
        assert_eq!(target(&[(one, 40), (one, 3)], 2), None);
        assert_eq!(target(&[(one, 40), (two, 40)], 2), None, "each would be far from the other");
        assert_eq!(target(&[], 0), None);
    }
}
