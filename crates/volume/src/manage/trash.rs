//! The trash: a removed volume is kept for a while, so that a user can have it back.
//!
//! The vault is the truth: it says that the volume is in the trash, and since when. From then on
//! the name is free, the sweep keeps the content, and no client can attach the volume. The reaper
//! finishes what a crash interrupted, and removes old volumes for good.

use crate::manage::leftover;
use crate::manage::list;
use crate::manage::remove;
use crate::manage::rename;
use crate::manage::rest;
use crate::registry::machine::Event;
use crate::registry::{Claim, Inner};
use crate::{Error, Info, limits, records};
use rekindle_base::{Kind, Serial};
use rekindle_datastore::record::Held;
use rekindle_staging::{Logged, Vault, VaultState};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// A volume in the trash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TrashedVolume {
    pub name: String,
    pub id: String,
    /// Bytes.
    pub size: u64,
    /// The time of its removal, microseconds since 1970.
    pub since: u64,
    /// The time at which it goes for good, at the earliest, microseconds since 1970.
    pub until: u64,
}

/// Moves a volume to the trash. A damaged volume cannot be kept: [`remove::remove`] removes it.
pub(crate) async fn trash(inner: &Arc<Inner>, name: &str, force: bool) -> Result<(), Error> {
    let words = ("removal to the trash", "in the trash");
    remove::take_away(inner, name, force, words, lay_aside, |_| Event::OfflineDone).await
}

async fn lay_aside(claimed: &Claim) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    let Vault { id, also, .. } = records::find(&inner.writer, name).await?.value;
    claimed.entry.inside.lock().known = true;
    if let Some(left) = also {
        // An interrupted renaming: its other name would stay taken for as long as the volume is
        // kept.
        leftover::end(inner, (name, id), &left, true).await?;
    }
    // The volume's backlog would occupy the log for as long as the volume is kept.
    match rest::settle(claimed, async |_| Ok(())).await {
        Ok(()) => {}
        // A removal in a full store must not need room in it: the backlog stays in the log.
        Err(error) if error.kind() == Kind::Full => {
            tracing::warn!(
                volume = name,
                "goes to the trash with what it owes in the log: {error}"
            );
        }
        // These errors do not mean that the volume is damaged: another node owns or removes it, or
        // its format is newer.
        Err(error @ Error::Elsewhere(..)) => return Err(error),
        Err(error)
            if !error.kind().is_retryable()
                && !matches!(error.kind(), Kind::Damaged | Kind::Io) =>
        {
            return Err(error);
        }
        Err(error) => {
            let reason = format!(
                "{error}; it cannot be kept so: `rekindle volume rm {name} --now` removes it at once and for good"
            );
            return Err(match error.kind().is_retryable() {
                true => rekindle_datastore::Error::Unavailable(reason).into(),
                false => Error::Damaged { name: name.to_owned(), reason },
            });
        }
    }
    let _step = claimed.step("the store: moving the vault to the trash");
    let since = inner.env.wall_clock().0;
    let held = records::find(&inner.writer, name).await?;
    let last = inner.staging.last_serial(&held.value).await?;
    let trashed = rest::begin_anew(inner, name, id, |vault| {
        Ok(Vault {
            state: VaultState::Trashed,
            trashed: Some(since),
            generation: vault.generation.next(),
            // The changes that the log has by now stay the volume's, logged by the same lives as
            // before.
            begins: last.max(vault.checkpoint),
            logged: logged_up_to(vault, last),
            ..vault.clone()
        })
    })
    .await?;
    let freed = async {
        if last <= trashed.value.checkpoint {
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

/// Lists the lives that logged the changes from the checkpoint up to `last`: those in the vault,
/// then the vault's own life, if it logged any.
fn logged_up_to(vault: &Vault, last: Serial) -> Vec<Logged> {
    let Some(node) = vault.owner.filter(|_| last > vault.checkpoint) else { return Vec::new() };
    let own = Logged { node, incarnation: vault.incarnation, begins: vault.begins };
    vault.logged.iter().copied().chain((last > own.begins).then_some(own)).collect()
}

/// Lists the volumes in the trash, the last one to go there first.
pub(crate) async fn list(inner: &Arc<Inner>) -> Result<Vec<TrashedVolume>, Error> {
    let mut all: Vec<TrashedVolume> = vaults(inner)
        .await?
        .into_iter()
        .map(|held| {
            let since = held.value.trashed.unwrap_or_default();
            let age = u64::try_from(limits::TRASH_AGE.as_micros()).unwrap_or(u64::MAX);
            let Vault { name, id, size, .. } = held.value;
            TrashedVolume {
                name,
                id: id.to_string(),
                size,
                since,
                until: since.saturating_add(age),
            }
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
            // Another volume's damage must not hide this list.
            Err(error) if error.kind() == Kind::Damaged => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

async fn named(inner: &Arc<Inner>, name: &str) -> Result<Vec<Held<Vault>>, Error> {
    let mut found = vaults(inner).await?;
    // An id selects one of several volumes with a name. A name that looks like another volume's id
    // ranks behind it.
    let is_id = |held: &Held<Vault>| held.value.id.to_string() == name;
    let by_id = found.iter().any(is_id);
    found.retain(|held| if by_id { is_id(held) } else { held.value.name == name });
    if found.is_empty() {
        return Err(Error::NotInTrash(name.to_owned()));
    }
    found.sort_by_key(|held| held.value.trashed);
    Ok(found)
}

/// Takes a volume out of the trash; of several with one name, the last one to go there.
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
    // Its old name was valid when it was given.
    let checked = match new_name {
        Some(new) => rekindle_base::names::check_new(new),
        None => rekindle_base::names::check(name),
    };
    checked.map_err(|bad| Error::Invalid(bad.to_string()))?;
    let _locks = inner.name_locks.take_both(name, target).await;
    rename::give(inner, &held.value, target, |vault| match vault.state {
        VaultState::Trashed => Ok(Vault {
            state: VaultState::Live,
            trashed: None,
            generation: vault.generation.next(),
            ..vault.clone()
        }),
        _ => Err(Error::NotInTrash(name.to_owned())),
    })
    .await?;
    list::show(inner, target).await
}

/// Removes for good all volumes in the trash under a name. Returns their number.
pub(crate) async fn purge(inner: &Arc<Inner>, name: &str) -> Result<u64, Error> {
    let mut purged = 0;
    for held in named(inner, name).await? {
        if expunge(inner, &held).await? {
            purged += 1;
        }
    }
    Ok(purged)
}

/// Removes one volume for good, if it still is in the trash. Whether it did.
pub(crate) async fn expunge(inner: &Inner, held: &Held<Vault>) -> Result<bool, Error> {
    let vault = &held.value;
    if let Some(owner) = vault.owner.filter(|&owner| owner != inner.writer.node) {
        return Err(Error::Elsewhere(vault.name.clone(), owner));
    }
    // Conditional: a volume that is restored meanwhile stays.
    let deleted =
        Vault { state: VaultState::Deleted, generation: vault.generation.next(), ..vault.clone() };
    match inner.writer.replace(held, deleted).await {
        Err(rekindle_datastore::Error::Conflict(_)) => return Ok(false),
        written => written?,
    };
    let _lock = inner.name_locks.take(&vault.name).await;
    remove::clear_away(inner, vault.id, &vault.name, vault.also.as_deref()).await?;
    Ok(true)
}
