//! The names of volumes, for clients that choose one; and the records that lists for users keep.

use crate::manage::list;
use crate::registry::Inner;
use crate::{Error, limits, records};
use rekindle_base::VolumeId;
use rekindle_datastore::{Tag, key};
use rekindle_env::Moment;
use rekindle_staging::Vault;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Records as the last list for a user saw them, each with its tag then. A tag may be stale, so
/// nothing rests on them but what a user is shown.
#[derive(Default)]
pub(crate) struct Seen {
    vaults: HashMap<VolumeId, (Tag, Arc<Vault>)>,
    /// The volumes to which names lead.
    names: HashMap<String, (Tag, VolumeId)>,
}

impl Seen {
    /// Returns the vault that had this tag.
    pub fn vault(&self, id: VolumeId, tag: Tag) -> Option<Arc<Vault>> {
        self.vaults.get(&id).filter(|(seen, _)| *seen == tag).map(|(_, vault)| vault.clone())
    }

    /// Returns the volume to which a name led when its record had this tag.
    pub fn name(&self, name: &str, tag: Tag) -> Option<VolumeId> {
        self.names.get(name).filter(|(seen, _)| *seen == tag).map(|(_, id)| *id)
    }

    /// Keeps a vault that was read after the store had listed it with this tag.
    pub fn note_vault(&mut self, id: VolumeId, tag: Tag, vault: &Vault) {
        if self.vaults.len() < limits::SEEN_MAX || self.vaults.contains_key(&id) {
            // A list shows no earlier contents, and these take the most room.
            let shown = Vault { versions: Vec::new(), logged: Vec::new(), ..vault.clone() };
            self.vaults.insert(id, (tag, Arc::new(shown)));
        }
    }

    /// Keeps the volume to which a name leads, as read after the store had listed the name's record
    /// with this tag.
    pub fn note_name(&mut self, name: &str, tag: Tag, id: VolumeId) {
        if self.names.len() < limits::SEEN_MAX || self.names.contains_key(name) {
            self.names.insert(name.to_owned(), (tag, id));
        }
    }

    /// Drops records that the store lists no more.
    pub fn keep(&mut self, vaults: &HashSet<VolumeId>, names: &HashSet<&str>) {
        if self.vaults.len() > vaults.len() {
            self.vaults.retain(|id, _| vaults.contains(id));
        }
        if self.names.len() > names.len() {
            self.names.retain(|name, _| names.contains(&**name));
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
    let vaults = seen.vaults.values().map(|(_, vault)| vault);
    let others: HashSet<&str> =
        vaults.filter(|vault| vault.kind != kind).map(|vault| &*vault.name).collect();
    let names = keys.iter().filter_map(|key| key::name_of_key(key));
    let mut names: Vec<String> = names.filter(|name| !others.contains(&**name)).collect();
    // Keys escape some letters.
    names.sort_unstable();
    Ok(names)
}
