//! The roots of all volumes, from which a sweep marks.

use crate::manage::list::is_its_own;
use crate::manage::versions::shed;
use crate::records;
use crate::registry::Inner;
use rekindle_base::{Serial, VolumeId};
use rekindle_content::tree::Root;
use rekindle_datastore::key;
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
pub(crate) async fn roots(inner: &Arc<Inner>) -> Result<Vec<Root>, rekindle_datastore::Error> {
    let mut roots = Vec::new();
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
    for live in inner.all().into_iter().filter_map(|entry| entry.inside.lock().live.clone()) {
        let vault = live.staged.vault();
        let from = told.get(&vault.id).copied().unwrap_or_default();
        add_roots(&mut roots, &vault, from, now);
    }
    Ok(roots)
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
fn add_roots(roots: &mut Vec<Root>, vault: &Vault, from: Serial, now: u64) {
    let is_kept =
        |version: &&Version| version.checkpoint >= from && versions::is_reached(version, now);
    let versions = vault.versions.iter().filter(is_kept);
    let all = std::iter::once(vault.root).chain(versions.map(|version| version.root));
    roots.extend(all.filter(Option::is_some));
}
