//! What can go wrong with content.

use crate::Pointer;
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
    /// A chunk's pack does not exist and no `moved/` note says where the chunk went. Either the store has lost the
    /// pack, or the pointer comes from an old root whose chunks were swept: read the newest root and look again.
    #[error("chunk {name} is gone: pack {pack} is not in the store")]
    Gone {
        /// First bytes of its name, in hex.
        name: String,
        /// The pack that is absent.
        pack: PackId,
    },
    /// An object is not what its format says.
    #[error(transparent)]
    Format(#[from] crate::format::Bad),
    /// A request that cannot be fulfilled.
    #[error("{0}")]
    Invalid(String),
    /// A sweep was stopped, by its owner or because another sweeper took over.
    #[error("the sweep was stopped: {0}")]
    Stopped(String),
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Error::Store(error) => error.kind(),
            Error::Damaged { .. }
            | Error::Gone { .. }
            | Error::Format(crate::format::Bad::Damaged { .. }) => Kind::Damaged,
            Error::Format(crate::format::Bad::Newer { .. }) => Kind::Unsupported,
            Error::Invalid(_) => Kind::Invalid,
            Error::Stopped(_) => Kind::Conflict,
        }
    }

    pub(crate) fn damaged(pointer: &Pointer, reason: impl Into<String>) -> Self {
        Error::Damaged {
            name: pointer.short_name(),
            pack: pointer.pack,
            offset: pointer.offset,
            reason: reason.into(),
        }
    }
}
