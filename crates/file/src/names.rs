//! Positions of names: where a name is in the table of its directory, and in the order of
//! listings. A position is 55 bits of a keyed hash, and 8 that tell names with the same hash apart.
//! It stays as long as its name does, so a listing that goes on elsewhere misses nothing.

use crate::limits::COLLISIONS_MAX;
use rekindle_content::Content;
use std::ops::Range;

const _: () = assert!(COLLISIONS_MAX == 1 << 8, "a position has 8 bits for them");

/// The bits of a hash that count. In tests few do, so that names meet.
const HASH_MASK: u64 = if cfg!(test) { 0xff } else { u64::MAX };

/// The places of names in a store.
pub(crate) struct Names {
    key: [u8; 32],
}

/// A check of what clients are given and bring back: a number that only those can compute who have
/// the store.
#[derive(Clone)]
pub struct Seal([u8; 32]);

impl Seal {
    /// Returns the seal of a store.
    #[must_use]
    pub fn of(content: &Content) -> Self {
        Self::with_secret(content.cut_key())
    }

    /// Returns the seal that a secret makes.
    #[must_use]
    pub fn with_secret(secret: u64) -> Self {
        Self(blake3::derive_key("rekindle 2026-11-26 file handles", &secret.to_le_bytes()))
    }

    /// Returns the number for some bytes.
    #[must_use]
    pub fn check(&self, bytes: &[u8]) -> u64 {
        let hash = blake3::keyed_hash(&self.0, bytes);
        u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("8 bytes"))
    }
}

impl Names {
    pub(crate) fn new(content: &Content) -> Self {
        let key = blake3::derive_key("rekindle 2026-11-26 names", &content.cut_key().to_le_bytes());
        Self { key }
    }

    /// The positions that a name may have. The first positions of all are never used.
    pub(crate) fn places(&self, name: &[u8]) -> Range<u64> {
        let hash = blake3::keyed_hash(&self.key, name);
        let hash = u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("8 bytes"));
        let first = ((hash >> 9) & HASH_MASK).max(1) << 8;
        first..first + COLLISIONS_MAX
    }
}
