//! The body of a vault: the part that only the volume's kind understands.

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// The only field that formats 1 to 5 had of a body. It stood among the vault's own fields.
const OLD_FIELD: &str = "block_size";

/// The body of a vault, a JSON object. Fields that this binary does not know survive every write.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VaultBody(pub Map<String, Value>);

impl VaultBody {
    /// Makes the body of a kind's own type, which must be a JSON object.
    pub fn of(typed: &impl Serialize) -> Result<Self, String> {
        match serde_json::to_value(typed) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(other) => Err(format!("'{other}' is not a JSON object")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Reads the body as a kind's own type. The error names the field that does not fit.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(&self.0).map_err(|error| error.to_string())
    }
}

/// Reads a body, or the one field of it that formats 1 to 5 had.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<VaultBody, D::Error> {
    struct Either;
    impl<'de> Visitor<'de> for Either {
        type Value = VaultBody;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the body of a vault")
        }
        fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<VaultBody, A::Error> {
            VaultBody::deserialize(MapAccessDeserializer::new(fields))
        }
        fn visit_u64<E: Error>(self, bytes: u64) -> Result<VaultBody, E> {
            Ok(VaultBody(Map::from_iter([(OLD_FIELD.to_owned(), Value::from(bytes))])))
        }
    }
    deserializer.deserialize_any(Either)
}
