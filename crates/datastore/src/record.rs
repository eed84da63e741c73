//! Mutable truths: small JSON objects, changed only by conditional write.

use crate::{Error, Store, Version};
use base::NodeId;
use env::Env;
use serde::{Serialize, de::DeserializeOwned};

/// Who writes records here; its nonces tell our own writes from others'.
#[derive(Clone)]
pub struct Writer {
    /// The machine.
    pub env: Env,
    /// The store.
    pub store: Store,
    /// The node.
    pub node: NodeId,
}

/// A record as it was read or written last.
#[derive(Debug, Clone)]
pub struct Held<T> {
    /// The key.
    pub key: String,
    /// The content.
    pub value: T,
    /// For the next conditional write.
    pub version: Version,
}

/// What kind of record: its name in messages and the newest format version known.
pub trait Body: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// For messages: "vault", "node record".
    const WHAT: &'static str;
    /// Format version written; anything newer is refused.
    const FORMAT: u32;
}

impl Writer {
    /// Reads a record; `None` when it does not exist.
    pub async fn read<T: Body>(&self, key: &str) -> Result<Option<Held<T>>, Error> {
        let _ = key;
        todo!()
    }

    /// Makes a record. [`Error::Exists`] when somebody else's is there. After any failure the record is read back:
    /// ours (by nonce) means won.
    pub async fn create<T: Body>(&self, key: &str, value: T) -> Result<Held<T>, Error> {
        let _ = (key, value);
        todo!()
    }

    /// Replaces a record that is still as `held` says. [`Error::Conflict`] when it is not. After any failure the
    /// record is read back and judged: won, lost, or unchanged so try again (within the retry budget, then
    /// [`Error::Unavailable`], and then the outcome is open: read before the next attempt).
    pub async fn replace<T: Body>(&self, held: &Held<T>, value: T) -> Result<Held<T>, Error> {
        let _ = (held, value);
        todo!()
    }
}
