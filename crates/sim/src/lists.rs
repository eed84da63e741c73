//! A store whose lists may be stale while its objects are current: some stores promise no more. The
//! lists come from the fault layer's `stale=`, which would make objects stale, too.

use bytes::Bytes;
use rekindle_datastore::layer::fault::{self, Handle, Plan};
use rekindle_datastore::{Datastore, Error, Listed, Removal, Store, Version};
use rekindle_env::{BoxFuture, Env};
use std::ops::Range;
use std::sync::Arc;

struct Lists {
    /// The store behind the fault layer, asked for lists only.
    old: Store,
    rest: Store,
}

/// Wraps a store so that its lists may be stale; the handle switches that.
#[must_use]
pub fn wrap(env: &Env, store: Store) -> (Store, Handle) {
    let (old, handle) = fault::wrap(env, store.clone(), Plan::default());
    (Arc::new(Lists { old, rest: store }), handle)
}

impl Datastore for Lists {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        self.rest.put(key, data)
    }

    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        self.rest.create(key, data)
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        self.rest.replace(key, data, version)
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        self.rest.get(key)
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        self.rest.get_range(key, range)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        self.old.list(prefix, after)
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        self.rest.delete(key)
    }

    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Removal, Error>> {
        self.rest.delete_if(key, version)
    }

    fn describe(&self) -> String {
        self.rest.describe()
    }
}
