//! A store that may keep some writes for later: they land when a test says so.

use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::{Datastore, Error as StoreError, Listed, Removal, Store, Version};
use rekindle_env::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Held {
    pub inner: Store,
    pub is_slow: AtomicBool,
    /// What a write has that is kept: text without spaces.
    named: String,
    /// Whether the caller hears that the store is away, from such a write on; else nothing.
    tells: bool,
    pub held: Mutex<Vec<(String, Bytes, Version)>>,
}

impl Held {
    pub fn new(named: String, tells: bool) -> Arc<Self> {
        let is_slow = AtomicBool::new(true);
        Arc::new(Self { inner: Mem::store(), is_slow, named, tells, held: Mutex::default() })
    }

    fn is_away(&self) -> bool {
        let is_slow = self.is_slow.load(Ordering::Relaxed);
        self.tells && is_slow && !self.held.lock().is_empty()
    }
}

fn away<T: Send + 'static>() -> BoxFuture<'static, Result<T, StoreError>> {
    Box::pin(async { Err(StoreError::Unavailable("away".to_owned())) })
}

impl Datastore for Held {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.put(key, data)
    }

    fn create<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        self.inner.create(key, data)
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        let text = String::from_utf8_lossy(&data).replace(' ', "");
        if self.is_slow.load(Ordering::Relaxed) && text.contains(&self.named) {
            self.held.lock().push((key.to_owned(), data, version.clone()));
            return if self.tells { away() } else { Box::pin(std::future::pending()) };
        }
        self.inner.replace(key, data, version)
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), StoreError>> {
        if self.is_away() {
            return away();
        }
        self.inner.get(key)
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: std::ops::Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.inner.get_range(key, range)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, StoreError>> {
        self.inner.list(prefix, after)
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.delete(key)
    }

    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Removal, StoreError>> {
        self.inner.delete_if(key, version)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
