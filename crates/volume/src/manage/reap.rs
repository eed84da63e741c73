//! The reaping of what interrupted commands have left.
//!
//! A *live* vault without a name is never a removed volume. Either it is left from a failed
//! creation and was never owned, or it has lost its name, which the reaper then gives back.

use crate::format::Name;
use crate::manage::remove::clear_away;
use crate::manage::rested::{Names, Rest, Rested};
use crate::manage::{leftover, trash};
use crate::registry::Inner;
use crate::{Error, limits, records};
use rekindle_base::VolumeId;
use rekindle_datastore::record::Held;
use rekindle_datastore::{Tag, key};
use rekindle_staging::versions::CLOCK_SURE;
use rekindle_staging::{Vault, VaultState};
use serde::Serialize;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// The counters of a reaping.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Reaped {
    /// Removals that it finished.
    pub removed: u64,
    /// Failed creations that it deleted.
    pub orphans: u64,
    /// Volumes that got their name back.
    pub renamed: u64,
    /// Volumes that it removed from the trash, because their time was over.
    pub purged: u64,
    /// Names that it freed, because their volumes do not have them.
    pub names: u64,
}

/// Finishes removals that a crash interrupted, deletes failed creations of at least this age, and
/// gives lost names back. Reads only records that have changed since it last looked, by the tags of
/// the lists, or whose time has come.
pub(crate) async fn reap_orphans(inner: &Arc<Inner>, age: Duration) -> Result<Reaped, Error> {
    let mut reaped = Reaped::default();
    let mut owners = HashSet::new();
    // Before the vaults, because a vault is older than its name. Tags before what they stand for.
    let names = records::list(&inner.writer, key::NAMES).await?;
    let names = names.into_iter().filter_map(|one| Some((key::name_of_key(&one.key)?, one.tag)));
    let names: Names = names.collect();
    let vaults = records::known_vaults(&inner.writer).await?;
    let before = std::mem::take(&mut *inner.rested.lock());
    let mut rested = Rested::default();
    let look = async |(id, tag)| (id, tag, look(inner, (id, tag), &before, &names, age).await);
    for (id, tag, outcome) in records::each(vaults, look).await {
        match outcome {
            Ok(Some(Reap::Removed)) => reaped.removed += 1,
            Ok(Some(Reap::Orphan)) => reaped.orphans += 1,
            Ok(Some(Reap::Renamed)) => reaped.renamed += 1,
            Ok(Some(Reap::Purged)) => reaped.purged += 1,
            Ok(Some(Reap::Name)) => reaped.names += 1,
            Ok(Some(Reap::Rests(name, is_live, until))) => {
                owners.extend(is_live.then(|| name.clone()));
                let rest = Rest::new((name, is_live, until), tag, &names);
                let room = limits::RESTED_MAX - rested.len();
                rested.extend(rest.map(|rest| (id, rest)).into_iter().take(room));
            }
            Ok(None) => {}
            // One volume's damage must not stop the others; the next round looks again.
            Err(error) => tracing::warn!("a vault could not be looked at for reaping: {error}"),
        }
    }
    *inner.rested.lock() = rested;
    // Names that no vault claims: few, left from interrupted renamings.
    for name in names.keys().filter(|name| !owners.contains(*name)) {
        let _lock = inner.name_locks.take(name).await;
        match records::free_stale(&inner.writer, name).await {
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
    /// A stale name of it was freed.
    Name,
    /// Nothing to do before a time: the volume's name, whether it lives, and the time.
    Rests(String, bool, u64),
}

/// Reaps a volume that is not as it was when there was nothing to do for it.
async fn look(
    inner: &Arc<Inner>,
    (id, tag): (VolumeId, Option<Tag>),
    before: &Rested,
    names: &Names,
    age: Duration,
) -> Result<Option<Reap>, Error> {
    let now = inner.env.wall_clock().0;
    match before.get(&id).filter(|rest| rest.lasts(tag, names, now)) {
        Some(rest) => Ok(Some(Reap::Rests(rest.name.clone(), rest.is_live, rest.until))),
        None => reap(inner, id, age).await,
    }
}

async fn reap(inner: &Arc<Inner>, id: VolumeId, age: Duration) -> Result<Option<Reap>, Error> {
    let Some(held) = records::vault(&inner.writer, id).await? else { return Ok(None) };
    let name = held.value.name.clone();
    let lock = inner.name_locks.take(&name).await;
    // The owner's log may have the last changes of its volume, so only the owner reaps it. Any node
    // may reap a volume without an owner.
    let is_for_us = held.value.owner.is_none_or(|owner| owner == inner.writer.node);
    match held.value.state {
        VaultState::Live => {}
        VaultState::Deleted => {
            clear_away(inner, id, &name, held.value.also.as_deref()).await?;
            return Ok(Some(Reap::Removed));
        }
        VaultState::Trashed => {
            let since = held.value.trashed.unwrap_or_default();
            let age = Duration::from_micros(inner.env.aging_clock().0.saturating_sub(since));
            let is_sure = inner.env.uptime() >= CLOCK_SURE;
            if age >= limits::TRASH_AGE && is_for_us && is_sure {
                drop(lock);
                return Ok(trash::expunge(inner, &held).await?.then_some(Reap::Purged));
            }
            if records::free_name(&inner.writer, &name, id).await? {
                return Ok(Some(Reap::Name));
            }
            // Only the owner purges it, and not before the owner's clock is sure.
            let due = since.saturating_add(micros(limits::TRASH_AGE));
            return Ok(Some(Reap::Rests(name, false, if is_for_us { due } else { u64::MAX })));
        }
    }
    let old = held.value.created.saturating_add(micros(age));
    if inner.env.wall_clock().0 < old {
        return Ok(Some(Reap::Rests(name, true, old)));
    }
    if let Some(also) = held.value.also.clone().filter(|_| is_for_us) {
        drop(lock);
        let _locks = inner.name_locks.take_both(&name, &also).await;
        leftover::end(inner, (&name, id), &also, held.value.owner.is_some()).await?;
        return Ok(Some(Reap::Name));
    }
    match records::name(&inner.writer, &name).await? {
        Some(record) if record.value.id == id => Ok(Some(Reap::Rests(name, true, u64::MAX))),
        taken => reap_nameless(inner, held, taken.is_some()).await,
    }
}

/// Reaps a live vault without a name.
async fn reap_nameless(
    inner: &Inner,
    held: Held<Vault>,
    taken: bool,
) -> Result<Option<Reap>, Error> {
    let vault = &held.value;
    if vault.owner.is_none() && vault.generation.0 == 0 && vault.root.is_none() {
        // Conditional: a vault that is attached meanwhile is no orphan.
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

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
