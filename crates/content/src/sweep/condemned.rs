//! The record `sweep/condemned`: which packs nobody may find duplicates in, and whether their fate is settled.
//!
//! Two states matter. While a list is *condemned*, it may be dropped by whoever comes after a crash: nothing was
//! deleted. Once it is *deleting*, the packs on it are dead for good (no root reached them after everybody had
//! refused duplicates in them), and whoever comes later finishes: it never lifts the refusal, because a deletion
//! that the crashed sweeper sent may still be on its way.
//!
//! Each step is a conditional write on the state before, so of two sweepers one loses before it has deleted anything.

use crate::{Content, Error};
use base::PackId;
use datastore::Store;
use datastore::record::{Body, Held, Writer};
use serde::{Deserialize, Serialize};

/// The key of the record.
pub const KEY: &str = "sweep/condemned";

/// How far the packs of the record are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// There are none.
    #[default]
    Clear,
    /// No duplicates in them; they may turn out to be alive.
    Condemned,
    /// Dead, being deleted.
    Deleting,
}

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Condemned {
    /// Counts sweeps.
    pub sweep: u64,
    /// How far it is.
    pub state: State,
    /// Packs that are condemned or being deleted.
    pub packs: Vec<PackId>,
    /// Packs whose `moved/` notes are being deleted.
    pub notes: Vec<PackId>,
    /// Packs that are mostly dead and wait for their compaction; no duplicates in them either.
    #[serde(default)]
    pub sparse: Vec<PackId>,
    /// A number of this set, for acknowledgements: no other set has it.
    #[serde(default)]
    pub set: u64,
}

impl Body for Condemned {
    const WHAT: &'static str = "record of condemned packs";
    // 2: a sweep waits for all nodes. A binary that does not know that must not sweep.
    const FORMAT: u32 = 2;
}

impl Condemned {
    /// The packs in which nobody may find duplicates.
    pub fn refused(&self) -> impl Iterator<Item = PackId> + '_ {
        self.packs.iter().chain(&self.sparse).copied()
    }

    /// The state after a sweep.
    pub(super) fn clear(&self) -> Self {
        Self { sweep: self.sweep, ..Self::default() }
    }
}

/// From now on this node finds no duplicates there, and follows no note there.
pub(super) fn refuse(content: &Content, condemned: &Condemned) {
    content.inner.index.condemn(condemned.refused());
    let packs: Vec<PackId> = condemned.refused().chain(condemned.notes.iter().copied()).collect();
    content.inner.moved.condemn(&packs);
}

/// The record as it is now; the empty one when there is none.
pub(crate) async fn read(store: &Store) -> Result<Condemned, Error> {
    match store.get(KEY).await {
        Ok((bytes, _)) => Ok(datastore::record::decode_as(KEY, &bytes)?.0),
        Err(datastore::Error::NotFound(_)) => Ok(Condemned::default()),
        Err(error) => Err(error.into()),
    }
}

/// The record, for changing it; made when there is none.
pub(super) async fn hold(writer: &Writer) -> Result<Held<Condemned>, Error> {
    if let Some(held) = writer.read(KEY).await? {
        return Ok(held);
    }
    match writer.create(KEY, Condemned::default()).await {
        Err(datastore::Error::Exists(_)) => writer
            .read(KEY)
            .await?
            .ok_or_else(|| Error::Stopped("sweep/condemned comes and goes".into())),
        result => Ok(result?),
    }
}
