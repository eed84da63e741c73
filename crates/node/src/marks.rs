//! Markers for the folders of a store of an older version, written once the store has proved sound.

use crate::core::Core;
use rekindle_content::sweep::{Look, Roots, Sources};
use rekindle_datastore::{Error, Identity, identity, key};
use rekindle_env::Env;

/// Marks the folders in the background, unless they are marked already.
pub(crate) fn begin(env: &Env, core: &Core, identity: &Identity) {
    if identity.is_marked() {
        return;
    }
    let core = core.clone();
    env.spawn("store-marks", async move {
        match is_sound(&core).await {
            Ok(true) => match identity::mark(&core.writer).await {
                Ok(_) => tracing::info!("the folders of the store have markers now"),
                Err(error) => tracing::warn!("the folders of the store get no markers: {error}"),
            },
            Ok(false) => tracing::warn!(
                "the folders of the store get no markers: nothing in it can be read with its secret"
            ),
            Err(error) => tracing::warn!("the folders of the store get no markers yet: {error}"),
        }
    });
}

/// Whether some content can be read with the store's secret, or the store is empty.
async fn is_sound(core: &Core) -> Result<bool, rekindle_content::Error> {
    let found = core.volumes.look(&Sources::default(), Look::All).await?;
    for root in found.roots() {
        if rekindle_content::tree::get(&core.content, &Some(*root), 0).await.is_ok() {
            return Ok(true);
        }
    }
    let empty = |page: Result<Vec<_>, Error>| page.map(|page| page.is_empty());
    let nothing = empty(core.writer.store.list(key::PACKS, None).await)?;
    Ok(nothing && found.roots().next().is_none())
}
