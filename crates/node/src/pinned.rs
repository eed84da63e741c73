//! Volumes that keep room of the log: a start has found changes of them, and they cannot come into
//! service before a user does something. The log cannot free the segments that have these changes.

use parking_lot::Mutex;
use rekindle_base::{NodeId, VolumeId};
use std::collections::BTreeMap;

/// Such volumes of a node: each in words, and the reason with what to do.
#[derive(Default)]
pub(crate) struct Pinned(Mutex<BTreeMap<VolumeId, (String, String)>>);

impl Pinned {
    /// Notes that a volume cannot come into service, why, and what to do.
    pub(crate) fn note(&self, volume: VolumeId, name: &str, reason: String) {
        self.0.lock().insert(volume, (name.to_owned(), reason));
    }

    pub(crate) fn has(&self, volume: VolumeId) -> bool {
        self.0.lock().contains_key(&volume)
    }

    /// Notes that a volume came into service.
    pub(crate) fn forget(&self, volume: VolumeId) {
        self.0.lock().remove(&volume);
    }

    /// Keeps the volumes for which `is_still` holds.
    pub(crate) fn keep(&self, is_still: impl Fn(VolumeId) -> bool) {
        self.0.lock().retain(|volume, _| is_still(*volume));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// The volumes, each with the reason, but for those that serve again: a user may bring one into
    /// service.
    pub(crate) fn now(&self, serves: impl Fn(VolumeId) -> bool) -> Vec<(String, String)> {
        let pinned = self.0.lock();
        let left = pinned.iter().filter(|(volume, _)| !serves(**volume));
        left.map(|(_, told)| told.clone()).collect()
    }
}

/// The volumes that only logs have which earlier nodes of this host have left here, and that are
/// not back yet: for each node how many, and why the first one is not.
#[derive(Default)]
pub(crate) struct NotBack(Mutex<BTreeMap<NodeId, (usize, String)>>);

impl NotBack {
    pub(crate) fn note(&self, node: NodeId, count: usize, why: String) {
        self.0.lock().insert(node, (count, why));
    }

    pub(crate) fn forget(&self, node: NodeId) {
        self.0.lock().remove(&node);
    }

    /// What is not back, in words.
    pub(crate) fn now(&self) -> Vec<String> {
        let left = self.0.lock();
        let words = |(node, (count, why)): (&NodeId, &(usize, String))| {
            format!(
                "{count} volume(s) of node {node}, which was taken over while this host was away, are not back yet from the log that \
                 it has left here: {why}"
            )
        };
        left.iter().map(words).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_named_until_the_log_has_nothing_of_it() {
        let (pinned, one, two) = (Pinned::default(), VolumeId([1; 16]), VolumeId([2; 16]));
        pinned.note(one, "a", "its machine is lost".to_owned());
        pinned.note(two, "b", "the same".to_owned());
        pinned.keep(|_| true);
        assert_eq!(pinned.now(|_| false).len(), 2);
        assert_eq!(pinned.now(|volume| volume == two).len(), 1, "it came into service");
        pinned.keep(|volume| volume == two);
        assert_eq!(pinned.now(|_| false), [("b".to_owned(), "the same".to_owned())]);
    }
}
