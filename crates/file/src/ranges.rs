//! Ranges of a file that the root does not have: the newest one hides what is below it.

use crate::types::Ino;
use rekindle_base::Serial;
use rekindle_staging::Source;
use std::collections::BTreeMap;
use std::ops::Range;

/// What is said of a range, from its first unit on.
pub(crate) trait Behind: Clone {
    /// What is said of the rest, behind so many units.
    fn behind(&self, units: u64) -> Self;
}

/// Pieces without overlap, by their first byte, or page.
#[derive(Clone)]
pub(crate) struct Ranges<B = Backing>(BTreeMap<u64, Piece<B>>);

#[derive(Clone)]
struct Piece<B> {
    end: u64,
    serial: Serial,
    backing: B,
}

impl<B> Default for Ranges<B> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

/// Where the bytes of a range are, from its first one on.
#[derive(Clone)]
pub(crate) enum Backing {
    /// In a record of the log; or they are zeros.
    Record(Source),
    /// The root has them, from byte `at` of this file on: they were copied from there.
    File { ino: Ino, at: u64 },
}

impl Behind for Backing {
    fn behind(&self, bytes: u64) -> Self {
        match self {
            Self::Record(source) => Self::Record(source.behind(bytes)),
            Self::File { ino, at } => Self::File { ino: *ino, at: at + bytes },
        }
    }
}

impl Backing {
    pub(crate) fn is_zero(&self) -> bool {
        matches!(self, Self::Record(Source::Zero))
    }
}

/// A part of a piece.
pub(crate) struct Part<B = Backing> {
    pub(crate) range: Range<u64>,
    pub(crate) backing: B,
}

impl Ranges {
    /// The sources of records, with how many of their bytes count; ascending.
    pub(crate) fn sources(&mut self) -> impl Iterator<Item = (&mut Source, u64)> {
        self.0.iter_mut().filter_map(|(start, piece)| match &mut piece.backing {
            Backing::Record(source) => Some((source, piece.end - start)),
            Backing::File { .. } => None,
        })
    }
}

impl<B: Behind> Ranges<B> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts a range.
    pub(crate) fn put(&mut self, range: Range<u64>, serial: Serial, backing: B) {
        if range.is_empty() {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        let hidden: Vec<u64> = self.0.range(range.clone()).map(|(start, _)| *start).collect();
        hidden.iter().for_each(|start| drop(self.0.remove(start)));
        self.0.insert(range.start, Piece { end: range.end, serial, backing });
    }

    /// Ends the piece that reaches beyond `at` there, and begins another one.
    fn cut(&mut self, at: u64) {
        let Some((start, piece)) = self.0.range_mut(..at).next_back() else { return };
        if piece.end > at {
            let rest = Piece {
                end: piece.end,
                serial: piece.serial,
                backing: piece.backing.behind(at - start),
            };
            piece.end = at;
            self.0.insert(at, rest);
        }
    }

    /// Returns what there is within a range, ascending.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Part<B>> + '_ {
        let first =
            self.0.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let (begin, end) = (range.start, range.end);
        self.0.range(first..end.max(first)).filter_map(move |(start, piece)| {
            let part = begin.max(*start)..end.min(piece.end);
            let before = part.start.saturating_sub(*start);
            (!part.is_empty()).then(|| Part { range: part, backing: piece.backing.behind(before) })
        })
    }

    /// Returns the whole pieces of which a part lies within a range.
    pub(crate) fn around(&self, range: Range<u64>) -> Vec<Part<B>> {
        let first = self.within(range.clone()).next().map_or(range.start, |part| {
            let piece = self.0.range(..=part.range.start).next_back();
            piece.map_or(part.range.start, |(start, _)| *start)
        });
        let pieces = self.0.range(first..range.end.max(first)).map(|(start, piece)| Part {
            range: *start..piece.end,
            backing: piece.backing.clone(),
        });
        pieces.collect()
    }

    pub(crate) fn has_any(&self, range: Range<u64>) -> bool {
        self.within(range).next().is_some()
    }

    /// Drops what the root has.
    pub(crate) fn finish(&mut self, checkpoint: Serial) {
        self.0.retain(|_, piece| piece.serial > checkpoint);
    }
}

impl Behind for bool {
    fn behind(&self, _units: u64) -> Self {
        *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_as_a_row_of_bytes(
            puts in proptest::collection::vec((0u64..60, 1u64..30, any::<bool>()), 1..40),
            from in 0usize..80,
            length in 0usize..20,
            finished in 0u64..40,
        ) {
            let (mut ranges, mut bytes) = (Ranges::default(), vec![None; 100]);
            for (index, (start, length, zero)) in puts.iter().enumerate() {
                let (range, serial) = (*start..start + length, index as u64 + 1);
                let source = match zero {
                    true => Source::Zero,
                    false => Source::Memory((0..length + 3).map(|n| (n + serial) as u8).collect::<Vec<_>>().into()),
                };
                ranges.put(range.clone(), Serial(serial), Backing::Record(source.behind(3)));
                for at in range {
                    bytes[at as usize] = Some((serial, if *zero { 0 } else { (at - start + 3 + serial) as u8 }));
                }
            }
            ranges.finish(Serial(finished));
            bytes.iter_mut().for_each(|byte| *byte = byte.filter(|(serial, _)| *serial > finished));
            let mut found = [None; 100];
            for part in ranges.within(from as u64..(from + length) as u64) {
                prop_assert!(!part.range.is_empty());
                for at in part.range.clone() {
                    let mut byte = [0];
                    let within = at - part.range.start;
                    let Backing::Record(source) = &part.backing else { panic!("it was put so") };
                    let is_read = source.read_now(within, &mut byte).unwrap();
                    prop_assert!(is_read);
                    found[at as usize] = Some(byte[0]);
                }
            }
            for at in 0..100 {
                let wanted = bytes[at].map(|(_, byte)| byte).filter(|_| (from..from + length).contains(&at));
                prop_assert_eq!(found[at], wanted, "byte {}", at);
            }
        }
    }
}
