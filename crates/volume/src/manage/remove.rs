//! Removal of a volume.
//!
//! The vault is the one truth: the removal happens when a conditional write marks the vault
//! deleted, and no attach succeeds from then on. The name follows, then the changes in the log, and
//! the vault itself goes last.
//!
//! A crash in between leaves a deleted vault, and perhaps a name that leads to it. Such a name
//! counts as free, and the reaper ([`crate::manage::reap`]) finishes the removal.

use crate::registry::machine::Event;
use crate::registry::{Claim, Inner};
use crate::repair::salvage;
use crate::stop::offline;
use crate::{Error, limits, records};
use rekindle_base::{Kind, VolumeId};
use rekindle_datastore::key;
use rekindle_staging::{Vault, VaultState};
use std::sync::Arc;

/// Removes a volume.
pub(crate) async fn remove(inner: &Arc<Inner>, name: &str, force: bool) -> Result<(), Error> {
    let work = async |claimed: &Claim| {
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

/// Takes a volume out of service and removes it by `work`, holding the lock of its name.
///
/// `words` are the causes of the two transitions: the purpose, then the result. `failed` chooses
/// the event for an error.
pub(crate) async fn take_away(
    inner: &Arc<Inner>,
    name: &str,
    force: bool,
    words: (&str, &str),
    work: impl AsyncFnOnce(&Claim) -> Result<(), Error>,
    failed: impl FnOnce(&Error) -> Event,
) -> Result<(), Error> {
    rekindle_base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let _lock = inner.name_locks.take(name).await;
    if !force && inner.awaits_client(name) {
        return Err(Error::Awaited(name.to_owned()));
    }
    if force {
        // A volume that is removed by force needs no repair.
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

async fn erase(claimed: &Claim, force: bool) -> Result<(), Error> {
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
    let also = match marked {
        Ok(also) => also,
        Err(error) if is_damaged(&error) && force => {
            tracing::warn!(volume = name, "removed although damaged: {error}");
            None
        }
        Err(error) if is_damaged(&error) => return Err(damaged(error)),
        Err(error) => return Err(error),
    };
    let _step = claimed.step("the store: deleting the name and the vault");
    let swept = clear_away(inner, id, name, also.as_deref()).await;
    if let Err(error) = swept {
        // The volume is removed; the reaper deletes the rest later.
        tracing::warn!(volume = name, "is removed, but traces stay until they are reaped: {error}");
    }
    Ok(())
}

/// Marks a vault deleted in a full store, which takes no record: deletes the name first, which
/// frees some room. If the removal ends there, the reaper gives the volume its name again.
async fn make_room(
    inner: &Inner,
    name: &str,
    id: VolumeId,
    full: Error,
) -> Result<Option<String>, Error> {
    let also = records::vault(&inner.writer, id).await?.and_then(|held| held.value.also);
    free_names(inner, id, name, also.as_deref()).await?;
    salvage::forget(inner, id).await?;
    let marked = mark_deleted(inner, name, id).await;
    if marked.as_ref().is_err_and(|error| error.kind() == Kind::Full) {
        // Not even one record fits. A deletion needs no room, so the vault goes unmarked.
        tracing::warn!(volume = name, "is removed without a mark: {full}");
        release_log(inner, id).await?;
        inner.writer.store.delete(&Vault::key(id)).await?;
        return Ok(also);
    }
    marked
}

/// Whether the record itself is damaged. A record of a newer format is not damaged, and not ours to
/// give up.
fn is_damaged(error: &Error) -> bool {
    error.kind() == Kind::Damaged
}

/// Removes a volume whose name record is damaged: its vault has the name, too.
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
    // The reaper deletes the vaults.
    Ok(inner.writer.store.delete(&key::name_key(name)).await?)
}

/// Marks the vault deleted, which is the removal. Returns the other name that may lead to the
/// volume.
async fn mark_deleted(inner: &Inner, name: &str, id: VolumeId) -> Result<Option<String>, Error> {
    for _ in 0..limits::CONFLICTS_MAX {
        let Some(held) = records::vault(&inner.writer, id).await? else {
            return Err(records::why_missing(&inner.writer, name, id).await);
        };
        match held.value.owner {
            _ if held.value.state == VaultState::Deleted => return Ok(held.value.also),
            // A renaming or a removal to the trash is half done: the name leads nowhere.
            _ if held.value.state == VaultState::Trashed || held.value.name != name => {
                return Err(Error::NotFound(name.to_owned()));
            }
            Some(owner) if owner != inner.writer.node => {
                return Err(Error::Elsewhere(name.to_owned(), owner));
            }
            _ => {}
        }
        let generation = held.value.generation.next();
        let deleted = Vault { state: VaultState::Deleted, generation, ..held.value.clone() };
        match inner.writer.replace(&held, deleted).await {
            Err(rekindle_datastore::Error::Conflict(_)) => {}
            done => return Ok(done?.value.also),
        }
    }
    Err(rekindle_datastore::Error::Conflict(Vault::key(id)).into())
}

/// Frees the name of a volume, and the name that an interrupted renaming has left.
async fn free_names(
    inner: &Inner,
    id: VolumeId,
    name: &str,
    also: Option<&str>,
) -> Result<(), Error> {
    for name in [Some(name), also].into_iter().flatten() {
        records::free_name(&inner.writer, name, id).await?;
    }
    Ok(())
}

/// Finishes a removal: names, log, vault. The caller holds the lock of the name.
pub(crate) async fn clear_away(
    inner: &Inner,
    id: VolumeId,
    name: &str,
    also: Option<&str>,
) -> Result<(), Error> {
    free_names(inner, id, name, also).await?;
    // Before the vault: while it exists, its mark proves that the log's changes are not needed.
    release_log(inner, id).await?;
    salvage::forget(inner, id).await?;
    Ok(inner.writer.store.delete(&Vault::key(id)).await?)
}

/// Has the log forget all changes of a volume, so that no restart brings them back.
pub(crate) async fn release_log(inner: &Inner, id: VolumeId) -> Result<(), Error> {
    Ok(inner.staging.forget_for_good(id).await?)
}

/// Forgets the log's changes of a volume that is gone. Whether it is gone.
///
/// A volume is gone if its vault is marked deleted, or if it has neither a vault nor a name. A
/// vault that is missing under its name is a loss, and then the log may have the volume's last
/// changes.
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
                return Err(
                    rekindle_datastore::Error::Damaged { key: Vault::key(id), reason }.into()
                );
            }
        }
    }
    release_log(inner, id).await?;
    Ok(true)
}
