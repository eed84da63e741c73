//! The index of the newest unfinished change of every byte: which change it is, not its bytes.
//! Pure.
//!
//! Two layers. [`Sorted`] has the changes that a volume brought into service: sorted once, never
//! changed. Above it lies a map of the changes since then. A piece of the map hides the pieces
//! below it, and is newer. (Changes that do not fit into the sorted layer lie in the map, too, but
//! meet no piece of that layer.)
//!
//! A piece names only a serial. A lookup asks the queue for the change, and passes over changes
//! that the queue has no more, because the datastore has them. So a commit, which ends a prefix of
//! the serials, takes effect at once on all pieces of both layers; a piece that it uncovers below
//! is older still. The pieces' room is freed later.
//!
//! Invariant: the pieces of one layer ascend, no span is 0, no two overlap. A piece lies within the
//! range of its change, so that range leads to all that is left of the change.

mod sorted;

#[cfg(test)]
mod tests;

use rekindle_base::Serial;
use sorted::{Sorted, Stretch};
use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;

/// A range and the change that covers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) position: u64,
    pub(crate) end: u64,
    pub(crate) serial: Serial,
}

impl Piece {
    fn of((&position, cover): (&u64, &Cover)) -> Piece {
        Piece { position, end: position + cover.span, serial: cover.serial }
    }
}

/// The cover of a range that begins at a key of the map.
#[derive(Debug, Clone, Copy)]
struct Cover {
    span: u64,
    serial: Serial,
}

/// The range index.
#[derive(Default)]
pub(crate) struct Overlay {
    sorted: Sorted,
    pieces: BTreeMap<u64, Cover>,
}

impl Overlay {
    /// Builds the overlay of `count` changes with serials from `first` on, at once. `range` gives
    /// position and span of a change.
    pub(crate) fn build(
        first: Serial,
        count: usize,
        range: impl Fn(usize) -> (u64, u64),
    ) -> Overlay {
        let (sorted, apart) = Sorted::build(first, count, range);
        let cover = |piece: Piece| Cover { span: piece.end - piece.position, serial: piece.serial };
        let pieces = apart.into_iter().map(|piece| (piece.position, cover(piece))).collect();
        Overlay { sorted, pieces }
    }

    /// Covers a range with a change that is newer than all changes of the overlay.
    pub(crate) fn insert(&mut self, position: u64, span: u64, serial: Serial) {
        debug_assert!(span > 0, "a change covers something");
        // The common case first: a block that was written before.
        if let Some(same) = self.pieces.get_mut(&position)
            && same.span == span
        {
            same.serial = serial;
            return;
        }
        self.clear(position, position + span);
        self.pieces.insert(position, Cover { span, serial });
    }

    /// Takes `start..end` away from all pieces of the map.
    fn clear(&mut self, start: u64, end: u64) {
        let mut behind = None;
        if let Some((&key, before)) = self.pieces.range_mut(..start).next_back() {
            let before_end = key + before.span;
            if before_end > start {
                if before_end > end {
                    behind = Some(Cover { span: before_end - end, serial: before.serial });
                }
                before.span = start - key;
            }
        }
        while let Some((&key, piece)) = self.pieces.range(start..end).next() {
            let piece_end = key + piece.span;
            if piece_end > end {
                behind = Some(Cover { span: piece_end - end, serial: piece.serial });
            }
            self.pieces.remove(&key);
        }
        if let Some(rest) = behind {
            self.pieces.insert(end, rest);
        }
    }

    /// Removes the pieces of the map that begin in the range and are of changes up to `serial`. It
    /// is for room only: the queue has those changes no more.
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

    /// Takes the sorted layer out if all of it is of changes up to `serial`, so that the caller
    /// drops it outside of locks.
    pub(crate) fn purge_sorted(&mut self, serial: Serial) -> Option<Sorted> {
        let done = !self.sorted.is_empty() && self.sorted.last() <= serial;
        done.then(|| std::mem::take(&mut self.sorted))
    }

    /// Count of the pieces, including those of changes that the queue has no more.
    pub(crate) fn length(&self) -> usize {
        self.pieces.len() + self.sorted.length()
    }

    /// The pieces that meet `start..end`, clipped to it, ascending. They include pieces of changes
    /// that the queue has no more.
    pub(crate) fn meeting(&self, start: u64, end: u64) -> Meeting<'_> {
        // Mostly one look suffices: the last piece that begins before the end covers the whole
        // range, or no piece meets it.
        let (above, more) = match self.pieces.range(..end).next_back().map(Piece::of) {
            Some(last) if last.end <= start => (None, None),
            Some(last) if last.position > start => {
                let before = self.pieces.range(..=start).next_back().map(Piece::of);
                let mut more = self.pieces.range((Bound::Excluded(start), Bound::Excluded(end)));
                let first = before.filter(|piece| piece.end > start);
                (first.or_else(|| more.next().map(Piece::of)), Some(more))
            }
            last => (last, None),
        };
        Meeting { above, more, below: self.sorted.from(start), next: start, end }
    }

    /// All pieces, ascending.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.meeting(0, u64::MAX)
    }
}

/// The iterator of [`Overlay::meeting`].
pub(crate) struct Meeting<'a> {
    /// The next piece of the map, and those behind it.
    above: Option<Piece>,
    more: Option<btree_map::Range<'a, u64, Cover>>,
    below: Stretch<'a>,
    /// The position from which on no piece has been given yet.
    next: u64,
    end: u64,
}

impl Iterator for Meeting<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.next >= self.end {
            return None;
        }
        // Passes over the pieces that are hidden or were given.
        self.below.pass(self.next);
        let above_start = self.above.map_or(self.end, |piece| piece.position);
        let below = self.below.first().filter(|piece| piece.position.max(self.next) < above_start);
        let (piece, end) = match below {
            Some(below) => (below, above_start),
            None => {
                let above = self.above?;
                self.above = self.more.as_mut().and_then(Iterator::next).map(Piece::of);
                (above, self.end)
            }
        };
        let piece =
            Piece { position: piece.position.max(self.next), end: piece.end.min(end), ..piece };
        self.next = piece.end;
        Some(piece)
    }
}
