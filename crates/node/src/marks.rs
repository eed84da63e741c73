//! The folders of a store of an older version get their markers, once it has proved to be sound.

use crate::work::StoredRoots;
use content::Content;
use content::sweep::Roots;
use datastore::record::Writer;
use datastore::{Error, Identity, identity, key};
use env::Env;
use volume::Volumes;

/// Marks the folders in the background, unless they are marked.
pub(crate) fn begin(
    env: &Env,
    writer: &Writer,
    content: &Content,
    volumes: &Volumes,
    identity: &Identity,
) {
    if identity.is_marked() {
        return;
    }
    let (writer, content) = (writer.clone(), content.clone());
    let roots = StoredRoots(volumes.clone());
    env.spawn("store-marks", async move {
        match is_sound(&writer, &content, &roots).await {
            Ok(true) => match identity::mark(&writer).await {
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

/// Whether something can be read with the store's secret, or there is nothing.
async fn is_sound(
    writer: &Writer,
    content: &Content,
    roots: &StoredRoots,
) -> Result<bool, content::Error> {
    let roots = roots.roots().await?;
    for root in roots.iter().filter(|root| root.is_some()) {
        if content::tree::get(content, root, 0).await.is_ok() {
            return Ok(true);
        }
    }
    let empty = |page: Result<Vec<_>, Error>| page.map(|page| page.is_empty());
    let nothing = empty(writer.store.list(key::PACKS, None).await)?;
    Ok(nothing && roots.iter().all(Option::is_none))
}
