//! The errors of a store.

use rekindle_base::Kind;

/// An error of a store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No object has this key.
    #[error("{0} does not exist in the store")]
    NotFound(String),
    /// `create` found an object.
    #[error("{0} exists already in the store")]
    Exists(String),
    /// `replace` found another version, or nothing.
    #[error("{0} was changed by another writer")]
    Conflict(String),
    /// The store did not answer, or gave no usable answer; the write may have landed.
    #[error("the store cannot be reached or refuses to serve: {0}")]
    Unavailable(String),
    /// A folder of the store is there, and is not what it should be. Later it may be, as a mount is
    /// set right; within the time of a call it will not.
    #[error("the store refuses to serve: {0}")]
    Unproven(String),
    /// The store has no room.
    #[error("the store is full: {0}")]
    Full(String),
    /// Credentials, permissions or a wrong address: a retry would not help.
    #[error("the store refuses us: {0}")]
    Refused(String),
    /// An object exists, but its content is not valid.
    #[error("{key} in the store is damaged: {reason}")]
    Damaged {
        /// The key of the object.
        key: String,
        /// The reason why the object counts as damaged.
        reason: String,
    },
    /// An object of a newer version than this binary knows.
    #[error("{key} has format version {found}, this binary knows up to {known}: upgrade rekindle")]
    Newer {
        /// The key of the object.
        key: String,
        /// The format version of the object.
        found: u32,
        /// The newest version that this binary knows.
        known: u32,
    },
    /// A request that no store could fulfil.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Returns the kind of the error, which tells a caller what to do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Error::NotFound(_) => Kind::NotFound,
            Error::Exists(_) => Kind::Exists,
            Error::Conflict(_) => Kind::Conflict,
            Error::Unavailable(_) | Error::Unproven(_) => Kind::Unavailable,
            Error::Full(_) => Kind::Full,
            Error::Refused(_) => Kind::Refused,
            Error::Invalid(_) => Kind::Invalid,
            Error::Damaged { .. } => Kind::Damaged,
            Error::Newer { .. } => Kind::Unsupported,
        }
    }
}
