//! The record `salvages/<id>`: what a node remembers of the salvages of a volume. The page for people is
//! `docs/format/salvage.md`.
//!
//! | field | what |
//! | --- | --- |
//! | `id` | the volume |
//! | `attempts` | begun since the last good one that stayed healthy, or since an operator asked |
//! | `findings` | what the last one has found and could not change; the same again is no progress |
//! | `no_progress` | two in a row have found the same |
//! | `accounts` | the last salvages, oldest first |

use base::VolumeId;
use datastore::key;
use datastore::record::Body;
use serde::{Deserialize, Serialize};

/// What is remembered of a volume's salvages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub id: VolumeId,
    pub attempts: u32,
    pub findings: String,
    pub no_progress: bool,
    pub accounts: Vec<Account>,
}

/// One salvage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The volume's name at that time.
    pub volume: String,
    /// Which attempt it was.
    pub attempt: u32,
    pub reason: String,
    /// When, microseconds since 1970.
    pub began: u64,
    pub ended: Option<u64>,
    pub outcome: Outcome,
    /// What it found and did, line by line.
    pub lines: Vec<String>,
    /// Lines that were too many to keep.
    pub lines_more: u64,
}

/// How a salvage has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It has not.
    Running,
    /// Everything is there.
    Sound,
    /// Whatever could be had is there, the rest is quarantined.
    Repaired,
    /// It could do nothing.
    Failed,
    /// Somebody did not want it any more, or the volume went out of service.
    Cancelled,
    /// The process ended in the midst of it, or stopped.
    Interrupted,
}

impl Outcome {
    /// As people and `--json` see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Running => "running",
            Outcome::Sound => "sound",
            Outcome::Repaired => "repaired",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
            Outcome::Interrupted => "interrupted",
        }
    }

    /// Afterwards the volume can be served.
    pub(crate) fn is_good(self) -> bool {
        matches!(self, Outcome::Sound | Outcome::Repaired)
    }
}

impl Memory {
    /// Its key in the datastore.
    pub fn key(id: VolumeId) -> String {
        format!("{}{id}", key::SALVAGES)
    }
}

impl Body for Memory {
    const WHAT: &'static str = "salvage";
    const FORMAT: u32 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../golden/salvage-1.json");

    #[test]
    fn the_golden_image_reads_and_writes_the_same() {
        let memory: Memory = serde_json::from_str(GOLDEN).unwrap();
        let account = Account {
            volume: "vm1".to_owned(),
            attempt: 2,
            reason: "a read met damage".to_owned(),
            began: 1_767_225_600_000_000,
            ended: Some(1_767_225_601_000_000),
            outcome: Outcome::Repaired,
            lines: vec!["lost: bytes 0..16384".to_owned()],
            lines_more: 3,
        };
        let expected = Memory {
            id: VolumeId([0xa5; 16]),
            attempts: 2,
            findings: String::new(),
            no_progress: false,
            accounts: vec![account],
        };
        assert_eq!(memory, expected);
        assert_eq!(serde_json::to_string(&memory).unwrap(), GOLDEN.trim_end());
    }
}
