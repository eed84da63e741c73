//! Other settings for a volume: when its writes are acknowledged.
//!
//! All that was acknowledged under the old settings goes to the datastore first. The new ones come
//! with a new generation, which begins behind it: no change in any log was acknowledged under other
//! settings than those of the vault.

use crate::manage::create::check_copies;
use crate::manage::{list, rest};
use crate::registry::machine::Event;
use crate::registry::{Claim, Inner};
use crate::stop::offline;
use crate::{Error, Info, records};
use rekindle_base::VolumeId;
use rekindle_staging::{Ack, MissingCopy, Policy, Vault};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// WriteSettings to change; what is `None` stays as it is.
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
    /// The vault with these settings, in a new generation if they are others.
    fn of(&self, vault: &Vault) -> Vault {
        let changed = Vault {
            policy: self.policy.unwrap_or(vault.policy),
            ack: self.ack.unwrap_or(vault.ack),
            copies: self.copies.unwrap_or(vault.copies),
            on_missing_copy: self.on_missing_copy.unwrap_or(vault.on_missing_copy),
            ..vault.clone()
        };
        if changed == *vault {
            return changed;
        }
        Vault {
            generation: vault.generation.next(),
            begins: vault.checkpoint,
            logged: Vec::new(),
            ..changed
        }
    }
}

/// Gives a volume without clients other settings.
pub(crate) async fn set(
    inner: &Arc<Inner>,
    name: &str,
    settings: WriteSettings,
) -> Result<Info, Error> {
    rekindle_base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    if settings == WriteSettings::default() {
        return Err(Error::Invalid("no setting is named: name one to change it".to_owned()));
    }
    let _lock = inner.name_locks.take(name).await;
    let vault = records::find(&inner.writer, name).await?.value;
    let wanted = settings.of(&vault);
    check_copies(wanted.policy, wanted.copies)?;
    if wanted == vault {
        return list::show(inner, name).await;
    }
    let claimed = offline::claim(inner, name, false, "changing its settings").await?;
    let done = change(&claimed, vault.id, settings).await;
    claimed.finish(done, (Event::OfflineDone, Event::OfflineDone), "has other settings")?;
    list::show(inner, name).await
}

async fn change(claimed: &Claim, id: VolumeId, settings: WriteSettings) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    rest::settle(claimed, async |_| Ok(())).await?;
    let _step = claimed.step("the store: writing the settings into the vault");
    rest::rewrite(inner, name, id, |vault| Ok(settings.of(vault))).await?;
    Ok(())
}
