//! Errors of staging.

use rekindle_base::Kind;

/// An error of staging. Clonable, because one failed batch may fail many writes.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] rekindle_datastore::Error),
    #[error(transparent)]
    Content(#[from] rekindle_content::Error),
    #[error(transparent)]
    Log(#[from] rekindle_log::Error),
    /// Another node owns the volume now, or a newer generation does.
    #[error("volume {0} is served by another node now")]
    Fenced(String),
    /// Another node owns the volume now, or this one under other settings; it began with all that
    /// was acknowledged.
    #[error("volume {0} has moved to another node, or has other settings now")]
    Moved(String),
    /// The flash has failed, and other nodes have copies of what it had: the volume goes on there,
    /// or here when the flash is back.
    #[error("volume {0} goes on from its copies, since the flash here has failed: {1}")]
    FlashFailed(String, rekindle_log::Error),
    /// A newer life of this node has taken over.
    #[error("{0}")]
    Deposed(String),
    /// The volume asked for no copies on other nodes, and this node has nothing but copies.
    #[error(
        "volume {0} asked for no copies on other nodes: what it wrote last may be on the lost machine alone, and it comes \
         back once that machine does"
    )]
    NotCopied(String),
    /// Another node may be taking this one over: what is read may be older than what that one has
    /// acknowledged.
    #[error("volume {0} cannot be read now: the holders of this node's copies do not answer")]
    Unleased(String),
    /// The volume is out of service.
    #[error("volume {0} is not in service")]
    Closed(String),
    /// A request that no volume can fulfil.
    #[error("{0}")]
    Invalid(String),
    /// The volume has no snapshot of that name.
    #[error(
        "volume '{volume}' has no snapshot '{snapshot}': `rekindle snapshot ls {volume}` lists those it has"
    )]
    NoSnapshot {
        /// The volume's name.
        volume: String,
        /// The name that was asked for.
        snapshot: String,
    },
    /// The volume has a snapshot of the name that a new one was to have.
    #[error(
        "volume '{volume}' has a snapshot '{snapshot}' already: take another name, or remove that one first"
    )]
    HasSnapshot {
        /// The volume's name.
        volume: String,
        /// The name.
        snapshot: String,
    },
    /// The host at which the volume's owner runs has said so to this one, which forwards requests.
    #[error("{message}")]
    Forwarded {
        kind: Kind,
        /// The reason, in the words of that host.
        message: String,
    },
    /// The requested bytes are lost for good, until a client writes over them.
    #[error(
        "volume {volume}: {lost} are lost: write over them (from a backup, say); `rekindle salvage history {volume}` tells what happened"
    )]
    Quarantined {
        /// The volume's name.
        volume: String,
        /// The lost bytes.
        lost: String,
    },
    /// The vault is older than one that the datastore has had.
    #[error(
        "volume {volume}: the store was set back: its vault is of checkpoint {found}, and the store has had {known}; when the store is \
         right again, so is the volume; `rekindle salvage run {volume} --accept-losses` goes on from the older content"
    )]
    SetBack {
        /// The volume's name.
        volume: String,
        /// The vault's checkpoint.
        found: rekindle_base::Serial,
        /// The checkpoint that the log knows.
        known: rekindle_base::Serial,
    },
    /// Acknowledged changes are missing from the log.
    #[error("volume {volume}: acknowledged changes are damaged: {reason}")]
    Lost {
        /// The volume's name.
        volume: String,
        /// The exact reason.
        reason: String,
    },
}

impl Error {
    /// The error that a volume has no snapshot of this name.
    #[must_use]
    pub fn no_snapshot(volume: &str, snapshot: &str) -> Self {
        Self::NoSnapshot { volume: volume.to_owned(), snapshot: snapshot.to_owned() }
    }

    /// The class of the error, which decides what to do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Error::Store(error) => error.kind(),
            Error::Content(error) => error.kind(),
            Error::Log(error) => error.kind(),
            Error::Fenced(_) | Error::Moved(_) | Error::Deposed(_) | Error::FlashFailed(..) => {
                Kind::Fenced
            }
            Error::Closed(_) | Error::Unleased(_) => Kind::Unavailable,
            Error::NotCopied(_) => Kind::Refused,
            Error::Invalid(_) => Kind::Invalid,
            Error::NoSnapshot { .. } => Kind::NotFound,
            Error::HasSnapshot { .. } => Kind::Exists,
            Error::Forwarded { kind, .. } => *kind,
            Error::SetBack { .. } | Error::Lost { .. } | Error::Quarantined { .. } => Kind::Damaged,
        }
    }
}
