//! Pins: a pinned volume stays in service however long it is idle. The vault holds the pin, so that
//! it survives a restart.

use crate::manage::{list, rest};
use crate::registry::Inner;
use crate::{Error, Info, records};
use rekindle_env::Moment;
use rekindle_staging::{Vault, VaultState};
use std::sync::Arc;

/// Sets or removes the pin of a volume.
pub(crate) async fn set(inner: &Arc<Inner>, name: &str, pinned: bool) -> Result<Info, Error> {
    rekindle_base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let mut held = records::find(&inner.writer, name).await?;
    if held.value.pinned != pinned {
        held = rest::rewrite(inner, name, held.value.id, |vault| match vault.state {
            VaultState::Live => Ok(Vault { pinned, ..vault.clone() }),
            _ => Err(Error::NotFound(name.to_owned())),
        })
        .await?;
    } else if let Some(owner) = held.value.owner.filter(|&owner| owner != inner.writer.node) {
        // The owner would not learn of a change.
        return Err(Error::Elsewhere(name.to_owned(), owner));
    }
    tracing::debug!(volume = name, key = held.key, pinned, "pin");
    if let Some(entry) = inner.find(name) {
        let live = {
            let mut inside = entry.inside.lock();
            // The collector must notice the change soon, whatever it has decided before.
            inside.aging.next_look = Moment::default();
            inside.live.clone()
        };
        live.inspect(|live| live.staged.adopt_settings(held));
    }
    list::show(inner, name).await
}
