//! Other settings for a volume: when its writes are acknowledged.
//!
//! All that was acknowledged under the old settings goes to the datastore first. The new ones come
//! with a new generation, which begins behind it: no change in any log was acknowledged under other
//! settings than those of the vault. The volume's clients wait for a moment
//! ([`crate::manage::hand_over`]).

use crate::manage::create::check_copies;
use crate::manage::hand_over::{Aim, hand_over};
use crate::manage::list;
use crate::manage::settings::WriteSettings;
use crate::registry::Inner;
use crate::{Error, Info, records};
use rekindle_staging::{Ack, Policy};
use std::sync::Arc;

/// Gives a volume other settings.
pub(crate) async fn set(
    inner: &Arc<Inner>,
    name: &str,
    settings: WriteSettings,
) -> Result<Info, Error> {
    rekindle_base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    if settings == WriteSettings::default() {
        return Err(Error::Invalid("no setting is named: name one to change it".to_owned()));
    }
    let vault = records::find(&inner.writer, name).await?.value;
    let wanted = settings.of(&vault);
    check_copies(wanted.policy, wanted.copies)?;
    if settings.ack == Some(Ack::Memory) && wanted.policy != Policy::Back {
        // One that it has from before waits for the policy to come back.
        return Err(Error::Invalid(
            "ack memory says what the log promises, and this policy waits for the store instead: leave it out, or use policy back"
                .to_owned(),
        ));
    }
    if wanted != vault {
        hand_over(inner, name, &Aim::Settings(settings), &|_, _| {}).await?;
    }
    list::show(inner, name).await
}
