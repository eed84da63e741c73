//! The settings of a file volume.

use rekindle_staging::VaultBody;
use serde::{Deserialize, Serialize};

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
    pub(crate) fn of(body: &VaultBody) -> Result<Self, String> {
        let settings: Self =
            body.read().map_err(|error| format!("this is no setting of a file volume: {error}"))?;
        if settings.mode > 0o7777 {
            return Err(format!("the mode of a directory is at most 4095, not {}", settings.mode));
        }
        Ok(settings)
    }
}
