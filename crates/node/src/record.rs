//! The record `nodes/<id>`: the existence of a node, the number of its starts, and its last start.
//!
//! Each start raises the incarnation ([`crate::incarnation`]). In a cluster, the record also says
//! where peers find the node, and which nodes hold copies of its log; the present life changes that
//! by conditional write ([`crate::own_record`]).

use rekindle_base::{Incarnation, NodeId};
use rekindle_datastore::record::{Body, Held, Writer};
use rekindle_datastore::{Error as StoreError, key};
use rekindle_log::limits::REPLICAS_MAX;
use serde::{Deserialize, Serialize};

/// The record `nodes/<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub incarnation: Incarnation,
    /// Version of the binary that started last.
    pub version: String,
    /// Time of that start, microseconds since 1970.
    pub started: u64,
    /// Random number of that start, which the folder remembers. Format 1 did not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// Salt of the warm memory in use: the content of another memory is of an older life. Format 1
    /// did not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arena: Option<u64>,
    /// The last start by which a folder took the node from another copy of the folder; 0: none.
    /// Format 1 did not have it.
    #[serde(default)]
    pub taken: Incarnation,
    /// Era of the record cache. The cached vaults equal those in the store as long as every life
    /// keeps the cache up to date. A life that does not (an older binary, or no warm memory) leaves
    /// this field out, and the next life begins a new era.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u64>,
    /// The last start that found warm memory lost after a life without an orderly end. Lives before
    /// that start may have had changes that exist nowhere else. Warm memory and the era begin with
    /// that start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_since: Option<Incarnation>,
    /// The home node of the process that runs this one; absent: this node itself. Formats 1 and 2
    /// did not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<NodeId>,
    /// The way to that process for peers; absent: the node is in no cluster. Formats 1 and 2 did
    /// not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerNote>,
    /// The last life at its own host, if a holder of copies has taken the node over since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_behind: Option<LeftBehind>,
    /// The holders of copies of its log. Formats 1 and 2 did not have it.
    #[serde(default, skip_serializing_if = "HoldersNote::is_first")]
    pub holders: HoldersNote,
    /// Whether the last life has stopped in good order: it is not missed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resting: bool,
    /// Whether the node takes no further copies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Whether a user has removed the node from the cluster: it is not started any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

/// The last life of a node at its own host. The log that it left there may have changes of volumes
/// without copies, of this life and those before it, which are nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftBehind {
    pub incarnation: Incarnation,
    /// Tells the folder from copies of it that were made earlier.
    pub nonce: u64,
    /// Salt of its warm memory; absent: it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arena: Option<u64>,
}

impl LeftBehind {
    /// The last life whose changes of volumes without copies a folder of copies may lack, of those
    /// up to `copied_from`. A life that goes on from copies lets the store acknowledge such
    /// changes, so only lives at the node's own host count.
    #[must_use]
    pub fn bound(record: &NodeRecord, copied_from: Incarnation) -> Incarnation {
        record.left_behind.map_or(copied_from, |left| left.incarnation.min(copied_from))
    }

    /// Returns the last life at the node's own host, if a holder takes over the node of this
    /// record.
    #[must_use]
    pub fn by(last: &NodeRecord, node: NodeId) -> Option<Self> {
        match (last.host, last.nonce) {
            (Some(host), _) if host != node => last.left_behind,
            (_, nonce) => nonce.map(|nonce| Self {
                incarnation: last.incarnation,
                nonce,
                arena: last.arena.filter(|salt| *salt != 0),
            }),
        }
    }
}

/// The way to a node's host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerNote {
    pub address: String,
    /// The fault domain; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// The node's name, for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The keys of the host: one, or two during a rotation.
    pub pins: Vec<PinNote>,
    /// The proof that a node which knows the cluster's secret has written all this.
    pub proof: String,
}

/// A key of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinNote {
    /// Hash of the public key, 64 hex digits.
    pub key: String,
    /// The end of its time, microseconds since 1970.
    pub until: u64,
}

/// The holders of copies of a node's log. Every change of a volume that asked for copies, and was
/// acknowledged, is at each of them, or in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldersNote {
    /// Counts the changes of the set.
    pub epoch: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<HolderNote>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderNote {
    pub node: NodeId,
    /// The life in which its copies became complete.
    pub since: Incarnation,
}

impl HoldersNote {
    fn is_first(&self) -> bool {
        *self == HoldersNote::default()
    }

    /// The set without these nodes: its epoch is a later one if that changes it.
    #[must_use]
    pub fn without(&self, gone: impl Fn(NodeId) -> bool) -> HoldersNote {
        let stay: Vec<_> = self.nodes.iter().filter(|one| !gone(one.node)).copied().collect();
        let epoch = self.epoch + u64::from(stay.len() < self.nodes.len());
        HoldersNote { epoch, nodes: stay }
    }
}

impl Body for NodeRecord {
    const WHAT: &'static str = "node";
    const FORMAT: u32 = 3;

    fn check(&self) -> Result<(), String> {
        match self.incarnation {
            Incarnation(0) => Err("starts are counted from 1".to_owned()),
            taken if self.taken > taken => {
                Err("it was taken by a start that is yet to come".to_owned())
            }
            last if self.copied_since.is_some_and(|since| since > last) => {
                Err("its copies were begun by a start that is yet to come".to_owned())
            }
            last if self.left_behind.is_some_and(|left| left.incarnation >= last) => {
                Err("a life was left behind that is yet to come".to_owned())
            }
            last if self.holders.nodes.iter().any(|holder| holder.since > last) => {
                Err("a holder's copies were completed by a start that is yet to come".to_owned())
            }
            _ if self.holders.nodes.len() > REPLICAS_MAX => {
                Err(format!("it names {} holders of copies", self.holders.nodes.len()))
            }
            _ => Ok(()),
        }
    }
}

/// Reads the record from the store.
pub async fn read(writer: &Writer) -> Result<Option<Held<NodeRecord>>, StoreError> {
    writer.read::<NodeRecord>(&key::node_key(writer.node)).await
}

#[cfg(test)]
pub(crate) mod tests;
