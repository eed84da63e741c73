//! The kind `file`: the body of its vaults, and how a volume of it is opened.

use crate::home::Home;
use rekindle_content::Content;
use rekindle_staging::{Vault, VaultBody};
use rekindle_volume::{Kind, OpenedHome, Sizes};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The word of the kind in vaults and requests.
pub const KIND: &str = "file";

/// The kind of file volumes.
pub struct File;

/// Owner and mode of the root directory, as long as no client has changed them: the body of a
/// vault, and the settings of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RootSettings {
    pub uid: u32,
    pub gid: u32,
    /// Permission bits: 0 to 0o7777.
    pub mode: u16,
}

impl Default for RootSettings {
    fn default() -> Self {
        Self { uid: 0, gid: 0, mode: 0o755 }
    }
}

impl RootSettings {
    fn of(body: &VaultBody) -> Result<Self, String> {
        let settings: Self =
            body.read().map_err(|error| format!("this is no setting of a file volume: {error}"))?;
        if settings.mode > 0o7777 {
            return Err(format!("the mode of a directory is at most 4095, not {}", settings.mode));
        }
        Ok(settings)
    }
}

impl Kind for File {
    fn name(&self) -> &'static str {
        KIND
    }

    fn create(&self, _size: u64, settings: &VaultBody) -> Result<VaultBody, String> {
        VaultBody::of(&RootSettings::of(settings)?)
    }

    fn check(&self, vault: &Vault) -> Result<(), String> {
        RootSettings::of(&vault.body).map(drop)
    }

    fn open(&self, content: &Content, vault: &Vault) -> Result<OpenedHome, String> {
        Ok(OpenedHome::Record(Home::new(content, vault, &RootSettings::of(&vault.body)?)))
    }

    fn describe_damage(&self, _vault: &Vault, keys: &[Range<u64>]) -> Option<String> {
        let inodes = |keys: &Range<u64>| match keys.end.checked_sub(keys.start) {
            Some(0 | 1) => format!("inode {}", keys.start),
            _ if keys.end == u64::MAX => format!("inodes from {} on", keys.start),
            _ => format!("inodes {} to {}", keys.start, keys.end - 1),
        };
        Some(keys.iter().map(inodes).collect::<Vec<_>>().join(", "))
    }

    fn sizes(&self) -> Sizes {
        Sizes::Fixed
    }
}
