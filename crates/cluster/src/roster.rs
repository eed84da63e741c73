//! The nodes of a cluster, as their records in the store name them: where peers reach a node's
//! host, by which key they know it, and which nodes hold its copies.

use crate::secret::Secret;
use crate::tls::Fingerprint;
use rekindle_base::{Incarnation, NodeId};
use rekindle_env::{Address, BoxFuture, Timestamp};
use std::sync::Arc;

/// One node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub node: NodeId,
    /// Its last life.
    pub incarnation: Incarnation,
    /// The home node of the process that runs it: itself, when it is at home.
    pub host: NodeId,
    /// The way to its host; `None`: it is in no cluster.
    pub contact: Option<Contact>,
    pub holders: HolderSet,
    /// Whether it has stopped in good order.
    pub is_resting: bool,
    /// Whether it takes no further copies.
    pub is_draining: bool,
    /// Whether it was removed from the cluster.
    pub is_removed: bool,
}

impl Entry {
    /// The node's name, for users; empty if it is in no cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        self.contact.as_ref().map_or("", |contact| &contact.name)
    }

    /// The node's name, or its id if it has none.
    #[must_use]
    pub fn label(&self) -> String {
        match self.name() {
            "" => self.node.to_string(),
            name => name.to_owned(),
        }
    }
}

/// The way to the host of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    pub address: Address,
    /// The fault domain; empty: none is named.
    pub domain: String,
    /// The node's name, for users.
    pub name: String,
    /// The keys by which the host proves itself: one, or two during a rotation.
    pub pins: Vec<Pin>,
}

/// A key of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    pub key: Fingerprint,
    /// The end of its time.
    pub until: Timestamp,
}

/// The holders of copies that a record names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HolderSet {
    /// Counts the changes of the set.
    pub epoch: u64,
    pub nodes: Vec<Named>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    pub node: NodeId,
    /// The life in which its copies became complete.
    pub since: Incarnation,
}

impl HolderSet {
    /// The place of a node in the set.
    #[must_use]
    pub fn place_of(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|named| named.node == node)
    }
}

impl Contact {
    /// The proof that a node of the cluster has written this way to its host.
    #[must_use]
    pub fn proof(&self, secret: &Secret, host: NodeId) -> String {
        let mut words = host.0.to_vec();
        let mut put = |bytes: &[u8]| {
            words.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            words.extend_from_slice(bytes);
        };
        put(self.address.to_string().as_bytes());
        put(self.domain.as_bytes());
        put(self.name.as_bytes());
        for pin in &self.pins {
            put(&pin.key.0);
            put(&pin.until.0.to_le_bytes());
        }
        secret.vouch(&words)
    }
}

/// The records of all nodes.
pub trait Roster: Send + Sync + 'static {
    /// The nodes as they were read last.
    fn known(&self) -> Vec<Arc<Entry>>;
    /// A node as it was read last.
    fn find(&self, node: NodeId) -> Option<Arc<Entry>> {
        self.known().into_iter().find(|entry| entry.node == node)
    }
    /// Reads a node's record; `None`: there is none. The error says why it cannot be read, or not
    /// be believed.
    fn read(&self, node: NodeId) -> BoxFuture<'_, Result<Option<Arc<Entry>>, String>>;
    /// Reads the records of all nodes.
    fn read_all(&self) -> BoxFuture<'_, Result<Vec<Arc<Entry>>, String>>;
}
