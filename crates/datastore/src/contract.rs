//! The contract: the assumptions about a store.

use crate::Error;
use crate::limits::{TOGETHER_BYTES_MAX, TOGETHER_READS};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use rekindle_env::BoxFuture;
use std::ops::Range;
use std::sync::Arc;

/// The version of an object's content at one moment; opaque (an ETag).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub String);

/// A mark of an object's content in a listing: equal tags of one key mean equal content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(pub [u8; 16]);

impl Tag {
    /// Makes a tag of bytes that change with the content, such as an ETag.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let hash = blake3::hash(bytes);
        Self(std::array::from_fn(|index| hash.as_bytes()[index]))
    }
}

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The key of the object.
    pub key: String,
    /// The object's length, bytes.
    pub length: u64,
    /// The tag of the content; `None` where the store cannot tell. A listing may be stale, and its
    /// tags with it, so a tag may spare work that can wait. It never proves what an object holds.
    pub tag: Option<Tag>,
}

/// The outcome of a conditional removal that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The object is gone.
    Done,
    /// The store cannot remove under a condition; nothing has changed.
    Unsupported,
}

/// The room that a store has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Room for this many bytes.
    Bytes(u64),
    /// No known bound.
    Unbounded,
}

/// The answer to a read of a whole object.
pub type Got = Result<(Bytes, Version), Error>;

/// A store, shared.
pub type Store = Arc<dyn Datastore>;

/// An object store with conditional writes.
///
/// Keys are `/`-separated, printable ASCII, at most 800 bytes, relative to the store's prefix (see
/// [`crate::key`]); no object lies below another (`a` and `a/b`). Every write is atomic (a reader
/// sees all of it or nothing) and durable on success. A failed `create`, `replace` or `delete_if`
/// may have landed: see [`crate::record`].
///
/// A caller awaits from any thread. A backend that blocks, or whose connections live on the
/// background threads, goes there itself, once a call; layers and callers add no such hop. A call
/// whose future is dropped may be carried out all the same.
pub trait Datastore: Send + Sync {
    /// Writes an object, and replaces one that exists.
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>>;
    /// Writes an object that must not exist ([`Error::Exists`]).
    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>>;
    /// Writes an object that must still be at `version` ([`Error::Conflict`], also when it is
    /// gone).
    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>>;
    /// Reads a whole object ([`Error::NotFound`]).
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Got>;
    /// Reads several small objects: those of the first keys, as many as have about
    /// [`TOGETHER_BYTES_MAX`], and at least one. Each answer is one that [`Datastore::get`] might
    /// give. A backend whose calls are short carries them out in one hop.
    fn get_together<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Vec<Got>> {
        Box::pin(one_by_one(keys.iter().map(|key| self.get(key)).collect()))
    }
    /// Reads a range of bytes; the result is shorter when the object ends earlier. It keeps no more
    /// memory alive than its own bytes: caches count those.
    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>>;
    /// Lists up to about 1000 objects in key order. Their keys start with `prefix` (whole path
    /// segments, ending in `/`) and sort after the key `after`. An empty list is the end. A listing
    /// that goes on after the last key of a page shows the objects that were there when the listing
    /// began; it may leave out newer ones.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>>;
    /// Removes an object; success when it is absent.
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>>;
    /// Removes an object that must still be at `version` ([`Error::Conflict`]); success when it is
    /// absent. Not every store supports this; [`crate::record::Writer::remove`] copes with one that
    /// does not.
    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Removal, Error>> {
        let _ = (key, version);
        Box::pin(async { Ok(Removal::Unsupported) })
    }
    /// Returns how much more the store takes, without the reserve that it keeps for removals.
    fn room(&self) -> BoxFuture<'_, Result<Room, Error>> {
        Box::pin(async { Ok(Room::Unbounded) })
    }
    /// Whether another folder may come to lie over the folder of a key while the store is in use,
    /// as a mount does. A write is then done only when its folder has proved itself afterwards. A
    /// bucket stays where it is.
    fn may_be_covered(&self) -> bool {
        true
    }
    /// Returns the store's address for messages: `file:///srv/store`, `s3://bucket/prefix`.
    fn describe(&self) -> String;
}

/// Awaits reads, a few at once; those that have not ended when the bytes suffice are dropped.
pub(crate) async fn one_by_one(reads: Vec<BoxFuture<'_, Got>>) -> Vec<Got> {
    let mut answers = stream::iter(reads).buffered(TOGETHER_READS);
    let (mut found, mut bytes) = (Vec::new(), 0);
    while let Some(answer) = answers.next().await {
        bytes += answer.as_ref().map_or(0, |(data, _)| data.len());
        found.push(answer);
        if bytes >= TOGETHER_BYTES_MAX {
            break;
        }
    }
    found
}
