//! Names and vaults in the datastore.

use crate::format::Name;
use crate::{Error, Vault, VaultState, limits};
use base::{Kind, VolumeId};
use datastore::key;
use datastore::record::{Held, Writer};
use futures_util::{StreamExt, stream};
use std::future::Future;

/// The record of a name.
pub(crate) async fn name(
    writer: &Writer,
    name: &str,
) -> Result<Option<Held<Name>>, datastore::Error> {
    let Some(held) = writer.read::<Name>(&key::name_key(name)).await? else { return Ok(None) };
    if held.value.name != name {
        let reason = format!("it is the record of the name '{}'", held.value.name);
        return Err(datastore::Error::Damaged { key: held.key, reason });
    }
    Ok(Some(held))
}

/// A vault.
pub(crate) async fn vault(
    writer: &Writer,
    id: VolumeId,
) -> Result<Option<Held<Vault>>, datastore::Error> {
    checked(writer.read::<Vault>(&Vault::key(id)).await?, id)
}

fn checked(
    found: Option<Held<Vault>>,
    id: VolumeId,
) -> Result<Option<Held<Vault>>, datastore::Error> {
    if let Some(held) = found.as_ref().filter(|held| held.value.id != id) {
        let reason = format!("it is the vault of volume {}", held.value.id);
        return Err(datastore::Error::Damaged { key: held.key.clone(), reason });
    }
    Ok(found)
}

/// The live vault that a name leads to.
pub(crate) async fn find(writer: &Writer, of: &str) -> Result<Held<Vault>, Error> {
    find_for(writer, of, None).await
}

/// As [`find`], for this phase of the start.
pub(crate) async fn find_for(
    writer: &Writer,
    of: &str,
    phase: Option<&str>,
) -> Result<Held<Vault>, Error> {
    let absent = || Error::NotFound(of.to_owned());
    let env = &writer.env;
    let part = |name, watch| {
        if phase.is_some() {
            env.boot_phase(name, phase, watch);
        }
    };
    let watch = env.watch();
    let mut seen = name(writer, of).await?.ok_or_else(absent)?.value.id;
    part("name", watch);
    for _ in 0..limits::CONFLICTS_MAX {
        let watch = env.watch();
        let found = writer.read_and_keep::<Vault>(&Vault::key(seen)).await?;
        if let Some(held) = checked(found, seen)? {
            part("vault", watch);
            // A name that the vault does not agree with leads nowhere: half of a renaming, or of a way to the trash.
            let is_its = held.value.state == VaultState::Live && held.value.name == of;
            return if is_its { Ok(held) } else { Err(absent()) };
        }
        // Removed between the two reads, or lost: the name tells.
        let again = name(writer, of).await?.ok_or_else(absent)?.value.id;
        if again == seen {
            break;
        }
        seen = again;
    }
    let reason = format!("the volume name '{of}' leads to it, but it does not exist");
    Err(datastore::Error::Damaged { key: Vault::key(seen), reason }.into())
}

/// A name that leads to a volume which does not have it: the rest of a removal or a renaming. It may be had.
async fn is_stale(writer: &Writer, held: &Held<Name>) -> Result<bool, Error> {
    match vault(writer, held.value.id).await {
        Ok(Some(found)) => {
            Ok(found.value.state != VaultState::Live || found.value.name != held.value.name)
        }
        // It may be anybody's.
        Ok(None) => Ok(false),
        Err(error) if matches!(error.kind(), Kind::Damaged | Kind::Unsupported) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// An error when somebody has the name.
pub(crate) async fn is_free(writer: &Writer, of: &str) -> Result<(), Error> {
    match name(writer, of).await? {
        Some(held) if !is_stale(writer, &held).await? => Err(Error::Exists(of.to_owned())),
        _ => Ok(()),
    }
}

/// Makes a name lead to a volume, if nobody has it. The caller has the turn at it.
pub(crate) async fn take_name(writer: &Writer, of: &str, id: VolumeId) -> Result<(), Error> {
    let taken = || Error::Exists(of.to_owned());
    let record = Name { name: of.to_owned(), id };
    let written = match name(writer, of).await? {
        None => writer.create(&key::name_key(of), record).await,
        Some(held) if held.value.id == id => return Ok(()),
        Some(held) if is_stale(writer, &held).await? => writer.replace(&held, record).await,
        Some(_) => return Err(taken()),
    };
    match written {
        Err(datastore::Error::Exists(_) | datastore::Error::Conflict(_)) => Err(taken()),
        written => Ok(written.map(drop)?),
    }
}

/// Deletes a name that leads to a volume; whether it did. The caller has the turn at it.
pub(crate) async fn free_name(writer: &Writer, of: &str, id: VolumeId) -> Result<bool, Error> {
    let Some(held) = name(writer, of).await?.filter(|held| held.value.id == id) else {
        return Ok(false);
    };
    match writer.remove(&held).await {
        // Another node has given it to somebody else at this moment.
        Err(datastore::Error::Conflict(_)) => Ok(false),
        removed => Ok(removed.map(|()| true)?),
    }
}

/// Deletes a name that leads to a volume which does not have it; whether it did. The caller has the turn at it.
pub(crate) async fn free_stale(writer: &Writer, of: &str) -> Result<bool, Error> {
    match name(writer, of).await? {
        Some(held) if is_stale(writer, &held).await? => free_name(writer, of, held.value.id).await,
        _ => Ok(false),
    }
}

/// All keys below a prefix.
pub(crate) async fn keys(writer: &Writer, prefix: &str) -> Result<Vec<String>, datastore::Error> {
    let mut keys: Vec<String> = Vec::new();
    loop {
        let page = writer.store.list(prefix, keys.last().map(String::as_str)).await?;
        if page.is_empty() {
            return Ok(keys);
        }
        keys.extend(page.into_iter().map(|listed| listed.key));
    }
}

/// The ids of all vaults, whatever their state. A key that is no vault's is an error: it may hide one.
pub(crate) async fn vault_ids(writer: &Writer) -> Result<Vec<VolumeId>, datastore::Error> {
    let id_of = |key: String| match key.strip_prefix(key::VOLUMES).and_then(|id| id.parse().ok()) {
        Some(id) => Ok(id),
        None => Err(datastore::Error::Damaged {
            reason: "its key is not that of a vault".to_owned(),
            key,
        }),
    };
    keys(writer, key::VOLUMES).await?.into_iter().map(id_of).collect()
}

/// The ids of all vaults, for whoever can do without what is none's: keys that are no vault's are told and passed by.
pub(crate) async fn known_vault_ids(writer: &Writer) -> Result<Vec<VolumeId>, datastore::Error> {
    let mut ids = Vec::new();
    for key in keys(writer, key::VOLUMES).await? {
        match key.strip_prefix(key::VOLUMES).and_then(|id| id.parse().ok()) {
            Some(id) => ids.push(id),
            None => tracing::warn!(
                key,
                "is not the key of a vault, and no sweep goes on while it is there"
            ),
        }
    }
    Ok(ids)
}

/// Runs `work` on all items, some at once, and gives the results in no order.
pub(crate) async fn each<I, T, F: Future<Output = T>>(
    items: Vec<I>,
    work: impl FnMut(I) -> F,
) -> Vec<T> {
    stream::iter(items).map(work).buffer_unordered(limits::READS_MAX).collect().await
}
