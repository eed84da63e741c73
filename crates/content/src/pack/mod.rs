//! Packs: objects that hold many chunks. `packs/data/<id>` and `packs/meta/<id>`.
//!
//! ```text
//! header | blob | blob | ... | parity (if set) | footer (what lies where) | trailer
//! ```
//!
//! A blob is a chunk, or a bundle: several chunks of data that are compressed together.
//!
//! A pack is written once, whole; its blobs never change (a salvage may give it another footer, and
//! rebuild damaged blobs). Its id begins with 48 bits of wall clock: a listing is in order of age,
//! and a sweep can leave young packs alone. Then come random bits, and the last bit tells the
//! class. So a pointer alone tells which key to read and whether the chunk may have children.

pub(crate) mod blobs;
pub mod parity;
pub(crate) mod reader;
pub(crate) mod scan;
pub(crate) mod writer;

pub use scan::{Scanned, scan};

use crate::{Class, Error};
use rekindle_base::PackId;
use rekindle_datastore::{Listed, Store};
use rekindle_env::Env;

/// Prefix of the keys of packs of a class.
#[must_use]
pub fn prefix(class: Class) -> &'static str {
    match class {
        Class::Data => "packs/data/",
        Class::Metadata => "packs/meta/",
    }
}

/// The key of a pack.
#[must_use]
pub fn key(pack: PackId) -> String {
    format!("{}{pack}", prefix(class(pack)))
}

/// Class of the chunks of a pack.
#[must_use]
pub fn class(pack: PackId) -> Class {
    if pack.0[15] & 1 == 0 { Class::Data } else { Class::Metadata }
}

/// An id for a new pack.
pub(crate) fn new_id(env: &Env, class: Class) -> PackId {
    let milliseconds = env.wall_clock().0 / 1000;
    let mut id: [u8; 16] = env.random();
    id[..6].copy_from_slice(&milliseconds.to_be_bytes()[2..]);
    id[15] = id[15] & !1 | u8::from(class == Class::Metadata);
    PackId(id)
}

/// When a pack was made by the clock of the node that made it, milliseconds since 1970.
pub(crate) fn made_milliseconds(pack: &PackId) -> u64 {
    let mut made = [0; 8];
    made[2..].copy_from_slice(&pack.0[..6]);
    u64::from_be_bytes(made)
}

/// The pack whose key this is.
fn parse_key(key: &str, class: Class) -> Option<PackId> {
    let pack: PackId = key.strip_prefix(prefix(class))?.parse().ok()?;
    (self::class(pack) == class).then_some(pack)
}

/// Lists all packs of a class with their lengths, oldest first. Objects that are no packs are left
/// alone.
pub(crate) async fn list(store: &Store, class: Class) -> Result<Vec<(PackId, u64)>, Error> {
    let mut packs = Vec::new();
    let mut pages = Pages::new(store, class);
    while let Some(page) = pages.next().await? {
        packs.extend(page);
    }
    Ok(packs)
}

/// The packs of a class with their lengths, oldest first, a page of the list at a time.
pub(crate) struct Pages<'a> {
    store: &'a Store,
    class: Class,
    after: Option<String>,
}

impl<'a> Pages<'a> {
    pub(crate) fn new(store: &'a Store, class: Class) -> Self {
        Self { store, class, after: None }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Vec<(PackId, u64)>>, Error> {
        let page: Vec<Listed> = self.store.list(prefix(self.class), self.after.as_deref()).await?;
        let Some(last) = page.last() else { return Ok(None) };
        self.after = Some(last.key.clone());
        let pack = |listed: &Listed| Some((parse_key(&listed.key, self.class)?, listed.length));
        Ok(Some(page.iter().filter_map(pack).collect()))
    }
}
