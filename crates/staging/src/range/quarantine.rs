//! The quarantine: the lost bytes of a volume. Pure.
//!
//! The lost stretches are in the vault, and change in the same conditional write as the root. A
//! salvage adds the stretches that it gives up, together with the root that does without them. A
//! batch takes out the stretches that it writes over, together with the root that holds them. Reads
//! of the rest are errors: the tree has nothing there, and nothing is not zeros.

use crate::{Extent, Fold, Source};
use serde::{Deserialize, Serialize};

/// A stretch of a volume whose content is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub position: u64,
    pub span: u64,
}

impl Lost {
    fn end(&self) -> u64 {
        self.position.saturating_add(self.span)
    }
}

/// The lost stretches that meet `start..end`. `lost` ascends.
pub(crate) fn meeting(lost: &[Lost], start: u64, end: u64) -> &[Lost] {
    let first = lost.partition_point(|one| one.end() <= start);
    let count = lost[first..].partition_point(|one| one.position < end);
    if start < end { &lost[first..first + count] } else { &[] }
}

/// Formats the first few stretches for a message, and the count of the others.
pub(crate) fn sentence(lost: &[Lost]) -> String {
    const NAMED_MAX: usize = 4;
    let named: Vec<String> =
        lost.iter().take(NAMED_MAX).map(|one| format!("{}..{}", one.position, one.end())).collect();
    let more = lost.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("bytes {}{more}", named.join(", "))
}

/// Joins `lost` with `more`; ascending, without overlaps or neighbours.
pub(crate) fn with(lost: &[Lost], more: &[Lost]) -> Vec<Lost> {
    let mut all: Vec<Lost> = lost.iter().chain(more).copied().filter(|one| one.span > 0).collect();
    all.sort_unstable_by_key(|one| (one.position, one.span));
    let mut merged: Vec<Lost> = Vec::with_capacity(all.len());
    for one in all {
        match merged.last_mut() {
            Some(last) if one.position <= last.end() => {
                last.span = last.end().max(one.end()) - last.position;
            }
            _ => merged.push(one),
        }
    }
    merged
}

/// The rest of `lost` without the bytes that `folds` (ascending) write over.
pub(crate) fn healed(lost: &[Lost], folds: &[Fold]) -> Vec<Lost> {
    let mut left = Vec::with_capacity(lost.len());
    for one in lost {
        let mut from = one.position;
        let first = folds.partition_point(|fold| fold.position.saturating_add(fold.span) <= from);
        for fold in folds[first..].iter().take_while(|fold| fold.position < one.end()) {
            if fold.position > from {
                left.push(Lost { position: from, span: fold.position - from });
            }
            from = from.max(fold.position.saturating_add(fold.span));
        }
        if from < one.end() {
            left.push(Lost { position: from, span: one.end() - from });
        }
    }
    left
}

/// The bytes that are in `lost` and not in `other`, which ascends.
pub(crate) fn without(lost: &[Lost], other: &[Lost]) -> Vec<Lost> {
    let folds: Vec<Fold> = other
        .iter()
        .map(|one| Fold { position: one.position, span: one.span, source: Source::Zero })
        .collect();
    healed(lost, &folds)
}

/// Marks lost stretches as data in the extents (ascending): a client that took them for holes would
/// never read them, and so never see the error.
pub(crate) fn as_data(extents: Vec<Extent>, lost: &[Lost]) -> Vec<Extent> {
    let mut split = Vec::with_capacity(extents.len());
    for extent in extents {
        let end = extent.position + extent.span;
        if extent.data {
            split.push(extent);
            continue;
        }
        let mut from = extent.position;
        let mut add = |upto: u64, data: bool| {
            if upto > from {
                split.push(Extent { position: from, span: upto - from, data });
                from = upto;
            }
        };
        for one in meeting(lost, extent.position, end) {
            add(one.position, false);
            add(one.end().min(end), true);
        }
        add(end, false);
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lost(position: u64, span: u64) -> Lost {
        Lost { position, span }
    }

    fn fold(position: u64, span: u64) -> Fold {
        Fold { position, span, source: Source::Zero }
    }

    #[test]
    fn what_is_lost_is_found_and_named() {
        let all = [lost(10, 10), lost(30, 10), lost(50, 10)];
        assert_eq!(meeting(&all, 0, 10), &[]);
        assert_eq!(meeting(&all, 19, 31), &all[..2]);
        assert_eq!(meeting(&all, 20, 30), &[]);
        assert_eq!(meeting(&all, 35, 35), &[]);
        assert_eq!(sentence(&all), "bytes 10..20, 30..40, 50..60");
        assert!(sentence(&[lost(0, 1); 6]).ends_with(" and 2 more"));
    }

    #[test]
    fn lost_holes_are_data() {
        let extents = vec![
            Extent { position: 0, span: 30, data: false },
            Extent { position: 30, span: 10, data: true },
        ];
        let split = as_data(extents, &[lost(10, 10), lost(25, 10)]);
        let pieces: Vec<_> = split.iter().map(|one| (one.position, one.span, one.data)).collect();
        let expected =
            [(0, 10, false), (10, 10, true), (20, 5, false), (25, 5, true), (30, 10, true)];
        assert_eq!(pieces, expected);
    }

    proptest! {
        #[test]
        fn every_byte_is_lost_until_it_is_written(
            some in proptest::collection::vec((0u64..200, 0u64..30), 0..8),
            writes in proptest::collection::vec((0u64..20, 1u64..10), 0..8),
        ) {
            let all: Vec<Lost> = some.iter().map(|(position, span)| lost(*position, *span)).collect();
            let before = with(&[], &all);
            let mut next = 0;
            let folds: Vec<Fold> = writes.iter().map(|(gap, span)| {
                let begin = next + gap;
                next = begin + span;
                fold(begin, *span)
            }).collect();
            let after = healed(&before, &folds);
            for byte in 0..256 {
                let was = all.iter().any(|one| (one.position..one.end()).contains(&byte));
                prop_assert_eq!(!meeting(&before, byte, byte + 1).is_empty(), was);
                let written = folds.iter().any(|one| (one.position..one.position + one.span).contains(&byte));
                prop_assert_eq!(!meeting(&after, byte, byte + 1).is_empty(), was && !written);
            }
            for list in [&before, &after] {
                prop_assert!(list.windows(2).all(|two| two[0].end() <= two[1].position));
                prop_assert!(list.iter().all(|one| one.span > 0));
            }
        }
    }
}
