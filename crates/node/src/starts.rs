//! The starts of a node that its folder remembers, and the judgement of the node's record by them.
//! Pure.
//!
//! A folder can be copied, and a backup of it can be put back. Each start makes a nonce, writes it
//! into the folder, and then puts it into the record. So at the next start the record names one of
//! the folder's nonces, or another copy of the folder has been started since. The log of that copy
//! may hold changes that this one lacks, and only the user knows which copy is to go on.

use crate::record::NodeRecord;
use rekindle_base::Incarnation;
use serde::{Deserialize, Serialize};

/// Most remembered attempts. Each was killed between writing its nonce and seeing the record's new
/// state.
const ATTEMPTS_MAX: usize = 64;

/// The starts of this folder.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Starts {
    /// The last start that is known to be in the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landed: Option<Landed>,
    /// Nonces of later starts, which may be in the record or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<u64>,
    /// The last used permission to take the node from another copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission: Option<u64>,
}

/// A start that is in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landed {
    pub incarnation: Incarnation,
    pub nonce: u64,
}

/// The record's judgement on this folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Past {
    /// The last start was one of this folder, or the folder is of a version that remembers none.
    Ours,
    /// Another copy of the folder has been started since.
    Copied,
    /// The record is older than this folder: the store was set back.
    SetBack,
}

impl Starts {
    /// Adds an attempt.
    #[must_use]
    pub fn attempting(&self, nonce: u64, permission: Option<u64>) -> Starts {
        let mut starts = self.clone();
        let excess = (starts.attempts.len() + 1).saturating_sub(ATTEMPTS_MAX);
        starts.attempts.drain(..excess);
        starts.attempts.push(nonce);
        starts.permission = permission.or(starts.permission);
        starts
    }

    /// Replaces the attempts by the one that is in the record now; earlier ones do not matter any
    /// more.
    #[must_use]
    pub fn landed(&self, landed: Landed) -> Starts {
        Starts { landed: Some(landed), attempts: Vec::new(), permission: self.permission }
    }

    /// Judges the record that was found, by the starts before this one.
    #[must_use]
    pub fn judge(&self, found: Option<&NodeRecord>) -> Past {
        let Some(found) = found else {
            return if self.landed.is_none() { Past::Ours } else { Past::SetBack };
        };
        match (self.landed, found.nonce) {
            // The record or the folder is of a version before nonces.
            (None, _) if self.attempts.is_empty() => Past::Ours,
            (None, None) => Past::Ours,
            (landed, Some(nonce)) if self.attempts.contains(&nonce) || is(landed, nonce) => {
                Past::Ours
            }
            (Some(landed), _) if landed.incarnation > found.incarnation => Past::SetBack,
            _ => Past::Copied,
        }
    }

    /// Whether the record names a start that this folder has noted.
    #[must_use]
    pub fn name(&self, found: &NodeRecord) -> bool {
        found.nonce.is_some_and(|nonce| self.have(nonce))
    }

    /// Whether this nonce is of a start that this folder has noted.
    #[must_use]
    pub fn have(&self, nonce: u64) -> bool {
        self.attempts.contains(&nonce) || is(self.landed, nonce)
    }

    /// Returns the incarnation of the next start, beyond any that the record or this folder may
    /// know.
    #[must_use]
    pub fn next(&self, found: Option<&NodeRecord>) -> Incarnation {
        let recorded = found.map_or(Incarnation(0), |found| found.incarnation);
        let attempts = self.attempts.len() as u64;
        let ours = match self.judge(found) {
            Past::Ours => 0,
            Past::Copied | Past::SetBack => {
                self.landed.map_or(0, |landed| landed.incarnation.0) + attempts
            }
        };
        Incarnation(recorded.0.max(ours)).next()
    }
}

fn is(landed: Option<Landed>, nonce: u64) -> bool {
    landed.is_some_and(|landed| landed.nonce == nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample_2;

    fn record(incarnation: u64, nonce: Option<u64>) -> NodeRecord {
        NodeRecord {
            incarnation: Incarnation(incarnation),
            nonce,
            arena: None,
            copies: None,
            copied_since: None,
            taken: Incarnation(0),
            ..sample_2()
        }
    }

    fn starts(landed: Option<(u64, u64)>, attempts: &[u64]) -> Starts {
        let landed = landed.map(|(start, nonce)| Landed { incarnation: Incarnation(start), nonce });
        Starts { landed, attempts: attempts.to_vec(), permission: None }
    }

    #[test]
    fn the_record_names_a_start_of_this_folder_or_another_copy_was_started_since() {
        let judge = |starts: &Starts, incarnation, nonce| {
            starts.judge(Some(&record(incarnation, Some(nonce))))
        };
        let folder = starts(Some((5, 50)), &[60, 61]);
        assert_eq!(judge(&folder, 5, 50), Past::Ours, "no attempt landed");
        assert_eq!(judge(&folder, 6, 60), Past::Ours, "the first did");
        assert_eq!(judge(&folder, 6, 61), Past::Ours);
        assert_eq!(judge(&folder, 6, 99), Past::Copied);
        assert_eq!(judge(&folder, 9, 99), Past::Copied);
        assert_eq!(judge(&folder, 4, 40), Past::SetBack);
        assert_eq!(folder.judge(None), Past::SetBack);
        assert_eq!(folder.judge(Some(&record(6, None))), Past::Copied, "by an older binary");
    }

    #[test]
    fn a_folder_that_remembers_nothing_is_believed_once() {
        let old = Starts::default();
        assert_eq!(old.judge(Some(&record(9, None))), Past::Ours);
        assert_eq!(old.judge(Some(&record(9, Some(90)))), Past::Ours);
        assert_eq!(old.judge(None), Past::Ours);
        let tried = starts(None, &[1]);
        assert_eq!(tried.judge(Some(&record(9, None))), Past::Ours, "the attempt did not land");
        assert_eq!(tried.judge(Some(&record(10, Some(1)))), Past::Ours);
        assert_eq!(tried.judge(Some(&record(10, Some(2)))), Past::Copied);
    }

    #[test]
    fn a_start_is_counted_beyond_all_that_anybody_knows() {
        let folder = starts(Some((5, 50)), &[60, 61]);
        assert_eq!(folder.next(Some(&record(6, Some(61)))), Incarnation(7));
        assert_eq!(folder.next(Some(&record(9, Some(99)))), Incarnation(10));
        assert_eq!(folder.next(Some(&record(2, Some(20)))), Incarnation(8));
        assert_eq!(folder.next(None), Incarnation(8));
        assert_eq!(Starts::default().next(None), Incarnation(1));
    }

    #[test]
    fn attempts_are_bounded_and_the_landed_one_is_kept() {
        let mut folder = starts(Some((5, 50)), &[]);
        for nonce in 0..100 {
            folder = folder.attempting(nonce, None);
        }
        assert_eq!((folder.attempts.len(), folder.attempts[63]), (64, 99));
        assert_eq!(folder.judge(Some(&record(5, Some(50)))), Past::Ours);
        let landed = Landed { incarnation: Incarnation(6), nonce: 99 };
        assert_eq!(folder.landed(landed).attempts, Vec::<u64>::new());
    }
}
