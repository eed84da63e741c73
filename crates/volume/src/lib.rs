//! The life of a volume: made, listed, attached on first use, served, detached, removed.
//!
//! [`Volumes`] is the registry of a node. Names and vaults are in the datastore; nothing is read before somebody asks.
//! The states and the one table of lawful transitions are in [`machine`].

mod error;
pub mod machine;

pub use error::Error;
pub use staging::{Ack, Backlog, Extent, Fold, Home, Policy, Source, Ticket, Vault, VaultState, Written};

use content::Content;
use datastore::record::Writer;
use env::Env;
use serde::Serialize;
use staging::Staging;
use std::sync::Arc;

/// Makes the home of a volume from its vault; the node plugs in one for each kind.
pub type HomeMaker = Arc<dyn Fn(&Vault) -> Result<Arc<dyn Home>, Error> + Send + Sync>;

/// What is asked of a new volume.
#[derive(Debug, Clone)]
pub struct Spec {
    pub name: String,
    /// "block".
    pub kind: String,
    /// Bytes; a positive multiple of 512.
    pub size: u64,
    /// Bytes; a power of two from 4 KiB to 1 MiB.
    pub block_size: u64,
    pub policy: Policy,
    pub ack: Ack,
}

/// A volume as people see it.
#[derive(Debug, Clone, Serialize)]
pub struct Info {
    #[serde(flatten)]
    pub vault: Vault,
    pub state: machine::State,
    pub clients: u64,
    /// Only when in service.
    pub backlog: Option<Backlog>,
    /// Why it is in state `error` or `stalled`.
    pub reason: Option<String>,
}

/// The volumes of a node. Clones mean the same registry.
#[derive(Clone)]
pub struct Volumes {
    inner: Arc<Inner>,
}
struct Inner {}

/// A client's hold on an attached volume; dropping it lets go.
#[derive(Clone)]
pub struct Handle {}

impl Volumes {
    /// The registry; reads nothing.
    #[must_use]
    pub fn open(env: Env, writer: Writer, staging: Staging, content: Content, homes: HomeMaker) -> Self {
        let _ = (env, writer, staging, content, homes);
        todo!()
    }

    /// Makes a volume: vault first, then its name.
    pub async fn create(&self, spec: Spec) -> Result<Info, Error> {
        let _ = spec;
        todo!()
    }

    /// All volumes, by name.
    pub async fn list(&self) -> Result<Vec<Info>, Error> {
        todo!()
    }

    /// One volume.
    pub async fn show(&self, name: &str) -> Result<Info, Error> {
        let _ = name;
        todo!()
    }

    /// Removes a volume. Refused ([`Error::Busy`]) while clients hold it, unless `force`, which lets go of them.
    pub async fn remove(&self, name: &str, force: bool) -> Result<(), Error> {
        let _ = (name, force);
        todo!()
    }

    /// Brings a volume into service on first use (concurrent callers share one attach) and holds it.
    pub async fn attach(&self, name: &str) -> Result<Handle, Error> {
        let _ = name;
        todo!()
    }

    /// Stops all: parallel; unfinished changes stay in the log, or are destaged first with `drain`.
    pub async fn stop(&self, drain: bool) -> Result<(), Error> {
        let _ = drain;
        todo!()
    }
}

impl Handle {
    /// The volume in service.
    #[must_use]
    pub fn staged(&self) -> &Arc<staging::Staged> {
        todo!()
    }

    /// The vault as of attach (size, block size, policy).
    #[must_use]
    pub fn vault(&self) -> &Vault {
        todo!()
    }
}
