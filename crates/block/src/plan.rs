//! The plan of a fold: the pages that a batch of changes touches, and the parts of each. Pure.

use crate::limits;
use rekindle_staging::{Fold, Source};
use std::collections::VecDeque;
use std::ops::Range;

/// A piece of a change that falls into one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChangePart {
    /// Index of the change.
    pub change: usize,
    /// First byte within the change.
    pub start: u64,
    /// First byte within the pages of the step.
    pub at: usize,
    /// Bytes.
    pub length: usize,
}

/// One step of a fold; steps ascend by page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// These pages get new bytes. Of the pages in `old` some bytes remain, or all.
    Assemble { pages: Range<u64>, parts: Vec<ChangePart>, old: Vec<Range<u64>> },
    /// These pages become holes.
    Clear(Range<u64>),
}

/// The steps of a batch, made on demand.
pub(crate) struct Plan<'a> {
    changes: &'a [Fold],
    size: u64,
    page_bytes: u64,
    /// Most pages of a step.
    most: u64,
    /// Pages that are written anew as a whole, ascending and apart, as far as no step has them.
    wide: VecDeque<Range<u64>>,
    /// The next change, and how many of its bytes are planned.
    index: usize,
    done: u64,
}

impl<'a> Plan<'a> {
    /// Plans `changes`, which ascend and do not overlap. Bytes beyond `size` are left out: no
    /// reader can reach them.
    pub fn new(changes: &'a [Fold], size: u64, page_bytes: u64, wide: Vec<Range<u64>>) -> Self {
        let most = (limits::STEP_BYTES_MAX / page_bytes).max(1);
        Self { changes, size, page_bytes, most, wide: wide.into(), index: 0, done: 0 }
    }

    /// Returns the rest of the next change, as a range of the volume. Empty changes are passed
    /// over.
    fn rest(&mut self) -> Option<(&'a Fold, Range<u64>)> {
        loop {
            let change = self.changes.get(self.index)?;
            let end = change.position.saturating_add(change.span).min(self.size);
            let begin = change.position.saturating_add(self.done);
            if begin < end {
                return Some((change, begin..end));
            }
            (self.index, self.done) = (self.index + 1, 0);
        }
    }

    /// Whether `page`, the first that no step has, is written anew as a whole.
    fn is_wide(&mut self, page: u64) -> bool {
        while let Some(wide) = self.wide.front_mut() {
            if wide.end > page {
                wide.start = wide.start.max(page);
                return wide.start == page;
            }
            self.wide.pop_front();
        }
        false
    }

    /// The page at which the next step begins.
    fn next_page(&mut self) -> Option<u64> {
        let touched = self.rest().map(|(_, rest)| rest.start / self.page_bytes);
        let wide = self.wide.front().map(|wide| wide.start);
        [touched, wide].into_iter().flatten().min()
    }

    /// The bytes of a page, without those beyond the size.
    fn bytes(&self, page: u64) -> Range<u64> {
        let begin = page * self.page_bytes;
        begin..(begin + self.page_bytes).min(self.size)
    }

    /// Takes the pages from `first` that the next change clears as a whole.
    fn clear(&mut self, first: u64) -> Option<Range<u64>> {
        let (change, rest) = self.rest()?;
        let page = self.bytes(first);
        if !matches!(change.source, Source::Zero) || rest.start != page.start || rest.end < page.end
        {
            return None;
        }
        // The last page may be short; a clear up to the volume's end covers all of it.
        let until = match rest.end == self.size {
            true => self.size.div_ceil(self.page_bytes),
            false => rest.end / self.page_bytes,
        };
        let until = self.wide.front().map_or(until, |wide| wide.start.min(until));
        self.done = (until * self.page_bytes).min(rest.end) - change.position;
        Some(first..until)
    }

    /// Adds the parts of the changes that fall into `page`; returns whether they cover it.
    fn cover(&mut self, first: u64, page: u64, parts: &mut Vec<ChangePart>) -> bool {
        let (bytes, mut covered) = (self.bytes(page), 0);
        let narrow = |bytes: u64| usize::try_from(bytes).expect("a step is small");
        while let Some((change, rest)) = self.rest()
            && rest.start < bytes.end
        {
            let upto = rest.end.min(bytes.end);
            let length = upto - rest.start;
            let part = ChangePart {
                change: self.index,
                start: self.done,
                at: narrow(rest.start - first * self.page_bytes),
                length: narrow(length),
            };
            match parts.last_mut() {
                Some(last) if last.change == part.change => last.length += part.length,
                _ => parts.push(part),
            }
            covered += length;
            self.done = upto - change.position;
        }
        covered == bytes.end - bytes.start
    }
}

impl Iterator for Plan<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let first = self.next_page()?;
        if !self.is_wide(first)
            && let Some(pages) = self.clear(first)
        {
            return Some(Step::Clear(pages));
        }
        let (mut parts, mut old) = (Vec::new(), Vec::<Range<u64>>::new());
        let mut page = first;
        while page < first + self.most {
            let bytes = self.bytes(page);
            let is_touched = self.rest().is_some_and(|(change, rest)| {
                let is_cleared = matches!(change.source, Source::Zero)
                    && rest.start == bytes.start
                    && rest.end >= bytes.end;
                rest.start < bytes.end && !is_cleared
            });
            if !is_touched && !self.is_wide(page) {
                break;
            }
            if !self.cover(first, page, &mut parts) {
                match old.last_mut() {
                    Some(last) if last.end == page => last.end += 1,
                    _ => old.push(page..page + 1),
                }
            }
            page += 1;
        }
        self.is_wide(page);
        Some(Step::Assemble { pages: first..page, parts, old })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    const PAGE: u64 = 16;

    fn fold(position: u64, span: u64, zero: bool) -> Fold {
        let source =
            if zero { Source::Zero } else { Source::Memory(Bytes::from(vec![1; span as usize])) };
        Fold { position, span, source }
    }

    fn part(change: usize, start: u64, at: usize, length: usize) -> ChangePart {
        ChangePart { change, start, at, length }
    }

    fn one(pages: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(pages).collect()
    }

    fn steps(changes: &[Fold], wide: Vec<Range<u64>>) -> Vec<Step> {
        Plan::new(changes, 100, PAGE, wide).collect()
    }

    #[test]
    fn a_write_over_three_pages_is_one_step_and_the_outer_ones_keep_some_bytes() {
        let parts = vec![part(0, 0, 12, 24)];
        assert_eq!(
            steps(&[fold(12, 24, false)], vec![]),
            [Step::Assemble { pages: 0..3, parts, old: vec![0..1, 2..3] }]
        );
    }

    #[test]
    fn a_large_clear_is_one_step_and_the_short_last_page_is_whole() {
        let (edge, end) = (vec![part(0, 0, 8, 8)], vec![part(0, 0, 0, 4)]);
        assert_eq!(
            steps(&[fold(8, 92, true)], vec![]),
            [Step::Assemble { pages: 0..1, parts: edge, old: one(0..1) }, Step::Clear(1..7)]
        );
        assert_eq!(
            steps(&[fold(96, 4, false)], vec![]),
            [Step::Assemble { pages: 6..7, parts: end, old: vec![] }]
        );
    }

    #[test]
    fn pages_that_are_written_anew_join_the_changes_beside_them() {
        let changes = [fold(32, 16, false), fold(64, 36, true)];
        assert_eq!(
            steps(&changes, one(1..5)),
            [
                Step::Assemble {
                    pages: 1..5,
                    parts: vec![part(0, 0, 16, 16), part(1, 0, 48, 16)],
                    old: vec![1..2, 3..4]
                },
                Step::Clear(5..7)
            ]
        );
    }

    proptest! {
        /// Painting by steps gives the same bytes as painting by changes.
        #[test]
        fn steps_do_what_changes_say(
            size in 1u64..300,
            pieces in proptest::collection::vec((0u64..20, 0u64..60, any::<bool>()), 0..12),
            anew in proptest::collection::btree_set(0u64..20, 0..6),
        ) {
            let (mut changes, mut from) = (Vec::new(), 0);
            for (gap, span, zero) in pieces {
                changes.push(fold(from + gap, span, zero));
                from += gap + span;
            }
            let mut wide: Vec<Range<u64>> = Vec::new();
            for page in anew.into_iter().filter(|page| page * PAGE < size) {
                match wide.last_mut() {
                    Some(last) if last.end == page => last.end += 1,
                    _ => wide.push(page..page + 1),
                }
            }
            // For each byte: the change that wrote it and the position therein; a clear gives
            // `Some(None)`.
            let mut expected = vec![None; size as usize];
            for (index, change) in changes.iter().enumerate() {
                for byte in 0..change.span {
                    if let Some(cell) = expected.get_mut((change.position + byte) as usize) {
                        *cell = Some((!matches!(change.source, Source::Zero)).then_some((index, byte)));
                    }
                }
            }
            let mut painted = vec![None; size as usize];
            let (mut next, mut old_pages) = (0, Vec::new());
            for step in Plan::new(&changes, size, PAGE, wide.clone()) {
                let (Step::Assemble { pages, .. } | Step::Clear(pages)) = &step;
                prop_assert!(next <= pages.start && !pages.is_empty(), "steps ascend");
                next = pages.end;
                let first = (pages.start * PAGE) as usize;
                match step {
                    Step::Assemble { parts, old, .. } => {
                        let mut touched = vec![0; PAGE as usize * 100];
                        for part in parts {
                            for byte in 0..part.length {
                                let zero = matches!(changes[part.change].source, Source::Zero);
                                let from = (!zero).then_some((part.change, part.start + byte as u64));
                                painted[first + part.at + byte] = Some(from);
                                touched[part.at + byte] = 1;
                            }
                        }
                        for page in old.iter().cloned().flatten() {
                            let bytes = page * PAGE..((page + 1) * PAGE).min(size);
                            prop_assert!(bytes.into_iter().any(|at| touched[at as usize - first] == 0));
                            old_pages.push(page);
                        }
                    }
                    Step::Clear(pages) => {
                        let end = (pages.end * PAGE).min(size);
                        painted[first..end as usize].fill(Some(None));
                    }
                }
            }
            for (at, cell) in expected.iter().enumerate() {
                let page = at as u64 / PAGE;
                let is_wide = wide.iter().any(|wide| wide.contains(&page));
                let is_kept = painted[at].is_none() && old_pages.contains(&page);
                prop_assert!(painted[at] == *cell);
                prop_assert!(cell.is_some() || !is_wide || is_kept, "byte {at} is written anew");
            }
        }
    }
}
