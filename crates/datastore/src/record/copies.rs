//! Copies of records, kept where a restart finds them without asking the store.
//!
//! A copy says what lies in the store as long as nobody but this node writes the record. It is taken away before each
//! write and put back after it has won, so that a process that dies in between leaves none. Where two operations on one
//! record overlap, none is put back: nobody knows which of them was the later.

use super::envelope::decode_with;
use super::{Body, Held};
use crate::Version;
use crate::identity::Secret;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Where copies lie. Plain calls; anything may be gone at any time.
pub trait Copies: Send + Sync + 'static {
    /// What was kept under a key, whole and unchanged.
    fn find(&self, key: &str) -> Option<Vec<u8>>;
    /// Keeps bytes under a key, instead of what was there.
    fn keep(&self, key: &str, bytes: &[u8]);
    /// Nothing is kept under the key when this returns, not even for the next process.
    fn forget(&self, key: &str);
}

/// The copies of a writer. Clones mean the same ones.
#[derive(Clone)]
pub(super) struct Shelf {
    copies: Arc<dyn Copies>,
    /// Keys that somebody reads or writes, and whether two have overlapped.
    hands: Arc<Mutex<HashMap<String, Hands>>>,
}

#[derive(Default)]
struct Hands {
    count: usize,
    overlapped: bool,
}

/// An operation on one record, from before it begins.
pub(super) struct Hand<'a> {
    shelf: &'a Shelf,
    key: &'a str,
}

impl Shelf {
    pub(super) fn new(copies: Arc<dyn Copies>) -> Self {
        Self { copies, hands: Arc::default() }
    }

    /// The record as it was kept; `None` also when it cannot be understood.
    pub(super) fn find<T: Body>(&self, key: &str, secret: Option<&Secret>) -> Option<Held<T>> {
        let bytes = self.copies.find(key)?;
        let (length, rest) = bytes.split_first_chunk()?;
        let (version, data) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let version = Version(String::from_utf8(version.to_vec()).ok()?);
        Some(Held::of(key, version, decode_with(key, data, secret).ok()?))
    }

    pub(super) fn hint(&self, key: &str) -> Option<Vec<u8>> {
        self.copies.find(key)
    }

    pub(super) fn keep_hint(&self, key: &str, bytes: &[u8]) {
        self.copies.keep(key, bytes);
    }

    pub(super) fn begin<'a>(&'a self, key: &'a str) -> Hand<'a> {
        let mut hands = self.hands.lock();
        let hand = hands.entry(key.to_owned()).or_default();
        hand.count += 1;
        hand.overlapped |= hand.count > 1;
        Hand { shelf: self, key }
    }
}

impl Hand<'_> {
    pub(super) fn forget(&self) {
        self.shelf.copies.forget(self.key);
    }

    /// Keeps what the operation has seen or written, as it lies in the store, unless another one overlapped.
    pub(super) fn keep(&self, version: &Version, data: &[u8]) {
        let Ok(length) = u16::try_from(version.0.len()) else { return };
        let bytes = [&length.to_le_bytes()[..], version.0.as_bytes(), data].concat();
        let hands = self.shelf.hands.lock();
        if hands.get(self.key).is_some_and(|hand| !hand.overlapped) {
            // Under the lock: whoever begins now takes it away again.
            self.shelf.copies.keep(self.key, &bytes);
        }
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        let mut hands = self.shelf.hands.lock();
        if let Some(hand) = hands.get_mut(self.key) {
            hand.count -= 1;
            if hand.count == 0 {
                hands.remove(self.key);
            }
        }
    }
}
