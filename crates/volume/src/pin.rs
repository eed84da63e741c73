//! Pins: a volume with one stays in service however long it is idle. Kept in the vault, so a restart does not forget it.

use crate::registry::Inner;
use crate::{Error, Info, Vault, limits, list, records};
use env::Moment;
use std::sync::Arc;

/// Sets or takes away the pin of a volume.
pub(crate) async fn set(inner: &Arc<Inner>, name: &str, pinned: bool) -> Result<Info, Error> {
    base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    for _ in 0..limits::CONFLICTS_MAX {
        let held = records::find(&inner.writer, name).await?;
        if let Some(owner) = held.value.owner.filter(|&owner| owner != inner.writer.node) {
            // That node would not hear of it.
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
            // The destager, or another who pins.
            Err(datastore::Error::Conflict(_)) => continue,
            Err(error) => return Err(error.into()),
            Ok(held) => {
                if let Some(entry) = inner.find(name) {
                    let live = {
                        let mut inside = entry.inside.lock();
                        // The collector shall see it soon, whatever it has decided before.
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
    Err(datastore::Error::Unavailable(format!("volume '{name}' cannot be pinned now: {busy}"))
        .into())
}
