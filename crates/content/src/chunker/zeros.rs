//! Runs of zeros: taken out before chunking.
//!
//! In a run a content-defined chunker finds nothing to go by and cuts at its longest length only,
//! so an edit inside a long run would move all cuts behind it. And zeros need no chunk: they are
//! holes.

use std::ops::Range;

/// A part of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Zeros only, at least as many as were asked for.
    Zeros(Range<usize>),
    /// Other bytes, short runs of zeros included.
    Data(Range<usize>),
}

/// Splits `data` into pieces, in order: every run of at least `run_bytes_min` zeros is a piece of
/// its own, as long as it goes. Where there are no zeros, looks at one byte in `run_bytes_min / 2`.
pub fn split(data: &[u8], run_bytes_min: usize) -> impl Iterator<Item = Piece> + '_ {
    let mut begin = 0;
    let mut next: Option<Range<usize>> = None;
    std::iter::from_fn(move || {
        if let Some(run) = next.take() {
            begin = run.end;
            return Some(Piece::Zeros(run));
        }
        if begin == data.len() {
            return None;
        }
        match find(data, begin, run_bytes_min.max(2)) {
            Some(run) if run.start == begin => {
                begin = run.end;
                Some(Piece::Zeros(run))
            }
            Some(run) => {
                let piece = begin..run.start;
                next = Some(run);
                Some(Piece::Data(piece))
            }
            None => {
                let piece = begin..data.len();
                begin = data.len();
                Some(Piece::Data(piece))
            }
        }
    })
}

/// Finds the first run from `from` on. A run of `n` zeros covers a whole aligned block of `n / 2`,
/// so only such blocks are tested.
fn find(data: &[u8], from: usize, run_bytes_min: usize) -> Option<Range<usize>> {
    let block = run_bytes_min / 2;
    let mut at = from.next_multiple_of(block);
    while at + block <= data.len() {
        if !is_zero(&data[at..at + block]) {
            at += block;
            continue;
        }
        let begin = at - data[from..at].iter().rev().take_while(|byte| **byte == 0).count();
        let mut end = at + block;
        while end + 64 <= data.len() && is_zero(&data[end..end + 64]) {
            end += 64;
        }
        end += data[end..].iter().take_while(|byte| **byte == 0).count();
        if end - begin >= run_bytes_min {
            return Some(begin..end);
        }
        at = end.next_multiple_of(block);
    }
    None
}

/// Whether there are zeros only.
#[must_use]
pub fn is_zero(data: &[u8]) -> bool {
    // Most data has another first or last byte; the rest goes 64 bytes at a time without branches
    // between.
    if data.first().is_some_and(|byte| *byte != 0) || data.last().is_some_and(|byte| *byte != 0) {
        return false;
    }
    let (blocks, rest) = data.as_chunks::<64>();
    blocks.iter().all(|block| block.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The slow form.
    fn expected(data: &[u8], run: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut begin = 0;
        let mut at = 0;
        while at < data.len() {
            let zeros = data[at..].iter().take_while(|byte| **byte == 0).count();
            if zeros >= run {
                if begin < at {
                    pieces.push(Piece::Data(begin..at));
                }
                pieces.push(Piece::Zeros(at..at + zeros));
                begin = at + zeros;
            }
            at += zeros.max(1);
        }
        if begin < data.len() {
            pieces.push(Piece::Data(begin..data.len()));
        }
        pieces
    }

    proptest! {
        #[test]
        fn exactly_the_long_runs_are_split_off(
            runs in proptest::collection::vec((0usize..400, 0usize..400), 0..12),
            run in 2usize..200,
        ) {
            let mut data = Vec::new();
            for (zeros, others) in runs {
                data.resize(data.len() + zeros, 0);
                data.resize(data.len() + others, 7);
            }
            prop_assert_eq!(split(&data, run).collect::<Vec<_>>(), expected(&data, run));
            prop_assert_eq!(is_zero(&data), data.iter().all(|byte| *byte == 0));
        }
    }
}
