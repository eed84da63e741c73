//! The changes of a batch that remain when only the last change of each byte counts. Pure.

use crate::Source;
use crate::queue::Change;
use crate::range::home::Fold;
use crate::range::overlay::{Overlay, Piece};
use rekindle_base::Serial;

/// The changes, out of `count`, that have a byte that counts, when only the last change of each
/// byte does; ascending.
pub(crate) fn counting(count: usize, range: impl Fn(usize) -> (u64, u64)) -> Vec<usize> {
    let overlay = Overlay::build(Serial(0), count, range);
    let mut indexes: Vec<usize> = overlay.pieces().map(|piece| piece.serial.0 as usize).collect();
    indexes.sort_unstable();
    indexes.dedup();
    indexes
}

/// Coalesces changes into the pieces that remain when only the last change of each byte counts.
/// Allowed because a batch commits as a whole.
pub(crate) fn coalesce(changes: &[Change]) -> Vec<Fold> {
    let range = |index: usize| (changes[index].position, changes[index].span);
    let overlay = Overlay::build(Serial(0), changes.len(), range);
    let mut folds: Vec<Fold> = Vec::with_capacity(changes.len());
    for Piece { position, end, serial } in overlay.pieces() {
        let change = &changes[serial.0 as usize];
        let source = change.source(position - change.position);
        match folds.last_mut() {
            Some(last)
                if last.position + last.span == position
                    && matches!((&last.source, &source), (Source::Zero, Source::Zero)) =>
            {
                last.span += end - position;
            }
            _ => folds.push(Fold { position, span: end - position, source }),
        }
    }
    folds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{KeptPayload, Payload};
    use bytes::Bytes;
    use rekindle_env::Moment;
    use std::sync::Arc;

    fn change(position: u64, bytes: &'static [u8]) -> Change {
        let kept = KeptPayload { bytes: Bytes::from_static(bytes), _permit: None };
        let payload = Payload::Memory(Arc::new(kept));
        Change::kept(position, bytes.len() as u64, payload, Moment::default())
    }

    fn zero(position: u64, span: u64) -> Change {
        Change::kept(position, span, Payload::Zero, Moment::default())
    }

    #[test]
    fn the_last_write_of_a_range_is_what_remains() {
        let folds = coalesce(&[
            change(0, b"aaaa"),
            change(8, b"bbbb"),
            change(2, b"cc"),
            zero(9, 3),
            zero(12, 4),
        ]);
        let seen: Vec<_> = folds
            .iter()
            .map(|fold| {
                let mut bytes = vec![b'.'; fold.span as usize];
                assert!(fold.source.read_now(0, &mut bytes).unwrap());
                (fold.position, bytes)
            })
            .collect();
        let want = [(0, b"aa".to_vec()), (2, b"cc".to_vec()), (8, b"b".to_vec()), (9, vec![0; 7])];
        assert_eq!(seen, want);
    }
}
