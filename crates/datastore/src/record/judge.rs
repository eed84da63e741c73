//! The judgement of a conditional write that did not plainly succeed, by the content of the store
//! after it.

use super::envelope::{Mark, Nonce};

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Our write landed, and its content is in the store.
    Won,
    /// Our write landed, and another writer has written on top since.
    Superseded,
    /// Another write came in place of ours.
    Lost,
    /// Nothing has changed.
    Unchanged,
    /// Too many writes have followed to tell the outcome.
    Open,
}

/// Judges the write `ours`, which should have replaced the write `base` (`None`: an absent record),
/// by what is `seen`.
pub(super) fn judge(ours: &Mark, base: Option<Nonce>, seen: &Mark) -> Verdict {
    if seen.nonce == ours.nonce {
        return Verdict::Won;
    }
    if base == Some(seen.nonce) {
        return Verdict::Unchanged;
    }
    if seen.before.0.contains(&ours.nonce) {
        return Verdict::Superseded;
    }
    // The edition of the oldest write that the record remembers. If our write had landed, it would
    // be at the edition in `ours`.
    let remembered = u64::try_from(seen.before.0.len()).unwrap_or(u64::MAX);
    let oldest = seen.edition.saturating_sub(remembered);
    if oldest <= ours.edition { Verdict::Lost } else { Verdict::Open }
}

#[cfg(test)]
mod tests {
    use super::super::envelope::History;
    use super::*;
    use crate::limits::RECORD_HISTORY_MAX;

    fn chain(from: &Mark, count: u64) -> Mark {
        (0..count)
            .fold(from.clone(), |mark, _| mark.next(Nonce(1000 * mark.edition + from.nonce.0)))
    }

    #[test]
    fn a_write_is_found_however_deep_it_lies() {
        let base = chain(&Mark::first(Nonce(1)), 5);
        let ours = base.next(Nonce(7));
        let theirs = base.next(Nonce(8));
        let of = |seen: &Mark| judge(&ours, Some(base.nonce), seen);
        assert_eq!(of(&base), Verdict::Unchanged);
        assert_eq!(of(&ours), Verdict::Won);
        assert_eq!(of(&theirs), Verdict::Lost);
        let depth = RECORD_HISTORY_MAX as u64;
        for later in 1..=depth {
            assert_eq!(of(&chain(&ours, later)), Verdict::Superseded, "{later}");
            assert_eq!(of(&chain(&theirs, later)), Verdict::Lost, "{later}");
        }
        assert_eq!(of(&chain(&ours, depth + 1)), Verdict::Open);
        assert_eq!(of(&chain(&theirs, depth + 1)), Verdict::Open);
    }

    #[test]
    fn a_record_made_anew_or_by_hand_is_somebody_elses() {
        let ours = chain(&Mark::first(Nonce(1)), 40).next(Nonce(7));
        assert_eq!(judge(&ours, Some(Nonce(6)), &Mark::first(Nonce(9))), Verdict::Lost);
        let by_hand = Mark { nonce: Nonce(9), edition: 0, before: History::default() };
        assert_eq!(judge(&ours, Some(Nonce(6)), &by_hand), Verdict::Lost);
        assert_eq!(judge(&Mark::first(Nonce(7)), None, &by_hand), Verdict::Lost);
    }
}
