//! The record `cluster.json` in the store: that there is a cluster, and which secret it has, by a
//! hash that tells nothing else. Page: docs/format/cluster.md.

use rekindle_cluster::Secret;
use rekindle_datastore::Error as StoreError;
use rekindle_datastore::record::{Body, Writer};
use serde::{Deserialize, Serialize};

const KEY: &str = "cluster.json";

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterRecord {
    /// The hash of the secret, 64 hex digits.
    pub(crate) check: String,
    /// Microseconds since 1970.
    pub(crate) created: u64,
}

impl Body for ClusterRecord {
    const WHAT: &'static str = "cluster";
    const FORMAT: u32 = 1;

    fn check(&self) -> Result<(), String> {
        match self.check.len() == 64 && self.check.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            true => Ok(()),
            false => Err("the hash of its secret is none".to_owned()),
        }
    }
}

/// Makes the record. Returns `false` if there is one already.
pub(crate) async fn create(writer: &Writer, secret: &Secret) -> Result<bool, StoreError> {
    let created = writer.env.wall_clock().0;
    let record = ClusterRecord { check: secret.check(), created };
    match writer.create(KEY, record).await {
        Ok(_) => Ok(true),
        Err(StoreError::Exists(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the store's cluster has this secret; `None`: it has no cluster.
pub(crate) async fn is_secret(
    writer: &Writer,
    secret: &Secret,
) -> Result<Option<bool>, StoreError> {
    let found = writer.read::<ClusterRecord>(KEY).await?;
    Ok(found.map(|held| held.value.check == secret.check()))
}
