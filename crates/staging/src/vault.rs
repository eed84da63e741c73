//! The vault: the record of one volume, and the one truth about who may write it.

use crate::{Ack, Lost, Policy};
use base::{Generation, Incarnation, NodeId, SegmentId, Serial, VolumeId};
use content::tree::Root;
use datastore::record::Body;
use serde::{Deserialize, Serialize};

/// Whether the volume is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VaultState {
    /// In use.
    Live,
    /// Removed, and kept for a while in case somebody wants it back. Formats 1 to 4 did not have it.
    Trashed,
    /// Removed; its content is garbage.
    Deleted,
}

/// The record `volumes/<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vault {
    pub id: VolumeId,
    pub name: String,
    /// "block".
    pub kind: String,
    pub state: VaultState,
    /// Bytes.
    pub size: u64,
    /// Bytes of a chunk.
    pub block_size: u64,
    pub policy: Policy,
    pub ack: Ack,
    /// The node that may write; changes only together with the generation.
    pub owner: Option<NodeId>,
    pub generation: Generation,
    /// Serial up to which the root holds the volume's changes.
    pub checkpoint: Serial,
    /// Content as of the checkpoint.
    pub root: Root,
    /// Microseconds since 1970.
    pub created: u64,
    /// It stays in service however long nobody uses it. Format 1 did not have it.
    #[serde(default)]
    pub pinned: bool,
    /// Stretches whose content is lost: ascending, apart from one another. Reads of them are errors; writes over them heal
    /// them. Formats 1 and 2 did not have it.
    #[serde(default)]
    pub lost: Vec<Lost>,
    /// Changes that the log had lost when a person decided to go on without them. Formats 1 to 3 did not have it.
    #[serde(default)]
    pub accepted: Option<Accepted>,
    /// The start of the owner that wrote this vault last; 0: not known. Formats 1 to 4 did not have it.
    #[serde(default)]
    pub incarnation: Incarnation,
    /// The serial behind which that start, and the generation, began: what older lives and generations have in a log behind
    /// it is not of this volume any more. Formats 1 to 4 did not have it.
    #[serde(default)]
    pub begins: Serial,
    /// Where lives before that one began, as far as it matters still: ascending in both. Formats 1 to 4 did not have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub began: Vec<Began>,
    /// Earlier contents that the sweep keeps, the newest first. Formats 1 to 4 did not have it.
    #[serde(default)]
    pub versions: Vec<Version>,
    /// When it went to the trash, microseconds since 1970. Formats 1 to 4 did not have it.
    #[serde(default)]
    pub trashed: Option<u64>,
}

/// Where a life of the owner began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    /// Which start of the node.
    pub incarnation: Incarnation,
    /// The last serial that it found: what older lives have behind it does not count.
    pub begins: Serial,
}

/// An earlier content of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// What the root holds.
    pub checkpoint: Serial,
    /// The content.
    pub root: Root,
    /// Bytes of the volume then.
    pub size: u64,
    /// When it was committed, microseconds since 1970.
    pub committed: u64,
    /// Stretches that were lost in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
}

/// What somebody has decided to go on without: what the log still has behind `through` of generations before `generation`
/// does not count any more, and is not missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The one that began with it.
    pub generation: Generation,
    /// The last serial of the generations before that counts.
    pub through: Serial,
    /// Losses of the owner's log up to this segment are known; good for this generation only, since another owner has
    /// another log.
    pub segment: SegmentId,
}

impl Body for Vault {
    const WHAT: &'static str = "vault";
    const FORMAT: u32 = 5;
    const COPIED: bool = true;
}

impl Vault {
    /// Its key in the datastore.
    #[must_use]
    pub fn key(id: VolumeId) -> String {
        format!("volumes/{id}")
    }
}

#[cfg(test)]
mod tests;
