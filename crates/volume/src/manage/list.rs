//! The list of volumes: those in the datastore, merged with those in service here.

use crate::manage::versions::shed;
use crate::registry::Inner;
use crate::registry::entry::{Entry, Live};
use crate::registry::machine::State;
use crate::{Error, Info, records};
use rekindle_base::{Kind, Serial, VolumeId};
use rekindle_content::tree::Root;
use rekindle_datastore::key;
use rekindle_staging::versions::CLOCK_SURE;
use rekindle_staging::{Vault, VaultBody, VaultState, Version, versions};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Describes a volume of which only the vault is known. A volume that its kind cannot open is in
/// state `error`.
pub(crate) fn unattached(inner: &Inner, vault: Vault) -> Info {
    let refused = inner.kinds.check(&vault).err().map(|error| error.to_string());
    Info {
        vault,
        state: if refused.is_some() { State::Error } else { State::Unattached },
        clients: 0,
        backlog: None,
        reason: refused,
        unreadable: None,
    }
}

/// Describes a volume whose vault cannot be read.
fn damaged(name: &str, id: VolumeId, reason: String) -> Info {
    let kind = "unknown".to_owned();
    Info {
        vault: Vault::new(id, name.to_owned(), kind, 0, VaultBody::default()),
        state: State::Error,
        clients: 0,
        backlog: None,
        reason: Some(reason),
        unreadable: None,
    }
}

/// Describes a volume in service, as it is now; the datastore is not asked.
fn in_service(inner: &Inner, entry: &Entry) -> Option<Info> {
    let clock = inner.env.wall_clock().0;
    let (live, state, reason, unreadable) = {
        let mut inside = entry.inside.lock();
        inner.observe(entry, &mut inside);
        let (reason, unreadable) = (inside.told(clock), inside.unreadable(clock));
        (inside.live.clone()?, inside.machine.state(), reason, unreadable)
    };
    let Live { staged, .. } = &*live;
    Some(Info {
        vault: staged.vault(),
        state,
        clients: live.clients(),
        backlog: Some(staged.backlog()),
        reason,
        unreadable,
    })
}

/// Adds this node's knowledge of a volume to its vault.
fn merge(inner: &Inner, vault: Vault) -> Info {
    let Some(entry) = inner.find(&vault.name) else { return unattached(inner, vault) };
    match in_service(inner, &entry) {
        Some(live) if live.vault.id == vault.id => live,
        // The volume that is in service under this name is another one.
        Some(_) => unattached(inner, vault),
        None => {
            let clock = inner.env.wall_clock().0;
            let rest = unattached(inner, vault);
            let inside = entry.inside.lock();
            Info {
                state: match inside.machine.state() {
                    State::Unattached => rest.state,
                    state => state,
                },
                reason: inside.told(clock).or(rest.reason),
                unreadable: inside.unreadable(clock),
                ..rest
            }
        }
    }
}

/// Describes one volume.
pub(crate) async fn show(inner: &Inner, name: &str) -> Result<Info, Error> {
    rekindle_base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    if let Some(info) = inner.find(name).and_then(|entry| in_service(inner, &entry)) {
        return Ok(info);
    }
    match records::find(&inner.writer, name).await {
        Ok(held) => Ok(merge(inner, held.value)),
        Err(error) if error.is_lasting() => {
            let id =
                records::name(&inner.writer, name).await.ok().flatten().map(|held| held.value.id);
            Ok(damaged(name, id.unwrap_or_default(), error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// Lists all volumes, by name. Reads names first and vaults after them: a vault is older than its
/// name and outlives it. So a creation or removal meanwhile makes no volume seem missing or
/// damaged.
pub(crate) async fn list(inner: &Arc<Inner>) -> Result<Vec<Info>, Error> {
    let names = records::keys(&inner.writer, key::NAMES).await?;
    let serving: HashMap<VolumeId, Info> = inner
        .all()
        .iter()
        .filter_map(|entry| in_service(inner, entry))
        .map(|info| (info.vault.id, info))
        .collect();
    let idle = records::known_vault_ids(&inner.writer)
        .await?
        .into_iter()
        .filter(|id| !serving.contains_key(id))
        .collect();
    let mut by_name: HashMap<String, Vec<Info>> = HashMap::new();
    let read =
        records::each(idle, |id| async move { records::vault(&inner.writer, id).await }).await;
    for vault in read {
        match vault {
            Ok(Some(held)) if held.value.state == VaultState::Live => {
                by_name.entry(held.value.name.clone()).or_default().push(merge(inner, held.value));
            }
            // Removed, or on its way out. Or damaged: then its name leads to it below.
            Ok(_) => {}
            Err(error) if is_its_own(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for info in serving.into_values() {
        by_name.entry(info.vault.name.clone()).or_default().push(info);
    }

    let mut infos = Vec::with_capacity(names.len());
    let mut unclear = Vec::new();
    for key in names {
        match key::name_of_key(&key).map(|name| (by_name.remove(&name), name)) {
            Some((Some(mut found), _)) if found.len() == 1 => infos.append(&mut found),
            Some((found, name)) => unclear.push((name, found.unwrap_or_default())),
            None => infos.push(damaged(
                &key,
                VolumeId::default(),
                format!("{key} is not the key of a volume name"),
            )),
        }
    }
    for settled in records::each(unclear, |(name, found)| settle(inner, name, found)).await {
        infos.extend(settled?);
    }
    infos.sort_by(|one, other| one.vault.name.cmp(&other.vault.name));
    Ok(infos)
}

/// Finds out which of several vaults a name leads to, or why it seems to lead to none.
async fn settle(inner: &Inner, name: String, found: Vec<Info>) -> Result<Option<Info>, Error> {
    let record = match records::name(&inner.writer, &name).await {
        Ok(None) => return Ok(None),
        Ok(Some(record)) => record.value,
        Err(error) if is_its_own(&error) => {
            return Ok(Some(damaged(&name, VolumeId::default(), error.to_string())));
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(info) = found.into_iter().find(|info| info.vault.id == record.id) {
        return Ok(Some(info));
    }
    match records::find(&inner.writer, &name).await {
        Ok(held) => Ok(Some(merge(inner, held.value))),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) if error.is_lasting() => Ok(Some(damaged(&name, record.id, error.to_string()))),
        Err(error) => Err(error),
    }
}

/// Whether an error is about one record, not about the store.
fn is_its_own(error: &rekindle_datastore::Error) -> bool {
    matches!(error.kind(), Kind::Damaged | Kind::Unsupported)
}

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
