//! The list of volumes: those in the datastore, merged with those in service here.

use crate::format::Name;
use crate::registry::Inner;
use crate::registry::entry::{Entry, Live};
use crate::registry::machine::State;
use crate::{Error, Info, records};
use rekindle_base::{Kind, NodeId, VolumeId};
use rekindle_datastore::record::Held;
use rekindle_datastore::{Listed, Tag, key};
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
    list_with(inner, false).await
}

/// Lists all volumes as [`list`] does, and reads only those vaults whose tags are not those of the
/// last look. Both read a name only if its tag is a new one.
pub(crate) async fn glance(inner: &Arc<Inner>) -> Result<Vec<Info>, Error> {
    list_with(inner, true).await
}

/// Reads the vaults of all volumes of a node from the store. An error when one cannot be read.
pub(crate) async fn owned_by(inner: &Inner, node: NodeId) -> Result<Vec<Vault>, Error> {
    let ids = records::vault_ids(&inner.writer).await?;
    let read = records::read_all::<Vault, _>(&inner.writer, ids, |id| Vault::key(*id)).await;
    let mut owned = Vec::new();
    for (id, vault) in read {
        let found = vault.and_then(|found| records::checked(found, id))?;
        owned.extend(found.map(|held| held.value).filter(|vault| vault.owner == Some(node)));
    }
    Ok(owned)
}

async fn list_with(inner: &Arc<Inner>, is_glance: bool) -> Result<Vec<Info>, Error> {
    let names = records::list(&inner.writer, key::NAMES).await?;
    let serving: HashMap<VolumeId, Info> = inner
        .all()
        .iter()
        .filter_map(|entry| in_service(inner, entry))
        .map(|info| (info.vault.id, info))
        .collect();
    let vaults = records::known_vaults(&inner.writer).await?;
    let mut infos = Vec::with_capacity(names.len());
    let mut listed = Vec::with_capacity(names.len());
    for Listed { key, tag, .. } in names {
        match key::name_of_key(&key) {
            Some(name) => listed.push((name, tag)),
            None => infos.push(damaged(
                &key,
                VolumeId::default(),
                format!("{key} is not the key of a volume name"),
            )),
        }
    }
    inner.seen.lock().keep(
        &vaults.iter().map(|(id, _)| *id).collect(),
        &listed.iter().map(|(name, _)| &**name).collect(),
    );
    let mut by_name: HashMap<String, Vec<Info>> = HashMap::with_capacity(listed.len());
    let mut add = |vault: Vault| {
        by_name.entry(vault.name.clone()).or_default().push(merge(inner, vault));
    };
    let (mut seen, mut unread) = (Vec::new(), Vec::new());
    {
        let kept = inner.seen.lock();
        for (id, tag) in vaults.into_iter().filter(|(id, _)| !serving.contains_key(id)) {
            match tag.filter(|_| is_glance).and_then(|tag| kept.vault(id, tag)) {
                Some(vault) => seen.push(vault),
                None => unread.push((id, tag)),
            }
        }
    }
    let lives = |vault: &Vault| vault.state == VaultState::Live;
    seen.into_iter().filter(|vault| lives(vault)).for_each(|vault| add(Vault::clone(&vault)));
    let read = records::read_all::<Vault, _>(&inner.writer, unread, |(id, _)| Vault::key(*id));
    for ((id, tag), vault) in read.await {
        match vault.and_then(|found| records::checked(found, id)) {
            Ok(Some(held)) => {
                if let Some(tag) = tag.filter(|_| is_glance) {
                    inner.seen.lock().note_vault(held.value.id, tag, &held.value);
                }
                if lives(&held.value) {
                    add(held.value);
                }
            }
            // Removed. Or damaged: then its name leads to it below.
            Ok(None) => {}
            Err(error) if is_its_own(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for info in serving.into_values() {
        by_name.entry(info.vault.name.clone()).or_default().push(info);
    }

    let mut unseen = Vec::new();
    {
        let kept = inner.seen.lock();
        for (name, tag) in listed {
            let mut found = by_name.remove(&name).unwrap_or_default();
            let leads = tag.and_then(|tag| kept.name(&name, tag));
            match found.iter().position(|info| Some(info.vault.id) == leads) {
                Some(at) => infos.push(found.swap_remove(at)),
                None => unseen.push((name, tag, found)),
            }
        }
    }
    let key = |(name, ..): &(String, Option<Tag>, Vec<Info>)| key::name_key(name);
    let read = records::read_all::<Name, _>(&inner.writer, unseen, key).await;
    let settle = async |((name, tag, found), record): ((String, _, _), _)| {
        let record = Result::and_then(record, |found| records::checked_name(found, &name));
        settle(inner, (name, record), tag, found).await
    };
    for settled in records::each(read, settle).await {
        infos.extend(settled?);
    }
    infos.sort_by(|one, other| one.vault.name.cmp(&other.vault.name));
    Ok(infos)
}

/// Finds out which vault a name leads to: one of those that have the name, perhaps none. A vault
/// alone is no proof: a creation that broke off leaves one, while the name leads to another vault.
async fn settle(
    inner: &Inner,
    (name, record): (String, Result<Option<Held<Name>>, rekindle_datastore::Error>),
    tag: Option<Tag>,
    found: Vec<Info>,
) -> Result<Option<Info>, Error> {
    let record = match record {
        Ok(None) => return Ok(None),
        Ok(Some(record)) => record.value,
        Err(error) if is_its_own(&error) => {
            // Only an attach by that name is refused, not what is in service.
            let serving = found.into_iter().find(|info| info.backlog.is_some());
            let reason = error.to_string();
            return Ok(Some(
                serving.unwrap_or_else(|| damaged(&name, VolumeId::default(), reason)),
            ));
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(tag) = tag {
        inner.seen.lock().note_name(&name, tag, record.id);
    }
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
