//! The record cache: copies of records, kept where a restart finds them without asking the store.
//!
//! A copy equals the record in the store as long as no other node writes the record. The copy is
//! taken away before each write and put back after the write has won, so a process that dies in
//! between leaves none. Where two operations on one record overlap, no copy is put back: their
//! order is not known.

use super::envelope::decode_with;
use super::{Body, Held};
use crate::Version;
use crate::secret::Secret;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// A place for copies of records. Its calls do not wait, and any copy may be gone at any time.
pub trait RecordCache: Send + Sync + 'static {
    /// Returns the bytes that were kept under a key, whole and unchanged.
    fn find(&self, key: &str) -> Option<Vec<u8>>;
    /// Keeps bytes under a key, in place of earlier ones.
    fn keep(&self, key: &str, bytes: &[u8]);
    /// Forgets the bytes of a key. When this returns they are gone, for the next process too.
    fn forget(&self, key: &str);
}

/// The cache of a writer. Clones share the copies.
#[derive(Clone)]
pub(super) struct WriterCache {
    records: Arc<dyn RecordCache>,
    /// Keys with operations under way, and whether two operations on a key have overlapped.
    operations: Arc<Mutex<HashMap<String, Operations>>>,
}

#[derive(Default)]
struct Operations {
    count: usize,
    overlapped: bool,
}

/// An operation on one record; it begins before the first call to the store.
pub(super) struct Operation<'a> {
    cache: &'a WriterCache,
    key: &'a str,
}

impl WriterCache {
    pub(super) fn new(records: Arc<dyn RecordCache>) -> Self {
        Self { records, operations: Arc::default() }
    }

    /// Returns the cached record; `None` also when its bytes cannot be decoded.
    pub(super) fn find<T: Body>(&self, key: &str, secret: Option<&Secret>) -> Option<Held<T>> {
        let bytes = self.records.find(key)?;
        let (length, rest) = bytes.split_first_chunk()?;
        let (version, data) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let version = Version(String::from_utf8(version.to_vec()).ok()?);
        Some(Held::of(key, version, decode_with(key, data, secret).ok()?))
    }

    pub(super) fn hint(&self, key: &str) -> Option<Vec<u8>> {
        self.records.find(key)
    }

    pub(super) fn keep_hint(&self, key: &str, bytes: &[u8]) {
        self.records.keep(key, bytes);
    }

    pub(super) fn begin<'a>(&'a self, key: &'a str) -> Operation<'a> {
        let mut operations = self.operations.lock();
        let operation = operations.entry(key.to_owned()).or_default();
        operation.count += 1;
        operation.overlapped |= operation.count > 1;
        Operation { cache: self, key }
    }
}

impl Operation<'_> {
    pub(super) fn forget(&self) {
        self.cache.records.forget(self.key);
    }

    /// Keeps the bytes that the operation has read or written, unless another operation overlapped.
    pub(super) fn keep(&self, version: &Version, data: &[u8]) {
        let Ok(length) = u16::try_from(version.0.len()) else { return };
        let bytes = [&length.to_le_bytes()[..], version.0.as_bytes(), data].concat();
        let operations = self.cache.operations.lock();
        if operations.get(self.key).is_some_and(|operation| !operation.overlapped) {
            // Under the lock, so that an operation that begins now forgets the copy again.
            self.cache.records.keep(self.key, &bytes);
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let mut operations = self.cache.operations.lock();
        if let Some(operation) = operations.get_mut(self.key) {
            operation.count -= 1;
            if operation.count == 0 {
                operations.remove(self.key);
            }
        }
    }
}
