//! Names and vaults in the datastore: the records.

use crate::format::Name;
use crate::{Error, limits};
use futures_util::{StreamExt, stream};
use rekindle_base::{Kind, VolumeId};
use rekindle_datastore::record::{Body, Held, Writer};
use rekindle_datastore::{Listed, Tag, key};
use rekindle_staging::{Vault, VaultState};
use std::future::Future;

/// Reads the record of a name.
pub(crate) async fn name(
    writer: &Writer,
    name: &str,
) -> Result<Option<Held<Name>>, rekindle_datastore::Error> {
    checked_name(writer.read::<Name>(&key::name_key(name)).await?, name)
}

/// Fails if a record is that of another name.
pub(crate) fn checked_name(
    found: Option<Held<Name>>,
    name: &str,
) -> Result<Option<Held<Name>>, rekindle_datastore::Error> {
    let Some(held) = found else { return Ok(None) };
    if held.value.name != name {
        let reason = format!("it is the record of the name '{}'", held.value.name);
        return Err(rekindle_datastore::Error::Damaged { key: held.key, reason });
    }
    Ok(Some(held))
}

/// Reads a vault.
pub(crate) async fn vault(
    writer: &Writer,
    id: VolumeId,
) -> Result<Option<Held<Vault>>, rekindle_datastore::Error> {
    checked(writer.read::<Vault>(&Vault::key(id)).await?, id)
}

/// Fails if a vault is that of another volume.
pub(crate) fn checked(
    found: Option<Held<Vault>>,
    id: VolumeId,
) -> Result<Option<Held<Vault>>, rekindle_datastore::Error> {
    if let Some(held) = found.as_ref().filter(|held| held.value.id != id) {
        let reason = format!("it is the vault of volume {}", held.value.id);
        return Err(rekindle_datastore::Error::Damaged { key: held.key.clone(), reason });
    }
    Ok(found)
}

/// Reads the live vault that a name leads to.
pub(crate) async fn find(writer: &Writer, of: &str) -> Result<Held<Vault>, Error> {
    find_for(writer, of, None).await
}

/// Like [`find`], as part of the boot phase `phase`.
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
            // A name that the vault does not confirm leads nowhere: a renaming or a removal to the
            // trash is half done.
            let is_its = held.value.state == VaultState::Live && held.value.name == of;
            return if is_its { Ok(held) } else { Err(absent()) };
        }
        // Removed between the two reads, or lost: the name decides.
        let again = name(writer, of).await?.ok_or_else(absent)?.value.id;
        if again == seen {
            break;
        }
        seen = again;
    }
    Err(missing(of, seen))
}

/// The error for a name that leads to a vault which does not exist.
fn missing(of: &str, id: VolumeId) -> Error {
    let reason = format!("the volume name '{of}' leads to it, but it does not exist");
    rekindle_datastore::Error::Damaged { key: Vault::key(id), reason }.into()
}

/// Says why the vault that a name led to is absent. A removal meanwhile takes the name along;
/// otherwise the vault is lost.
pub(crate) async fn why_missing(writer: &Writer, of: &str, id: VolumeId) -> Error {
    match name(writer, of).await {
        Ok(Some(held)) if held.value.id == id => missing(of, id),
        Ok(_) => Error::NotFound(of.to_owned()),
        Err(error) => error.into(),
    }
}

/// What a name's record means for a volume that would have the name.
enum Standing {
    /// Another volume has the name, or is about to have it.
    Taken,
    /// Left from a removal or a renaming: its volume neither has the name nor is about to have it.
    Stale,
    /// Left from a renaming or a restore that broke off, and the vault still names it. This node
    /// wrote that vault last.
    Left(Box<Held<Vault>>),
}

async fn standing(writer: &Writer, held: &Held<Name>) -> Result<Standing, Error> {
    match vault(writer, held.value.id).await {
        Ok(Some(found)) => {
            let (vault, name) = (&found.value, &held.value.name);
            let has_it = vault.state == VaultState::Live && vault.name == *name;
            let is_about_to_have_it =
                vault.state != VaultState::Deleted && vault.also.as_ref() == Some(name);
            Ok(match (has_it, is_about_to_have_it) {
                (true, _) => Standing::Taken,
                (false, true) if found.writer().node == writer.node => {
                    Standing::Left(Box::new(found))
                }
                (false, true) => Standing::Taken,
                (false, false) => Standing::Stale,
            })
        }
        // The name may belong to a volume whose vault is lost.
        Ok(None) => Ok(Standing::Taken),
        Err(error) if matches!(error.kind(), Kind::Damaged | Kind::Unsupported) => {
            Ok(Standing::Taken)
        }
        Err(error) => Err(error.into()),
    }
}

async fn is_stale(writer: &Writer, held: &Held<Name>) -> Result<bool, Error> {
    Ok(matches!(standing(writer, held).await?, Standing::Stale))
}

/// Fails if another volume than `id` has the name. Returns the vault of a volume whose renaming, or
/// restore, by this node left the name when it broke off: the name is free once that has been
/// ended. The caller holds the lock of the name, so no such work of this node is under way.
pub(crate) async fn is_free_for(
    writer: &Writer,
    of: &str,
    id: VolumeId,
) -> Result<Option<Box<Held<Vault>>>, Error> {
    let Some(held) = name(writer, of).await?.filter(|held| held.value.id != id) else {
        return Ok(None);
    };
    match standing(writer, &held).await? {
        Standing::Stale => Ok(None),
        Standing::Left(vault) => Ok(Some(vault)),
        Standing::Taken => Err(Error::Exists(of.to_owned())),
    }
}

/// Makes a name lead to a volume, if no other volume has it. The caller holds the lock of the name.
///
/// The record is written even if it leads there already: another node that has judged it stale
/// before must fail with its conditional write.
pub(crate) async fn take_name(writer: &Writer, of: &str, id: VolumeId) -> Result<(), Error> {
    let taken = || Error::Exists(of.to_owned());
    let record = Name { name: of.to_owned(), id };
    let written = match name(writer, of).await? {
        None => writer.create(&key::name_key(of), record).await,
        Some(held) if held.value.id == id || is_stale(writer, &held).await? => {
            writer.replace(&held, record).await
        }
        Some(_) => return Err(taken()),
    };
    match written {
        Err(rekindle_datastore::Error::Exists(_) | rekindle_datastore::Error::Conflict(_)) => {
            Err(taken())
        }
        written => Ok(written.map(drop)?),
    }
}

/// Deletes a name if it leads to the volume. Whether it did. The caller holds the lock of the name.
pub(crate) async fn free_name(writer: &Writer, of: &str, id: VolumeId) -> Result<bool, Error> {
    match name(writer, of).await?.filter(|held| held.value.id == id) {
        Some(held) => free(writer, &held).await,
        None => Ok(false),
    }
}

async fn free(writer: &Writer, held: &Held<Name>) -> Result<bool, Error> {
    match writer.remove(held).await {
        // Another node has written it meanwhile.
        Err(rekindle_datastore::Error::Conflict(_)) => Ok(false),
        removed => Ok(removed.map(|()| true)?),
    }
}

/// Deletes a name whose volume does not have it. Whether it did. The caller holds the lock of the
/// name.
pub(crate) async fn free_stale(writer: &Writer, of: &str) -> Result<bool, Error> {
    match name(writer, of).await? {
        Some(held) if is_stale(writer, &held).await? => free(writer, &held).await,
        _ => Ok(false),
    }
}

/// Lists all objects below a prefix.
pub(crate) async fn list(
    writer: &Writer,
    prefix: &str,
) -> Result<Vec<Listed>, rekindle_datastore::Error> {
    let mut all: Vec<Listed> = Vec::new();
    loop {
        let last = all.last().map(|listed| listed.key.as_str());
        let page = writer.store.list(prefix, last).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

/// Lists all keys below a prefix.
pub(crate) async fn keys(
    writer: &Writer,
    prefix: &str,
) -> Result<Vec<String>, rekindle_datastore::Error> {
    Ok(list(writer, prefix).await?.into_iter().map(|listed| listed.key).collect())
}

/// Lists the ids and tags of all vaults, whatever their state. A foreign key is an error: it may
/// hide a vault.
pub(crate) async fn vaults(
    writer: &Writer,
) -> Result<Vec<(VolumeId, Option<Tag>)>, rekindle_datastore::Error> {
    let id_of = |Listed { key, tag, .. }: Listed| match key
        .strip_prefix(key::VOLUMES)
        .and_then(|id| id.parse().ok())
    {
        Some(id) => Ok((id, tag)),
        None => Err(rekindle_datastore::Error::Damaged {
            reason: "its key is not that of a vault".to_owned(),
            key,
        }),
    };
    list(writer, key::VOLUMES).await?.into_iter().map(id_of).collect()
}

/// Lists the ids of all vaults, whatever their state. A foreign key is an error.
pub(crate) async fn vault_ids(writer: &Writer) -> Result<Vec<VolumeId>, rekindle_datastore::Error> {
    Ok(vaults(writer).await?.into_iter().map(|(id, _)| id).collect())
}

/// Lists the ids and tags of all vaults, for callers that tolerate a foreign key: it is logged and
/// skipped.
pub(crate) async fn known_vaults(
    writer: &Writer,
) -> Result<Vec<(VolumeId, Option<Tag>)>, rekindle_datastore::Error> {
    let mut vaults = Vec::new();
    for Listed { key, tag, .. } in list(writer, key::VOLUMES).await? {
        match key.strip_prefix(key::VOLUMES).and_then(|id| id.parse().ok()) {
            Some(id) => vaults.push((id, tag)),
            None => tracing::warn!(
                key,
                "is not the key of a vault, and no sweep goes on while it is there"
            ),
        }
    }
    Ok(vaults)
}

/// Lists the ids of these vaults.
pub(crate) async fn known_vault_ids(
    writer: &Writer,
) -> Result<Vec<VolumeId>, rekindle_datastore::Error> {
    Ok(known_vaults(writer).await?.into_iter().map(|(id, _)| id).collect())
}

/// Reads the records of all items, many together, and returns each with its item, in any order.
/// The runs are taken apart in tasks of their own.
pub(crate) async fn read_all<T: Body, I: Send + 'static>(
    writer: &Writer,
    items: Vec<I>,
    key: impl Fn(&I) -> String,
) -> Vec<(I, Result<Option<Held<T>>, rekindle_datastore::Error>)> {
    let mut runs = Vec::with_capacity(items.len() / limits::RUN_MAX + 1);
    let mut items = items.into_iter().map(|item| (key(&item), item)).peekable();
    while items.peek().is_some() {
        let (keys, run): (Vec<String>, Vec<I>) = items.by_ref().take(limits::RUN_MAX).unzip();
        runs.push((keys, run));
    }
    let read = |(keys, run): (Vec<String>, Vec<I>)| {
        let reader = writer.clone();
        writer.env.run("read-records", async move {
            let mut read = Vec::with_capacity(keys.len());
            while read.len() < keys.len() {
                read.extend(reader.read_together::<T>(&keys[read.len()..]).await);
            }
            run.into_iter().zip(read).collect::<Vec<_>>()
        })
    };
    let read = stream::iter(runs).map(read).buffer_unordered(limits::RUNS_MAX);
    read.flat_map(stream::iter).collect().await
}

/// Runs `work` on all items, several at once, and returns the results in any order.
pub(crate) async fn each<I, T, F: Future<Output = T>>(
    items: Vec<I>,
    work: impl FnMut(I) -> F,
) -> Vec<T> {
    stream::iter(items).map(work).buffer_unordered(limits::READS_MAX).collect().await
}
