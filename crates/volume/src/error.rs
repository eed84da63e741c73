//! The errors of a volume.

use crate::registry::machine::Unlawful;
use rekindle_base::Kind;

/// An error of a volume. It is `Clone`, because all clients that wait for one attach get the same
/// one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No volume has this name.
    #[error("no volume is called '{0}': `rekindle volume ls` shows those there are")]
    NotFound(String),
    /// No volume in the trash has this name.
    #[error(
        "no volume called '{0}' is in the trash: `rekindle volume trash` shows those there are"
    )]
    NotInTrash(String),
    /// The name is taken.
    #[error(
        "a volume called '{0}' exists already: choose another name, or remove it with `rekindle volume rm`"
    )]
    Exists(String),
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Clients hold the volume.
    #[error("volume '{name}' has {clients} client(s): disconnect them first")]
    Busy {
        /// The volume's name.
        name: String,
        /// Number of clients.
        clients: u64,
    },
    /// A client held the volume when the daemon was killed a moment ago.
    #[error(
        "volume '{0}' had a client when the daemon was killed, and it is expected back: wait a minute, or use --force"
    )]
    Awaited(String),
    /// This binary does not know the volume's kind.
    #[error(
        "volume '{name}' is of kind '{kind}', which this binary does not know: upgrade rekindle"
    )]
    UnknownKind {
        /// The volume's name.
        name: String,
        /// Its kind.
        kind: String,
    },
    /// The volume is not of the kind that the caller serves.
    #[error("volume '{name}' is a '{kind}' volume, and not a '{wanted}' volume")]
    OtherKind {
        /// The volume's name.
        name: String,
        /// Its kind.
        kind: String,
        /// The kind that the caller serves.
        wanted: &'static str,
    },
    /// The node to which the volume is to move cannot have it.
    #[error("{reason}")]
    NoTarget {
        kind: Kind,
        /// The reason, and what to do.
        reason: String,
    },
    /// Another node owns the volume.
    #[error("volume '{0}' is owned by node {1}")]
    Elsewhere(String, rekindle_base::NodeId),
    /// The vault cannot be understood, and a removal would give up the content.
    #[error(
        "volume '{name}' is damaged ({reason}): `rekindle volume rm {name} --now --force` removes it and gives up its data"
    )]
    Damaged {
        /// The volume's name.
        name: String,
        /// The damage, in words.
        reason: String,
    },
    /// The node stops and takes no new work.
    #[error("the daemon is stopping")]
    Stopping,
    /// The node stopped, but some changes have not reached the datastore.
    #[error(
        "{volumes} volume(s) could not be drained before stopping, first '{name}': {reason}; their changes are kept in the log"
    )]
    Undrained {
        /// Number of such volumes.
        volumes: u64,
        /// The name of one of them.
        name: String,
        /// The reason for that one.
        reason: String,
    },
    /// A salvage could not repair the volume.
    #[error("volume '{name}' cannot be salvaged: {reason}")]
    Salvage {
        /// The volume's name.
        name: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// A salvage was cancelled.
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
    Staging(#[from] rekindle_staging::Error),
    #[error(transparent)]
    Store(#[from] rekindle_datastore::Error),
}

impl Error {
    /// Returns the kind, which tells the caller what to do.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Error::NotFound(_) | Error::NotInTrash(_) => Kind::NotFound,
            Error::Exists(_) => Kind::Exists,
            Error::Invalid(_) => Kind::Invalid,
            Error::Busy { .. } | Error::Awaited(_) | Error::Elsewhere(..) => Kind::Conflict,
            Error::Damaged { .. } | Error::Salvage { .. } => Kind::Damaged,
            Error::UnknownKind { .. } | Error::OtherKind { .. } => Kind::Unsupported,
            Error::Stopping
            | Error::Interrupted(_)
            | Error::Cancelled(_)
            | Error::Undrained { .. } => Kind::Unavailable,
            Error::NoTarget { kind, .. } => *kind,
            Error::Unlawful(_) => Kind::Io,
            Error::Staging(error) => error.kind(),
            Error::Store(error) => error.kind(),
        }
    }

    /// Whether a salvage may help: the vault is sound, and the content is not.
    pub(crate) fn is_for_salvage(&self) -> bool {
        matches!(self, Error::Staging(error) if error.kind() == Kind::Damaged)
    }

    /// Whether only the user can say that the volume goes on without what a lost machine may have.
    pub(crate) fn is_of_a_lost_machine(&self) -> bool {
        matches!(self, Error::Staging(rekindle_staging::Error::NotCopied(_)))
    }

    /// Whether a retry alone cannot help.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(self.kind(), Kind::Damaged | Kind::Unsupported | Kind::Invalid)
    }
}
