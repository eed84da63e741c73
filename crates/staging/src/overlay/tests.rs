//! The overlay against an array that knows, for each byte, its last writer.

use super::*;
use proptest::prelude::*;

const BYTES: u64 = 64;

/// A source that says for each of its bytes where it lies in the change.
#[derive(Debug, Clone, PartialEq, Eq)]
struct From(u64);
impl Cut for From {
    fn cut(&self, skip: u64) -> Self {
        From(self.0 + skip)
    }
}

/// For each byte: serial of its last writer and the byte's offset in that change.
type Model = Vec<Option<(u64, u64)>>;

fn model(changes: &[(u64, u64)]) -> Model {
    let mut bytes = vec![None; BYTES as usize];
    for (index, &(position, span)) in changes.iter().enumerate() {
        for offset in 0..span {
            bytes[(position + offset) as usize] = Some((index as u64 + 1, offset));
        }
    }
    bytes
}

fn seen(overlay: &Overlay<From>, start: u64, end: u64) -> Model {
    let mut bytes = vec![None; BYTES as usize];
    let mut last = 0;
    for (key, piece) in overlay.meeting(start, end) {
        assert!(piece.span > 0 && key >= last, "pieces ascend, do not overlap, are not empty");
        last = key + piece.span;
        for offset in 0..piece.span {
            bytes[(key + offset) as usize] = Some((piece.serial.0, piece.source.0 + offset));
        }
    }
    bytes
}

fn inserted(changes: &[(u64, u64)]) -> Overlay<From> {
    let mut overlay = Overlay::new();
    for (index, &(position, span)) in changes.iter().enumerate() {
        overlay.insert(position, span, Serial(index as u64 + 1), From(0));
    }
    overlay
}

fn built(changes: &[(u64, u64)]) -> Overlay<From> {
    Overlay::build(Serial(1), changes.len(), |index| changes[index], |_| From(0))
}

fn changes() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let fine = (0..BYTES).prop_flat_map(|position| (Just(position), 1..=BYTES - position));
    let blocks = (0..BYTES / 8).prop_map(|block| (block * 8, 8));
    prop::collection::vec(prop_oneof![fine, blocks], 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_last_writer_of_a_byte_wins(changes in changes()) {
        let want = model(&changes);
        prop_assert_eq!(&seen(&inserted(&changes), 0, BYTES), &want);
        prop_assert_eq!(&seen(&built(&changes), 0, BYTES), &want);
    }

    #[test]
    fn a_window_shows_all_that_meets_it(changes in changes(), start in 0..BYTES, span in 1..BYTES) {
        let end = (start + span).min(BYTES);
        let want = model(&changes);
        let window = start as usize..end as usize;
        prop_assert_eq!(&seen(&inserted(&changes), start, end)[window.clone()], &want[window]);
    }

    #[test]
    fn purging_a_prefix_leaves_exactly_the_newer_changes(changes in changes(), part in 0usize..40) {
        let checkpoint = part.min(changes.len());
        let mut overlay = inserted(&changes);
        for &(position, span) in &changes[..checkpoint] {
            overlay.purge(position, span, Serial(checkpoint as u64));
        }
        let want: Model =
            model(&changes).into_iter().map(|byte| byte.filter(|&(serial, _)| serial > checkpoint as u64)).collect();
        prop_assert_eq!(&seen(&overlay, 0, BYTES), &want);
    }
}

#[test]
fn a_change_within_another_splits_it() {
    let overlay = inserted(&[(0, 10), (3, 2)]);
    let pieces: Vec<_> =
        overlay.into_pieces().map(|(key, piece)| (key, piece.span, piece.source.0)).collect();
    assert_eq!(pieces, [(0, 3, 0), (3, 2, 0), (5, 5, 5)]);
}
