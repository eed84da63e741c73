//! The local catalog: copies of the vaults that this node owns, in warm memory, so that a volume is in service again
//! after a restart without a word from the store.
//!
//! Nobody but the owner writes a vault, a start has proved by its conditional write that nobody has taken over, and a copy
//! is taken away before each write: so a copy is the vault as it lies in the store. It is not when a binary that knows
//! nothing of copies ran in between. Each start therefore says in the node's record that it keeps copies, and of which
//! *era*; a record without that begins a new era, in which older copies are not found.
//!
//! The catalog is looked up by name, never scanned; what is not there (evicted, damaged, new) is read from the store.

use crate::records;
use crate::{Vault, VaultState};
use datastore::key;
use datastore::record::{Copies, Held, Writer};
use warm::Frames;

/// Copies of records in block frames.
pub struct WarmCopies {
    frames: Frames,
    era: u64,
}

impl WarmCopies {
    /// Those of an era.
    #[must_use]
    pub fn new(frames: Frames, era: u64) -> Self {
        Self { frames, era }
    }

    fn key(&self, key: &str) -> warm::Key {
        let mut hasher = blake3::Hasher::new_derive_key("rekindle copies of records 1");
        hasher.update(&self.era.to_le_bytes()).update(key.as_bytes());
        *hasher.finalize().as_bytes()
    }
}

impl Copies for WarmCopies {
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

/// The vault of a volume that this node owns, out of the catalog.
pub(crate) fn find(writer: &Writer, name: &str) -> Option<Held<Vault>> {
    let id = writer.hint(&key::name_key(name)).and_then(|bytes| bytes.try_into().ok())?;
    let held = writer.copy::<Vault>(&Vault::key(base::VolumeId(id)))?;
    let vault = &held.value;
    // The name is only a hint: the vault knows its name.
    let right = vault.name == name
        && vault.state == VaultState::Live
        && vault.owner == Some(writer.node)
        && vault.id.0 == id;
    right.then_some(held)
}

/// Out of the store, for this phase of the start, and into the catalog.
pub(crate) async fn fetch(
    writer: &Writer,
    name: &str,
    phase: &str,
) -> Result<Held<Vault>, crate::Error> {
    let held = records::find_for(writer, name, Some(phase)).await?;
    writer.keep_hint(&key::name_key(name), &held.value.id.0);
    Ok(held)
}
