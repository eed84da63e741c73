//! The record `nodes/<id>`: that a node exists, and how often it has been started.
//!
//! Each start adds one to the incarnation by a conditional write. Whoever wins is the node; a process that still thinks
//! it is (a copied folder, a machine that was thought dead) finds out at its next write.

use crate::Error;
use base::Incarnation;
use datastore::record::{Body, Held, Writer};
use datastore::{Error as StoreError, key};
use serde::{Deserialize, Serialize};

/// The record `nodes/<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub incarnation: Incarnation,
    /// Of the binary that started last.
    pub version: String,
    /// When that was, microseconds since 1970.
    pub started: u64,
    /// The era of the copies of vaults that the node keeps in warm memory: they are the vaults as they lie in the store
    /// as long as every life keeps them so. A life that does not (an older binary, or no warm memory) leaves this out,
    /// and the next one begins a new era.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u64>,
}

impl Body for NodeRecord {
    const WHAT: &'static str = "node";
    const FORMAT: u32 = 1;
}

/// Reads the record and starts the next incarnation: one conditional write. `copies`: whether this life keeps copies of
/// vaults.
pub async fn start(
    writer: &Writer,
    url: &str,
    found: Option<Held<NodeRecord>>,
    copies: bool,
) -> Result<Held<NodeRecord>, Error> {
    let era = found.as_ref().and_then(|held| held.value.copies);
    let next = NodeRecord {
        copies: copies.then(|| era.unwrap_or_else(|| writer.env.random_u64())),
        incarnation: found.as_ref().map_or(Incarnation(1), |held| held.value.incarnation.next()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started: writer.env.wall_clock().0,
    };
    let watch = writer.env.watch();
    let written = match &found {
        Some(held) => writer.replace(held, next).await,
        None => writer.create(&key::node_key(writer.node), next).await,
    };
    writer.env.boot_phase("record", Some("log"), watch);
    written.map_err(|error| match error {
        StoreError::Conflict(_) | StoreError::Exists(_) => Error::Fenced(writer.node.to_string()),
        source => Error::Store { url: url.to_owned(), source },
    })
}

/// The record as it is in the store.
pub async fn read(writer: &Writer) -> Result<Option<Held<NodeRecord>>, StoreError> {
    writer.read::<NodeRecord>(&key::node_key(writer.node)).await
}
