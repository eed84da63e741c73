//! The volumes for which the last reaping had nothing to do, so that the next one need not read
//! their records again. Pure.

use rekindle_base::VolumeId;
use rekindle_datastore::Tag;
use std::collections::{BTreeMap, HashMap};

/// The names that the store lists, with the tags of their records. Sorted, so that every run of a
/// seed looks at them in the same order.
pub(crate) type Names = BTreeMap<String, Option<Tag>>;

/// The volumes that a reaping left as they were.
pub(crate) type Rested = HashMap<VolumeId, Rest>;

/// A volume for which there is nothing to do, as long as the lists show both of its records as they
/// were. A stale list puts off what there is to do.
#[derive(Debug, Clone)]
pub(crate) struct Rest {
    /// The volume's name.
    pub name: String,
    /// Whether the volume is not in the trash.
    pub is_live: bool,
    /// The time at which its age gives cause to look again, microseconds since 1970.
    pub until: u64,
    vault: Tag,
    /// The tag of the name's record; `None` where the name is not listed.
    named: Option<Tag>,
}

impl Rest {
    /// Makes the rest of a volume whose records had these tags before they were read; `None` where
    /// the store gives no tags.
    pub(crate) fn new(
        (name, is_live, until): (String, bool, u64),
        vault: Option<Tag>,
        names: &Names,
    ) -> Option<Self> {
        let named = match names.get(&name) {
            Some(tag) => Some((*tag)?),
            None => None,
        };
        Some(Self { name, is_live, until, vault: vault?, named })
    }

    /// Whether there is still nothing to do.
    pub(crate) fn lasts(&self, vault: Option<Tag>, names: &Names, now: u64) -> bool {
        let is_same =
            Some(self.vault) == vault && self.named.map(Some) == names.get(&self.name).copied();
        is_same && now < self.until
    }
}
