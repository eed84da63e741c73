//! Guests: lost nodes that go on in this process, from the copies of their logs that it has kept.
//!
//! A guest is a node by itself: its record, its log in the folder of its copies, its own fence.
//! Only the front is shared: clients reach a guest's volumes at the addresses of its host.
//! `service/guests.rs` starts guests.

use crate::assemble::Node;
use parking_lot::Mutex;
use rekindle_base::{Kind, NodeId};
use rekindle_front::http::api::ApiError;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::Notify;

/// The state of a guest.
#[derive(Clone)]
pub(crate) enum Guest {
    /// It starts; with the error of the last try, if there was one.
    Starting(Option<String>),
    Serving(Arc<Node>),
    /// Another start of it serves elsewhere; the reason.
    Replaced(String),
}

/// The guests of a node.
#[derive(Default)]
pub(crate) struct Guests {
    all: Mutex<BTreeMap<NodeId, Guest>>,
    /// Rung at each change.
    changed: Notify,
    /// One takeover at a time.
    pub(crate) taking: tokio::sync::Mutex<()>,
}

impl Guests {
    pub(crate) fn all(&self) -> BTreeMap<NodeId, Guest> {
        self.all.lock().clone()
    }

    /// The guests that serve.
    pub(crate) fn serving(&self) -> Vec<Arc<Node>> {
        let serving = |guest: &Guest| match guest {
            Guest::Serving(node) => Some(node.clone()),
            Guest::Starting(_) | Guest::Replaced(_) => None,
        };
        self.all.lock().values().filter_map(serving).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.lock().is_empty()
    }

    /// Returns the guest with this id once its first try to start has ended; `None`: it is no guest
    /// here, or serves elsewhere.
    pub(crate) async fn find(&self, id: NodeId) -> Result<Option<Arc<Node>>, ApiError> {
        match self.settled(id).await {
            Some(Guest::Serving(node)) => Ok(Some(node)),
            Some(Guest::Starting(Some(reason))) => Err(ApiError::new(
                Kind::Unavailable,
                format!(
                    "node {id}, which owns it and was taken over here, cannot start now: {reason}"
                ),
            )),
            _ => Ok(None),
        }
    }

    /// Waits for the end of a guest's first try to start.
    async fn settled(&self, id: NodeId) -> Option<Guest> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Before the look: no change after it is missed.
            changed.as_mut().enable();
            let found = self.all.lock().get(&id).cloned();
            if !matches!(found, Some(Guest::Starting(None))) {
                return found;
            }
            changed.await;
        }
    }

    pub(crate) fn set(&self, id: NodeId, guest: Guest) {
        self.change(|all| _ = all.insert(id, guest));
    }

    /// Tells clients of a guest that starts why it does not.
    pub(crate) fn cannot_start(&self, id: NodeId, reason: String) {
        self.change(|all| {
            if let Some(Guest::Starting(why)) = all.get_mut(&id) {
                *why = Some(reason);
            }
        });
    }

    /// Ends the start of a node that is no guest here.
    pub(crate) fn give_up(&self, id: NodeId) {
        self.change(|all| {
            if matches!(all.get(&id), Some(Guest::Starting(_))) {
                all.remove(&id);
            }
        });
    }

    pub(crate) fn remove(&self, id: NodeId) {
        self.change(|all| _ = all.remove(&id));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<NodeId, Guest>)) {
        change(&mut self.all.lock());
        self.changed.notify_waiters();
    }
}
