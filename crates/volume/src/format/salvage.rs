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
//! | `fault` | what is wrong, since when, and how often was looked again. Not in format 1: null |

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
    #[serde(default)]
    pub fault: Option<Fault>,
}

/// A fault that is not mended yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fault {
    /// When it was seen first, microseconds since 1970.
    pub since: u64,
    /// Salvages that found it and gave nothing up.
    pub looks: u32,
    /// When the next look by itself is due, microseconds since 1970.
    pub due: u64,
    /// What would be lost, and why it is not given up, for people.
    pub reason: String,
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
    /// Something would have to be given up, and nobody has said that it may be. Format 1 did not have it.
    Waiting,
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
            Outcome::Waiting => "waiting",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
            Outcome::Interrupted => "interrupted",
        }
    }

    /// Nothing of it is left to be done.
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
    const FORMAT: u32 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN_1: &str = include_str!("../../golden/salvage-1.json");
    const GOLDEN: &str = include_str!("../../golden/salvage-2.json");

    fn example() -> Memory {
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
        Memory {
            id: VolumeId([0xa5; 16]),
            attempts: 2,
            findings: String::new(),
            no_progress: false,
            accounts: vec![account],
            fault: Some(Fault {
                since: 1_767_225_500_000_000,
                looks: 3,
                due: 1_767_229_100_000_000,
                reason: "16384 bytes would be lost".to_owned(),
            }),
        }
    }

    #[test]
    fn the_golden_image_reads_and_writes_the_same() {
        let memory: Memory = serde_json::from_str(GOLDEN).unwrap();
        assert_eq!(memory, example());
        assert_eq!(serde_json::to_string(&memory).unwrap(), GOLDEN.trim_end());
    }

    #[test]
    fn a_record_of_format_1_knows_of_no_fault() {
        let memory: Memory = serde_json::from_str(GOLDEN_1).unwrap();
        assert_eq!(memory, Memory { fault: None, ..example() });
    }
}
