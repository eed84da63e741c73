//! The roots of all volumes, from which a sweep marks.

use crate::manage::list::is_its_own;
use crate::manage::versions::shed;
use crate::records;
use crate::registry::Inner;
use crate::registry::entry::Entry;
use rekindle_base::{Serial, VolumeId};
use rekindle_content::sweep::{RootSet, fingerprint_of_roots};
use rekindle_datastore::key;
use rekindle_env::Timestamp;
use rekindle_staging::versions::CLOCK_SURE;
use rekindle_staging::{Vault, VaultState, Version, versions};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Returns the roots of all volumes: those in the datastore, and those of volumes in service, which
/// may be newer.
///
/// A vault that cannot be read is an error: the content that it reaches must not seem to be
/// garbage. While the store is full, each volume first drops the older half of its earlier
/// contents.
pub(crate) async fn roots(inner: &Arc<Inner>) -> Result<RootSet, rekindle_datastore::Error> {
    let mut roots = RootSet::default();
    // A node that has just started cannot tell the age of anything.
    let is_sure = inner.env.uptime() >= CLOCK_SURE;
    let now = if is_sure { inner.env.aging_clock().0 } else { 0 };
    let is_full = inner.staging.is_store_full();
    // Names first: a vault is older than its name.
    let names = records::keys(&inner.writer, key::NAMES).await?;
    let ids = records::vault_ids(&inner.writer).await?;
    let read = async |id| match records::vault(&inner.writer, id).await? {
        Some(held) if held.value.state == VaultState::Deleted => Ok(None),
        Some(held) if is_full => Ok(Some(shed(inner, held).await)),
        found => Ok::<_, rekindle_datastore::Error>(found.map(|held| held.value)),
    };
    // The checkpoint of each volume's stored vault, up to which that vault decides which earlier
    // contents are kept.
    let mut told = BTreeMap::new();
    let mut named = HashSet::new();
    for vault in records::each(ids.clone(), read).await {
        let Some(vault) = vault? else { continue };
        named.insert(vault.name.clone());
        if is_full {
            told.insert(vault.id, vault.checkpoint);
        }
        add_roots(&mut roots, &vault, Serial(0), now);
    }
    let listed: HashSet<VolumeId> = ids.into_iter().collect();
    let others = names.iter().filter_map(|key| key::name_of_key(key));
    let others: Vec<String> = others.filter(|name| !named.contains(name)).collect();
    let lost = async |name: String| is_lost(inner, &name, &listed).await;
    for lost in records::each(others, lost).await {
        if let Some(name) = lost? {
            return Err(rekindle_datastore::Error::Unavailable(format!(
                "the store's list of volumes leaves out that of the name {name}: it is not whole"
            )));
        }
    }
    for vault in in_service(inner) {
        let from = told.get(&vault.id).copied().unwrap_or_default();
        add_roots(&mut roots, &vault, from, now);
    }
    Ok(roots)
}

/// Returns a fingerprint of all but the time that decides [`roots`]: names and vaults as the store
/// lists them, and the roots of volumes in service. `None` where the store gives no tags, and while
/// it is full: then [`roots`] changes the vaults.
pub(crate) async fn fingerprint(
    inner: &Arc<Inner>,
) -> Result<Option<[u8; 32]>, rekindle_datastore::Error> {
    if inner.staging.is_store_full() {
        return Ok(None);
    }
    let mut hasher = blake3::Hasher::new();
    for prefix in [key::NAMES, key::VOLUMES] {
        for listed in records::list(&inner.writer, prefix).await? {
            let Some(tag) = listed.tag else { return Ok(None) };
            // A key has no zero byte.
            hasher.update(listed.key.as_bytes()).update(&[0]).update(&tag.0);
        }
    }
    let mut live = RootSet::default();
    for vault in in_service(inner) {
        add_roots(&mut live, &vault, Serial(0), 0);
    }
    hasher.update(&fingerprint_of_roots(live.roots.iter().flatten()));
    Ok(Some(hasher.finalize().into()))
}

/// Returns the vaults of the volumes in service, as they are now.
fn in_service(inner: &Inner) -> impl Iterator<Item = Vault> {
    let live = |entry: Arc<Entry>| entry.inside.lock().live.clone();
    inner.all().into_iter().filter_map(live).map(|live| live.staged.vault())
}

/// Returns the name if it leads to an existing vault that was not listed.
async fn is_lost(
    inner: &Inner,
    name: &str,
    listed: &HashSet<VolumeId>,
) -> Result<Option<String>, rekindle_datastore::Error> {
    let id = match records::name(&inner.writer, name).await {
        Ok(Some(record)) => record.value.id,
        Ok(None) => return Ok(None),
        // The damaged name hides no vault: the listed vaults are found without it.
        Err(error) if is_its_own(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_there = !listed.contains(&id) && records::vault(&inner.writer, id).await?.is_some();
    Ok(is_there.then(|| name.to_owned()))
}

/// Adds the root of the content, and of the kept earlier contents from a checkpoint on. A volume in
/// the trash keeps its own.
fn add_roots(set: &mut RootSet, vault: &Vault, from: Serial, now: u64) {
    set.roots.extend(vault.root.is_some().then_some(vault.root));
    let is_kept =
        |version: &&Version| version.checkpoint >= from && versions::is_reached(version, now);
    for version in vault.versions.iter().filter(is_kept).filter(|one| one.root.is_some()) {
        set.roots.push(version.root);
        let until = Timestamp(versions::reached_until(version));
        set.until = Some(set.until.map_or(until, |earliest| earliest.min(until)));
    }
}
