//! The errors of a start and of a running node. Each message is one line and says what to do.

use rekindle_base::{Kind, NodeId, StoreId};
use std::path::PathBuf;

/// An error of the node.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings contradict themselves.
    #[error("{0}")]
    Usage(String),
    /// Another daemon serves from this folder.
    #[error("the folder {} is in use by another daemon: stop that one, or choose another folder with --dir", .0.display())]
    InUse(PathBuf),
    /// A file of the folder cannot be read or written.
    #[error("{}: {reason}: check its permissions and the space left, or choose another folder with --dir", .path.display())]
    Folder { path: PathBuf, reason: String },
    /// `node.json` is not what this node wrote.
    #[error("{} is damaged ({reason}): restore it; the log in this folder belongs to the node that it names", .path.display())]
    Damaged { path: PathBuf, reason: String },
    /// `node.json` is of a newer version.
    #[error("{} has format version {found}, this binary knows up to {known}: upgrade rekindle", .path.display())]
    Newer { path: PathBuf, found: u32, known: u32 },
    /// The folder belongs to another store.
    #[error(
        "this folder belongs to the store {ours}, but {url} is the store {theirs}: its log may hold changes of that \
         other store. Give the URL of the right store, or another folder with --dir"
    )]
    OtherStore { url: String, ours: StoreId, theirs: StoreId },
    /// The configured warm memory cannot be used.
    #[error("the warm memory {} cannot be used: {reason}: choose another file with --warm, or a smaller --warm-size", .path.display())]
    Warm { path: PathBuf, reason: String },
    /// An error of the store.
    #[error("the store {url}: {source}")]
    Store { url: String, source: rekindle_datastore::Error },
    /// Another copy of the folder has taken this node's place, or the store is older than the
    /// folder.
    #[error(
        "{0}. `rekindle up --take-identity` goes on with this folder as it is and stops other copies for good; else remove \
         this folder, or put the right one in its place"
    )]
    Copied(String),
    /// A holder of copies has taken this node over since this folder was used last.
    #[error(
        "node {node} was taken over by node {host}, which goes on with its volumes: what this folder has not in the store or \
         in the copies is here only. `rekindle up --take-identity` goes on with this folder as it is, and stops the other for good"
    )]
    TakenOver { node: NodeId, host: NodeId },
    /// The flash of a node whose log has copies has failed: another process may fare better, or
    /// another host.
    #[error(
        "the flash has failed, and a holder of copies takes this node over unless it is back soon: {0}"
    )]
    Flash(rekindle_log::Error),
    /// Another process took this node's place while it served.
    #[error("{0}")]
    Fenced(String),
    /// The node was asked to stop, and a part of that failed.
    #[error("{0}")]
    Unclean(Box<Error>),
    #[error(transparent)]
    Log(#[from] rekindle_log::Error),
    #[error(transparent)]
    Volume(#[from] rekindle_volume::Error),
    /// The machine refuses something that should never fail.
    #[error("{0}")]
    Machine(#[from] std::io::Error),
}

impl Error {
    /// Returns the kind, which tells the caller what to do.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Error::Usage(_) | Error::OtherStore { .. } => Kind::Invalid,
            Error::InUse(_) => Kind::Conflict,
            Error::Folder { .. } | Error::Warm { .. } | Error::Machine(_) => Kind::Io,
            Error::Damaged { .. } => Kind::Damaged,
            Error::Newer { .. } => Kind::Unsupported,
            Error::Store { source, .. } => source.kind(),
            Error::Copied(_) | Error::TakenOver { .. } | Error::Fenced(_) => Kind::Fenced,
            Error::Unclean(error) => error.kind(),
            Error::Flash(error) | Error::Log(error) => error.kind(),
            Error::Volume(error) => error.kind(),
        }
    }
}
