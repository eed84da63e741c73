//! The watch of a holder over the owners of its copies: it looks for silence, and has lost nodes
//! taken over. [`crate::machine::holder`] decides.

use crate::calls::Calls;
use crate::holder::{Holder, Node};
use crate::limits::{BY_HAND_TRIES, HEARS_TIME_MAX, STALL_BEATS};
use crate::machine::Pace;
use crate::machine::holder::{Deed, Sight, State, Taken};
use crate::roster::Entry;
use futures_util::future::join_all;
use rekindle_base::{Life, NodeId};
use rekindle_env::{BoxFuture, Moment};
use std::sync::Arc;

/// Begins lost nodes anew on this host.
pub trait Successor: Send + Sync + 'static {
    /// Begins the next life of a node from its copies here, by one conditional write of its record,
    /// which still has to be as `seen`. No other life of it can acknowledge or read anything by
    /// then. After [`Taken::Won`], the node goes on here until [`Holder::give_back`]. `heard`: when
    /// it was heard last.
    fn take(&self, node: NodeId, seen: Arc<Entry>, heard: Option<Moment>) -> BoxFuture<'_, Taken>;
}

/// The means of a watch.
#[derive(Clone)]
pub struct Watch {
    pub calls: Arc<Calls>,
    pub holder: Arc<Holder>,
    pub successor: Arc<dyn Successor>,
    pub pace: Pace,
}

impl Watch {
    /// Watches for as long as the future is polled.
    pub async fn run(self) {
        let env = self.calls.env.clone();
        let mut last = env.now();
        loop {
            env.sleep(self.pace.beat / 2).await;
            let now = env.now();
            let was_away = now.since(last) > self.pace.beat * STALL_BEATS;
            last = now;
            for (id, node) in self.holder.nodes() {
                let deed = {
                    let mut promises = node.promises.lock();
                    if was_away {
                        promises.was_away(now);
                    }
                    promises.tick(now)
                };
                let watch = self.clone();
                match deed {
                    Some(Deed::Knock) => {
                        env.spawn_foreground("cluster-knock", async move {
                            watch.knock(id, &node).await
                        });
                    }
                    Some(Deed::Look) => {
                        env.spawn_foreground(
                            "cluster-look",
                            async move { watch.look(id, &node).await },
                        );
                    }
                    Some(Deed::Take) => {
                        env.spawn_foreground(
                            "cluster-take",
                            async move { watch.take(id, &node).await },
                        );
                    }
                    None => {}
                }
            }
        }
    }

    /// Looks whether any process listens at the address of a silent owner.
    async fn knock(&self, id: NodeId, node: &Node) {
        let since = self.calls.env.now();
        let is_refused = self.calls.is_refused(id).await;
        if is_refused {
            tracing::debug!(node = %id, "no process listens at a silent node's address");
        }
        node.promises.lock().knocked(is_refused, since);
    }

    /// Looks into the record of a silent owner, and asks its other holders.
    async fn look(&self, id: NodeId, node: &Node) {
        let entry = match self.calls.read(id).await {
            Ok(entry) => Some(entry),
            Err(why) => {
                tracing::debug!(node = %id, why, "a silent node's record cannot be read");
                None
            }
        };
        let sight = match &entry {
            Some(entry) => {
                *node.seen.lock() = Some(Arc::clone(entry));
                Some(self.sight_of(entry).await)
            }
            None => None,
        };
        let now = self.calls.env.now();
        let mut promises = node.promises.lock();
        promises.saw(sight, now);
        if matches!(promises.state(), State::Suspecting { named: true, .. }) {
            let silence = promises.heard().map(|heard| now.since(heard).as_millis());
            drop(promises);
            tracing::warn!(node = %id, ?silence, "a node is silent: it is taken over once its leases are over");
        }
    }

    async fn sight_of(&self, entry: &Entry) -> Sight {
        let me = self.calls.home.node;
        let place =
            if self.calls.is_here(entry.host) { Some(0) } else { entry.holders.place_of(me) };
        let life = Life { node: entry.node, incarnation: entry.incarnation };
        let others = entry.holders.nodes.iter().map(|named| named.node).filter(|node| *node != me);
        let asked = others.map(|other| self.calls.hears(other, life, HEARS_TIME_MAX));
        let is_heard = match place {
            Some(_) => join_all(asked).await.into_iter().any(|heard| heard == Ok(true)),
            None => false,
        };
        let Entry { incarnation, is_resting, .. } = *entry;
        Sight { incarnation, place, is_resting, is_heard }
    }

    /// Takes a node over.
    async fn take(&self, id: NodeId, node: &Node) {
        let taken = match self.holder.lend(node).await {
            Ok(()) => {
                let (seen, heard) = (node.seen.lock().clone(), node.promises.lock().heard());
                match seen {
                    Some(seen) => self.successor.take(id, seen, heard).await,
                    None => Taken::Open,
                }
            }
            Err(why) => {
                tracing::error!(node = %id, why, "the copies of a lost node cannot be used");
                Taken::Open
            }
        };
        if !matches!(taken, Taken::Won(_)) {
            self.holder.take_back(node).await;
        }
        node.promises.lock().took(taken, self.calls.env.now());
    }

    /// Has a node taken over by a user's command, however well its owner is. Returns when it is
    /// begun, or with the reason why it is not.
    pub async fn take_over(&self, id: NodeId) -> Result<(), String> {
        let node = self.holder.find(id).ok_or_else(|| {
            format!("there are no copies of node {id} here: see `rekindle cluster ls`")
        })?;
        if node.promises.lock().state() == State::Guest {
            return Ok(());
        }
        for _ in 0..BY_HAND_TRIES {
            node.promises.lock().want(self.calls.env.now());
            self.look(id, &node).await;
            if self.has_taken(&node).await {
                return Ok(());
            }
            let me = self.calls.home.node;
            let is_named = |seen: &Arc<Entry>| {
                self.calls.is_here(seen.host) || seen.holders.place_of(me).is_some()
            };
            if node.seen.lock().as_ref().is_none_or(|seen| !is_named(seen)) {
                break;
            }
        }
        let why = match &*node.seen.lock() {
            Some(seen) if seen.holders.place_of(self.calls.home.node).is_none() => {
                "its record does not name this node as a holder: the copies here may not be complete"
            }
            Some(_) => "its record has changed again and again",
            None => "its record cannot be read",
        };
        Err(format!("node {id} cannot be taken over: {why}"))
    }

    /// Waits for the end of an attempt. Returns whether the node goes on here.
    async fn has_taken(&self, node: &Node) -> bool {
        loop {
            let state = node.promises.lock().state();
            match state {
                State::Guest => return true,
                State::Suspecting { named: true, .. } | State::Taking => {}
                _ => return false,
            }
            self.calls.env.sleep(self.pace.beat / 2).await;
        }
    }
}
