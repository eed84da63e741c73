//! Pins: a pinned volume stays in service however long it is idle. The vault holds the pin, so that
//! it survives a restart.

use crate::manage::list;
use crate::registry::Inner;
use crate::{Error, Info, limits, records};
use rekindle_env::Moment;
use rekindle_staging::Vault;
use std::sync::Arc;

/// Sets or removes the pin of a volume.
pub(crate) async fn set(inner: &Arc<Inner>, name: &str, pinned: bool) -> Result<Info, Error> {
    rekindle_base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    for _ in 0..limits::CONFLICTS_MAX {
        let held = records::find(&inner.writer, name).await?;
        if let Some(owner) = held.value.owner.filter(|&owner| owner != inner.writer.node) {
            // The owner would not learn of the change.
            return Err(Error::Elsewhere(name.to_owned(), owner));
        }
        let key = held.key.clone();
        let written = if held.value.pinned == pinned {
            Ok(held)
        } else {
            let value = Vault { pinned, ..held.value.clone() };
            inner.writer.replace(&held, value).await
        };
        match written {
            // The destager or another request has written the vault.
            Err(rekindle_datastore::Error::Conflict(_)) => continue,
            Err(error) => return Err(error.into()),
            Ok(held) => {
                if let Some(entry) = inner.find(name) {
                    let live = {
                        let mut inside = entry.inside.lock();
                        // The collector must notice the change soon, whatever it has decided
                        // before.
                        inside.aging.next_look = Moment::default();
                        inside.live.clone()
                    };
                    live.inspect(|live| live.staged.adopt_settings(held));
                }
                tracing::debug!(volume = name, key, pinned, "pin");
                return list::show(inner, name).await;
            }
        }
    }
    let busy = "its vault changes all the time: try again";
    Err(rekindle_datastore::Error::Unavailable(format!(
        "volume '{name}' cannot be pinned now: {busy}"
    ))
    .into())
}
