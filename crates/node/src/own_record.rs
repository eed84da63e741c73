//! The node's own record, while the node serves: the present life changes it by conditional write,
//! and finds out there that another life has replaced it.

use crate::limits::RECORD_RETRY;
use crate::record::{NodeRecord, read};
use rekindle_base::NodeId;
use rekindle_datastore::Error as StoreError;
use rekindle_datastore::record::{Held, Writer};
use std::sync::Arc;

/// The record as this life has written or read it last.
#[derive(Clone)]
pub struct OwnRecord {
    writer: Writer,
    held: Arc<tokio::sync::Mutex<Held<NodeRecord>>>,
}

impl OwnRecord {
    /// The record of a life that has just written it.
    #[must_use]
    pub fn new(writer: Writer, held: Held<NodeRecord>) -> Self {
        Self { writer, held: Arc::new(tokio::sync::Mutex::new(held)) }
    }

    /// The record as this life knows it.
    pub async fn value(&self) -> NodeRecord {
        self.held.lock().await.value.clone()
    }

    /// Changes the record. Returns when the change is known to be in the store, however long that
    /// takes; an error: another life has the node, or it was removed.
    pub async fn change(&self, change: impl Fn(&mut NodeRecord)) -> Result<(), String> {
        let mut held = self.held.lock().await;
        loop {
            let mut next = held.value.clone();
            change(&mut next);
            if next == held.value {
                return Ok(());
            }
            match self.writer.replace(&held, next).await {
                Ok(written) => {
                    *held = written;
                    return Ok(());
                }
                Err(StoreError::Conflict(_)) => {}
                Err(error) => {
                    tracing::warn!(%error, "the node's record cannot be written now");
                    self.writer.env.sleep(RECORD_RETRY).await;
                }
            }
            // What has landed meanwhile, of this life or of another one, is to be seen.
            match read(&self.writer).await {
                Ok(Some(found)) => {
                    if let Some(why) = why_over(self.writer.node, &held.value, &found.value) {
                        return Err(why);
                    }
                    *held = found;
                }
                Ok(None) => return Err("the store has no record of this node any more".to_owned()),
                Err(error) => {
                    tracing::debug!(%error, "the node's record cannot be read now");
                    self.writer.env.sleep(RECORD_RETRY).await;
                }
            }
        }
    }
}

/// The reason why the life that has written `ours` is over, if `found` tells that.
#[must_use]
pub fn why_over(node: NodeId, ours: &NodeRecord, found: &NodeRecord) -> Option<String> {
    if found.removed {
        return Some(format!("node {node} was removed from the cluster by a user"));
    }
    if found.nonce == ours.nonce || found.incarnation < ours.incarnation {
        return None;
    }
    if let Some(host) = found.host.filter(|host| *host != node) {
        return Some(format!(
            "node {node} was taken over by node {host}, which goes on with its volumes, as start {}: this one acknowledges \
             nothing any more",
            found.incarnation
        ));
    }
    Some(format!(
        "another copy of this folder was started as the same node ({node}, start {}; this is start {}): this one \
         acknowledges nothing any more, what it has not in the store stays in its log. Stop it and remove the folder, or go on \
         with this copy by `rekindle up --take-identity`, which stops the other",
        found.incarnation, ours.incarnation
    ))
}
