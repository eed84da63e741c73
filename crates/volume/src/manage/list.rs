//! The list of volumes: those in the datastore, merged with those in service here.

use crate::registry::Inner;
use crate::registry::entry::{Entry, Live};
use crate::registry::machine::State;
use crate::{Error, Info, records};
use rekindle_base::{Kind, VolumeId};
use rekindle_datastore::{Tag, key};
use rekindle_env::BoxFuture;
use rekindle_staging::{Vault, VaultBody, VaultState};
use std::collections::HashMap;
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
    list_with(inner, &|id, _| Box::pin(read(inner, id))).await
}

/// Lists all volumes as [`list`] does, and reads only those vaults whose tags are not those of the
/// last look.
pub(crate) async fn glance(inner: &Arc<Inner>) -> Result<Vec<Info>, Error> {
    let look = async |id: VolumeId, tag: Option<Tag>| {
        let seen = tag.and_then(|tag| inner.seen.lock().get(id, tag));
        if let Some(vault) = seen {
            return Ok(Some(Vault::clone(&vault)));
        }
        let found = read(inner, id).await?;
        if let (Some(vault), Some(tag)) = (&found, tag) {
            inner.seen.lock().note(id, tag, vault);
        }
        Ok(found)
    };
    list_with(inner, &|id, tag| Box::pin(look(id, tag))).await
}

type Read<'a> = BoxFuture<'a, Result<Option<Vault>, rekindle_datastore::Error>>;

async fn read(inner: &Inner, id: VolumeId) -> Result<Option<Vault>, rekindle_datastore::Error> {
    Ok(records::vault(&inner.writer, id).await?.map(|held| held.value))
}

async fn list_with<'a>(
    inner: &Arc<Inner>,
    read: &(dyn Fn(VolumeId, Option<Tag>) -> Read<'a> + Sync),
) -> Result<Vec<Info>, Error> {
    let names = records::keys(&inner.writer, key::NAMES).await?;
    let serving: HashMap<VolumeId, Info> = inner
        .all()
        .iter()
        .filter_map(|entry| in_service(inner, entry))
        .map(|info| (info.vault.id, info))
        .collect();
    let vaults = records::known_vaults(&inner.writer).await?;
    inner.seen.lock().keep(&vaults.iter().map(|(id, _)| *id).collect());
    let idle = vaults.into_iter().filter(|(id, _)| !serving.contains_key(id)).collect();
    let mut by_name: HashMap<String, Vec<Info>> = HashMap::new();
    for vault in records::each(idle, |(id, tag)| read(id, tag)).await {
        match vault {
            Ok(Some(vault)) if vault.state == VaultState::Live => {
                by_name.entry(vault.name.clone()).or_default().push(merge(inner, vault));
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
pub(crate) fn is_its_own(error: &rekindle_datastore::Error) -> bool {
    matches!(error.kind(), Kind::Damaged | Kind::Unsupported)
}
