//! What we assume of a store.

use crate::Error;
use bytes::Bytes;
use env::BoxFuture;
use std::ops::Range;
use std::sync::Arc;

/// What a stored object's content was at one moment; opaque (an ETag).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub String);

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Its length, bytes.
    pub length: u64,
}

/// What became of a conditional removal that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The object is gone.
    Done,
    /// The store cannot remove under a condition; nothing has changed.
    Unsupported,
}

/// How much more a store takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// So many bytes.
    Bytes(u64),
    /// As far as anybody knows there is no bound.
    Unbounded,
}

/// A store, shared.
pub type Store = Arc<dyn Datastore>;

/// An object store with conditional writes. Keys are `/`-separated, printable ASCII, at most 800 bytes, relative
/// to the store's prefix (see [`crate::key`]); no object lies below another (`a` and `a/b`). Every write is atomic (a
/// reader sees all of it or nothing) and durable on success.
/// A failed `create`, `replace` or `delete_if` may have landed: see [`crate::record`].
pub trait Datastore: Send + Sync {
    /// Writes an object whatever was there.
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>>;
    /// Writes an object that must not exist ([`Error::Exists`]).
    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>>;
    /// Writes an object that must still be at `version` ([`Error::Conflict`], also when it is gone).
    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>>;
    /// Reads a whole object ([`Error::NotFound`]).
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>>;
    /// Reads some bytes; shorter when the object ends earlier.
    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>>;
    /// Up to about 1000 objects whose key starts with `prefix` (whole path segments, ending in `/`), after the key
    /// `after`, in key order. An empty list is the end.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>>;
    /// Removes an object; success when it is absent.
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>>;
    /// Removes an object that must still be at `version` ([`Error::Conflict`]); success when it is absent. Not every
    /// store can: [`crate::record::Writer::remove`] knows what to do then.
    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Removal, Error>> {
        let _ = (key, version);
        Box::pin(async { Ok(Removal::Unsupported) })
    }
    /// How much more it takes, without what it keeps for removals.
    fn room(&self) -> BoxFuture<'_, Result<Room, Error>> {
        Box::pin(async { Ok(Room::Unbounded) })
    }
    /// For messages: `file:///srv/store`, `s3://bucket/prefix`.
    fn describe(&self) -> String;
}
