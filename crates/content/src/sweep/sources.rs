//! The sources of roots: records that say what must stay, such as the vault of a volume.
//!
//! A sweep remembers what it read of each source, with the tag that a list gave it. A tag may be
//! stale, so it spares reads while a sweep looks for candidates, and proves nothing. Before
//! anything is deleted, each node names the sources that it has written ([`Written`]), and those
//! are read whatever their tags say.

use crate::{Error, Pointer};
use rekindle_datastore::Tag;
use rekindle_env::{BoxFuture, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A source: the id of its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub [u8; 16]);

/// A root that must stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptRoot {
    /// The root.
    pub root: Pointer,
    /// The moment of the aging clock behind which the root need not stay.
    pub until: Option<Timestamp>,
}

/// The roots of a source, as they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// The tag that the record had in a list before it was read; `None` without one.
    pub tag: Option<Tag>,
    /// The present root, earlier versions, those in the trash.
    pub roots: Vec<KeptRoot>,
}

/// Everything that must stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// The roots in records.
    pub records: BTreeMap<SourceId, Source>,
    /// Roots that are in no record yet: of volumes in service.
    pub live: Vec<Pointer>,
    /// The moment of the aging clock by which roots have been left out. No later look goes by an
    /// earlier one: what was left out may be gone.
    pub aged: Timestamp,
}

impl Sources {
    /// All roots, each as often as it is kept.
    pub fn roots(&self) -> impl Iterator<Item = &Pointer> {
        let kept = self.records.values().flat_map(|source| &source.roots);
        kept.map(|kept| &kept.root).chain(&self.live)
    }

    /// Leaves out the roots that need not stay after `now`.
    pub fn age(&mut self, now: Timestamp) {
        self.aged = self.aged.max(now);
        for source in self.records.values_mut() {
            source.roots.retain(|kept| kept.until.is_none_or(|until| self.aged <= until));
        }
    }
}

/// The choice of the sources of roots that are read.
#[derive(Debug, Clone, Copy)]
pub enum Look<'a> {
    /// All sources but those that a list shows with the tag by which they are known.
    Listed,
    /// Likewise, and these.
    Told(&'a BTreeSet<SourceId>),
    /// All sources.
    All,
}

impl Look<'_> {
    /// Whether a source is to be read that is known by `known`, and that the list shows with `tag`.
    #[must_use]
    pub fn reads(&self, id: SourceId, known: Option<&Source>, tag: Option<Tag>) -> bool {
        let is_told = match self {
            Look::Listed => false,
            Look::Told(told) => told.contains(&id),
            Look::All => true,
        };
        is_told || tag.is_none() || known.is_none_or(|known| known.tag != tag)
    }
}

/// The sources that a node has begun to write since a moment of its own counting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The number of the last such write.
    pub upto: u64,
    /// The records.
    pub sources: Vec<SourceId>,
}

/// The source of all roots.
pub trait Roots: Send + Sync {
    /// Returns the roots of everything that must stay, where `known` is what the look before
    /// returned. An error ends the sweep: a root that cannot be read is never an empty one.
    ///
    /// A root that exists during the whole call must be in the answer, even when it goes from one
    /// record to another meanwhile. So a task that moves roots keeps a [`crate::Hold`] while doing
    /// so. A known record that a list does not show any more is gone only if a read says so.
    fn look<'a>(
        &'a self,
        known: &'a Sources,
        look: Look<'a>,
    ) -> BoxFuture<'a, Result<Sources, Error>>;

    /// Returns the sources that this process has begun to write behind its write number `since`;
    /// `None` when it does not remember all of them.
    fn written(&self, since: u64) -> Option<Written>;
}

impl Serialize for SourceId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        rekindle_base::VolumeId(self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SourceId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(rekindle_base::VolumeId::deserialize(deserializer)?.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;
    use rekindle_base::PackId;

    #[test]
    fn a_source_is_spared_only_by_the_tag_that_it_was_read_with() {
        let (id, tag) = (SourceId([1; 16]), Some(Tag([7; 16])));
        let known = Source { tag, roots: Vec::new() };
        let untagged = Source::default();
        let told = BTreeSet::from([id]);
        assert!(!Look::Listed.reads(id, Some(&known), tag));
        assert!(Look::Listed.reads(id, Some(&known), Some(Tag([8; 16]))));
        assert!(Look::Listed.reads(id, Some(&known), None));
        assert!(Look::Listed.reads(id, Some(&untagged), None));
        assert!(Look::Listed.reads(id, None, tag));
        assert!(Look::Told(&told).reads(id, Some(&known), tag));
        assert!(!Look::Told(&told).reads(SourceId([2; 16]), Some(&known), tag));
        assert!(Look::All.reads(id, Some(&known), tag));
    }

    #[test]
    fn what_was_left_out_once_stays_out() {
        let root = Pointer {
            name: [1; 32],
            pack: PackId([1; 16]),
            offset: 32,
            stored: 9,
            length: 9,
            part: Part::WHOLE,
        };
        let kept = |until: Option<u64>| KeptRoot { root, until: until.map(Timestamp) };
        let source = Source { tag: None, roots: vec![kept(None), kept(Some(5)), kept(Some(9))] };
        let records = BTreeMap::from([(SourceId([1; 16]), source)]);
        let mut sources = Sources { records, ..Sources::default() };
        for (now, left) in [(5, 3), (6, 2), (0, 2), (10, 1)] {
            sources.age(Timestamp(now));
            assert_eq!(sources.roots().count(), left, "{now}");
        }
        assert_eq!(sources.aged, Timestamp(10));
    }
}
