//! The log summary: enough about a volume's changes to know that none is missing, without listing
//! them.

use crate::format::EntryHeader;
use rekindle_base::{Generation, Serial};

/// Summary of changes of one volume, in the order of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSummary {
    pub changes: u64,
    /// Bytes of the payloads.
    pub bytes: u64,
    pub lowest: Serial,
    pub highest: Serial,
    /// The oldest and the newest generation among them.
    pub oldest: Generation,
    pub newest: Generation,
    /// Each serial is one more than the serial before: none is missing, none is there twice.
    pub gapless: bool,
    /// Whether the last change is joined: the rest of its group is missing.
    pub joined: bool,
}

impl LogSummary {
    pub(crate) fn of(change: &EntryHeader) -> LogSummary {
        LogSummary {
            changes: 1,
            bytes: u64::from(change.length),
            lowest: change.serial,
            highest: change.serial,
            oldest: change.generation,
            newest: change.generation,
            gapless: true,
            joined: change.joined,
        }
    }

    /// Adds the summary of the changes behind these.
    pub(crate) fn with(self, next: LogSummary) -> LogSummary {
        LogSummary {
            changes: self.changes + next.changes,
            bytes: self.bytes + next.bytes,
            lowest: self.lowest.min(next.lowest),
            highest: self.highest.max(next.highest),
            oldest: self.oldest.min(next.oldest),
            newest: self.newest.max(next.newest),
            gapless: self.gapless
                && next.gapless
                && self.highest.0.checked_add(1) == Some(next.lowest.0),
            joined: next.joined,
        }
    }

    /// The two serials between which all missing changes lie, when only `found` are there.
    pub(crate) fn missing(&self, mut found: Vec<u64>) -> (Serial, Serial) {
        found.sort_unstable();
        let (mut after, mut before) =
            (self.lowest.0.saturating_sub(1), self.highest.0.saturating_add(1));
        for &serial in found.iter().take_while(|&&serial| serial <= self.highest.0) {
            if after.checked_add(1) == Some(serial) {
                after = serial;
            }
        }
        for &serial in found.iter().rev() {
            if serial.checked_add(1) == Some(before) && serial > after {
                before = serial;
            }
        }
        (Serial(after), Serial(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_serials_one_after_the_other_are_gapless() {
        let summary = |serials: &[u64]| {
            let one = |&serial: &u64| LogSummary {
                changes: 1,
                bytes: 10,
                lowest: Serial(serial),
                highest: Serial(serial),
                oldest: Generation(serial),
                newest: Generation(serial),
                gapless: true,
                joined: serial == 5,
            };
            serials.iter().map(one).reduce(LogSummary::with).unwrap()
        };
        let whole = summary(&[4, 5, 6]);
        assert_eq!((whole.changes, whole.bytes), (3, 30));
        assert_eq!((whole.lowest, whole.highest), (Serial(4), Serial(6)));
        assert_eq!((whole.oldest, whole.newest), (Generation(4), Generation(6)));
        assert!(whole.gapless);
        assert!(!whole.joined && summary(&[4, 5]).joined, "the last change says it");
        for torn in [&[4, 6][..], &[4, 4], &[5, 4], &[4, 5, 5, 7], &[1, 2, 2, 3], &[u64::MAX, 0]] {
            assert!(!summary(torn).gapless, "{torn:?}");
        }
    }

    #[test]
    fn what_is_missing_lies_between_what_was_found() {
        let summary = LogSummary {
            changes: 6,
            bytes: 0,
            lowest: Serial(4),
            highest: Serial(9),
            oldest: Generation(1),
            newest: Generation(1),
            gapless: true,
            joined: false,
        };
        for (found, expected) in [
            (vec![], (3, 10)),
            (vec![4, 5], (5, 10)),
            (vec![9, 4], (4, 9)),
            (vec![6, 8, 9], (3, 8)),
            (vec![5, 7], (3, 10)),
        ] {
            let (after, before) = summary.missing(found);
            assert_eq!((after.0, before.0), expected);
        }
    }
}
