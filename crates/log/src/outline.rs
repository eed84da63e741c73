//! The changes of a volume in short: enough to know that none is missing, without listing them.

use crate::format::EntryHeader;
use base::{Generation, Serial};

/// Changes of one volume, in the order of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outline {
    pub changes: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    pub lowest: Serial,
    pub highest: Serial,
    /// The oldest and the newest generation among them.
    pub oldest: Generation,
    pub newest: Generation,
    /// Each serial is one more than the one before it: none is missing, none is there twice.
    pub gapless: bool,
}

impl Outline {
    pub(crate) fn of(change: &EntryHeader) -> Outline {
        Outline {
            changes: 1,
            bytes: u64::from(change.length),
            lowest: change.serial,
            highest: change.serial,
            oldest: change.generation,
            newest: change.generation,
            gapless: true,
        }
    }

    /// With what comes behind it.
    pub(crate) fn with(self, next: Outline) -> Outline {
        Outline {
            changes: self.changes + next.changes,
            bytes: self.bytes + next.bytes,
            lowest: self.lowest.min(next.lowest),
            highest: self.highest.max(next.highest),
            oldest: self.oldest.min(next.oldest),
            newest: self.newest.max(next.newest),
            gapless: self.gapless
                && next.gapless
                && self.highest.0.checked_add(1) == Some(next.lowest.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_serials_one_after_the_other_are_gapless() {
        let outline = |serials: &[u64]| {
            let one = |&serial: &u64| Outline {
                changes: 1,
                bytes: 10,
                lowest: Serial(serial),
                highest: Serial(serial),
                oldest: Generation(serial),
                newest: Generation(serial),
                gapless: true,
            };
            serials.iter().map(one).reduce(Outline::with).unwrap()
        };
        let whole = outline(&[4, 5, 6]);
        assert_eq!((whole.changes, whole.bytes), (3, 30));
        assert_eq!((whole.lowest, whole.highest), (Serial(4), Serial(6)));
        assert_eq!((whole.oldest, whole.newest), (Generation(4), Generation(6)));
        assert!(whole.gapless);
        for torn in [&[4, 6][..], &[4, 4], &[5, 4], &[4, 5, 5, 7], &[1, 2, 2, 3], &[u64::MAX, 0]] {
            assert!(!outline(torn).gapless, "{torn:?}");
        }
    }
}
