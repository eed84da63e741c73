//! Names of chunks, and everything else that is derived from the store's secret.
//!
//! Each purpose has a key of its own, derived from the secret by BLAKE3's `derive_key`:
//!
//! - a **data** chunk's name is `keyed_hash(data key, content)`: data has no children, so nothing
//!   else is covered;
//! - a **metadata** chunk's name is
//!   `keyed_hash(metadata key, children count as u32 || children || content)`, where the children
//!   are the **encoded pointers, name and place**. The chunk's bytes contain the places, and a
//!   name must answer for every byte that a reader acts on.
//!
//! Covering the places has two consequences. Compaction never changes a node: it moves chunks and
//! leaves a note, because rewriting a pointer in a parent would give the parent another name. And
//! the writer of a node that is a duplicate of an existing one holds the same places already. So a
//! duplicate node never vouches for children in packs that its writer has not seen durable.
//!
//! The two keys differ, so a data chunk and a metadata chunk never share a name, whatever their
//! bytes.

use crate::{Class, Pointer};
use blake3::Hasher;
use rekindle_base::PackId;

/// A chunk's name.
pub(crate) type Name = [u8; 32];

/// The keys of a store.
pub(crate) struct Namer {
    data: [u8; 32],
    metadata: [u8; 32],
}

impl Namer {
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        Self {
            data: blake3::derive_key("rekindle content 2026-01 name of a data chunk", secret),
            metadata: blake3::derive_key(
                "rekindle content 2026-01 name of a metadata chunk",
                secret,
            ),
        }
    }

    /// Name of a chunk from its body: encoded children, then content.
    pub(crate) fn name(&self, class: Class, children: u32, body: &[u8]) -> Name {
        match class {
            Class::Data => *blake3::keyed_hash(&self.data, body).as_bytes(),
            Class::Metadata => {
                let mut hasher = Hasher::new_keyed(&self.metadata);
                hasher.update(&children.to_le_bytes());
                hasher.update(body);
                *hasher.finalize().as_bytes()
            }
        }
    }
}

/// Parameters of the content-defined chunker: an odd multiplier and an addend.
#[cfg(any(test, feature = "streams"))]
pub(crate) fn chunker_parameters(secret: &[u8; 32]) -> (u32, u32) {
    let key = blake3::derive_key("rekindle content 2026-01 parameters of the chunker", secret);
    let word = |at: usize| u32::from_le_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]]);
    (word(0) | 1, word(4))
}

/// Fingerprint of the store, for files that a node keeps.
pub(crate) fn store_fingerprint(secret: &[u8; 32]) -> [u8; 16] {
    let key = blake3::derive_key("rekindle content 2026-11 fingerprint of a store", secret);
    std::array::from_fn(|at| key[at])
}

/// Key of the cuts that a kind of volume makes itself.
pub(crate) fn cut_key(secret: &[u8; 32]) -> u64 {
    let key = blake3::derive_key("rekindle content 2026-11 cuts between pages", secret);
    u64::from_le_bytes(std::array::from_fn(|at| key[at]))
}

/// Eight bytes of a name as a number: names are uniform, so this is a hash for tables.
pub(crate) fn word(name: &Name, index: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&name[index * 8..index * 8 + 8]);
    u64::from_le_bytes(bytes)
}

/// A hasher for maps whose keys are names or pack ids: takes eight bytes as they are. A name is a
/// keyed hash, so a client cannot aim at a bucket.
#[derive(Default, Clone, Copy)]
pub(crate) struct NameHasher(u64);

impl std::hash::Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        // The last eight bytes: in a name any will do, but a pack id begins with its time.
        let mut word = [0; 8];
        let taken = bytes.len().min(8);
        word[..taken].copy_from_slice(&bytes[bytes.len() - taken..]);
        self.0 = self.0.rotate_left(5) ^ u64::from_le_bytes(word);
    }
    fn write_usize(&mut self, _length: usize) {}
}

/// A map by name.
pub(crate) type NameMap<V> = hashbrown::HashMap<Name, V, std::hash::BuildHasherDefault<NameHasher>>;
/// A map by pack. Like all maps here it has the same order in every run, for the simulation.
pub(crate) type PackMap<V> =
    hashbrown::HashMap<PackId, V, std::hash::BuildHasherDefault<NameHasher>>;
/// A set of packs.
pub(crate) type PackSet = hashbrown::HashSet<PackId, std::hash::BuildHasherDefault<NameHasher>>;
/// A map by name and place.
pub(crate) type PlaceMap<V> =
    hashbrown::HashMap<Pointer, V, std::hash::BuildHasherDefault<NameHasher>>;
/// A set of names with their places.
pub(crate) type PlaceSet = hashbrown::HashSet<Pointer, std::hash::BuildHasherDefault<NameHasher>>;
/// A set of names.
pub(crate) type NameSet = hashbrown::HashSet<Name, std::hash::BuildHasherDefault<NameHasher>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_depend_on_the_secret_the_class_the_children_and_every_bit() {
        let namer = Namer::new(&[1; 32]);
        let body = [7; 256];
        let name = namer.name(Class::Metadata, 2, &body);
        assert_eq!(name, namer.name(Class::Metadata, 2, &body));
        assert_ne!(name, namer.name(Class::Metadata, 1, &body));
        assert_ne!(name, namer.name(Class::Data, 2, &body));
        assert_ne!(name, Namer::new(&[2; 32]).name(Class::Metadata, 2, &body));
        let mut flipped = body;
        flipped[200] ^= 1;
        assert_ne!(name, namer.name(Class::Metadata, 2, &flipped));
    }

    #[test]
    fn names_stay_as_they_are() {
        let namer = Namer::new(&[9; 32]);
        let hex =
            |name: Name| name[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(namer.name(Class::Data, 0, b"rekindle")), "035c650831a5c60c");
        assert_eq!(hex(namer.name(Class::Metadata, 0, b"rekindle")), "6f070478a34418ff");
    }
}
