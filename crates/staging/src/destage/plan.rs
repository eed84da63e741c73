//! The destager's decisions. Pure.

use crate::home::{Fold, Source};
use crate::limits;
use crate::queue::Change;
use crate::queue::overlay::{Overlay, Piece};
use rekindle_base::Serial;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The facts behind a decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// The volume is out of service.
    pub(crate) ended: bool,
    /// Changes that may be destaged.
    pub(crate) ready: usize,
    /// Changes that wait for the log's commit.
    pub(crate) pending: usize,
    /// Bytes of the budgets that all of them take.
    pub(crate) bytes: u64,
    /// Age of the oldest change.
    pub(crate) age: Duration,
    /// A caller waits for the datastore.
    pub(crate) awaited: bool,
    /// Flash is scarce.
    pub(crate) pressed: bool,
    /// Rest of the pause after an error.
    pub(crate) pause: Duration,
}

/// The time when a volume is to be destaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    /// Look again after this.
    In(Duration),
    /// Not before a write.
    Never,
}

/// Decides when to destage a volume.
pub(crate) fn due(facts: &Facts, age_max: Duration, bytes_max: u64) -> Due {
    let look_again = |wait: Duration| {
        Due::In(if facts.pending > 0 { wait.min(limits::PENDING_CHECK) } else { wait })
    };
    if facts.ended || facts.ready + facts.pending == 0 {
        Due::Never
    } else if facts.ready == 0 {
        Due::In(limits::PENDING_CHECK)
    } else if facts.pause > Duration::ZERO {
        look_again(facts.pause)
    } else if facts.awaited || facts.pressed || facts.bytes >= bytes_max || facts.age >= age_max {
        Due::Now
    } else {
        look_again(age_max - facts.age)
    }
}

/// Count of the first `ready` changes that go into one batch: at least one, else no more than
/// `bytes_max`.
pub(crate) fn prefix<'a>(
    changes: impl Iterator<Item = &'a Change>,
    ready: usize,
    bytes_max: u64,
) -> usize {
    let mut bytes = 0;
    changes
        .take(ready.min(limits::BATCH_CHANGES_MAX))
        .take_while(|change| {
            let first = bytes == 0;
            bytes += change.cost();
            first || bytes <= bytes_max
        })
        .count()
}

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
