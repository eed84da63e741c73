//! What can go wrong with a volume.

use base::Kind;

/// An error of a volume.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("no volume is called '{0}': `rekindle volume ls` shows those there are")]
    NotFound(String),
    #[error("a volume called '{0}' exists already: choose another name, or remove it with `rekindle volume rm`")]
    Exists(String),
    #[error("{0}")]
    Invalid(String),
    #[error("volume '{name}' has {clients} client(s): disconnect them, or use --force")]
    Busy {
        /// Its name.
        name: String,
        /// How many hold it.
        clients: u64,
    },
    #[error("volume '{0}' is owned by node {1}")]
    Elsewhere(String, base::NodeId),
    #[error("the daemon is stopping")]
    Stopping,
    #[error(transparent)]
    Staging(#[from] staging::Error),
    #[error(transparent)]
    Store(#[from] datastore::Error),
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Error::NotFound(_) => Kind::NotFound,
            Error::Exists(_) => Kind::Exists,
            Error::Invalid(_) => Kind::Invalid,
            Error::Busy { .. } | Error::Elsewhere(..) => Kind::Conflict,
            Error::Stopping => Kind::Unavailable,
            Error::Staging(error) => error.kind(),
            Error::Store(error) => error.kind(),
        }
    }
}
