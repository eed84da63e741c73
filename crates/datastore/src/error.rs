//! What can go wrong with a store.

use base::Kind;

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
    #[error("{0} was changed by somebody else")]
    Conflict(String),
    /// The store did not answer, or not usefully; the write may have landed.
    #[error("the store cannot be reached or refuses to serve: {0}")]
    Unavailable(String),
    /// The store has no room.
    #[error("the store is full: {0}")]
    Full(String),
    /// Credentials, permissions, a wrong address: nothing that trying again would mend.
    #[error("the store refuses us: {0}")]
    Refused(String),
    /// An object is there but is not what it should be.
    #[error("{key} in the store is damaged: {reason}")]
    Damaged {
        /// Its key.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// An object of a newer version than this binary knows.
    #[error("{key} has format version {found}, this binary knows up to {known}: upgrade rekindle")]
    Newer {
        /// Its key.
        key: String,
        /// Its version.
        found: u32,
        /// The newest that is known here.
        known: u32,
    },
    /// A request that no store could fulfil.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Error::NotFound(_) => Kind::NotFound,
            Error::Exists(_) => Kind::Exists,
            Error::Conflict(_) => Kind::Conflict,
            Error::Unavailable(_) => Kind::Unavailable,
            Error::Full(_) => Kind::Full,
            Error::Refused(_) => Kind::Refused,
            Error::Invalid(_) => Kind::Invalid,
            Error::Damaged { .. } => Kind::Damaged,
            Error::Newer { .. } => Kind::Unsupported,
        }
    }
}
