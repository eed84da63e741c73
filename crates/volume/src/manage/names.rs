//! The names of volumes, for clients that choose one; and the vaults that lists for users keep.

use crate::manage::list;
use crate::registry::Inner;
use crate::{Error, limits, records};
use rekindle_base::VolumeId;
use rekindle_datastore::{Tag, key};
use rekindle_env::Moment;
use rekindle_staging::Vault;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Vaults as the last list for a user saw them, each with its tag then. A tag may be stale, so
/// nothing rests on them but what a user is shown.
#[derive(Default)]
pub(crate) struct SeenVaults(HashMap<VolumeId, (Tag, Arc<Vault>)>);

impl SeenVaults {
    /// Returns the vault that had this tag.
    pub fn get(&self, id: VolumeId, tag: Tag) -> Option<Arc<Vault>> {
        self.0.get(&id).filter(|(seen, _)| *seen == tag).map(|(_, vault)| vault.clone())
    }

    /// Keeps a vault that was read after the store had listed it with this tag.
    pub fn note(&mut self, id: VolumeId, tag: Tag, vault: &Vault) {
        if self.0.len() < limits::SEEN_MAX || self.0.contains_key(&id) {
            // A list shows no earlier contents, and these take the most room.
            let shown = Vault { versions: Vec::new(), logged: Vec::new(), ..vault.clone() };
            self.0.insert(id, (tag, Arc::new(shown)));
        }
    }

    /// Drops vaults that the store lists no more.
    pub fn keep(&mut self, listed: &HashSet<VolumeId>) {
        if self.0.len() > listed.len() {
            self.0.retain(|id, _| listed.contains(id));
        }
    }
}

/// The last list of names, and the moment when it was begun.
#[derive(Default)]
pub(crate) struct LastNames {
    begun: Option<Moment>,
    kind: String,
    names: Arc<[String]>,
}

/// Returns the names of the volumes of a kind. Callers that wait for a list share the next one, and
/// equal lists share their memory: many clients that do not read cost one list.
pub(crate) async fn names(inner: &Arc<Inner>, kind: &str) -> Result<Arc<[String]>, Error> {
    let asked = inner.env.now();
    let mut last = inner.last_names.lock().await;
    if last.kind == kind && last.begun.is_some_and(|begun| begun >= asked) {
        return Ok(last.names.clone());
    }
    let begun = inner.env.now();
    let names = read(inner, kind).await?;
    if *last.names != *names {
        last.names = names.into();
    }
    (last.begun, last.kind) = (Some(begun), kind.to_owned());
    Ok(last.names.clone())
}

async fn read(inner: &Arc<Inner>, kind: &str) -> Result<Vec<String>, Error> {
    let keys = records::keys(&inner.writer, key::NAMES).await?;
    if keys.len() <= limits::NAMES_EXACT_MAX {
        let infos = list::glance(inner).await?.into_iter();
        return Ok(infos
            .filter(|info| info.vault.kind == kind)
            .map(|info| info.vault.name)
            .collect());
    }
    let seen = inner.seen.lock();
    let vaults = seen.0.values().map(|(_, vault)| vault);
    let others: HashSet<&str> =
        vaults.filter(|vault| vault.kind != kind).map(|vault| &*vault.name).collect();
    let names = keys.iter().filter_map(|key| key::name_of_key(key));
    let mut names: Vec<String> = names.filter(|name| !others.contains(&**name)).collect();
    // Keys escape some letters.
    names.sort_unstable();
    Ok(names)
}
