//! Which sources a sweep reads before it deletes: those that nodes say they have written since the
//! sweeper read them last. Pure.
//!
//! A list may be stale, and the tags in it with it. So what is counted is known to be up to date
//! only by the word of the writers. Each node counts its writes to sources. The tally remembers of
//! each node up to which write it is up to date, and the node's acknowledgement names what it has
//! written behind that. Where a word is missing (a node has started, has left, or is of an older
//! version), every source is read once.

use super::acks::{Other, Word};
use super::sources::{SourceId, Written};
use crate::format::tally::Heard;
use rekindle_base::{Incarnation, Life, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The sources to read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// `None`: all of them.
    pub(super) sources: Option<BTreeSet<SourceId>>,
    /// What is known of each node once they are read.
    pub(super) heard: BTreeMap<NodeId, Heard>,
}

/// Returns the number behind which a life names its writes: the last one that is counted.
pub(super) fn since(heard: &BTreeMap<NodeId, Heard>, life: Life) -> u64 {
    let known = heard.get(&life.node).filter(|known| known.incarnation == life.incarnation);
    known.and_then(|known| known.upto).unwrap_or_default()
}

/// Decides which sources are read. `own` is the word of this life itself.
pub(super) fn told(
    heard: &BTreeMap<NodeId, Heard>,
    (life, own): (Life, Option<Written>),
    others: &[Other],
) -> Told {
    let own =
        Other { node: life.node, incarnation: Some(life.incarnation), word: Word::Agreed(own) };
    let mut told = Told { sources: Some(BTreeSet::new()), heard: BTreeMap::new() };
    for other in others.iter().chain([&own]) {
        let known = heard.get(&other.node);
        // Start 0 is one that is not known: each of them counts from the beginning.
        let is_its = |known: &&Heard| Some(known.incarnation) == other.incarnation;
        let known = known.filter(is_its).filter(|known| known.incarnation > Incarnation(0));
        let (upto, is_known) = match (&other.word, known) {
            (Word::Over, Some(Heard { upto: None, .. })) => (Some(None), true),
            (Word::Over, _) => (Some(None), false),
            (Word::Agreed(Some(wrote)), Some(Heard { upto: Some(_), .. })) => {
                if let Some(sources) = &mut told.sources {
                    sources.extend(&wrote.sources);
                }
                (Some(Some(wrote.upto)), true)
            }
            (Word::Agreed(Some(wrote)), _) => (Some(Some(wrote.upto)), false),
            (Word::Agreed(None) | Word::Missing { .. }, _) => (None, false),
        };
        if !is_known {
            told.sources = None;
        }
        if let (Some(upto), Some(incarnation)) = (upto, other.incarnation) {
            told.heard.insert(other.node, Heard { incarnation, upto });
        }
    }
    if heard.keys().any(|node| *node != life.node && !others.iter().any(|one| one.node == *node)) {
        told.sources = None;
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Life = Life { node: NodeId([1; 16]), incarnation: Incarnation(5) };

    fn heard(known: &[(u8, u64, Option<u64>)]) -> BTreeMap<NodeId, Heard> {
        let one = |(node, life, upto): &(u8, u64, Option<u64>)| {
            (NodeId([*node; 16]), Heard { incarnation: Incarnation(*life), upto: *upto })
        };
        known.iter().map(one).collect()
    }

    fn other(node: u8, life: u64, word: Word) -> Other {
        Other { node: NodeId([node; 16]), incarnation: Some(Incarnation(life)), word }
    }

    fn wrote(upto: u64, sources: &[u8]) -> Option<Written> {
        let sources = sources.iter().map(|id| SourceId([*id; 16])).collect();
        Some(Written { upto, sources })
    }

    #[test]
    fn only_what_all_writers_name_is_read_when_each_has_been_heard_of_before() {
        let known = heard(&[(1, 5, Some(3)), (2, 7, Some(9)), (3, 1, None)]);
        let others = [other(2, 7, Word::Agreed(wrote(12, &[8, 9]))), other(3, 1, Word::Over)];
        let found = told(&known, (ME, wrote(4, &[7])), &others);
        let sources = [7, 8, 9].map(|id| SourceId([id; 16]));
        assert_eq!(found.sources, Some(sources.into()));
        assert_eq!(found.heard, heard(&[(1, 5, Some(4)), (2, 7, Some(12)), (3, 1, None)]));
        assert_eq!((since(&known, ME), since(&heard(&[(1, 4, Some(3))]), ME)), (3, 0));
    }

    #[test]
    fn every_source_is_read_when_a_word_is_missing() {
        let known = heard(&[(1, 5, Some(3)), (2, 7, Some(9))]);
        let agreed = |life, wrote| vec![other(2, life, Word::Agreed(wrote))];
        let own = || (ME, wrote(4, &[]));
        for (what, known, own, others, after) in [
            ("a new start", &known, own(), agreed(8, wrote(1, &[])), Some(Some(1))),
            ("too many", &known, own(), agreed(7, None), None),
            ("it has left", &known, own(), vec![other(2, 7, Word::Over)], Some(None)),
            (
                "another node",
                &heard(&[(1, 5, Some(3))]),
                own(),
                agreed(7, wrote(1, &[])),
                Some(Some(1)),
            ),
            ("no record", &known, own(), Vec::new(), None),
            (
                "our own start",
                &heard(&[(1, 4, Some(3)), (2, 7, Some(9))]),
                own(),
                agreed(7, wrote(9, &[])),
                Some(Some(9)),
            ),
            (
                "a start that is not known",
                &heard(&[(1, 5, Some(3)), (2, 0, Some(9))]),
                own(),
                agreed(0, wrote(9, &[])),
                Some(Some(9)),
            ),
            ("our own", &known, (ME, None), agreed(7, wrote(9, &[])), Some(Some(9))),
            (
                "a start that came back",
                &heard(&[(1, 5, Some(3)), (2, 7, None)]),
                own(),
                agreed(7, wrote(9, &[])),
                Some(Some(9)),
            ),
        ] {
            let found = told(known, own, &others);
            assert_eq!(found.sources, None, "{what}");
            let of_two = found.heard.get(&NodeId([2; 16])).map(|heard| heard.upto);
            assert_eq!(of_two, after, "{what}");
        }
    }
}
