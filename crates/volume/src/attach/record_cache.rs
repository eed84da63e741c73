//! The record cache: copies in warm memory of the vaults that this node owns. After a restart a
//! volume is in service again without an answer from the store.
//!
//! A copy equals the vault in the store for three reasons. Only the owner writes a vault; the start
//! has proved by its conditional write that no other life has taken over; and a copy is deleted
//! before each write. The exception is a binary without a record cache that ran in between. Each
//! start therefore says in the node's record that it keeps a record cache, and of which *era*. A
//! record that does not say so begins a new era, in which older copies are not found.
//!
//! The cache is looked up by name, never scanned. A vault that is not there (evicted, damaged, new)
//! is read from the store.

use crate::records;
use rekindle_datastore::key;
use rekindle_datastore::record::{Held, RecordCache, Writer};
use rekindle_staging::{Vault, VaultState};
use rekindle_warm::Frames;

/// A record cache in block frames.
pub struct WarmRecordCache {
    frames: Frames,
    era: u64,
}

impl WarmRecordCache {
    /// The record cache of an era.
    #[must_use]
    pub fn new(frames: Frames, era: u64) -> Self {
        Self { frames, era }
    }

    fn key(&self, key: &str) -> rekindle_warm::Key {
        let mut hasher = blake3::Hasher::new_derive_key("rekindle copies of records 1");
        hasher.update(&self.era.to_le_bytes()).update(key.as_bytes());
        *hasher.finalize().as_bytes()
    }
}

impl RecordCache for WarmRecordCache {
    fn find(&self, key: &str) -> Option<Vec<u8>> {
        let found = self.frames.get(&self.key(key), |bytes| Some(bytes.to_vec()));
        found.map_err(|miss| self.frames.missed(miss)).ok()
    }

    fn keep(&self, key: &str, bytes: &[u8]) {
        self.frames.replace(&self.key(key), &[bytes]);
    }

    fn forget(&self, key: &str) {
        self.frames.remove(&self.key(key));
    }
}

/// Finds the vault of a volume that this node owns in the record cache.
pub(crate) fn find(writer: &Writer, name: &str) -> Option<Held<Vault>> {
    let id = writer.hint(&key::name_key(name)).and_then(|bytes| bytes.try_into().ok())?;
    let held = writer.copy::<Vault>(&Vault::key(rekindle_base::VolumeId(id)))?;
    let vault = &held.value;
    // The name is only a hint; the vault has the true one.
    let right = vault.name == name
        && vault.state == VaultState::Live
        && vault.owner == Some(writer.node)
        && vault.id.0 == id;
    right.then_some(held)
}

/// Reads the vault from the store, as part of the boot phase `phase`, and puts it into the record
/// cache.
pub(crate) async fn fetch(
    writer: &Writer,
    name: &str,
    phase: &str,
) -> Result<Held<Vault>, crate::Error> {
    let held = records::find_for(writer, name, Some(phase)).await?;
    writer.keep_hint(&key::name_key(name), &held.value.id.0);
    Ok(held)
}
