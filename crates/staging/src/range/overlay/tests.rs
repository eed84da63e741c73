//! The overlay against an array that knows, for each byte, its last writer.

use super::*;
use proptest::prelude::*;

const BYTES: u64 = 64;

/// For each byte: serial of its last writer.
type Model = Vec<Option<u64>>;

/// Changes have the serials 1, 2, ...; those up to `checkpoint` are in the datastore.
fn model(changes: &[(u64, u64)], checkpoint: usize) -> Model {
    let mut bytes = vec![None; BYTES as usize];
    for (index, &(position, span)) in changes.iter().enumerate() {
        for byte in position..position + span {
            bytes[byte as usize] = Some(index as u64 + 1);
        }
    }
    bytes.into_iter().map(|byte| byte.filter(|&serial| serial > checkpoint as u64)).collect()
}

/// The serials that a window shows, with the queue behind `checkpoint`. Clips nothing: the overlay
/// must.
fn seen(overlay: &Overlay, start: u64, end: u64, checkpoint: usize) -> Model {
    let mut bytes = vec![None; BYTES as usize];
    let mut last = start;
    for Piece { position, end: piece_end, serial } in overlay.meeting(start, end) {
        assert!(last <= position && position < piece_end && piece_end <= end, "ascending, clipped");
        last = piece_end;
        for byte in position..piece_end {
            bytes[byte as usize] = Some(serial.0).filter(|&serial| serial > checkpoint as u64);
        }
    }
    bytes
}

fn windowed(mut model: Model, start: u64, end: u64) -> Model {
    for (byte, writer) in (0..).zip(&mut model) {
        *writer = writer.filter(|_| (start..end).contains(&byte));
    }
    model
}

/// The first `sorted` changes at once, the others one by one.
fn overlay(changes: &[(u64, u64)], sorted: usize) -> Overlay {
    let mut overlay = Overlay::build(Serial(1), sorted, |index| changes[index]);
    for (index, &(position, span)) in changes.iter().enumerate().skip(sorted) {
        overlay.insert(position, span, Serial(index as u64 + 1));
    }
    overlay
}

fn purge(overlay: &mut Overlay, changes: &[(u64, u64)], checkpoint: usize) {
    for &(position, span) in changes {
        overlay.purge(position, span, Serial(checkpoint as u64));
    }
    overlay.purge_sorted(Serial(checkpoint as u64));
}

fn change() -> impl Strategy<Value = (u64, u64)> {
    let fine = (0..BYTES).prop_flat_map(|position| (Just(position), 1..=BYTES - position));
    let blocks = (0..BYTES / 8).prop_map(|block| (block * 8, 8));
    let short = (0..BYTES - 4).prop_flat_map(|position| (Just(position), 1..=4_u64));
    prop_oneof![1 => fine, 3 => blocks, 1 => short]
}

fn changes() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec(change(), 0..40)
}

fn part(of: usize, percent: usize) -> usize {
    of * percent / 100
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_last_writer_of_a_byte_wins(changes in changes(), sorted in 0..=100_usize) {
        let overlay = overlay(&changes, part(changes.len(), sorted));
        prop_assert_eq!(seen(&overlay, 0, BYTES, 0), model(&changes, 0));
    }

    #[test]
    fn a_window_shows_all_that_meets_it_and_nothing_else(
        changes in changes(), sorted in 0..=100_usize, start in 0..=BYTES, span in 0..=BYTES,
    ) {
        let overlay = overlay(&changes, part(changes.len(), sorted));
        let end = (start + span).min(BYTES);
        prop_assert_eq!(seen(&overlay, start, end, 0), windowed(model(&changes, 0), start, end));
    }

    #[test]
    fn a_commit_leaves_exactly_the_newer_changes_purged_or_not(
        changes in changes(), later in changes(), sorted in 0..=100_usize, done in 0..=100_usize,
    ) {
        let mut overlay = overlay(&changes, part(changes.len(), sorted));
        let checkpoint = part(changes.len(), done);
        let want = model(&changes, checkpoint);
        prop_assert_eq!(&seen(&overlay, 0, BYTES, checkpoint), &want);
        let half = checkpoint / 2;
        purge(&mut overlay, &changes[..half], checkpoint);
        prop_assert_eq!(&seen(&overlay, 0, BYTES, checkpoint), &want, "in the middle of it");
        // Writes go on meanwhile.
        let mut all = changes.clone();
        for &(position, span) in &later {
            all.push((position, span));
            overlay.insert(position, span, Serial(all.len() as u64));
        }
        let want = model(&all, checkpoint);
        prop_assert_eq!(&seen(&overlay, 0, BYTES, checkpoint), &want);
        purge(&mut overlay, &changes[half..checkpoint], checkpoint);
        prop_assert_eq!(&seen(&overlay, 0, BYTES, checkpoint), &want);
        purge(&mut overlay, &all, all.len());
        prop_assert!(overlay.pieces.is_empty() && overlay.sorted.is_empty(), "nothing is left behind");
    }
}

#[test]
fn a_change_within_another_splits_it() {
    for sorted in 0..=2 {
        let overlay = overlay(&[(0, 10), (3, 2)], sorted);
        let pieces: Vec<_> =
            overlay.pieces().map(|piece| (piece.position, piece.end, piece.serial.0)).collect();
        assert_eq!(pieces, [(0, 3, 1), (3, 5, 2), (5, 10, 1)], "{sorted}");
    }
}

/// Enough changes to be sorted by counting, at all positions, with lengths that the sorted layer
/// cannot hold.
#[test]
fn many_changes_built_at_once_are_the_same_as_one_by_one() {
    let mut random = rekindle_base::random::Random::new(7);
    let mut random = move |below: u64| random.below(below);
    for (blocks, shift) in [(1 << 31, 12), (3000, 12), (1 << 31, 32), (1 << 31, 0), (1 << 24, 9)] {
        let changes: Vec<_> = (0..10_000)
            .map(|_| {
                let position = random(blocks) << shift;
                let span = match random(100) {
                    0 => 1 << 33,
                    1 => u64::from(u32::MAX),
                    2..10 => 1 + random(1 << 16),
                    _ => 4096,
                };
                (position, span)
            })
            .collect();
        let (one_by_one, at_once) = (overlay(&changes, 0), overlay(&changes, changes.len()));
        assert!(one_by_one.pieces().eq(at_once.pieces()), "{blocks} << {shift}");
        assert!(!at_once.sorted.is_empty());
        for _ in 0..2000 {
            let (position, span) = changes[random(10_000) as usize];
            let (start, end) = (position.saturating_sub(random(5000)), position + random(2 * span));
            let window = |overlay: &Overlay| overlay.meeting(start, end).collect::<Vec<_>>();
            assert_eq!(window(&one_by_one), window(&at_once));
        }
    }
}
