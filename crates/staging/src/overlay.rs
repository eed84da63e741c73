//! The newest unfinished change of every byte: a range index of pieces that do not overlap. Pure.
//!
//! Invariant: keys ascend, no span is 0, no two pieces overlap; a piece lies within the range of the change whose serial
//! it bears, so whoever knows a change's range finds all that is left of it.

use base::Serial;
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

/// Bytes that can be shortened from the front.
pub(crate) trait Cut: Clone {
    /// The same without the first `skip` bytes.
    fn cut(&self, skip: u64) -> Self;
}

/// What covers a range. It may be shorter than its source: the rest was overwritten.
#[derive(Debug, Clone)]
pub(crate) struct Piece<S> {
    pub(crate) span: u64,
    pub(crate) serial: Serial,
    pub(crate) source: S,
}

/// The range index.
pub(crate) struct Overlay<S> {
    pieces: BTreeMap<u64, Piece<S>>,
}

impl<S: Cut> Overlay<S> {
    pub(crate) fn new() -> Self {
        Self { pieces: BTreeMap::new() }
    }

    /// Covers a range with a change that is newer than all in here.
    pub(crate) fn insert(&mut self, position: u64, span: u64, serial: Serial, source: S) {
        debug_assert!(span > 0, "a change covers something");
        // The common case first: a block that was written before, or one that meets nothing.
        if let Some(same) = self.pieces.get_mut(&position)
            && same.span == span
        {
            *same = Piece { span, serial, source };
            return;
        }
        self.clear(position, position + span);
        self.pieces.insert(position, Piece { span, serial, source });
    }

    /// Takes `start..end` away from whatever covers it.
    fn clear(&mut self, start: u64, end: u64) {
        let mut behind = None;
        if let Some((&key, before)) = self.pieces.range_mut(..start).next_back() {
            let before_end = key + before.span;
            if before_end > start {
                if before_end > end {
                    let source = before.source.cut(end - key);
                    behind = Some((
                        end,
                        Piece { span: before_end - end, serial: before.serial, source },
                    ));
                }
                before.span = start - key;
            }
        }
        while let Some((&key, piece)) = self.pieces.range(start..end).next() {
            let piece_end = key + piece.span;
            if piece_end > end {
                let source = piece.source.cut(end - key);
                behind = Some((end, Piece { span: piece_end - end, serial: piece.serial, source }));
            }
            self.pieces.remove(&key);
        }
        if let Some((key, piece)) = behind {
            self.pieces.insert(key, piece);
        }
    }

    /// Removes what is left of changes up to `serial` among the pieces that begin in the range.
    pub(crate) fn purge(&mut self, position: u64, span: u64, serial: Serial) {
        let end = position + span;
        let mut next = position;
        while next < end
            && let Some((&key, piece)) = self.pieces.range(next..end).next()
        {
            next = key + piece.span;
            if piece.serial <= serial {
                self.pieces.remove(&key);
            }
        }
    }

    /// Pieces that meet `start..end`, ascending: where each begins, and the piece. Not clipped.
    pub(crate) fn meeting(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Piece<S>)> {
        let before =
            self.pieces.range(..start).next_back().filter(|(key, piece)| *key + piece.span > start);
        before.into_iter().chain(self.pieces.range(start..end)).map(|(&key, piece)| (key, piece))
    }

    /// All pieces, ascending.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = (u64, Piece<S>)> {
        self.pieces.into_iter()
    }

    /// The overlay of `count` changes with serials from `first` on, at once: sorted by position, and inserted one by one
    /// only where changes overlap in part. `range` gives position and span of a change, `source` its bytes.
    pub(crate) fn build(
        first: Serial,
        count: usize,
        range: impl Fn(usize) -> (u64, u64),
        source: impl Fn(usize) -> S,
    ) -> Self {
        assert!(u32::try_from(count).is_ok(), "a queue has fewer changes than that");
        // Position above, then index, then span if it fits: one integer comparison sorts by position, then by serial,
        // and what is asked of each change lies at hand, not all over memory.
        let mut order: Vec<u128> = (0..count)
            .map(|index| {
                let (position, span) = range(index);
                (u128::from(position) << 64)
                    | ((index as u128) << 32)
                    | u128::from(u32::try_from(span).unwrap_or(u32::MAX))
            })
            .collect();
        order.sort_unstable();
        let index_of = |key: u128| (key >> 32) as u32 as usize;
        let range_of = |key: u128| match key as u32 {
            u32::MAX => range(index_of(key)),
            span => ((key >> 64) as u64, u64::from(span)),
        };
        let serial_of = |index: usize| Serial(first.0 + index as u64);
        let mut pieces: Vec<(u64, Piece<S>)> = Vec::with_capacity(count);
        let mut rest = &order[..];
        while let Some(&head) = rest.first() {
            let (position, span) = range_of(head);
            let mut end = position + span;
            let mut alike = true;
            let mut length = 1;
            while let Some(&next) = rest.get(length) {
                let (next_position, next_span) = range_of(next);
                if next_position >= end {
                    break;
                }
                alike &= (next_position, next_span) == (position, span);
                end = end.max(next_position + next_span);
                length += 1;
            }
            let (group, others) = rest.split_at(length);
            rest = others;
            if alike {
                let index = index_of(group[length - 1]);
                pieces.push((
                    position,
                    Piece { span, serial: serial_of(index), source: source(index) },
                ));
            } else {
                let mut indexes: Vec<usize> = group.iter().map(|&key| index_of(key)).collect();
                indexes.sort_unstable();
                let mut mixed = Overlay::new();
                for index in indexes {
                    let (position, span) = range(index);
                    mixed.insert(position, span, serial_of(index), source(index));
                }
                pieces.extend(mixed.into_pieces());
            }
        }
        Self { pieces: pieces.into_iter().collect() }
    }
}
