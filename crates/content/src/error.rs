//! Errors of the content store.

use crate::Pointer;
use rekindle_base::{Kind, PackId};

/// An error of the content store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The datastore failed.
    #[error(transparent)]
    Store(#[from] rekindle_datastore::Error),
    /// A chunk's bytes are not what its name says.
    #[error("chunk {name} in pack {pack} at {offset} is damaged: {reason}")]
    Damaged {
        /// First bytes of the chunk's name, in hex.
        name: String,
        /// The pack in which the chunk should be.
        pack: PackId,
        /// Offset in the pack, bytes.
        offset: u32,
        /// The defect.
        reason: String,
    },
    /// A chunk's pack is not in the store now, and no `moved/` note says where the chunk went.
    /// Absent is not lost: the store may have its reasons (a folder that is not mounted). A pointer
    /// out of an old root may lead to a pack that was swept: read the newest root and look again.
    #[error("chunk {name} is absent: pack {pack} is not in the store now")]
    Gone {
        /// First bytes of the chunk's name, in hex.
        name: String,
        /// The pack that is absent.
        pack: PackId,
    },
    /// Two reads of a chunk gave different bytes, and both were wrong: the way to the store is to
    /// blame, or the store's cache.
    #[error(
        "chunk {name} in pack {pack} at {offset} is read differently each time, and never right"
    )]
    Unsteady {
        /// First bytes of the chunk's name, in hex.
        name: String,
        /// The pack in which the chunk should be.
        pack: PackId,
        /// Offset in the pack, bytes.
        offset: u32,
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
    /// The counts of a sweep find room neither on the node's disk nor in RAM.
    #[error("there is no room for the counts of the sweep: {0}; free some of the node's disk")]
    NoRoomForCounts(String),
    /// This start of the node was dismissed (`rekindle sweep dismiss`), and other nodes have not
    /// waited for it.
    #[error(
        "this start of the node was dismissed, and what it wants to write may lead to what was deleted since: nothing more \
         is written; start it again"
    )]
    Dismissed,
}

/// The reason why a chunk cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Missing {
    /// The chunk is not there now, or cannot be read twice alike. Nothing is known to be lost.
    Absent,
    /// The chunk's bytes are there, and wrong: two reads gave the same ones.
    Damaged,
}

impl Error {
    /// The kind of the error, which says what to do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Error::Store(error) => error.kind(),
            Error::Damaged { .. } | Error::Format(crate::format::Bad::Damaged { .. }) => {
                Kind::Damaged
            }
            Error::Gone { .. } | Error::Unsteady { .. } => Kind::Unavailable,
            Error::Format(crate::format::Bad::Newer { .. }) => Kind::Unsupported,
            Error::Invalid(_) => Kind::Invalid,
            Error::Stopped(_) => Kind::Conflict,
            Error::NoRoomForCounts(_) => Kind::Full,
            Error::Dismissed => Kind::Fenced,
        }
    }

    /// Tells why a chunk is missing; `None` when the error says nothing about the chunk (the store
    /// is away).
    #[must_use]
    pub fn missing(&self) -> Option<Missing> {
        match self {
            Error::Gone { .. }
            | Error::Unsteady { .. }
            | Error::Store(rekindle_datastore::Error::NotFound(_)) => Some(Missing::Absent),
            other if other.kind() == Kind::Damaged => Some(Missing::Damaged),
            _ => None,
        }
    }

    pub(crate) fn unsteady(pointer: &Pointer) -> Self {
        Error::Unsteady { name: pointer.short_name(), pack: pointer.pack, offset: pointer.offset }
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
