//! The secret of a store.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// 32 bytes that messages never show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // The error never quotes the text: the text may be the secret but for one digit.
        let bytes = blake3::Hash::from_hex(text)
            .map_err(|_| serde::de::Error::custom("the secret is not 64 hexadecimal digits"))?;
        Ok(Secret(*bytes.as_bytes()))
    }
}
