//! What can go wrong with a volume.

use crate::machine::Unlawful;
use base::Kind;

/// An error of a volume. Clonable, because all who wait for one attach get the same one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Nothing has this name.
    #[error("no volume is called '{0}': `rekindle volume ls` shows those there are")]
    NotFound(String),
    /// Nothing in the trash has this name.
    #[error(
        "no volume called '{0}' is in the trash: `rekindle volume trash` shows those there are"
    )]
    NotInTrash(String),
    /// The name is taken.
    #[error(
        "a volume called '{0}' exists already: choose another name, or remove it with `rekindle volume rm`"
    )]
    Exists(String),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Clients hold it.
    #[error("volume '{name}' has {clients} client(s): disconnect them first")]
    Busy {
        /// Its name.
        name: String,
        /// How many hold it.
        clients: u64,
    },
    /// A client held it when the daemon was killed a moment ago.
    #[error(
        "volume '{0}' had a client when the daemon was killed, and it is expected back: wait a minute, or use --force"
    )]
    Awaited(String),
    /// Another node owns it.
    #[error("volume '{0}' is owned by node {1}")]
    Elsewhere(String, base::NodeId),
    /// Its vault cannot be understood, and removing it would give up what it leads to.
    #[error(
        "volume '{name}' is damaged ({reason}): `rekindle volume rm --force` removes it and gives up its data"
    )]
    Damaged {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// No new work.
    #[error("the daemon is stopping")]
    Stopping,
    /// Stopped, but not all changes have reached the datastore.
    #[error(
        "{volumes} volume(s) could not be drained before stopping, first '{name}': {reason}; their changes are kept in the log"
    )]
    Undrained {
        /// How many.
        volumes: u64,
        /// One of them.
        name: String,
        /// Why that one.
        reason: String,
    },
    /// A salvage came to nothing.
    #[error("volume '{name}' cannot be salvaged: {reason}")]
    Salvage {
        /// Its name.
        name: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A salvage was broken off.
    #[error(
        "the salvage of volume '{0}' was broken off: `rekindle salvage run {0}` begins it again"
    )]
    Cancelled(String),
    /// A task ended without its result.
    #[error("volume '{0}': the work on it was interrupted")]
    Interrupted(String),
    #[error(transparent)]
    Unlawful(#[from] Unlawful),
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
            Error::NotFound(_) | Error::NotInTrash(_) => Kind::NotFound,
            Error::Exists(_) => Kind::Exists,
            Error::Invalid(_) => Kind::Invalid,
            Error::Busy { .. } | Error::Awaited(_) | Error::Elsewhere(..) => Kind::Conflict,
            Error::Damaged { .. } | Error::Salvage { .. } => Kind::Damaged,
            Error::Stopping
            | Error::Interrupted(_)
            | Error::Cancelled(_)
            | Error::Undrained { .. } => Kind::Unavailable,
            Error::Unlawful(_) => Kind::Io,
            Error::Staging(error) => error.kind(),
            Error::Store(error) => error.kind(),
        }
    }

    /// Whether a salvage may help: the vault is sound, and what it leads to is not.
    pub(crate) fn is_for_salvage(&self) -> bool {
        matches!(self, Error::Staging(error) if error.kind() == Kind::Damaged)
    }

    /// Whether trying again alone will not mend it.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(self.kind(), Kind::Damaged | Kind::Unsupported | Kind::Invalid)
    }
}
