//! The record `salvages/<id>`: the salvages of a volume that the node remembers. Its documentation
//! is `docs/format/salvage.md`.
//!
//! | field | meaning |
//! | --- | --- |
//! | `id` | the volume |
//! | `attempts` | begun since the last good one that stayed healthy, or since an operator asked |
//! | `findings` | what the last one has found and could not change; the same again is no progress |
//! | `no_progress` | two in a row have found the same |
//! | `accounts` | the last salvages, oldest first |
//! | `fault` | the open fault, since when it is known, and how many looks it had. Format 1: null |

use rekindle_base::VolumeId;
use rekindle_datastore::key;
use rekindle_datastore::record::Body;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The remembered salvages of a volume.
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

/// A fault that is not repaired yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fault {
    /// Time of the first sight, microseconds since 1970.
    pub since: u64,
    /// Salvages that found it and gave nothing up.
    pub looks: u32,
    /// Time of the next look by the node itself, microseconds since 1970.
    pub due: u64,
    /// The possible losses, and why they are not accepted, in words.
    pub reason: String,
}

/// One salvage of a volume: its findings and actions. The API speaks it, too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = SalvageAccount)]
pub struct Account {
    /// The volume's name at that time.
    pub volume: String,
    /// Number of the attempt, since the last good one or since a user asked.
    pub attempt: u32,
    pub reason: String,
    /// Beginning, microseconds since 1970.
    pub began: u64,
    pub ended: Option<u64>,
    pub outcome: Outcome,
    /// Findings and repairs, line by line.
    pub lines: Vec<String>,
    /// Number of lines beyond those kept.
    pub lines_more: u64,
}

/// The outcome of a salvage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The salvage has not ended.
    #[default]
    Running,
    /// The whole content is there.
    Sound,
    /// All content that could be had is there, the rest is quarantined.
    Repaired,
    /// The salvage would have to give something up, which is not allowed yet. Format 1 did not have
    /// it.
    Waiting,
    /// The salvage could not repair anything.
    Failed,
    /// An operator cancelled the salvage, or the volume went out of service.
    Cancelled,
    /// The process died or stopped before the salvage ended.
    Interrupted,
    /// An outcome that only a newer binary knows. An older command line meets it.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Outcome {
    /// Whether it leaves nothing to do.
    pub(crate) fn is_good(self) -> bool {
        matches!(self, Outcome::Sound | Outcome::Repaired)
    }
}

impl Memory {
    /// Returns its key in the datastore.
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
    fn an_outcome_is_one_word_and_that_of_a_newer_binary_is_unknown() {
        assert_eq!(Outcome::Waiting.to_string(), "waiting");
        assert_eq!(serde_json::from_str::<Outcome>("\"dreaming\"").unwrap(), Outcome::Unknown);
    }

    #[test]
    fn a_record_of_format_1_knows_of_no_fault() {
        let memory: Memory = serde_json::from_str(GOLDEN_1).unwrap();
        assert_eq!(memory, Memory { fault: None, ..example() });
    }
}
