//! The formats that a binary understands: an upgrade asks the new one by `rekindle formats`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the state that one supervisor hands to the next. A later version may add fields that
/// have defaults; the number goes up when an older binary could not go on with the state.
pub(crate) const EXEC_STATE: u32 = 1;

/// The formats that a binary knows. Later versions may say more, never less.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formats {
    /// Version of the binary.
    pub version: String,
    /// Newest version of the state that one supervisor hands to the next; older ones are understood
    /// too.
    pub passage: u32,
    /// Newest known version of each format, by name; all older ones are understood too.
    pub formats: BTreeMap<String, u32>,
}

impl Formats {
    /// Returns the formats of this binary.
    pub fn own() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            passage: EXEC_STATE,
            formats: rekindle_node::formats()
                .map(|(name, newest)| (name.to_owned(), newest))
                .collect(),
        }
    }

    /// Lists, in words, the formats that this binary may have written and `other` would not
    /// understand.
    pub fn unknown_to(&self, other: &Self) -> Vec<String> {
        let passage = ("what a supervisor tells the next", self.passage, Some(other.passage));
        let formats = self
            .formats
            .iter()
            .map(|(name, newest)| (name.as_str(), *newest, other.formats.get(name).copied()));
        let missing = |(name, ours, theirs): (&str, u32, Option<u32>)| match theirs {
            Some(theirs) if theirs >= ours => None,
            Some(theirs) => Some(format!("{name}: in use {ours}, known to it {theirs}")),
            None => Some(format!("{name}: in use {ours}, unknown to it")),
        };
        std::iter::once(passage).chain(formats).filter_map(missing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_binary_is_told_from_a_newer_one() {
        let own = Formats::own();
        assert!(own.formats.len() >= 10, "every format has a name of its own: {own:?}");
        assert_eq!(own.unknown_to(&own), Vec::<String>::new());
        let mut other = own.clone();
        other.formats.insert("something new".into(), 7);
        assert_eq!(own.unknown_to(&other), Vec::<String>::new(), "more is no harm");
        assert_eq!(other.unknown_to(&own), ["something new: in use 7, unknown to it"]);
        other.formats.insert("log segment".into(), 9);
        assert_eq!(other.unknown_to(&own).len(), 2);
        other.passage += 1;
        assert_eq!(other.unknown_to(&own).len(), 3);
    }
}
