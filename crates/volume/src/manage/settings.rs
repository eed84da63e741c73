//! The settings of a volume that say when its writes are acknowledged.

use rekindle_staging::{Ack, MissingCopy, Policy, Vault};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Settings to change; what is `None` stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WriteSettings {
    pub policy: Option<Policy>,
    pub ack: Option<Ack>,
    /// Count of the copies on other nodes that a write waits for, 0 to 3.
    pub copies: Option<u8>,
    /// What a write does while there are fewer copies.
    pub on_missing_copy: Option<MissingCopy>,
}

impl WriteSettings {
    /// The vault with these settings.
    pub(crate) fn of(&self, vault: &Vault) -> Vault {
        Vault {
            policy: self.policy.unwrap_or(vault.policy),
            ack: self.ack.unwrap_or(vault.ack),
            copies: self.copies.unwrap_or(vault.copies),
            on_missing_copy: self.on_missing_copy.unwrap_or(vault.on_missing_copy),
            ..vault.clone()
        }
    }
}
