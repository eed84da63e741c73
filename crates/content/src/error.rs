//! What can go wrong with content.

use base::{Kind, PackId};

/// An error of the content store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The datastore failed.
    #[error(transparent)]
    Store(#[from] datastore::Error),
    /// A chunk's bytes are not what its name says.
    #[error("chunk {name} in pack {pack} at {offset} is damaged: {reason}")]
    Damaged {
        /// First bytes of its name, in hex.
        name: String,
        /// Where it should be.
        pack: PackId,
        /// Where in the pack.
        offset: u32,
        /// What is wrong.
        reason: String,
    },
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Error::Store(error) => error.kind(),
            Error::Damaged { .. } => Kind::Damaged,
        }
    }
}
