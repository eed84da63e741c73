//! A pointer: a chunk's name and where it lies.

use base::PackId;
use serde::{Deserialize, Serialize};

/// Bytes of an encoded pointer.
pub const POINTER_BYTES: usize = 64;

/// Name and place of a chunk. Two pointers with the same name are the same chunk, wherever they point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pointer {
    /// Keyed BLAKE3 of content and children.
    pub name: [u8; 32],
    /// The pack that held it when the pointer was made.
    pub pack: PackId,
    /// Where its blob begins in the pack, bytes.
    pub offset: u32,
    /// Length of its blob in the pack, bytes.
    pub stored: u32,
    /// Length of its content, bytes.
    pub length: u32,
}

impl Serialize for Pointer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let _ = serializer;
        todo!()
    }
}
impl<'de> Deserialize<'de> for Pointer {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let _ = deserializer;
        todo!()
    }
}
