//! The record `nodes/<id>`: the existence of a node, the number of its starts, and its last start.
//!
//! Each start raises the incarnation ([`crate::incarnation`]).

use rekindle_base::Incarnation;
use rekindle_datastore::record::{Body, Held, Writer};
use rekindle_datastore::{Error as StoreError, key};
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
}

impl Body for NodeRecord {
    const WHAT: &'static str = "node";
    const FORMAT: u32 = 2;

    fn check(&self) -> Result<(), String> {
        match self.incarnation {
            Incarnation(0) => Err("starts are counted from 1".to_owned()),
            taken if self.taken > taken => {
                Err("it was taken by a start that is yet to come".to_owned())
            }
            last if self.copied_since.is_some_and(|since| since > last) => {
                Err("its copies were begun by a start that is yet to come".to_owned())
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
