//! The trash: a removed volume is kept for a while, in case somebody wants it back.
//!
//! The vault is the truth, as everywhere: it says that the volume is in the trash, and since when. Its name is free from then
//! on; the sweep keeps what it reaches; nobody can attach it. The reaper ends what a crash left, and removes for good what
//! has been there for long.

use crate::machine::Event;
use crate::registry::{Exclusive, Inner};
use crate::{Error, Info, Vault, VaultState, limits, list, records, remove, rest};
use base::{Kind, Serial, VolumeId};
use datastore::record::Held;
use serde::Serialize;
use staging::Logged;
use std::sync::Arc;

/// A volume in the trash, as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trashed {
    pub name: String,
    pub id: VolumeId,
    /// Bytes.
    pub size: u64,
    /// Since when, microseconds since 1970.
    pub since: u64,
    /// When it goes for good, at the earliest, microseconds since 1970.
    pub until: u64,
}

/// Moves a volume to the trash. A damaged one cannot be kept: that is for [`remove::remove`].
pub(crate) async fn trash(inner: &Arc<Inner>, name: &str, force: bool) -> Result<(), Error> {
    let words = ("removal to the trash", "in the trash");
    remove::take_away(inner, name, force, words, lay_aside, |_| Event::OfflineDone).await
}

async fn lay_aside(claimed: &Exclusive) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    let id = records::find(&inner.writer, name).await?.value.id;
    claimed.entry.inside.lock().known = true;
    // What it owes would be in the way of others for as long as it is kept.
    let owes = match rest::settle(claimed, async |_| Ok(())).await {
        Ok(()) => false,
        // Whoever removes volumes because there is no room must not need room for it: what it owes stays in the log.
        Err(error) if error.kind() == Kind::Full => {
            tracing::warn!(
                volume = name,
                "goes to the trash with what it owes in the log: {error}"
            );
            true
        }
        // It is no worse for that, and nothing that this node says removes it.
        Err(error @ Error::Elsewhere(..)) => return Err(error),
        Err(error) => {
            let reason = format!(
                "{error}; it cannot be kept so: `rekindle volume rm {name} --now` removes it at once and for good"
            );
            return Err(match error.kind().is_retryable() {
                true => datastore::Error::Unavailable(reason).into(),
                false => Error::Damaged { name: name.to_owned(), reason },
            });
        }
    };
    let _step = claimed.step("the store: moving the vault to the trash");
    let since = inner.env.wall_clock().0;
    let held = records::find(&inner.writer, name).await?;
    let last = inner.staging.last_serial(&held.value).await?;
    rest::rewrite(inner, name, id, |vault| {
        Ok(Vault {
            state: VaultState::Trashed,
            trashed: Some(since),
            generation: vault.generation.next(),
            // All that the log has of it by now is of the volume, and by those who logged it as before.
            begins: last.max(vault.checkpoint),
            logged: logged_up_to(vault, last),
            ..vault.clone()
        })
    })
    .await?;
    let freed = async {
        if !owes {
            remove::release_log(inner, id).await?;
        }
        records::free_name(&inner.writer, name, id).await
    };
    if let Err(error) = freed.await {
        tracing::warn!(
            volume = name,
            "is in the trash, but its name stays until it is reaped: {error}"
        );
    }
    Ok(())
}

/// Who logged what is behind the checkpoint, up to `last`: as the vault says, and behind where its own life began that one.
fn logged_up_to(vault: &Vault, last: Serial) -> Vec<Logged> {
    let Some(node) = vault.owner.filter(|_| last > vault.checkpoint) else { return Vec::new() };
    let own = Logged { node, incarnation: vault.incarnation, begins: vault.begins };
    vault.logged.iter().copied().chain((last > own.begins).then_some(own)).collect()
}

/// What is in the trash, what went there last first.
pub(crate) async fn list(inner: &Arc<Inner>) -> Result<Vec<Trashed>, Error> {
    let mut all: Vec<Trashed> = vaults(inner)
        .await?
        .into_iter()
        .map(|held| {
            let since = held.value.trashed.unwrap_or_default();
            let age = u64::try_from(limits::TRASH_AGE.as_micros()).unwrap_or(u64::MAX);
            let Vault { name, id, size, .. } = held.value;
            Trashed { name, id, size, since, until: since.saturating_add(age) }
        })
        .collect();
    all.sort_by(|one, other| (other.since, &one.name).cmp(&(one.since, &other.name)));
    Ok(all)
}

async fn vaults(inner: &Arc<Inner>) -> Result<Vec<Held<Vault>>, Error> {
    let ids = records::known_vault_ids(&inner.writer).await?;
    let read = records::each(ids, |id| async move { records::vault(&inner.writer, id).await });
    let mut found = Vec::new();
    for vault in read.await {
        match vault {
            Ok(held) => found.extend(held.filter(|held| held.value.state == VaultState::Trashed)),
            // Another volume's damage is its own.
            Err(error) if error.kind() == Kind::Damaged => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

async fn named(inner: &Arc<Inner>, name: &str) -> Result<Vec<Held<Vault>>, Error> {
    let mut found = vaults(inner).await?;
    // An id names one of several; a name that looks like the id of another stands behind it.
    let is_id = |held: &Held<Vault>| held.value.id.to_string() == name;
    let by_id = found.iter().any(is_id);
    found.retain(|held| if by_id { is_id(held) } else { held.value.name == name });
    if found.is_empty() {
        return Err(Error::NotInTrash(name.to_owned()));
    }
    found.sort_by_key(|held| held.value.trashed);
    Ok(found)
}

/// Takes a volume out of the trash; of several with one name the one that went there last.
pub(crate) async fn restore(
    inner: &Arc<Inner>,
    name: &str,
    new_name: Option<&str>,
) -> Result<Info, Error> {
    if inner.is_stopping() {
        return Err(Error::Stopping);
    }
    let held = named(inner, name).await?.pop().ok_or_else(|| Error::NotInTrash(name.to_owned()))?;
    let name = held.value.name.as_str();
    let target = new_name.unwrap_or(name);
    base::names::check(target).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let id = held.value.id;
    let _turn = inner.turns.take(target).await;
    // The name first: until the vault agrees it leads nowhere, and the reaper takes it back.
    records::take_name(&inner.writer, target, id).await?;
    let written = rest::rewrite(inner, name, id, |vault| match vault.state {
        VaultState::Trashed => Ok(Vault {
            state: VaultState::Live,
            trashed: None,
            name: target.to_owned(),
            generation: vault.generation.next(),
            ..vault.clone()
        }),
        VaultState::Live if vault.name == target => Ok(vault.clone()),
        _ => Err(Error::NotInTrash(name.to_owned())),
    });
    if let Err(error) = written.await {
        if !error.kind().is_retryable() {
            records::free_name(&inner.writer, target, id).await?;
        }
        return Err(error);
    }
    list::show(inner, target).await
}

/// Removes for good what is in the trash under a name; how many.
pub(crate) async fn purge(inner: &Arc<Inner>, name: &str) -> Result<u64, Error> {
    let mut purged = 0;
    for held in named(inner, name).await? {
        if expunge(inner, &held).await? {
            purged += 1;
        }
    }
    Ok(purged)
}

/// Removes one for good, if it still is in the trash.
pub(crate) async fn expunge(inner: &Inner, held: &Held<Vault>) -> Result<bool, Error> {
    let vault = &held.value;
    if let Some(owner) = vault.owner.filter(|&owner| owner != inner.writer.node) {
        return Err(Error::Elsewhere(vault.name.clone(), owner));
    }
    // Conditional: should somebody restore it at this moment, it stays.
    let deleted =
        Vault { state: VaultState::Deleted, generation: vault.generation.next(), ..vault.clone() };
    match inner.writer.replace(held, deleted).await {
        Err(datastore::Error::Conflict(_)) => return Ok(false),
        written => written?,
    };
    let _turn = inner.turns.take(&vault.name).await;
    remove::clear_away(inner, &vault.name, vault.id).await?;
    Ok(true)
}
