//! Identifiers and counters. Random identifiers are 16 bytes and print as 32 hex digits; counters
//! are `u64`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Text that is not an identifier: anything but 32 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an identifier: 32 hexadecimal digits are expected")]
pub struct BadId(pub String);

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                parse_hex(text).map($name).ok_or_else(|| BadId(text.to_owned()))
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

random_id!(
    /// A daemon with its flash folder, for life.
    NodeId
);
random_id!(
    /// A volume, whatever its name is today.
    VolumeId
);
random_id!(
    /// A datastore. The id is written once into `rekindle.json`, so that a node notices a datastore
    /// that is not its own.
    StoreId
);
random_id!(
    /// A pack of chunks in the datastore.
    PackId
);

fn parse_hex(text: &str) -> Option<[u8; 16]> {
    let digits = text.as_bytes();
    if digits.len() != 32 {
        return None;
    }
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(id)
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The next number.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

counter!(
    /// Number of a change to a volume, from 1, without gaps. 0 is "before the first change".
    Serial
);
counter!(
    /// Number of the changes of a volume's owner and policy. Old generations are refused
    /// everywhere.
    Generation
);
counter!(
    /// Number of a node's start.
    Incarnation
);
counter!(
    /// Number of a log segment, from 1, never reused within a log.
    SegmentId
);

/// One start of a node: the only thing that owns, writes or promises. Two processes may share a
/// node id (a copied folder); they never share a life, because each start takes its incarnation by
/// a conditional write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Life {
    /// The node.
    pub node: NodeId,
    /// The number of the node's start.
    pub incarnation: Incarnation,
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (start {})", self.node, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_text() {
        let id = VolumeId([0xa5; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("a5".parse::<VolumeId>().is_err());
        assert!("zz".repeat(16).parse::<VolumeId>().is_err());
        assert!("é".repeat(16).parse::<VolumeId>().is_err());
    }
}
