//! The record `nodes/<id>`: that a node exists, how often it has been started, and by which start it was last.
//!
//! Each start adds one to the incarnation by a conditional write. Whoever wins is the node. A process that still thinks it
//! is (a copied folder, a machine that was thought dead) finds out when it meets the newer one in a vault, or looks here
//! ([`crate::fencing`]).

use crate::Error;
use crate::starts::{Past, Starts};
use base::Incarnation;
use datastore::record::{Body, Held, Writer};
use datastore::{Error as StoreError, key};
use serde::{Deserialize, Serialize};

/// Times that a start looks again because an attempt of its own has landed late.
const TRIES_MAX: usize = 4;

/// The record `nodes/<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub incarnation: Incarnation,
    /// Of the binary that started last.
    pub version: String,
    /// When that was, microseconds since 1970.
    pub started: u64,
    /// Tells that start from any other; the folder remembers it. Format 1 did not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// The salt of the warm memory that it uses: what lies in another is of an older life. Format 1 did not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arena: Option<u64>,
    /// The last start by which a folder took the node from another copy of it; 0: none did. Format 1 did not have it.
    #[serde(default)]
    pub taken: Incarnation,
    /// The era of the copies of vaults that the node keeps in warm memory: they are the vaults as they lie in the store
    /// as long as every life keeps them so. A life that does not (an older binary, or no warm memory) leaves this out,
    /// and the next one begins a new era.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u64>,
    /// The start that found warm memory lost after a life that had not ended in good order, if one did: lives before it may
    /// have had changes that nobody else has. Warm memory, and that era, begin there.
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

/// A start about to be written down.
pub struct Beginning<'a> {
    /// Of the store, for messages.
    pub url: &'a str,
    /// What the folder remembered before.
    pub starts: &'a Starts,
    pub nonce: u64,
    /// A person says that this folder goes on, whatever other copies there are.
    pub permitted: bool,
    pub arena: u64,
    /// This life keeps copies of vaults, in memory that the last one kept them in.
    pub copies: bool,
    pub trusted: bool,
    /// Warm memory is another one, and the last life did not close its log.
    pub lost: bool,
}

/// Whether the warm memory with this salt is the one that the node used last.
pub fn is_trusted(found: Option<&NodeRecord>, arena: u64) -> bool {
    found.is_none_or(|found| found.arena.is_none_or(|last| last == arena && last != 0))
}

/// Whether this folder may go on, by what the record says.
fn allow(
    beginning: &Beginning<'_>,
    writer: &Writer,
    found: Option<&NodeRecord>,
) -> Result<bool, Error> {
    let Beginning { starts, permitted, .. } = beginning;
    let past = match starts.judge(found) {
        Past::Ours => return Ok(false),
        _ if *permitted => return Ok(true),
        past => past,
    };
    let node = writer.node;
    let reason = match (past, found) {
        (Past::SetBack, _) | (_, None) => format!(
            "the store was set back to a time before the last start of this folder (node {node}): what this folder knows to \
             be there may be missing"
        ),
        (_, Some(found)) => format!(
            "another copy of this folder was started since this one was used last (node {node}, start {}): that one may have \
             acknowledged what this one does not have",
            found.incarnation
        ),
    };
    Err(Error::Copied(reason))
}

/// Starts the next incarnation: one conditional write of the record that was `found`.
pub async fn start(
    writer: &Writer,
    beginning: &Beginning<'_>,
    mut found: Option<Held<NodeRecord>>,
) -> Result<Held<NodeRecord>, Error> {
    let failed = |source| Error::Store { url: beginning.url.to_owned(), source };
    for _ in 0..TRIES_MAX {
        let last = found.as_ref().map(|held| &held.value);
        let takes = allow(beginning, writer, last)?;
        let incarnation = beginning.starts.next(last);
        let era = last.and_then(|last| last.copies).filter(|_| beginning.trusted && !takes);
        let taken =
            if takes { incarnation } else { last.map_or(Incarnation(0), |last| last.taken) };
        let next = NodeRecord {
            incarnation,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: writer.env.wall_clock().0,
            nonce: Some(beginning.nonce),
            arena: Some(beginning.arena),
            taken,
            copies: beginning.copies.then(|| era.unwrap_or_else(|| writer.env.random_u64())),
            copied_since: match beginning.lost {
                true => Some(incarnation),
                false => last.and_then(|last| last.copied_since),
            },
        };
        let watch = writer.env.watch();
        let signed = writer.clone().with_incarnation(incarnation);
        let written = match &found {
            Some(held) => signed.replace(held, next).await,
            None => signed.create(&key::node_key(writer.node), next).await,
        };
        writer.env.boot_phase("record", Some("log"), watch);
        match written {
            Ok(held) => return Ok(held),
            // An attempt of a start that was killed has landed late, or somebody else has started: the record tells.
            Err(StoreError::Conflict(_) | StoreError::Exists(_)) => {
                found = read(writer).await.map_err(failed)?;
            }
            Err(source) => return Err(failed(source)),
        }
    }
    Err(Error::Copied(format!("somebody starts as this node ({}) again and again", writer.node)))
}

/// The record as it is in the store.
pub async fn read(writer: &Writer) -> Result<Option<Held<NodeRecord>>, StoreError> {
    writer.read::<NodeRecord>(&key::node_key(writer.node)).await
}

#[cfg(test)]
mod tests;
