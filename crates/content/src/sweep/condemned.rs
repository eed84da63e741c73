//! The record `sweep/condemned`: packs in which no node may find duplicates, and whether their fate
//! is settled.
//!
//! Two states matter. A *condemned* list may be dropped by the next sweeper after a crash: nothing
//! was deleted. The packs of a *deleting* list are dead for good: no root reached them after every
//! node had refused duplicates in them. The next sweeper finishes the deletion and never lifts the
//! refusal instead, because a deletion that the crashed sweeper sent may still be on its way.
//!
//! Each step is a conditional write on the state before, so of two sweepers one loses before it has
//! deleted anything.

use crate::{Content, Error};
use rekindle_base::{Incarnation, NodeId, PackId};
use rekindle_datastore::Store;
use rekindle_datastore::record::{Body, Held, Writer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The key of the record.
pub const KEY: &str = "sweep/condemned";

/// The state of the packs of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum CondemnedState {
    /// The record names no packs.
    #[default]
    Clear,
    /// Writers find no duplicates in the packs, which may turn out to be alive.
    Condemned,
    /// The packs are dead and being deleted.
    Deleting,
}

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Condemned {
    /// Counts sweeps.
    pub sweep: u64,
    /// The state of the packs.
    pub state: CondemnedState,
    /// Packs that are condemned or being deleted.
    pub packs: Vec<PackId>,
    /// Packs whose `moved/` notes are being deleted.
    pub notes: Vec<PackId>,
    /// Packs that are mostly dead and wait for their compaction. Writers find no duplicates in them
    /// either.
    #[serde(default)]
    pub sparse: Vec<PackId>,
    /// Number of this set, for acknowledgements: no other set has it.
    #[serde(default)]
    pub set: u64,
    /// What the sweeper knows of the writes of other nodes. Binaries that do not have the field
    /// read every source twice in each sweep.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub heard: BTreeMap<NodeId, Known>,
}

/// The writes of a node of which a sweeper knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The start of the node.
    pub incarnation: Incarnation,
    /// The number of its last write to a source that the sweeper has read.
    pub upto: u64,
}

impl Body for Condemned {
    const WHAT: &'static str = "record of condemned packs";
    // 2: a sweep waits for all nodes. A binary that does not know that must not sweep.
    const FORMAT: u32 = 2;
}

impl Condemned {
    /// Packs in which no node may find duplicates.
    pub fn refused(&self) -> impl Iterator<Item = PackId> + '_ {
        self.packs.iter().chain(&self.sparse).copied()
    }

    /// Returns the record after a sweep.
    pub(super) fn clear(&self) -> Self {
        Self { sweep: self.sweep, ..Self::default() }
    }
}

/// Makes this node refuse duplicates in these packs, and drop the notes that lead there.
pub(super) fn refuse(content: &Content, condemned: &Condemned) {
    content.inner.index.condemn(condemned.refused());
    let packs: Vec<PackId> = condemned.refused().chain(condemned.notes.iter().copied()).collect();
    content.inner.moved.condemn(&packs);
}

/// Reads the record; returns the empty one when there is none.
pub(crate) async fn read(store: &Store) -> Result<Condemned, Error> {
    match store.get(KEY).await {
        Ok((bytes, _)) => Ok(rekindle_datastore::record::decode_as(KEY, &bytes)?.0),
        Err(rekindle_datastore::Error::NotFound(_)) => Ok(Condemned::default()),
        Err(error) => Err(error.into()),
    }
}

/// Reads the record, for changing it; creates it when there is none.
pub(super) async fn hold(writer: &Writer) -> Result<Held<Condemned>, Error> {
    if let Some(held) = writer.read(KEY).await? {
        return Ok(held);
    }
    match writer.create(KEY, Condemned::default()).await {
        Err(rekindle_datastore::Error::Exists(_)) => writer
            .read(KEY)
            .await?
            .ok_or_else(|| Error::Stopped("sweep/condemned comes and goes".into())),
        result => Ok(result?),
    }
}
