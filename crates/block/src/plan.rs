//! The plan of a fold: the blocks that a batch of changes touches, and the parts of each. Pure.

use rekindle_staging::{Fold, Source};
use std::ops::Range;

/// A piece of a change that falls into one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Index of the change.
    pub change: usize,
    /// First byte within the change.
    pub start: u64,
    /// First byte within the block.
    pub at: usize,
    /// Bytes.
    pub length: usize,
}

/// One step of a fold; steps ascend by block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// The block gets new bytes. `whole`: no byte of the old block remains.
    Assemble { block: u64, parts: Vec<Part>, whole: bool },
    /// These blocks become holes.
    Clear(Range<u64>),
}

/// The steps of a batch, made on demand.
pub(crate) struct Plan<'a> {
    changes: &'a [Fold],
    size: u64,
    block_size: u64,
    /// The next change, and how many of its bytes are planned.
    index: usize,
    done: u64,
}

impl<'a> Plan<'a> {
    /// Plans `changes`, which ascend and do not overlap. Bytes beyond `size` are left out: no
    /// reader can reach them.
    pub fn new(changes: &'a [Fold], size: u64, block_size: u64) -> Self {
        Self { changes, size, block_size, index: 0, done: 0 }
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

    fn advance_to(&mut self, change: &Fold, position: u64) {
        self.done = position - change.position;
    }
}

impl Iterator for Plan<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let (change, rest) = self.rest()?;
        let block = rest.start / self.block_size;
        let begin = block * self.block_size;
        let end = (begin + self.block_size).min(self.size);

        if matches!(change.source, Source::Zero) && rest.start == begin && rest.end >= end {
            // The last block may be short; a clear up to the volume's end covers all of it.
            let until = if rest.end == self.size {
                self.size.div_ceil(self.block_size)
            } else {
                rest.end / self.block_size
            };
            self.advance_to(change, (until * self.block_size).min(rest.end));
            return Some(Step::Clear(block..until));
        }
        let (mut parts, mut covered) = (Vec::new(), 0);
        while let Some((change, rest)) = self.rest()
            && rest.start < end
        {
            let upto = rest.end.min(end);
            let (at, length) = (rest.start - begin, upto - rest.start);
            let narrow = |bytes: u64| usize::try_from(bytes).expect("a block is small");
            parts.push(Part {
                change: self.index,
                start: self.done,
                at: narrow(at),
                length: narrow(length),
            });
            covered += length;
            self.advance_to(change, upto);
        }
        Some(Step::Assemble { block, parts, whole: covered == end - begin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    const BLOCK: u64 = 16;

    fn fold(position: u64, span: u64, zero: bool) -> Fold {
        let source =
            if zero { Source::Zero } else { Source::Memory(Bytes::from(vec![1; span as usize])) };
        Fold { position, span, source }
    }

    fn part(change: usize, start: u64, at: usize, length: usize) -> Part {
        Part { change, start, at, length }
    }

    #[test]
    fn a_write_over_three_blocks() {
        let changes = [fold(12, 24, false)];
        let steps: Vec<Step> = Plan::new(&changes, 100, BLOCK).collect();
        assert_eq!(
            steps,
            [
                Step::Assemble { block: 0, parts: vec![part(0, 0, 12, 4)], whole: false },
                Step::Assemble { block: 1, parts: vec![part(0, 4, 0, 16)], whole: true },
                Step::Assemble { block: 2, parts: vec![part(0, 20, 0, 4)], whole: false },
            ]
        );
    }

    #[test]
    fn a_large_clear_is_one_step_and_the_short_last_block_is_whole() {
        let changes = [fold(8, 92, true)];
        let steps: Vec<Step> = Plan::new(&changes, 100, BLOCK).collect();
        assert_eq!(
            steps,
            [
                Step::Assemble { block: 0, parts: vec![part(0, 0, 8, 8)], whole: false },
                Step::Clear(1..7)
            ]
        );
        let write = [fold(96, 4, false)];
        let steps: Vec<Step> = Plan::new(&write, 100, BLOCK).collect();
        assert_eq!(
            steps,
            [Step::Assemble { block: 6, parts: vec![part(0, 0, 0, 4)], whole: true }]
        );
    }

    proptest! {
        /// Painting by steps gives the same bytes as painting by changes.
        #[test]
        fn steps_do_what_changes_say(
            size in 1u64..300,
            pieces in proptest::collection::vec((0u64..20, 0u64..60, any::<bool>()), 0..12),
        ) {
            let (mut changes, mut from) = (Vec::new(), 0);
            for (gap, span, zero) in pieces {
                changes.push(fold(from + gap, span, zero));
                from += gap + span;
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
            let mut last = None;
            for step in Plan::new(&changes, size, BLOCK) {
                let first = match &step { Step::Assemble { block, .. } => *block, Step::Clear(blocks) => blocks.start };
                prop_assert!(last.is_none_or(|last| last < first), "steps ascend");
                match step {
                    Step::Assemble { block, parts, whole } => {
                        last = Some(block);
                        let length = BLOCK.min(size - block * BLOCK);
                        prop_assert_eq!(whole, parts.iter().map(|part| part.length as u64).sum::<u64>() == length);
                        for part in parts {
                            for byte in 0..part.length {
                                let zero = matches!(changes[part.change].source, Source::Zero);
                                let from = (!zero).then_some((part.change, part.start + byte as u64));
                                painted[block as usize * BLOCK as usize + part.at + byte] = Some(from);
                            }
                        }
                    }
                    Step::Clear(blocks) => {
                        prop_assert!(!blocks.is_empty());
                        last = Some(blocks.end - 1);
                        let end = (blocks.end * BLOCK).min(size);
                        painted[(blocks.start * BLOCK) as usize..end as usize].fill(Some(None));
                    }
                }
            }
            prop_assert_eq!(painted, expected);
        }
    }
}
