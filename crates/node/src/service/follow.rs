//! Volumes go to where their clients are: a volume whose clients are all at one other host, and
//! stay there, moves to that host's node ([`super::moves`]), which spares them the way.
//!
//! A client counts from the beginning of its session here, which a move, a takeover and other
//! settings begin anew. A volume that has come to this host rests here for a minute besides
//! ([`Arrivals`]).

use super::visitors::Visit;
use super::{Service, moves};
use crate::assemble::Node;
use crate::limits;
use parking_lot::Mutex;
use rekindle_base::NodeId;
use rekindle_env::Moment;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The volumes that have come to this host from another one. A volume follows clients to a host at
/// which each of them has asked for it before, so the next owner's host has seen it elsewhere.
///
/// Each entry has the moment at which the volume was found here first; `None`: a client here that
/// asked for it last was told of another owner.
#[derive(Default)]
pub(super) struct Arrivals(Mutex<BTreeMap<String, Option<Moment>>>);

impl Arrivals {
    /// Notes that the owner of a volume runs at another host.
    pub(super) fn is_elsewhere(&self, volume: &str) {
        self.0.lock().insert(volume.to_owned(), None);
    }

    /// Notes that the owner of a volume runs here.
    pub(super) fn is_here(&self, volume: &str, now: Moment) {
        if let Some(since) = self.0.lock().get_mut(volume) {
            since.get_or_insert(now);
        }
    }

    /// The volumes that have come so lately that they stay.
    fn resting(&self, now: Moment) -> Vec<String> {
        let mut all = self.0.lock();
        all.retain(|_, came| came.is_none_or(|came| now.since(came) < limits::FOLLOW_REST));
        all.iter().filter(|(_, came)| came.is_some()).map(|(volume, _)| volume.clone()).collect()
    }
}

/// The node that a volume should go to: all clients of other hosts are there, and stay.
fn target(visits: &[Visit], now: Moment, after: Duration) -> Option<NodeId> {
    let host = visits.first()?.host;
    let is_settled = |visit: &Visit| visit.has_volume && now.since(visit.since) >= after;
    visits.iter().all(|visit| visit.host == host && is_settled(visit)).then_some(host)
}

/// Whether these are still the only clients of a volume, which has so many.
fn are_all(before: &[Visit], visits: &[Visit], clients: u64) -> bool {
    before == visits && visits.len() as u64 == clients
}

/// Looks again and again while the node lives.
pub(super) async fn follow(service: Service, node: Weak<Node>, after: Duration) {
    let mut not_before: BTreeMap<String, Moment> = BTreeMap::new();
    loop {
        let Some(env) = node.upgrade().map(|node| node.env.clone()) else { return };
        env.sleep(limits::FOLLOW_LOOK_INTERVAL.min(after)).await;
        let now = env.now();
        not_before.retain(|_, until| *until > now);
        let resting = service.inner.arrivals.resting(now);
        for (volume, before) in service.inner.visitors.of_volumes() {
            if not_before.contains_key(&volume) || resting.contains(&volume) {
                continue;
            }
            let Some(to) = target(&before, now, after) else { continue };
            let Some(owner) = owner(&service, &volume) else { continue };
            let Ok(Ok(info)) = env.timeout(limits::ANSWER_WAIT, owner.volumes.show(&volume)).await
            else {
                continue;
            };
            let visits = service.inner.visitors.of_volumes().remove(&volume).unwrap_or_default();
            if !are_all(&before, &visits, info.clients) {
                continue;
            }
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

    const ONE: NodeId = NodeId([1; 16]);
    const TWO: NodeId = NodeId([2; 16]);
    const NOW: Moment = Moment(Duration::from_secs(1000));

    /// Clients of so many seconds.
    fn visits(from: &[(NodeId, u64)]) -> Vec<Visit> {
        let visit = |(number, (host, seconds)): (u8, &(NodeId, u64))| Visit {
            client: [number; 16],
            host: *host,
            since: Moment(NOW.0 - Duration::from_secs(*seconds)),
            has_volume: true,
        };
        (0..).zip(from).map(visit).collect()
    }

    #[test]
    fn a_volume_goes_where_its_clients_are_and_stay() {
        let target = |from: &[(NodeId, u64)]| target(&visits(from), NOW, Duration::from_secs(30));
        assert_eq!(target(&[(ONE, 30)]), Some(ONE));
        assert_eq!(target(&[(ONE, 29)]), None, "it may be gone soon");
        assert_eq!(target(&[(ONE, 40), (ONE, 30)]), Some(ONE));
        assert_eq!(target(&[(ONE, 40), (ONE, 3)]), None);
        assert_eq!(target(&[(ONE, 40), (TWO, 40)]), None, "each would be far from the other");
        assert_eq!(target(&[]), None);
    }

    #[test]
    fn a_client_that_still_waits_for_its_volume_counts_though_the_volume_does_not_know_it() {
        let mut visits = visits(&[(ONE, 40), (ONE, 40)]);
        visits[1].has_volume = false;
        assert_eq!(target(&visits, NOW, Duration::from_secs(30)), None);
    }

    #[test]
    fn a_volume_with_another_client_or_other_ones_than_before_stays() {
        let one = visits(&[(ONE, 40)]);
        assert!(are_all(&one, &one, 1));
        assert!(!are_all(&one, &one, 2), "another client is here");
        let mut later = one.clone();
        later[0].client = [9; 16];
        assert!(!are_all(&one, &later, 1), "one has left, and another one has come");
        assert!(!are_all(&one, &[], 1), "it has left, and one of this host has come");
    }

    #[test]
    fn a_volume_that_has_come_rests_for_a_minute_however_often_it_is_found() {
        let arrivals = Arrivals::default();
        let at = |seconds| Moment(Duration::from_secs(seconds));
        arrivals.is_here("own", at(1));
        assert!(arrivals.resting(at(1)).is_empty(), "it was always here");
        arrivals.is_elsewhere("disk");
        assert!(arrivals.resting(at(2)).is_empty());
        arrivals.is_here("disk", at(10));
        arrivals.is_here("disk", at(30));
        assert_eq!(arrivals.resting(at(69)), ["disk"]);
        assert!(arrivals.resting(at(70)).is_empty());
        // It goes, and comes back.
        arrivals.is_elsewhere("disk");
        arrivals.is_here("disk", at(80));
        assert_eq!(arrivals.resting(at(81)), ["disk"]);
    }
}
