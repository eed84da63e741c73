//! Removing a volume, and reaping what a crash left of that.
//!
//! The vault is the one truth, so the removal happens when it is marked deleted, by conditional write: nobody can
//! attach from then on. The name follows, then the changes in the log, and the vault itself goes last. A crash in
//! between leaves a deleted vault, and perhaps a name that leads to it; such a name counts as free, and the reaper
//! ends the work. A *live* vault without a name is never a removed volume: it is the rest of a creation that failed
//! (nobody has owned it) or has lost its name, which the reaper then gives back.

use crate::format::Name;
use crate::machine::Event;
use crate::registry::{Exclusive, Inner};
use crate::{Error, Vault, VaultState, limits, offline, records, salvage, trash};
use base::{Kind, VolumeId};
use datastore::key;
use datastore::record::Held;
use serde::Serialize;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// What the reaper did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Reaped {
    /// Removals that it ended.
    pub removed: u64,
    /// Failed creations that it cleared away.
    pub orphans: u64,
    /// Volumes that got their name back.
    pub renamed: u64,
    /// Volumes that had been in the trash for long.
    pub purged: u64,
    /// Names that led to volumes which do not have them.
    pub names: u64,
}

/// Removes a volume.
pub(crate) async fn remove(inner: &Arc<Inner>, name: &str, force: bool) -> Result<(), Error> {
    let work = async |claimed: &Exclusive| {
        if let Err(error) = offline::close(claimed).await {
            tracing::warn!(
                volume = name,
                "did not go out of service in good order before its removal: {error}"
            );
        }
        erase(claimed, force).await
    };
    let failed = |error: &Error| match is_damaged(error) {
        true => Event::OfflineFailed,
        false => Event::OfflineDone,
    };
    take_away(inner, name, force, ("removal", "removed"), work, failed).await
}

/// Takes a volume out of service to remove it by `work`, with the turn at its name. `words`: what for, and what became of it
/// then; `failed`: what an error comes to.
pub(crate) async fn take_away(
    inner: &Arc<Inner>,
    name: &str,
    force: bool,
    words: (&str, &str),
    work: impl AsyncFnOnce(&Exclusive) -> Result<(), Error>,
    failed: impl FnOnce(&Error) -> Event,
) -> Result<(), Error> {
    base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let _turn = inner.turns.take(name).await;
    if !force && inner.awaits_client(name) {
        return Err(Error::Awaited(name.to_owned()));
    }
    if force {
        // What is given up need not be repaired.
        salvage::cancel(inner, name);
    }
    let claimed = offline::claim(inner, name, force, words.0).await?;
    match work(&claimed).await {
        Ok(()) => claimed.end(Event::Removed, words.1, |inside| inside.reason = None),
        Err(error) => {
            let why = error.to_string();
            claimed.end(failed(&error), &why, |inside| {
                inside.known &= !matches!(error, Error::NotFound(_));
                inside.reason = Some(why.clone());
            })?;
            Err(error)
        }
    }
}

async fn erase(claimed: &Exclusive, force: bool) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    let absent = || Error::NotFound(name.to_owned());
    let damaged =
        |error: Error| Error::Damaged { name: name.to_owned(), reason: error.to_string() };
    let _step = claimed.step("the store: marking the vault deleted");
    let record = match records::name(&inner.writer, name).await.map_err(Error::from) {
        Ok(record) => record.ok_or_else(absent)?,
        Err(error) if is_damaged(&error) && force => return erase_by_search(inner, name).await,
        Err(error) if is_damaged(&error) => return Err(damaged(error)),
        Err(error) => return Err(error),
    };
    let id = record.value.id;
    claimed.entry.inside.lock().known = true;
    let marked = match mark_deleted(inner, name, id).await {
        Err(error) if error.kind() == Kind::Full => make_room(inner, name, id, error).await,
        marked => marked,
    };
    match marked {
        Ok(()) => {}
        Err(error) if is_damaged(&error) && force => {
            tracing::warn!(volume = name, "removed although damaged: {error}");
        }
        Err(error) if is_damaged(&error) => return Err(damaged(error)),
        Err(error) => return Err(error),
    }
    let _step = claimed.step("the store: deleting the name and the vault");
    let swept = clear_away(inner, name, id).await;
    if let Err(error) = swept {
        // It is removed; what is left is reaped later.
        tracing::warn!(volume = name, "is removed, but traces stay until they are reaped: {error}");
    }
    Ok(())
}

/// A store that is full takes no record: its name goes first, which gives some room back. Should the removal end there, the
/// reaper gives the volume its name again.
async fn make_room(inner: &Inner, name: &str, id: VolumeId, full: Error) -> Result<(), Error> {
    records::free_name(&inner.writer, name, id).await?;
    salvage::forget(inner, id).await?;
    let marked = mark_deleted(inner, name, id).await;
    if marked.as_ref().is_err_and(|error| error.kind() == Kind::Full) {
        // Not one record fits. What is deleted needs no room: then the vault itself.
        tracing::warn!(volume = name, "is removed without a mark: {full}");
        release_log(inner, id).await?;
        return Ok(inner.writer.store.delete(&Vault::key(id)).await?);
    }
    marked
}

/// Whether it is the record itself; one of a newer format is not ours to give up.
fn is_damaged(error: &Error) -> bool {
    error.kind() == Kind::Damaged
}

/// The removal of a volume whose name record is damaged: the vault tells its name, too.
async fn erase_by_search(inner: &Inner, name: &str) -> Result<(), Error> {
    let ids = records::vault_ids(&inner.writer).await?;
    for vault in
        records::each(ids, |id| async move { records::vault(&inner.writer, id).await }).await
    {
        let Some(vault) = vault?.map(|held| held.value) else { continue };
        if vault.name == name && vault.state == VaultState::Live {
            mark_deleted(inner, name, vault.id).await?;
            release_log(inner, vault.id).await?;
        }
    }
    // The vaults go with the next reaping.
    Ok(inner.writer.store.delete(&key::name_key(name)).await?)
}

/// The removal itself.
async fn mark_deleted(inner: &Inner, name: &str, id: VolumeId) -> Result<(), Error> {
    for _ in 0..limits::CONFLICTS_MAX {
        let Some(held) = records::vault(&inner.writer, id).await? else {
            let reason = format!("the volume name '{name}' leads to it, but it does not exist");
            return Err(datastore::Error::Damaged { key: Vault::key(id), reason }.into());
        };
        match held.value.owner {
            _ if held.value.state == VaultState::Deleted => return Ok(()),
            Some(owner) if owner != inner.writer.node => {
                return Err(Error::Elsewhere(name.to_owned(), owner));
            }
            _ => {}
        }
        let generation = held.value.generation.next();
        let deleted = Vault { state: VaultState::Deleted, generation, ..held.value.clone() };
        match inner.writer.replace(&held, deleted).await {
            Err(datastore::Error::Conflict(_)) => {}
            done => return Ok(done.map(drop)?),
        }
    }
    Err(datastore::Error::Conflict(Vault::key(id)).into())
}

/// What follows a removal: name, log, vault. The caller has the turn at the name.
pub(crate) async fn clear_away(inner: &Inner, name: &str, id: VolumeId) -> Result<(), Error> {
    records::free_name(&inner.writer, name, id).await?;
    // While the vault is there, whoever finds changes of it in the log knows that they are nobody's.
    release_log(inner, id).await?;
    salvage::forget(inner, id).await?;
    Ok(inner.writer.store.delete(&Vault::key(id)).await?)
}

/// The log lets go of everything that it has of a volume, and no restart brings it back.
pub(crate) async fn release_log(inner: &Inner, id: VolumeId) -> Result<(), Error> {
    Ok(inner.staging.forget_for_good(id).await?)
}

/// Forgets what the log has of a volume that is gone; whether it is. Gone is what is marked deleted, or has no vault any more,
/// when no name leads to it: a vault that is missing under its name is a loss, and then the log may have the last of it.
pub(crate) async fn forget_if_gone(inner: &Inner, id: VolumeId) -> Result<bool, Error> {
    match records::vault(&inner.writer, id).await? {
        Some(held) if held.value.state == VaultState::Deleted => {}
        Some(_) => return Ok(false),
        None => {
            let names = records::keys(&inner.writer, key::NAMES).await?;
            let names = names.iter().filter_map(|key| key::name_of_key(key)).collect();
            let named = |name: String| async move { records::name(&inner.writer, &name).await };
            for record in records::each(names, named).await {
                let Some(held) = record?.filter(|held| held.value.id == id) else { continue };
                let name = held.value.name;
                let reason = format!("the volume name '{name}' leads to it, but it does not exist");
                return Err(datastore::Error::Damaged { key: Vault::key(id), reason }.into());
            }
        }
    }
    release_log(inner, id).await?;
    Ok(true)
}

/// Ends removals that a crash interrupted, clears failed creations of at least this age, gives lost names back.
pub(crate) async fn reap_orphans(inner: &Arc<Inner>, age: Duration) -> Result<Reaped, Error> {
    let mut reaped = Reaped::default();
    let mut owners = HashSet::new();
    let outcomes =
        records::each(records::known_vault_ids(&inner.writer).await?, |id| reap(inner, id, age))
            .await;
    for outcome in outcomes {
        match outcome {
            Ok(Some(Reap::Removed)) => reaped.removed += 1,
            Ok(Some(Reap::Orphan)) => reaped.orphans += 1,
            Ok(Some(Reap::Renamed)) => reaped.renamed += 1,
            Ok(Some(Reap::Purged)) => reaped.purged += 1,
            Ok(Some(Reap::Name)) => reaped.names += 1,
            Ok(Some(Reap::Lives(name))) => drop(owners.insert(name)),
            Ok(None) => {}
            // One volume's damage is its own; the next round looks again.
            Err(error) => tracing::warn!("a vault could not be looked at for reaping: {error}"),
        }
    }
    // Names that no vault says it has: few, after a renaming that was cut off.
    let names = records::keys(&inner.writer, key::NAMES).await?;
    let names = names.iter().filter_map(|key| key::name_of_key(key));
    for name in names.filter(|name| !owners.contains(name)).collect::<Vec<_>>() {
        let _turn = inner.turns.take(&name).await;
        match records::free_stale(&inner.writer, &name).await {
            Ok(freed) => reaped.names += u64::from(freed),
            Err(error) => tracing::warn!(name, "a name could not be looked at: {error}"),
        }
    }
    Ok(reaped)
}

enum Reap {
    Removed,
    Orphan,
    Renamed,
    Purged,
    /// Its name was left over.
    Name,
    /// Nothing was to be done: it has this name.
    Lives(String),
}

async fn reap(inner: &Arc<Inner>, id: VolumeId, age: Duration) -> Result<Option<Reap>, Error> {
    let Some(held) = records::vault(&inner.writer, id).await? else { return Ok(None) };
    let name = held.value.name.clone();
    let turn = inner.turns.take(&name).await;
    match held.value.state {
        VaultState::Live => {}
        VaultState::Deleted => {
            clear_away(inner, &name, id).await?;
            return Ok(Some(Reap::Removed));
        }
        VaultState::Trashed => {
            let since = held.value.trashed.unwrap_or_default();
            let age = Duration::from_micros(inner.env.aging_clock().0.saturating_sub(since));
            let is_sure = inner.env.uptime() >= limits::PURGE_UPTIME;
            // Another node's is for that node: its log may have the last of it. Nobody's is for whoever comes.
            let is_for_us = held.value.owner.is_none_or(|owner| owner == inner.writer.node);
            if age >= limits::TRASH_AGE && is_for_us && is_sure {
                drop(turn);
                return Ok(trash::expunge(inner, &held).await?.then_some(Reap::Purged));
            }
            return Ok(records::free_name(&inner.writer, &name, id).await?.then_some(Reap::Name));
        }
    }
    let age_us = inner.env.wall_clock().0.saturating_sub(held.value.created);
    if u128::from(age_us) < age.as_micros() {
        return Ok(Some(Reap::Lives(name)));
    }
    match records::name(&inner.writer, &name).await? {
        Some(record) if record.value.id == id => Ok(Some(Reap::Lives(name))),
        taken => reap_nameless(inner, held, taken.is_some()).await,
    }
}

/// A live vault without a name.
async fn reap_nameless(
    inner: &Inner,
    held: Held<Vault>,
    taken: bool,
) -> Result<Option<Reap>, Error> {
    let vault = &held.value;
    if vault.owner.is_none() && vault.generation.0 == 0 && vault.root.is_none() {
        // Conditional: should somebody attach it at this moment, it is no orphan.
        let deleted = Vault { state: VaultState::Deleted, ..vault.clone() };
        let held = inner.writer.replace(&held, deleted).await?;
        inner.writer.store.delete(&held.key).await?;
        return Ok(Some(Reap::Orphan));
    }
    if taken {
        tracing::warn!(volume = vault.name, id = %vault.id, "has lost its name, and another volume has it now");
        return Ok(None);
    }
    let record = Name { name: vault.name.clone(), id: vault.id };
    inner.writer.create(&key::name_key(&vault.name), record).await?;
    tracing::warn!(volume = vault.name, id = %vault.id, "had lost its name and has it again");
    Ok(Some(Reap::Renamed))
}
